"""The verdict on clusters in any state: its line, and its severity."""

from __future__ import annotations

from typing import Any

import pytest

from qq.diagnosis.findings import Severity
from qq.management.nodes.verdict import judge


def node(name: str, **facts: Any) -> dict[str, Any]:
    usual = {"state": "follower", "role": "voter", "standing": "voter", "alarm": False, "drained": False}
    usual |= {"disk_free_bytes": 2**30, "commit_index": 50_000, "applied_index": 50_000}
    return {"name": name, **usual, **facts}


DOWN: dict[str, Any] = {"state": "down", "standing": None, "alarm": None, "disk_free_bytes": None}
DOWN |= {"commit_index": None, "applied_index": None}
FULL: dict[str, Any] = {"alarm": True, "disk_free_bytes": 100}


def cluster(*nodes: dict[str, Any], leader: str | None = "n1") -> dict[str, Any]:
    return {"node": "n1", "nodes": list(nodes), "leader": leader}


@pytest.mark.parametrize(
    ("answer", "is_well", "text"),
    [
        (cluster(node("n1"), node("n2"), node("n3")), True, "all well: 3 of 3 members, n1 leads"),
        (
            cluster(node("n1"), node("n2")),
            True,
            "all well: 2 of 2 members, n1 leads; if a voter stops, nothing is confirmed",
        ),
        (
            cluster(node("n1"), node("n2", drained=True), node("n3")),
            True,
            "all well: 3 of 3 members, n1 leads; under maintenance: n2",
        ),
        (
            cluster(node("n1"), node("n2"), node("n3", lost_ms=1_764_435_600_000)),
            True,
            "all well: 3 of 3 members, n1 leads; n3 lost its data at 2025-11-29T17:00:00Z",
        ),
        (
            cluster(node("n1"), node("n2"), node("n3", role="learner", lost_ms=1_764_435_600_000)),
            False,
            "not well: is being given the log: n3; n1 leads; n3 lost its data at 2025-11-29T17:00:00Z",
        ),
        (
            cluster(node("n1"), node("n2", applied_index=45_000), node("n3", applied_index=30_000)),
            False,
            "not well: applies what it lacks, and its clients wait: n3; n1 leads",
        ),
        (
            # The leader reaches a node that this node does not hear.
            cluster(*map(node, ("n1", "n2")), *(node(name, **DOWN) for name in ("n3", "n4", "n5")), leader="n2"),
            False,
            "not well: n3, n4, n5 do not answer; n2 leads",
        ),
        (
            cluster(node("n1"), node("n2", **DOWN), node("n3", **DOWN), leader=None),
            False,
            "no majority: n2, n3 do not answer",
        ),
        (
            cluster(node("n1"), *(node(name, **DOWN) for name in ("n2", "n3")), leader=None)
            | {"majority_lost": "the logs of n2, n3 are damaged or lost: put them back"},
            False,
            "no majority: the logs of n2, n3 are damaged or lost: put them back",
        ),
        (
            cluster(node("n1"), node("n2"), node("n3", other_directory=True, **DOWN)),
            False,
            "not well: another data directory than that of the member is up under the name n3; n1 leads",
        ),
        (
            # A former leader may not know yet.
            cluster(node("n1", state="leader"), node("n2", **DOWN), node("n3", **DOWN)),
            False,
            "no majority: n2, n3 do not answer",
        ),
        (
            cluster(node("n1"), node("n2"), node("n3", **DOWN)),
            False,
            "not well: n3 does not answer; n1 leads",
        ),
        (
            cluster(node("n1"), node("n2"), node("n3"), leader=None),
            False,
            "nobody leads: n1, n2, n3 are a majority, and should elect a leader in a moment; ask again",
        ),
        (
            cluster(node("n1"), node("n2", hears_leader=True), node("n3", **DOWN), leader=None),
            False,
            "n1 hears no leader, so its clients wait: n2 can tell who leads; n3 does not answer",
        ),
        (
            cluster(node("n1"), node("n2", alarm=True), node("n3", standing="learner")),
            False,
            "not well: publishers wait, for want of disk or memory of n2; is being given the log: n3; n1 leads",
        ),
        (
            cluster(node("n1"), node("n2", **FULL), node("n3")),
            False,
            "not well: publishers wait, for want of disk or memory of n2; n1 leads",
        ),
        (
            cluster(node("n1"), node("n2", **FULL), node("n3", **DOWN)),
            False,
            (
                "nothing is confirmed: the disks of n2 are full; n3 does not answer; "
                "publishers wait, for want of disk or memory of n2"
            ),
        ),
        (
            cluster(node("n1"), node("n2"), node("n3"), node("n4", role="awaited", **DOWN)),
            False,
            "not well: has not come yet: n4; n1 leads",
        ),
        (
            cluster(node("n1"), node("n2"), node("n3"), node("n4", role="learner")),
            False,
            "not well: is being given the log: n4; n1 leads",
        ),
        (
            cluster(node("n1"), node("n2", standing="blank"), node("n3", **DOWN), leader=None),
            False,
            "no majority: n3 does not answer; is being given the log: n2",
        ),
        (
            cluster(node("n1"), node("n2", disk_hangs=True), node("n3")),
            False,
            "not well: has a disk that does not answer: n2; n1 leads",
        ),
        (
            cluster(node("n1", misses=[]), node("n2", misses=["n3"]), node("n3", misses=["n2"])),
            False,
            "not well: n2 and n3 have no link; n1 leads",
        ),
        (
            cluster(node("n1", misses=["n3"]), node("n2", misses=["n3"]), node("n3", **DOWN)),
            False,
            "not well: n3 does not answer; n1 leads",
        ),
        (
            cluster(node("n1"), node("n2", disk_hangs=True), node("n3", **DOWN)),
            False,
            "nothing is confirmed: n3 does not answer; has a disk that does not answer: n2",
        ),
        (
            cluster(node("n1", drained=True), node("n2"), node("n3", **DOWN)),
            False,
            "not well: n3 does not answer; n1 leads; under maintenance: n1",
        ),
        (
            cluster(node("n1", drained=True), node("n2", drained=True), node("n3", **DOWN)),
            False,
            "nobody serves clients: n3 does not answer; under maintenance: n1, n2 (`qq revive` ends that)",
        ),
        (
            # Release 0.1 tells no roles.
            cluster(node("n1", role=None), node("n2", role=None), node("n3", role=None, **DOWN)),
            False,
            "not well: n3 does not answer; n1 leads",
        ),
    ],
)  # fmt: skip
def test_a_cluster_is_judged_in_a_line(answer: dict[str, Any], is_well: bool, text: str) -> None:
    health = judge(answer)
    assert (health.is_well, health.text) == (is_well, text)


@pytest.mark.parametrize(
    ("answer", "severity"),
    [
        (cluster(node("n1"), node("n2"), node("n3")), Severity.INFO),
        (cluster(node("n1"), node("n2", drained=True), node("n3")), Severity.WARNING),
        (cluster(node("n1"), node("n2"), node("n3"), node("n4", role="learner")), Severity.WARNING),
        (cluster(node("n1"), node("n2"), node("n3", **DOWN)), Severity.CRITICAL),
        (cluster(node("n1"), node("n2", alarm=True), node("n3")), Severity.CRITICAL),
        (cluster(node("n1"), node("n2"), node("n3"), leader=None), Severity.CRITICAL),
    ],
)
def test_verdict_is_critical_if_a_member_is_down(answer: dict[str, Any], severity: Severity) -> None:
    assert judge(answer).severity is severity
