"""The benchmark of the checker judges a history as a run would have written it."""

from __future__ import annotations

import json
from pathlib import Path

from chaos.history import read
from tests.benchmarks.checker import ROWS_PER_MESSAGE, write_run


def test_generated_history_follows_the_schema(tmp_path: Path) -> None:
    write_run(tmp_path, 1000)
    rows = read(tmp_path / "history")
    assert len(rows) == 1000 == json.loads((tmp_path / "meta.json").read_text())["rows"]
    assert [row["op"] for row in rows[:ROWS_PER_MESSAGE]] == ["publish", "publish", "deliver", "ack", "ack"]
