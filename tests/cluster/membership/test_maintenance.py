"""Members under maintenance: another member leads whenever possible."""

from __future__ import annotations

from functools import partial

import pytest

from cluster.configuration.change_request import MemberChange, Verb
from cluster.log.segment import CorruptJournal
from cluster.membership.maintenance import PATIENCE_S
from cluster.raft.messages import Alarm
from tests.cluster.harness import Growing, Member, applied, drain, leads, remove, replace_, submit

ELECTION_MS = 5_000


def test_a_leader_under_maintenance_hands_over(growing: Growing) -> None:
    drained, *followers = growing.leader(), *growing.followers()
    drain(growing, drained)
    growing.until(lambda: leads(growing, *followers))
    growing.all_submit()
    growing.pass_ms(500)
    for _ in range(4):  # leadership goes through the other members
        growing.leader().group.leadership.transfer()
        growing.pass_ms(1_000)
        assert leads(growing, *followers)


@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.slow
def test_drained_leader_hands_over_to_a_member_that_keeps_up(growing: Growing, slow: int) -> None:
    """A voter with a slow disk lacks the latest entries at each request; a second voter has them."""
    drained, *followers = growing.leader(), *growing.followers()
    followers[slow].disk.slow = 1_000.0
    count = applied(growing, drained, request=lambda: None)
    assert count > 40
    assert drained.group.statuses.why_not_lead(followers[slow].name) is None
    drain(growing, drained)
    growing.pass_ms(int(PATIENCE_S * 1000) + 1_000)
    assert growing.leader() is followers[1 - slow]


@pytest.mark.parametrize("cut", [0, 1])
def test_drained_leader_hands_over_to_a_member_that_answers(growing: Growing, cut: int) -> None:
    """A voter that was just frozen cannot take over, though it has the whole log and was fit a moment ago."""
    drained, *followers = growing.leader(), *growing.followers()
    growing.pass_ms(int(PATIENCE_S * 1000))
    followers[cut].runtime.pause()
    growing.pass_ms(1_000)
    drain(growing, drained)
    growing.pass_ms(500)
    assert growing.leader() is followers[1 - cut]


def test_drained_member_is_not_made_the_leader(growing: Growing) -> None:
    leader, drained, _ = growing.leader(), *growing.followers()
    drain(growing, drained)
    assert leader.group.statuses.why_not_lead(drained.name) == (
        f"{drained.name} is under maintenance (end that with `qq revive {drained.name}`)"
    )
    assert not leader.group.leadership.transfer(drained.name)
    assert growing.outcome_of(drained, MemberChange(Verb.REVIVE, drained.name)) == ""
    assert leader.group.leadership.transfer(drained.name)
    growing.until(lambda: leads(growing, drained))


def test_drained_member_does_not_campaign_while_a_peer_can(growing: Growing) -> None:
    leader, drained, other = growing.leader(), *growing.followers()
    drain(growing, drained)
    leader.end()
    growing.pass_ms(ELECTION_MS)
    assert leads(growing, other)


def test_drained_member_leads_only_while_no_peer_can(growing: Growing) -> None:
    last, *drained = growing.leader(), *growing.followers()
    drain(growing, *drained)
    assert growing.leader() is last
    last.end()
    growing.pass_ms(int(PATIENCE_S * 1000) + ELECTION_MS)
    assert leads(growing, *drained)
    growing.all_submit()
    last.start()
    growing.until(lambda: leads(growing, last))


@pytest.mark.parametrize("requested_after_ms", [0, 10, 1_000])
def test_last_of_drains_requested_at_once_is_refused(growing: Growing, requested_after_ms: int) -> None:
    """Each drain alone would do no harm."""
    refusals: dict[str, list[str]] = {}

    def request(node: Member) -> None:
        change = MemberChange(Verb.DRAIN, node.name)
        if not change.is_made(node.group.configurations.committed):
            node.group.reconfiguration.request(change, refusals.setdefault(node.name, []).append)

    for _ in range(20):
        for node in growing.members:
            node.runtime.enter(partial(request, node))
            growing.pass_ms(requested_after_ms)
        growing.pass_ms(300)
    committed = growing.leader().group.configurations.committed
    drained = [member.name for member in committed.members if member.is_drained]
    assert len(drained) == 2
    [last] = [node for node in growing.members if node.name not in drained]
    one, other = drained
    text = f"{one} is under maintenance itself; {other} is under maintenance itself"
    assert set(refusals[last.name]) == {f"{last.name} goes on serving: nobody else can: {text}"}
    assert leads(growing, last)


@pytest.mark.parametrize("is_up", [True, False])
def test_last_serving_member_is_neither_removed_nor_replaced(growing: Growing, is_up: bool) -> None:
    growing.add_fourth()
    growing.pass_ms(2_000)
    last, *drained = growing.followers()[0], growing.leader(), *growing.followers()[1:]
    drain(growing, *drained)
    if not is_up:
        last.end()
        growing.pass_ms(5_000)
    names = [node.name for node in drained]
    expected = (
        f"{last.name} stays a voter: {', '.join(sorted(names))} would go on, but under maintenance nobody serves "
        f"clients: end that first (`qq revive {min(names)}`)"
    )
    changes = [remove(last)] if is_up else [remove(last), replace_(last)]
    for change in changes:
        assert growing.outcome_of(drained[0], change) == expected
    assert growing.outcome_of(drained[0], MemberChange(Verb.REVIVE, min(names))) == ""
    assert growing.outcome_of(drained[0], changes[-1]) == ""


def test_leader_is_removed_if_only_drained_members_can_follow(
    growing: Growing,
) -> None:
    growing.add_fourth()
    leader, low, *drained = growing.leader(), *growing.followers()
    growing.pass_ms(2_000)
    drain(growing, *drained)
    low.group.alarms.own = lambda _now_s: Alarm.DISK
    growing.pass_ms(3_000)
    assert growing.leader() is leader
    assert growing.outcome_of(drained[0], remove(leader)) == ""
    growing.stops(leader)
    growing.all_submit()
    assert leads(growing, *drained)


@pytest.mark.slow
def test_removal_of_a_leader_without_a_successor_is_refused(
    growing: Growing,
) -> None:
    leader, followers = growing.leader(), growing.followers()
    for node in followers:
        node.group.leadership.update_candidacy = lambda **_: None
        node.group.engine.may_lead = False
    growing.pass_ms(2_000)
    refusals: list[str] = []
    count = applied(
        growing, leader, request=lambda: leader.group.reconfiguration.request(remove(leader), refusals.append)
    )
    assert count > 200
    assert refusals[0].startswith(
        f"{leader.name} stays a voter: of {followers[0].name}, {followers[1].name} nobody could go on; "
        f"{followers[0].name} has "
    )


@pytest.mark.slow
def test_handover_without_a_taker_delays_clients_only_once(growing: Growing) -> None:
    """Members report that they could lead, and do not."""
    leader, followers = growing.leader(), growing.followers()
    for node in followers:
        node.group.engine.may_vote = False
        node.group.rejoin.advance = lambda *_: False
    count = applied(
        growing, leader, request=lambda: leader.group.reconfiguration.request(remove(leader), [].append)
    )
    assert count > 200


def test_leader_with_a_full_disk_hands_over_to_a_drained_member(growing: Growing) -> None:
    full, *followers = growing.leader(), *growing.followers()
    drain(growing, *followers)
    full.disk.full = True
    full.runtime.enter(lambda: submit(full))
    growing.until(lambda: leads(growing, *followers))
    followers[0].set_alarms(1)
    growing.pass_ms(5_000)
    assert leads(growing, *followers), "it is not given back"
    full.disk.full = False
    growing.until(lambda: leads(growing, full))


@pytest.mark.parametrize("drains", [True, False])
@pytest.mark.slow
def test_leader_with_a_damaged_log_hands_over_for_good(growing: Growing, drains: bool) -> None:
    damaged, one, down = growing.leader(), *growing.followers()
    if drains:
        drain(growing, one)
    down.end()
    growing.pass_ms(3_000)
    damaged.runtime.enter(lambda: damaged.group.disk_failed(CorruptJournal("x", 0, "damaged")))
    growing.until(lambda: leads(growing, one))
    count = applied(growing, one, request=lambda: None)
    assert count > 200
    assert leads(growing, one)
