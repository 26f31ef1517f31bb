"""A connected member without messages counts as absent: it is frozen, or its messages are lost.

A leader that some members cannot hear hands over to a member that all can hear.
"""

from __future__ import annotations

import pytest

from cluster.membership.leadership import APART_S
from cluster.membership.peer_status import SILENT_S
from cluster.membership.view import Members
from cluster.raft.messages import Alarm
from tests.cluster.harness import Growing, drain

SILENT_MS = int(SILENT_S * 1000) + 500


def test_a_frozen_member_is_shown_as_down_and_missed(growing: Growing) -> None:
    leader, frozen, third = growing.leader(), *growing.followers()
    frozen.runtime.pause()
    growing.pass_ms(SILENT_MS)
    for member in (leader, third):
        statuses = member.group.statuses
        assert [each.name for each in statuses.all() if each.state == "down"] == [frozen.name]
        assert statuses.own().misses == (frozen.name,)
    frozen.runtime.go_on()
    growing.pass_ms(SILENT_MS)
    assert not [each for each in leader.group.statuses.all() if each.state == "down" or each.misses]


def test_member_cut_off_from_the_leader_names_a_follower(growing: Growing) -> None:
    leader, apart, third = growing.leader(), *growing.followers()
    growing.network.cut(leader.name, apart.name)
    growing.network.cut(apart.name, leader.name)
    growing.pass_ms(SILENT_MS)
    assert apart.group.why_undecided() == (
        f"no leader: this node hears none, and {third.name} hears one; {leader.name} cannot be heard (look at the "
        "network between the nodes)"
    )
    assert {each.name: each.hears_leader for each in apart.group.statuses.all() if each.state != "down"} == {
        apart.name: False,
        third.name: True,
    }


def test_member_that_the_leader_does_not_hear_says_so(growing: Growing) -> None:
    """Its clients would wait: it hears the leader, and its batches do not arrive."""
    leader, apart, third = growing.leader(), *growing.followers()
    for other in (leader, third):
        growing.network.hold(apart.name, other.name)
    growing.pass_ms(SILENT_MS + 1000)
    assert apart.group.leader == leader.name
    assert apart.group.why_undecided() == (
        f"{leader.name}, the leader, does not hear this node, which hears it (look at the network between them)"
    )
    assert third.group.why_undecided() is leader.group.why_undecided() is None
    for other in (leader, third):
        growing.network.heal(apart.name, other.name)
    growing.until(lambda: apart.group.why_undecided() is None)


def test_member_with_a_full_disk_gives_that_reason(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    member = growing.followers()[0]
    assert member.group.why_undecided() is None
    full = {"may_lead": 0, "alarm": Alarm.DISK}
    own = member.group.own_status.now()._replace(**full)
    monkeypatch.setattr(member.group.own_status, "now", lambda: own)
    assert member.group.why_undecided() == "the node's disk is full: it goes on when there is space"


@pytest.mark.parametrize("ways", ["both", "to the member", "to the leader"])
def test_a_leader_leaves_leading_to_a_member_that_reaches_more(growing: Growing, ways: str) -> None:
    """Clients of the unreachable member would wait until the links recover."""
    leader, apart, third = growing.leader(), *growing.followers()
    cuts = {"to the member": (leader.name, apart.name), "to the leader": (apart.name, leader.name)}
    for cut in cuts.values() if ways == "both" else [cuts[ways]]:
        growing.network.cut(*cut)
    growing.pass_ms(int(APART_S * 1000) - 500)
    assert leader.group.engine.is_leader
    growing.until(lambda: third.group.engine.is_leader)
    term = third.group.engine.term
    growing.pass_ms(3 * int(APART_S * 1000))
    assert [third.name] * 3 == [member.group.engine.leader for member in growing.members]
    assert third.group.engine.term == term


def test_a_member_of_release_0_1_is_not_taken_to_reach_more(
    growing: Growing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Release 0.1 does not report missing peers: if a member is down, it may miss that member too."""
    leader, apart, of_0_1 = growing.leader(), *growing.followers()
    monkeypatch.setattr(Members, "of_release_0_1", (of_0_1.name,))
    for cut in ((leader.name, apart.name), (apart.name, leader.name)):
        growing.network.cut(*cut)
    growing.pass_ms(2 * int(APART_S * 1000))
    assert leader.group.engine.is_leader


def test_leadership_stays_if_no_member_has_more_links(growing: Growing) -> None:
    leader, dead, drained = growing.leader(), *growing.followers()
    term = leader.group.engine.term
    dead.end()
    growing.pass_ms(2 * int(APART_S * 1000))
    dead.start()
    growing.until(lambda: leader.group.engine.commit_index == dead.group.engine.commit_index)
    drain(growing, drained)
    for cut in ((leader.name, dead.name), (dead.name, leader.name)):
        growing.network.cut(*cut)
    growing.pass_ms(2 * int(APART_S * 1000))
    assert leader.group.engine.is_leader
    assert leader.group.engine.term == term
