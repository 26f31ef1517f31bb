"""The history as a file: written rows are read back, and damage is reported in a line."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest

from chaos.history import FIELD_TYPES, OPERATIONS, Fields, HistoryError, Recorder, Row, read

if TYPE_CHECKING:
    from pathlib import Path

ROW = {"time_ns": 2, "process": "p", "call": 1, "type": "invoke", "op": "publish"}


def _written(directory: Path, *lines: str) -> Path:
    (directory / "h.jsonl").write_text("".join(lines))
    return directory


def _line(**changes: object) -> str:
    return json.dumps(ROW | changes) + "\n"


def test_recorded_operation_is_read_back_with_all_fields(tmp_path: Path) -> None:
    everything: Fields = {
        "workload": "confirm",
        "node": "n1",
        "connection": "c",
        "channel": 1,
        "queue": "q\u00fc",
        "consumer": "t",
        "id": "p:1",
        "publisher": "p",
        "sequence": 1,
        "attempt": 1,
        "priority": 5,
        "redelivered": False,
        "delivery_count": 0,
        "deaths": [{"queue": "q", "reason": "rejected", "count": 2}],
        "tx": "t/1",
        "dedup": True,
        "ttl_ms": 1000,
        "delay_ms": 500,
        "group": "g",
        "fence": 1,
        "lease": 2,
        "place": 0,
        "messages": 3,
        "digest": "c0e1fbe7",
        "fault": "kill",
        "detail": 'a "text"\nof two lines',
    }
    with Recorder(tmp_path / "h.jsonl") as recorder:
        recorder.process("p").event("deliver", **everything)
    [row] = read(tmp_path)
    assert row.items() >= everything.items()
    assert row.keys() == FIELD_TYPES.keys()
    assert Row.__annotations__.keys() == FIELD_TYPES.keys()


def test_end_of_a_call_repeats_its_invoke_and_counts_once(tmp_path: Path) -> None:
    with Recorder(tmp_path / "h.jsonl") as recorder:
        process = recorder.process("p", "confirm")
        first = process.invoke("publish", queue="q", id="p:1", node=None)
        second = process.invoke("publish", queue="q", id="p:2")
        second.unknown("lost")
        first.ok()
        first.fail("too late")
    rows = read(tmp_path)
    assert [(row["call"], row["type"], row["id"]) for row in rows] == [
        (1, "invoke", "p:1"),
        (2, "invoke", "p:2"),
        (2, "unknown", "p:2"),
        (1, "ok", "p:1"),
    ]
    assert {row["workload"] for row in rows} == {"confirm"}
    assert "node" not in rows[0]
    assert recorder.counts["publish", "invoke"] == 2


def test_times_rise_and_no_row_is_torn_whichever_threads_record(tmp_path: Path) -> None:
    def work(name: str) -> None:
        process = recorder.process(name)
        for _ in range(500):
            process.invoke("ack").ok()

    with Recorder(tmp_path / "h.jsonl") as recorder:
        threads = [threading.Thread(target=work, args=(f"p{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows = read(tmp_path)  # which refuses times that do not rise
    assert len(rows) == 4 * 500 * 2


def test_rows_of_all_files_are_ordered_by_time(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(_line(time_ns=1) + _line(time_ns=4))
    (tmp_path / "b.jsonl").write_text(_line(time_ns=3))
    assert [row["time_ns"] for row in read(tmp_path)] == [1, 3, 4]


def test_flushed_rows_are_readable_during_the_run(tmp_path: Path) -> None:
    with Recorder(tmp_path / "h.jsonl") as recorder:
        recorder.process("p").event("heal")
        recorder.flush()
        assert len(read(tmp_path)) == 1


def test_recorder_ignores_operations_after_its_end(tmp_path: Path) -> None:
    with Recorder(tmp_path / "h.jsonl") as recorder:
        call = recorder.process("p").invoke("publish")
    call.unknown("a client that never ended")
    recorder.flush()
    assert [row["type"] for row in read(tmp_path)] == ["invoke"]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (_line()[:30], r"h.jsonl:2: the line is cut: \{.time_ns"),
        ("nonsense\n", "h.jsonl:2: not JSON: nonsense"),
        ("[1]\n", "h.jsonl:2: not an object"),
        ('{"time_ns": 3}\n', "h.jsonl:2: process is missing"),
        (_line(time_ns="now"), "h.jsonl:2: time_ns is 'now', not int"),
        (_line(time_ns=3, call=True), "h.jsonl:2: call is True, not int"),
        (_line(time_ns=3, type="maybe"), "h.jsonl:2: unknown type 'maybe'"),
        (_line(time_ns=3, op="eat"), "h.jsonl:2: unknown op 'eat'"),
        (_line(time_ns=3, colour="red"), "h.jsonl:2: unknown key colour"),
        (_line(time_ns=3, deaths=[{"queue": "q"}]), "h.jsonl:2: deaths has"),
        (_line(), "h.jsonl:2: time_ns does not rise"),
    ],
)
def test_invalid_line_of_a_history_is_reported_in_a_single_line(
    tmp_path: Path, line: str, error: str
) -> None:
    with pytest.raises(HistoryError, match=error) as raised:
        read(_written(tmp_path, _line(), line))
    assert "\n" not in str(raised.value)


def test_directory_without_a_history_is_reported(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="no history there"):
        read(tmp_path)


def test_every_operation_is_accepted(tmp_path: Path) -> None:
    lines = [_line(time_ns=number, op=op) for number, op in enumerate(OPERATIONS, start=1)]
    assert len(read(_written(tmp_path, *lines))) == len(OPERATIONS)
