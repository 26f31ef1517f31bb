"""Members that come and go while a group works."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from cluster.configuration.change_request import MemberChange, Verb
from cluster.configuration.configuration import (
    ID_BYTES,
    NOBODY,
    MembershipRefused,
    PeerAddress,
)
from cluster.log.hardstate import VoterStatus
from cluster.membership.reconfiguration import NotNow
from cluster.raft.messages import Vote, encode
from cluster.raft.timing import Timing
from cluster.storage.fail_stop import RemovedFromCluster
from tests.cluster.harness import Alarms, Growing, Member, Trio, id_of, remove, replace_, voters_of


@pytest.fixture
def growing() -> Growing:
    growing = Growing()
    growing.start()
    return growing


def test_joining_node_gets_the_log_and_then_votes(growing: Growing) -> None:
    growing.add_fourth()
    growing.all_submit()
    growing.pass_ms(500)
    assert len({member.group.dump() for member in growing.members}) == 1
    growing.leader().end()
    growing.pass_ms(3000)
    growing.all_submit()


def test_node_that_lost_its_directory_returns_with_a_new_id(growing: Growing) -> None:
    lost = growing.followers()[0]
    before = id_of(lost)
    lost.end()
    lost.disk.lose_everything()
    lost.start()
    growing.until(
        lambda: growing.agrees("abc") and growing.leader().group.configurations.newest.is_removed(before)
    )
    assert id_of(lost) != before
    growing.all_submit()


def test_loss_of_a_directory_is_logged_and_dated_on_all_nodes(
    growing: Growing, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that was not mounted went without a word in the log of any other node."""
    lost = growing.followers()[0]
    growing.pass_ms(1000)
    began_ms = growing.leader().group.time_ms()
    lost.end()
    lost.disk.lose_everything()
    caplog.clear()
    before = id_of(lost)
    lost.start()
    growing.until(
        lambda: growing.agrees("abc") and growing.leader().group.configurations.newest.is_removed(before)
    )
    text = f"node {lost.name} has lost its data directory, or was replaced: it gets everything anew"
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert sum(line.startswith(text) for line in lines) == 2, "each of the other nodes says it once"
    led = growing.leader()
    led.end()
    growing.pass_ms(3000)
    led.start()
    for node in growing.members:
        node.end()
        node.start()
    growing.until(lambda: growing.agrees("abc"))
    for node in growing.members:
        dates = {member.name: member.lost_ms for member in node.group.configurations.committed.members}
        lost_ms = dates.pop(lost.name)
        assert lost_ms is not None
        assert began_ms <= lost_ms <= node.group.time_ms()
        assert set(dates.values()) == {None}


def test_lost_directory_is_replaced_while_a_member_is_dead() -> None:
    growing = Growing("abcdef")
    growing.start()
    dead, lost, *_ = growing.followers()
    dead.end()
    lost.end()
    lost.disk.lose_everything()
    growing.pass_ms(3000)
    lost.start()
    growing.until(lambda: growing.agrees("abcde"))
    growing.all_submit()
    growing.leader().end()
    growing.pass_ms(3000)
    dead.start()
    growing.until(lambda: growing.agrees("abcde"))
    growing.all_submit()


def test_learner_gets_no_vote_while_the_majority_would_need_it(growing: Growing) -> None:
    dead, *_ = growing.followers()
    dead.end()
    growing.pass_ms(3000)
    growing.fourth.start(joins=True)
    leader = growing.leader().group
    growing.until(lambda: leader.engine.acknowledged_index("d") == leader.journal.last_index)
    growing.pass_ms(3000)
    assert leader.configurations.membership.learners == {"d"}
    growing.fourth.end()
    growing.fourth.disk.lose_everything()
    growing.all_submit()
    growing.fourth.start(joins=True)
    dead.start()
    growing.members.append(growing.fourth)
    growing.until(lambda: growing.agrees("abcd"))
    growing.all_submit()


def test_learner_that_lost_its_log_is_not_promoted(growing: Growing) -> None:
    growing.all_submit()
    learner = growing.fourth
    learner.start(joins=True)
    leader = growing.leader().group
    growing.until(lambda: leader.engine.acknowledged_index("d") == leader.journal.last_index)
    assert leader.configurations.membership.learners == {"d"}
    held = leader.engine.acknowledged_index("d")
    learner.end()
    growing.pass_ms(2_000)
    learner.disk.lose_file("groups/0/log/manifest")
    for node in growing.members:
        growing.network.lag(node.name, "d", 0.5)
    learner.start(joins=True)
    growing.until(lambda: "d" in leader.configurations.membership.voters)
    assert learner.group.journal.last_index >= held


def test_voter_that_lost_its_log_counts_for_entries_given_again(growing: Growing) -> None:
    growing.all_submit()
    growing.pass_ms(500)
    lost, leader = growing.followers()[0], growing.leader().group
    held = leader.engine.acknowledged_index(lost.name)
    lost.end()
    lost.disk.lose_file("groups/0/log/manifest")
    for node in growing.members:
        growing.network.lag(node.name, lost.name, 0.2)
    lost.start()
    assert lost.group.rejoin.voter_status is VoterStatus.LEARNER
    growing.until(lambda: leader.engine.acknowledged_index(lost.name) < held)
    growing.until(lambda: leader.engine.acknowledged_index(lost.name) >= held)
    assert lost.group.journal.last_index >= held


def test_node_restarted_before_it_knows_the_members_stays_blank(
    growing: Growing,
) -> None:
    """It would begin a cluster of its own with similar nodes."""
    for node in growing.members:
        growing.network.cut("d", node.name)
    growing.fourth.start(joins=True)
    growing.pass_ms(5000)
    assert growing.fourth.group.rejoin.voter_status is VoterStatus.BLANK
    assert not growing.fourth.group.engine.is_leader
    growing.fourth.end()
    growing.fourth.start(joins=True)
    growing.pass_ms(5000)
    assert growing.fourth.group.engine.term == 0
    for node in growing.members:
        growing.network.heal("d", node.name)
    growing.members.append(growing.fourth)
    growing.until(lambda: growing.agrees("abcd"), 20_000)


def test_removed_member_learns_it_stops_and_does_not_start_again(growing: Growing) -> None:
    growing.add_fourth()
    lost = growing.followers()[0]
    assert growing.outcome_of(growing.leader(), remove(lost)) == ""
    growing.stops(lost)
    assert growing.outcome_of(growing.leader(), remove(lost)) == "", "it is done already"
    with suppress(RemovedFromCluster):  # it may have applied its removal, or have been told
        lost.start()
        growing.stops(lost)
    growing.all_submit()
    assert growing.agrees("".join(member.name for member in growing.members))


def test_member_removed_while_away_learns_it_when_it_returns(growing: Growing) -> None:
    growing.add_fourth()
    lost = growing.followers()[0]
    lost.end()
    assert growing.outcome_of(growing.leader(), remove(lost)) == ""
    growing.members.remove(lost)
    terms = [member.group.engine.term for member in growing.members]
    lost.start()
    growing.stops(lost)
    assert [member.group.engine.term for member in growing.members] == terms, "it has disturbed nobody"
    lost.disk.lose_everything()
    lost.start(joins=True)
    growing.members.append(lost)
    growing.until(lambda: growing.agrees("abcd"))
    growing.all_submit()


@pytest.mark.parametrize("replaces_emptied", [True, False])
def test_removed_node_returns_with_an_empty_directory_if_added(
    growing: Growing, replaces_emptied: bool
) -> None:
    growing.add_fourth()
    lost = growing.followers()[0]
    removed, others = lost.name, "".join(set("abcd") - {lost.name})
    lost.end()
    assert growing.outcome_of(growing.leader(), remove(lost)) == ""
    growing.members.remove(lost)
    lost.disk.lose_everything()
    lost.start(replaces_emptied=replaces_emptied)
    growing.pass_ms(5000)
    assert growing.agrees(others)
    flaw = lost.group.own_status.flaw()
    assert flaw is not None
    assert f"{removed} was removed: `qq member add {removed} HOST:PORT`, or `join` in its file" in flaw
    assert lost.group.why_undecided() == f"no leader: {flaw}"
    add = MemberChange(Verb.ADD, removed, id_of(lost), *lost.address)
    assert growing.outcome_of(growing.leader(), add) == ""
    growing.members.append(lost)
    growing.until(lambda: growing.agrees("abcd"))
    growing.all_submit()


def test_node_above_the_maximum_of_members_reports_it() -> None:
    growing = Growing("abcdefgh")
    growing.start()
    growing.fourth.start(joins=True)
    growing.pass_ms(3000)
    assert growing.agrees("abcdefg")
    flaw = growing.fourth.group.own_status.flaw()
    assert flaw is not None
    assert "h is no member: the cluster has 7 already" in flaw


def test_a_leader_that_is_removed_hands_over_first(growing: Growing) -> None:
    growing.add_fourth()
    leader = growing.leader()
    assert growing.outcome_of(growing.followers()[0], remove(leader)) == ""
    growing.stops(leader)
    growing.all_submit()
    assert growing.agrees("".join(member.name for member in growing.members))


def test_requested_change_is_made_once_or_refused_with_a_reason(growing: Growing) -> None:
    one, other = growing.followers()
    add = MemberChange(Verb.ADD, "x", b"x" * ID_BYTES, "x", 1)
    assert growing.outcome_of(one, add) == ""
    assert growing.outcome_of(other, add) == ""
    assert growing.outcome_of(one, MemberChange(Verb.REMOVE, "x", add.member_id)) == ""
    assert "has been removed" in growing.outcome_of(other, add), "whoever asks again is late"
    assert "no member 'y'" in growing.outcome_of(one, MemberChange(Verb.PROMOTE, "y"))
    assert "is up and has its data directory" in growing.outcome_of(one, replace_(other))
    drain = MemberChange(Verb.DRAIN, other.name)
    assert growing.outcome_of(one, drain) == ""
    assert growing.outcome_of(one, drain) == ""
    assert growing.outcome_of(one, MemberChange(Verb.REVIVE, other.name)) == ""
    assert growing.outcome_of(one, remove(other)) == ""
    growing.stops(other)
    assert "add another one first" in growing.outcome_of(one, remove(one))


def test_operator_replaces_a_lost_directory_if_not_automatic() -> None:
    growing = Growing()
    for member in growing.members:
        member.start(replaces_emptied=False)
    growing.until(lambda: all(member.is_settled for member in growing.members))
    lost = growing.followers()[0]
    change = replace_(lost)
    lost.end()
    lost.disk.lose_everything()
    lost.start(replaces_emptied=False)
    growing.pass_ms(5000)
    assert lost.group.rejoin.voter_status is VoterStatus.BLANK
    assert "`qq member replace" in str(lost.group.own_status.flaw())
    assert growing.outcome_of(growing.leader(), change) == ""
    growing.until(lambda: growing.agrees("abc"))
    assert growing.outcome_of(growing.leader(), change) == "", "it is not done to the new one"
    assert growing.agrees("abc")


def test_member_that_never_connected_has_no_status(growing: Growing) -> None:
    lost = growing.followers()[0]
    lost.end()
    growing.pass_ms(3000)
    assert growing.outcome_of(growing.leader(), replace_(lost)) == ""
    for member in [growing.leader(), *growing.followers()]:
        shown = next(each for each in member.group.statuses.all() if each.name == lost.name)
        assert (shown.state, set(shown[2:])) == ("down", {None})


def test_moved_member_is_found_at_its_new_address(growing: Growing) -> None:
    moved = growing.followers()[0]
    moved.end()
    growing.pass_ms(2000)
    moved.address = PeerAddress("elsewhere", 1)
    moved.start()
    growing.until(
        lambda: all(
            member.group.configurations.committed.member(moved.name).address.host == "elsewhere"
            for member in growing.members
        )
    )
    growing.leader().end()
    growing.pass_ms(3000)
    growing.all_submit()


def test_members_that_exchanged_addresses_find_each_other(
    growing: Growing, caplog: pytest.LogCaptureFixture
) -> None:
    """While one of them is down, the new address of the other cannot be recorded.

    If the first leads when the second starts, it cannot find the second, and hands over after ten seconds.
    """
    one, other = growing.followers()
    for node in (one, other):
        node.end()
    one.address, other.address = other.address, one.address
    logging.disable(logging.NOTSET)
    with caplog.at_level(logging.INFO, "cluster.membership.reconfiguration"):
        one.start()
        growing.pass_ms(5_000)
        [line] = [record.getMessage() for record in caplog.records]
        assert (
            f"{one.address} is the address of member {other.name!r}, so {one.name!r} cannot be there" in line
        )
        other.start()
        growing.until(
            lambda: all(
                member.group.configurations.committed.member(node.name).address == node.address
                for member in growing.members
                for node in (one, other)
            ),
            within_ms=20_000,
        )
        growing.all_submit()
        refusals = [
            record for record in caplog.records if record.name == "cluster.membership.reconfiguration"
        ]
        assert len(refusals) == 1


def test_each_kind_of_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    growing = Growing("abcdef")
    growing.start()
    one, other, *down = growing.followers()
    for node in (one, other, *down):
        node.end()
    one.address, other.address = (node.address for node in down)
    logging.disable(logging.NOTSET)
    with caplog.at_level(logging.INFO, "cluster.membership.reconfiguration"):
        for node in (one, other):
            node.start()
        growing.pass_ms(10_000)
    assert len(caplog.records) == 2


def test_returned_node_follows_a_leader_it_does_not_know() -> None:
    growing = Growing("abcde")
    growing.start()
    away = growing.followers()[0]
    away.end()
    growing.fourth.start(joins=True)
    growing.members.append(growing.fourth)
    growing.until(lambda: growing.agrees("abcde"))
    growing.until(lambda: _requests(growing, growing.fourth))
    for member in growing.members:
        if member not in (away, growing.fourth):
            growing.network.cut(member.name, away.name)
    away.start()
    growing.until(lambda: growing.agrees("abcde"), 20_000)
    away.set_alarms(1)


def _requests(growing: Growing, to: Member) -> bool:
    """Transfer leadership to a member; return whether it leads."""
    to.runtime.enter(lambda: to.group.leadership.request_transfer(to.name))
    growing.pass_ms(500)
    return to.group.engine.is_leader


def test_dead_member_is_removed_and_two_of_three_are_a_majority(growing: Growing) -> None:
    growing.add_fourth()
    lost = growing.leader()
    lost.end()
    growing.pass_ms(3000)
    growing.change(lambda held: held.without(lost.name, id_of(lost)))
    growing.pass_ms(500)
    left = [member for member in growing.members if member is not lost]
    assert [voters_of(member) for member in left] == [[member.name for member in left]] * 3
    assert [lost.name in member.group.members.peers for member in left] == [False] * 3
    next(member for member in left if member is not growing.leader()).end()
    growing.all_submit()


def test_restart_finds_members_in_the_log_and_in_the_checkpoint(growing: Growing) -> None:
    growing.add_fourth()
    growing.pass_ms(500)
    for with_checkpoint in (False, True):
        for member in growing.members:
            if with_checkpoint:
                member.group.stop()
            member.end()
        for member in growing.members:
            member.start()
            assert voters_of(member) == ["a", "b", "c", "d"]
        growing.pass_ms(5000)
        growing.all_submit()


def test_changes_come_in_sequence(growing: Growing) -> None:
    leader = growing.leader()

    def twice() -> None:
        leader.group.reconfiguration.propose(
            lambda held: held.added("x", PeerAddress("x", 1), b"x" * ID_BYTES)
        )
        with pytest.raises(NotNow, match="not committed yet"):
            leader.group.reconfiguration.propose(lambda held: held.without("x", NOBODY))

    leader.runtime.enter(twice)
    growing.pass_ms(500)
    with pytest.raises(NotNow, match="does not lead"):
        growing.followers()[0].group.reconfiguration.propose(lambda held: held.promoted("x"))


def test_a_step_that_may_not_be_taken_leaves_everything_as_it_is(growing: Growing) -> None:
    group = growing.leader().group
    last_index = group.journal.last_index
    with pytest.raises(MembershipRefused, match="no member 'x'"):
        group.reconfiguration.propose(lambda held: held.without("x", NOBODY))
    assert group.journal.last_index == last_index
    newest_index = group.configurations.newest_index
    again = group.reconfiguration.propose(lambda held: held.drained("a", is_drained=False))
    assert again == newest_index, "it was so already"


def test_origin_of_a_removed_member_is_evicted(growing: Growing) -> None:
    growing.add_fourth()
    lost = growing.followers()[0]
    lost.set_alarms(1)
    assert growing.outcome_of(growing.leader(), remove(lost)) == ""
    growing.stops(lost)
    origin = growing.leader().group._state.origins.get(lost.name)
    assert origin is not None
    assert origin.evicted


def test_malformed_frames_are_ignored_and_logged_once_per_link(
    growing: Growing, caplog: pytest.LogCaptureFixture
) -> None:
    leader, peer = growing.leader(), growing.followers()[0]
    logging.disable(logging.NOTSET)
    for count in (1, 2):
        for frame in (b"", b"\xff", bytes(encode(Vote(7))[0])) * 2:
            leader.runtime.enter(partial(leader.group.inbox.frame_received, peer.name, frame))
        growing.pass_ms(100)
        assert sum("malformed" in record.getMessage() for record in caplog.records) == count
        peer.end()
        growing.pass_ms(1_000)
        peer.start()
        growing.pass_ms(3_000)
    growing.all_submit()


class Bulky(Alarms):
    """Takes batches of any size."""

    def apply_batch(self, *_: object) -> Sequence[Any]:
        return []


@pytest.mark.parametrize("trouble", ["slow", "full"])
def test_sole_voter_with_a_busy_disk_takes_few_turns(trouble: str) -> None:
    """It takes no part as long as its own tail is not on the disk, and must not ask itself again and again."""
    growing = Growing("ab")
    alone, learner = growing.members[0], growing.fourth
    alone.start(Bulky(), retained_bytes=2**30)
    growing.until(lambda: alone.is_settled)
    for _ in range(60):
        alone.runtime.enter(lambda: alone.group.propose([bytes(500_000)]) and None)
    growing.until(lambda: alone.group.pending_batches == 0)
    learner.start(Bulky(), joins=True)
    growing.until(lambda: alone.group.engine.acknowledged_index("b") > 8)
    assert alone.group.engine.acknowledged_index("b") < alone.group.last_index
    turns = 0
    take = alone.group._turns._take

    def count() -> None:
        nonlocal turns
        turns += 1
        assert turns < 2000
        take()

    alone.group._turns._take = count
    alone.disk.slow, alone.disk.full = (300.0, False) if trouble == "slow" else (1.0, True)
    alone.runtime.enter(lambda: alone.group.propose([bytes(500_000)]) and None)
    growing.pass_ms(1000)


def test_nodes_on_a_seemingly_endless_file_system_form_a_cluster() -> None:
    """Amazon EFS tells of 2^63 free bytes."""
    for free_bytes in (2**63, 2**64):
        trio = Trio()
        for member in trio.members:
            member.disk.free_bytes = lambda free_bytes=free_bytes: free_bytes
        trio.start()
        trio.pass_ms(3000)
        statuses = trio.leader().group.statuses
        assert [statuses.why_not_lead(member.name) for member in trio.members] == [None] * 3


def test_node_that_is_given_the_log_ignores_members_of_long_ago() -> None:
    """In its log all still have the directories that they have lost since: it said that no majority has its log."""
    growing = Growing()
    settings: dict[str, Any] = {"timing": Timing(learner_bytes_per_s=200.0), "append_bytes_max": 100}
    for node in growing.members:
        node.start(**settings)
    growing.until(lambda: growing.agrees("abc") and all(node.is_settled for node in growing.members))
    for _ in range(100):
        growing.leader().set_alarms(86_400_000)
    reasons: set[str | None] = set()
    for node in growing.members:
        node.end()
        node.disk.lose_everything()
        node.start(**settings)
        for _ in range(150):
            growing.pass_ms(100)
            reasons.add(node.group.rejoin.describe())
        assert growing.agrees("abc")
    assert not any("damaged or lost" in why for why in reasons if why)


def test_node_finds_a_new_cluster_after_the_known_is_lost(growing: Growing) -> None:
    """Once it had to be restarted: it refused all nodes outside the cluster that it had learned first."""
    lost = growing.followers()[0]
    assert growing.outcome_of(growing.leader(), remove(lost)) == ""
    growing.stops(lost)
    lost.disk.lose_everything()
    lost.start()
    growing.pass_ms(2000)
    newest = lost.group.configurations.newest
    assert newest.was_removed(lost.name)
    for member in growing.members:
        member.end()
        member.disk.lose_everything()
    growing.pass_ms(2000)
    assert lost.group.configurations.newest is newest, "it may be a restart of all the others"
    growing.listed = [member.name for member in growing.members]
    for member in growing.members:
        member.start()
    growing.members.append(lost)
    growing.until(lambda: growing.agrees("abc"), within_ms=30_000)
    assert growing.leader().group.configurations.committed.cluster not in (b"", newest.cluster)
    growing.all_submit()
