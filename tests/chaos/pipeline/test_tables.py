"""The tables that the job computes for the report, and the numbers of the whole run."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.chaos.judge.histories import SECONDS
from tests.chaos.pipeline.conftest import Checked

# The first test waits for Spark and for the check that all tests share: half a minute, more on a busy machine.
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]


def table(checked: Checked, name: str) -> list[dict[str, Any]]:
    return pq.read_table(checked.directory / "tables" / f"{name}.parquet").to_pylist()


def rows_of(checked: Checked) -> list[dict[str, Any]]:
    (file,) = (checked.directory / "history").iterdir()
    return [json.loads(line) for line in file.read_text().splitlines()]


def near(value: float) -> Any:
    """A time: it is exact to the nanosecond in the history."""
    return pytest.approx(value, abs=1e-6)


def test_throughput_is_counted_by_second_and_node(checked: Checked) -> None:
    rows = [row for row in table(checked, "throughput") if row["node"] in {"east", "west"}]
    by_place = {(row.pop("second"), row.pop("node")): row for row in rows}
    assert by_place[100, "east"] == {"published": 11, "confirmed": 11, "delivered": 0, "unknown": 0}
    assert by_place[100, "west"] == {"published": 0, "confirmed": 0, "delivered": 10, "unknown": 0}
    assert by_place[112, "east"] == {"published": 0, "confirmed": 0, "delivered": 0, "unknown": 1}


def test_latency_is_of_the_messages_that_began_in_a_second(checked: Checked) -> None:
    rows = {(row["second"], row["kind"]): row for row in table(checked, "latency")}
    confirm, deliver = rows[100, "confirm"], rows[100, "deliver"]
    assert (confirm["p50"], confirm["p99"], confirm["max"]) == (near(2), near(40), near(40))
    # Messages that wait on purpose are not counted.
    assert (deliver["p50"], deliver["p99"], deliver["max"]) == (near(5), near(43), near(43))
    assert rows[105, "confirm"]["max"] == near(200)
    assert None not in {row["second"] for row in rows.values()}


def test_windows_without_confirms_are_listed_for_each_node(checked: Checked) -> None:
    windows = [
        (row["node"], row["start"], row["end"])
        for row in table(checked, "unavailable")
        if row["node"] in {"east", "west"}
    ]
    assert windows == [
        ("east", near(111.0), near(113.5)),
        ("east", near(120.0), near(121.0)),
        ("west", near(170.0), near(175.0)),
        ("west", near(180.0), near(186.5)),
    ]


def test_faults_are_listed_with_the_outages_they_caused(checked: Checked) -> None:
    faults = {row.pop("fault"): row for row in table(checked, "faults")}
    fault_columns = {"node": "n1,n2", "outcome": "ok", "detail": "{}"}
    quiet = {"outage": 0.0, "node_outage": 0.0, "recovery": 0.0}
    assert faults == {
        "kill_leader": fault_columns
        | {"start": near(110.9), "end": near(112.5)}
        | {"outage": near(2.5), "node_outage": near(2.5), "recovery": near(1.0)},
        "partition_ring": fault_columns
        | {"start": near(119.9), "end": near(120.5)}
        | {"outage": near(1.2), "node_outage": near(1.0), "recovery": near(0.5)},
        "latency": fault_columns | {"start": near(150.0), "end": near(151.0)} | quiet,
        "pause": {"start": near(290.0), "end": near(SECONDS), "node": "n3"}
        | {"outcome": "unknown", "detail": None}
        | quiet,
    }


def test_figures_are_of_the_whole_run(checked: Checked) -> None:
    figures = checked.verdict.figures
    violations = {promise.name: promise.violations for promise in checked.verdict.promises}
    assert figures["longest_unavailability_s"] == near(6.5)
    assert figures["longest_outage_s"] == near(5.0)
    assert figures["confirm_max_ms"] == near(400.0)
    assert figures["confirm_p50_ms"] <= figures["confirm_p99_ms"] <= figures["confirm_max_ms"]
    assert figures["lost"] == violations["lost"]
    assert figures["duplicated"] == violations["unmarked_duplicate"] + violations["dedup_duplicate"]
    rows = rows_of(checked)
    for figure, op, type_ in (
        ("published", "publish", "invoke"),
        ("confirmed", "publish", "ok"),
        ("delivered", "deliver", "ok"),
    ):
        messages = {(row["queue"], row["id"]) for row in rows if (row["op"], row["type"]) == (op, type_)}
        assert figures[figure] == len(messages)


def test_verdict_counts_rows_and_outcomes_of_operations(checked: Checked) -> None:
    rows = rows_of(checked)
    ends = Counter((row["op"], row["type"]) for row in rows)
    assert checked.verdict.rows == checked.rows == len(rows)
    assert checked.verdict.operations["publish"] == {
        type_: ends["publish", type_] for type_ in ("ok", "fail", "unknown")
    }
    assert checked.verdict.operations["tx_commit"] == {"ok": 4, "fail": 1, "unknown": 8}


def test_verdict_file_equals_the_verdict(checked: Checked) -> None:
    document = json.loads((checked.directory / "verdict.json").read_text())
    assert document["format"] == 1
    assert document["valid"] is checked.verdict.valid is False
    assert [promise["name"] for promise in document["promises"]] == [
        promise.name for promise in checked.verdict.promises
    ]
    assert document["promises"][0]["examples"] == checked.verdict.promises[0].examples
    assert {path.name for path in checked.directory.iterdir()} == {
        "history",
        "meta.json",
        "tables",
        "verdict.json",
    }
