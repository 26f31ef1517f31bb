"""Effects and costs of faults, from histories with few other rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chaos.judge.event import Event, packed
from chaos.judge.run import Run
from chaos.judge.timeline import faults

NS = 10**9
ENDED_S = 100
Window = tuple[float, float]


def fault_row(
    second: float, call: int, type_: str, detail: dict[str, Any] | None, fault: str
) -> dict[str, Any]:
    text = None if detail is None else json.dumps(detail)
    row = {"process": "nemesis", "call": call, "type": type_, "op": "fault", "node": "n1", "fault": fault}
    return row | {"time_ns": int(second * NS), "detail": text}


def fault(name: str, begin_s: float, end_s: float, call: int = 1) -> list[dict[str, Any]]:
    return [fault_row(begin_s, call, "invoke", {}, name), fault_row(end_s, call, "ok", {}, name)]


def found(
    rows: list[dict[str, Any]], everywhere: list[Window] | None = None, **of_nodes: list[Window]
) -> list[dict[str, Any]]:
    """The table of these rows, with windows of the whole cluster and of nodes."""
    unavailable = [
        {"start": start, "end": end, "node": node}
        for node, windows in of_nodes.items()
        for start, end in windows
    ]
    outages = [{"start": start, "end": end, "node": "everywhere"} for start, end in everywhere or []]
    events = [Event._make(packed(row)) for row in rows]
    return faults(events, unavailable, outages, Run(0, ENDED_S * NS, {}))


def costs(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(pytest.approx(row[name]) for name in ("outage", "node_outage", "recovery"))


def test_killed_leader_costs_an_election_and_its_nodes_restart() -> None:
    (row,) = found(fault("kill_leader", 10, 16), [(10.05, 10.35)], n1=[(10.1, 19.5)], n2=[(10.0, 10.4)])
    assert costs(row) == (0.3, 9.4, 3.5)


def test_wiped_disk_costs_its_node_the_time_of_its_repair() -> None:
    (row,) = found(fault("wipe", 10, 40), n1=[(10.2, 40.0)])
    assert costs(row) == (0.0, 29.8, 0.0)


def test_longest_outage_since_the_start_of_a_fault_counts() -> None:
    rolled = fault("rolling_restart", 10, 30)
    (row,) = found(rolled, [(8.0, 10.5), (20.0, 20.8), (29.0, 29.1)], n1=[(8.0, 11.0), (30.9, 31.5)])
    assert costs(row) == (0.8, 1.0, 1.5)


def test_outages_before_and_long_after_a_fault_do_not_count() -> None:
    (row,) = found(fault("latency", 10, 15), [(8.0, 9.9), (16.5, 18.0)], n1=[(8.0, 9.9), (16.5, 18.0)])
    assert costs(row) == (0.0, 0.0, 0.0)


def test_end_of_a_fault_gives_its_outcome() -> None:
    parameters: dict[str, Any] = {"seed": 7}
    noticed = parameters | {"file": "1.segment", "bit": 12, "noticed": True}
    failed = parameters | {"error": "n2 did not stop in 30 s"}
    rows = [
        fault_row(1, 1, "invoke", parameters, "bit_flip"),
        fault_row(2, 1, "ok", noticed, "bit_flip"),
        fault_row(3, 2, "invoke", parameters, "restart"),
        fault_row(4, 2, "fail", failed, "restart"),
        fault_row(5, 3, "invoke", parameters, "power_loss"),
        fault_row(6, 3, "ok", None, "power_loss"),
        fault_row(7, 4, "invoke", parameters, "pause"),
        fault_row(8, 5, "info", {"left out": "no node leads"}, "kill_leader"),
    ]
    table = found(rows[::-1])
    assert [(row["fault"], row["outcome"], json.loads(row["detail"])) for row in table] == [
        ("bit_flip", "ok", noticed),
        ("restart", "fail", failed),
        ("power_loss", "ok", parameters),
        ("pause", "unknown", parameters),
    ]
    assert table[-1]["end"] == ENDED_S
