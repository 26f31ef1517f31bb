"""Members under maintenance: others lead, as long as others can."""

from __future__ import annotations

import pytest
from test_group_members import Growing
from test_group_timers import Member

from cluster.envelope import TimeoutNow
from cluster.maintenance import PATIENCE_S
from cluster.member_changes import MemberChange, Verb

ELECTION_MS = 5_000


@pytest.fixture
def growing() -> Growing:
    growing = Growing()
    growing.start()
    growing.until(lambda: growing.agrees("abc"))
    growing.pass_ms(2_000)  # everybody has told how it is
    return growing


def drain(growing: Growing, *nodes: Member) -> None:
    for node in nodes:
        assert growing.asked(node, MemberChange(Verb.DRAIN, node.name)) == ""


def leads(growing: Growing, *nodes: Member) -> bool:
    return any(node.runtime.alive and node.group.engine.is_leader for node in nodes) and all(
        member.group.leader in {node.name for node in nodes}
        for member in growing.members
        if member.runtime.alive
    )


def test_a_leader_under_maintenance_hands_over(growing: Growing) -> None:
    drained, *others = growing.leader(), *growing.followers()
    drain(growing, drained)
    growing.until(lambda: leads(growing, *others))
    growing.all_submit()
    growing.pass_ms(500)
    for _ in range(4):  # it goes around among the others
        growing.leader().group.leadership.transfer()
        growing.pass_ms(1_000)
        assert leads(growing, *others)


def test_who_is_under_maintenance_is_not_made_the_leader(growing: Growing) -> None:
    leader, drained, _ = growing.leader(), *growing.followers()
    drain(growing, drained)
    assert leader.group.statuses.why_not_lead(drained.name) == (
        f"{drained.name} is under maintenance (end that with `qq revive {drained.name}`)"
    )
    assert not leader.group.leadership.transfer(drained.name)
    assert growing.asked(drained, MemberChange(Verb.REVIVE, drained.name)) == ""
    assert leader.group.leadership.transfer(drained.name)
    growing.until(lambda: leads(growing, drained))


def test_who_is_under_maintenance_does_not_stand_for_leader_while_another_can(growing: Growing) -> None:
    leader, drained, other = growing.leader(), *growing.followers()
    drain(growing, drained)
    leader.end()
    growing.pass_ms(ELECTION_MS)
    assert leads(growing, other)


def test_it_leads_where_nobody_else_is_left_and_until_somebody_is(growing: Growing) -> None:
    last, *drained = growing.leader(), *growing.followers()
    drain(growing, *drained)
    assert growing.leader() is last
    last.end()
    growing.pass_ms(int(PATIENCE_S * 1000) + ELECTION_MS)
    assert leads(growing, *drained)
    growing.all_submit()
    last.start()
    growing.until(lambda: leads(growing, last))


def test_who_is_under_maintenance_leads_if_a_leader_asks_because_nobody_else_can(growing: Growing) -> None:
    """Its log is damaged, so it can neither go on nor give the third one what that lacks (simulated: seed 1517)."""
    leader, drained, _ = growing.leader(), *growing.followers()
    drain(growing, drained)
    growing.pass_ms(1_000)
    assert drained.name in leader.group.leadership._not_to_lead()
    leader.group.leadership.give_way()
    assert drained.name not in leader.group.leadership._not_to_lead()
    message = TimeoutNow(leader.group.engine.term)
    drained.runtime.enter(lambda: drained.group._receive(leader.name, message))
    drained.runtime.enter(drained.group._turns.ask)
    growing.until(lambda: leads(growing, drained))
