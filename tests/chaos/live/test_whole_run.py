"""A whole run as the command carries it out: a cluster of its own that is hurt, the check, the report."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from chaos import history
from chaos.live import command, toxiproxy, versions
from chaos.live.run import Options
from qq import __version__

# A cluster, and Spark if this is the first test that needs it, have to be started.
pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("spark"),
    pytest.mark.usefixtures("spark"),
    pytest.mark.timeout(600),
]

FAULTS = ("kill_leader", "latency")


def test_hurt_cluster_keeps_its_promises_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "Options", partial(Options, peace_s=1.0, quiet_s=3.0))
    out = tmp_path / "run"
    arguments = [
        "--for",
        "8s",
        "--nemesis",
        ",".join(FAULTS),
        "--workloads",
        "confirm,churn,moved",
        "--seed",
        "3",
    ]
    assert command.main([*arguments, "--rate", "40", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("seed 3\n")
    assert "PROBLEM" not in printed

    meta = json.loads((out / "meta.json").read_text())
    assert meta["problems"] == []
    assert meta["nemesis"] == list(FAULTS)
    made_with = meta["versions"]
    assert made_with["toxiproxy"] == toxiproxy.VERSION.removeprefix("v")
    assert made_with["qq"] == __version__
    assert made_with.keys() >= {"python", "aio-pika", "pika", "pyspark", "java"}
    assert ("commit" in made_with) is (versions.commit() is not None)

    rows = history.read(out / "history")
    moved = [row for row in rows if row["op"] == "deliver" and row["process"].startswith("moved-con")]
    assert {row["queue"] for row in moved} == {"moved-from"}
    done = [row for row in rows if row["op"] == "fault" and row["type"] != "info"]
    assert {row["fault"] for row in done} == set(FAULTS)
    assert {row["type"] for row in done} == {"invoke", "ok"}

    verdict = json.loads((out / "verdict.json").read_text())
    assert verdict["valid"] is True
    assert {promise["name"] for promise in verdict["promises"] if promise["checked"]} >= {"lost", "order"}
    assert verdict["operations"]["get"]["ok"] > 0

    faults = pq.read_table(out / "tables" / "faults.parquet").to_pylist()
    assert [row["fault"] for row in faults] == [row["fault"] for row in done if row["type"] == "invoke"]
    assert {row["outcome"] for row in faults} == {"ok"}
    killed = next(row for row in faults if row["fault"] == "kill_leader")
    # The rest of the cluster elects a leader long before the killed node is back.
    assert killed["outage"] < killed["node_outage"]
    page = (out / "report.html").read_text()
    assert "<h1>VALID</h1>" in page
    assert all(f"{name} {number}" in page for name, number in made_with.items())
