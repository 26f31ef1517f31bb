"""Findings about the members."""

from __future__ import annotations

import pytest

from qq.diagnosis.findings import Finding
from qq.diagnosis.member_rules import ClusterFacts, MemberFacts, findings_of_members, findings_of_names

THREE = [MemberFacts(name, True, "voter", "voter", 0, 10, (), 8) for name in ("n1", "n2", "n3")]


def found(*members: MemberFacts, leader: str | None = "n1", version: int = 8) -> list[tuple[str, str]]:
    facts = ClusterFacts(leader, members or THREE, version)
    return [(each.code, each.subject) for each in findings_of_members(facts)]


def test_three_healthy_members_have_no_findings() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"is_up": False, "clock_offset_ms": 9000, "lag": 9000}, "node-down", "it does not answer"),
        ({"role": "awaited", "is_up": False}, "member-awaited", "it is a member that has not connected yet"),
        (
            {"standing": "blank", "lag": 9000},
            "node-under-repair",
            "it receives its log anew from other nodes: it has no vote",
        ),
        (
            {"is_up": False, "why_apart": "its cluster secret differs"},
            "node-down",
            "there is no link with it: its cluster secret differs",
        ),
        (
            {"lost_ms": 1_764_435_600_000},
            "data-lost",
            "it lost its data: a new data directory has taken the place of the last one",
        ),
        (
            {"disk_hangs": True},
            "disk-slow",
            "a write of its disk hangs: it has stored no entry since",
        ),
        ({"lag": 2001}, "node-behind", "it lacks 2,001 entries of the log"),
        ({"clock_offset_ms": 5001}, "clock-off", "its clock is 5.0 s ahead of the cluster's time"),
        ({"clock_offset_ms": -86_400_000}, "clock-off", "its clock is 86400.0 s behind the cluster's time"),
        (
            {"is_drained": True},
            "node-drained",
            "it is under maintenance: it serves no clients, and leads only if no other node can",
        ),
    ],
)
def test_member_finding_gives_code_and_text(change: dict[str, object], code: str, text: str) -> None:
    members = [
        *THREE[:2],
        THREE[2]._replace(**change),
        THREE[2]._replace(name="n4"),
        THREE[2]._replace(name="n5"),
    ]
    if change.get("role") != "voter" and "role" in change:
        members.append(THREE[2]._replace(name="n6"))  # five voters in any case
    since_ms = THREE[2]._replace(**change).lost_ms
    found = list(findings_of_members(ClusterFacts("n1", members, 8)))
    assert found == [Finding(code, "node n3", text, since_ms)]


def test_duplicate_node_name_is_a_finding() -> None:
    text = "a second process uses its name; the other nodes refuse that process"
    assert list(findings_of_names(["n3"])) == [Finding("name-twice", "node n3", text)]


def test_a_learner_is_no_voter() -> None:
    learner = MemberFacts("n4", True, "learner", "learner", highest=8)
    assert found(*THREE, learner._replace(standing="voter")) == [("member-learns", "node n4")]
    assert found(*THREE, learner) == [("node-under-repair", "node n4")]


def test_without_a_leader_and_with_too_few_members() -> None:
    down = [each._replace(is_up=False) for each in THREE[1:]]
    facts = ClusterFacts(None, [THREE[0], *down], 8)
    first = next(findings_of_members(facts))
    assert first == Finding(
        "no-leader",
        "cluster",
        "no message is confirmed: no leader is known, and this node sees 1 of 3 voters",
    )
    assert found(*THREE[:1]) == found(*THREE[:2]) == [("members-few", "cluster")]
    assert found(*THREE, THREE[0]._replace(name="n4")) == [("members-even", "cluster")]


def test_node_that_alone_misses_the_leader_is_a_finding() -> None:
    members = [
        THREE[0],
        THREE[1]._replace(hears_leader=True),
        THREE[2]._replace(hears_leader=True, is_up=False),
    ]
    first = next(findings_of_members(ClusterFacts(None, members, 8)))
    assert first == Finding(
        "leader-unheard",
        "cluster",
        "the asked node hears no leader, so its clients wait; n2 can name the leader",
    )


def test_members_without_a_link_are_reported_once() -> None:
    apart = [THREE[0]._replace(misses=("n3", "n2")), THREE[1], THREE[2]._replace(misses=("n1",))]
    apart[1] = apart[1]._replace(is_up=False)
    assert found(*apart) == [("node-down", "node n2"), ("link-missing", "nodes n1 and n3")]


@pytest.mark.parametrize(
    ("highest", "text"),
    [
        (
            [8, 8, 8],
            "it is at version 7 of the state; n1, n2, n3 can run a later version, as all members can",
        ),
        (
            [8, 7, None],
            "it is at version 7 of the state; n1 can run a later version; n2, n3 cannot, or is down",
        ),
    ],
)
def test_an_upgrade_that_waits(highest: list[int | None], text: str) -> None:
    members = [each._replace(highest=high) for each, high in zip(THREE, highest, strict=True)]
    [finding] = findings_of_members(ClusterFacts("n1", members, 7))
    assert finding == Finding("upgrade-waits", "cluster", text)
    assert found(*(each._replace(highest=7) for each in THREE), version=7) == []


def test_no_clients_are_served_when_all_live_nodes_are_drained() -> None:
    """The last serving node has failed: the rest was drained before, and stays so."""
    drained = [each._replace(is_drained=True) for each in THREE[:2]]
    one_serves = found(*drained, THREE[2])
    assert one_serves == [("node-drained", "node n1"), ("node-drained", "node n2")]
    for change in ({"is_up": False}, {"standing": "learner"}):
        facts = ClusterFacts("n1", [*drained, THREE[2]._replace(**change)], 8)
        assert next(findings_of_members(facts)) == Finding(
            "nobody-serves",
            "cluster",
            "no client can connect: all nodes that are up are under maintenance (n1, n2)",
        )
