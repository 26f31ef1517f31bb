"""Every golden scenario is replayed: the machine answers as written, and only queues change queues."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.machine.scenario_format import rerun

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_machine_still_answers_as_written(path: Path, rewrite: bool, foreign_changes: list[str]) -> None:
    written = path.read_text(encoding="utf-8")
    answered = rerun(written)
    if rewrite:
        path.write_text(answered, encoding="utf-8")
    assert rewrite or answered == written
    # The driver loads copies of backlogs to inspect them.
    assert {
        change for change in foreign_changes if not change.startswith("tests.machine.machine_driver: ")
    } == set()
