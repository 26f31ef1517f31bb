"""Tick entries: the leader runs due timers without submissions, once, and not before their time."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import pytest

from chaos.sim.world.world import EPOCH_MS
from cluster.configuration.configuration import Versions
from cluster.group.events import GroupEvents
from cluster.group.group import Group
from cluster.log.journal import SegmentedJournal
from cluster.raft.cluster_clock import PATIENCE_S
from cluster.raft.messages import Transfer, encode
from cluster.runtime.ports import pack
from cluster.storage.directory import GroupDirectory
from cluster.storage.identity import Owner
from tests.cluster.harness import Alarms, Trio, ignore

DAY_MS = 86_400_000
COMMIT_MS = 50
"""Three nodes with good disks and a good network need less for an entry."""
ELECTION_MS = 3_000


class NeverDone(Alarms):
    """Breaks the contract: always wants a further entry at once."""

    def due_ms(self) -> int | None:
        return 1


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Elections have a lot to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def alone() -> Trio:
    return Trio(["a"])


@pytest.mark.parametrize("names", ["a", "abc"], ids=["one member", "three members"])
@pytest.mark.parametrize("delay_ms", [1, 20, 49, 51, 777, 60_000])
def test_due_alarm_rings_in_time_without_submissions(names: str, delay_ms: int) -> None:
    trio = Trio(list(names))
    leader = trio.start()
    leader.set_alarms(delay_ms)
    trio.pass_ms(delay_ms + COMMIT_MS)
    [(due_ms, time_ms)] = leader.machine.rung
    assert due_ms <= time_ms <= due_ms + (COMMIT_MS if delay_ms == 1 else 2)
    assert leader.ticks() == [time_ms]


def test_every_replica_does_it_in_the_same_entry(trio: Trio) -> None:
    leader = trio.start()
    leader.set_alarms(100, 100, 100, 250, 1_000)
    trio.pass_ms(2_000)
    rung, ticks = leader.machine.rung, leader.ticks()
    assert len(rung) == 5
    assert len(ticks) == 4
    assert all(member.machine.rung == rung and member.ticks() == ticks for member in trio.members)


def test_batch_of_a_follower_is_due_at_the_leader(trio: Trio) -> None:
    leader = trio.start()
    follower = next(member for member in trio.members if member is not leader)
    follower.set_alarms(300)
    trio.pass_ms(300 + 2 * COMMIT_MS)
    assert len(follower.machine.rung) == 1


def test_idle_log_does_not_grow_while_no_alarm_is_due(trio: Trio) -> None:
    leader = trio.start()
    last_index = leader.group.journal.last_index
    trio.pass_ms(10_000)
    assert leader.group.journal.last_index == last_index


def test_alarm_that_is_due_much_later_costs_no_events(alone: Trio) -> None:
    member = alone.start()
    alone.pass_ms(1_000)
    events = alone.world.events
    alone.pass_ms(10_000)
    unused = alone.world.events - events
    member.set_alarms(3_600_000, 7_200_000)
    alone.pass_ms(1_000)
    events = alone.world.events
    alone.pass_ms(10_000)
    assert alone.world.events - events <= unused + 2
    assert member.ticks() == []


def test_alarms_due_at_once_ring_in_entries_in_sequence(trio: Trio) -> None:
    leader = trio.start()
    leader.set_alarms(*[100] * 21)
    under_way: list[int] = []
    engine, journal = leader.group.engine, leader.group.journal

    def is_due() -> bool:
        under_way.append(journal.last_index - engine.applied_index)
        return not leader.machine.due

    trio.until(is_due)
    assert max(under_way) == 1
    assert len(leader.machine.rung) == 21
    assert len(leader.ticks()) == 11
    assert leader.machine.rung[-1][1] - leader.machine.rung[0][1] < 11 * COMMIT_MS


def test_machine_that_is_always_due_gets_an_entry_at_a_time(alone: Trio) -> None:
    [member] = alone.members
    member.disk.slow = 100.0
    member.start(NeverDone())
    alone.pass_ms(3_000)
    events, entries = alone.world.events, len(member.ticks())
    alone.pass_ms(3_000)
    entries = len(member.ticks()) - entries
    assert 5 < entries < 60
    assert alone.world.events - events < 3_000 / 50 * 3 + entries * 10


def test_entries_that_are_submitted_bring_the_time_as_well(trio: Trio) -> None:
    leader = trio.start()
    for number in range(1_000):
        delays_ms = [] if number % 10 else [20]
        leader.runtime.enter(lambda: ignore(leader.group.propose([pack(delays_ms)])))  # noqa: B023
        trio.pass_ms(1)
    trio.pass_ms(100)
    assert len(leader.machine.rung) == 100
    assert max(time_ms - due_ms for due_ms, time_ms in leader.machine.rung) < COMMIT_MS
    assert len(leader.ticks()) < 10


def test_new_leader_takes_over_due_alarms(trio: Trio) -> None:
    leader = trio.start()
    leader.set_alarms(10, 500)
    trio.pass_ms(100)
    leader.end()
    trio.pass_ms(500 + ELECTION_MS)
    successor = trio.leader()
    rung = successor.machine.rung
    assert len(rung) == 2
    assert rung[1][1] - rung[1][0] < ELECTION_MS
    assert all(member.machine.rung == rung for member in trio.members if member is not leader)


def test_successor_of_a_handover_proposes_due_alarms(trio: Trio) -> None:
    leader = trio.start()
    leader.set_alarms(20)
    index = leader.group.journal.last_index
    leader.runtime.enter(lambda: ignore(leader.group.leadership.transfer()))
    trio.until(lambda: not leader.machine.due)
    successor = trio.leader()
    assert successor is not leader
    journal = successor.group.journal
    assert journal.term_at(journal.last_index) > journal.term_at(index)


def test_leader_that_hands_over_proposes_no_due_alarm(trio: Trio) -> None:
    leader = trio.start()
    for member in trio.members:
        if member is not leader:
            member.group.engine.may_lead = False
            member.group._low_space.check = ignore
    leader.set_alarms(20)
    leader.runtime.enter(lambda: ignore(leader.group.leadership.transfer()))
    trio.pass_ms(800)
    assert leader.ticks() == []
    trio.pass_ms(400)
    assert len(leader.ticks()) == 1


def test_every_node_can_transfer_leadership_to_a_given_member(trio: Trio) -> None:
    trio.start()
    for to in "cbacab":
        for requester in trio.members:
            requester.runtime.enter(partial(requester.group.leadership.request_transfer, to))
            trio.until(lambda to=to: {member.group.leader for member in trio.members} == {to}, COMMIT_MS)
            trio.pass_ms(20)  # they tell each other
    requester = trio.leader()
    requester.runtime.enter(partial(requester.group.leadership.request_transfer, None))
    trio.until(lambda: trio.members[0].group.leader not in (None, requester.name), ELECTION_MS)


def test_leadership_stays_if_the_requested_member_is_not_fit(trio: Trio) -> None:
    leader = trio.start()
    requester, ended = [member for member in trio.members if member is not leader]
    ended.end()
    trio.pass_ms(4_000)
    assert requester.group.statuses.why_not_lead(ended.name) is not None
    assert requester.group.statuses.why_not_lead(leader.name) is None
    for to in (ended.name, leader.name, "nobody"):
        leader.set_alarms(20)
        requester.runtime.enter(partial(requester.group.leadership.request_transfer, to))
        trio.until(lambda: not leader.machine.due, COMMIT_MS)
    assert trio.leader() is leader


def test_transfer_request_of_an_earlier_term_is_ignored(trio: Trio) -> None:
    leader = trio.start()
    [requester, other] = [member for member in trio.members if member is not leader]
    stale = b"".join(encode(Transfer(leader.group.engine.term - 1, other.name)))
    leader.runtime.enter(partial(leader.group.inbox.frame_received, requester.name, stale))
    trio.pass_ms(ELECTION_MS)
    assert trio.leader() is leader


def test_silent_or_cut_off_member_is_not_counted(trio: Trio) -> None:
    leader = trio.start()
    one, other = [member for member in trio.members if member is not leader]
    assert one.group.statuses.may_stop(one.name).is_safe
    for cut in ((leader.name, other.name), (other.name, leader.name)):
        trio.network.cut(*cut)
    trio.until(lambda: not one.group.statuses.may_stop(one.name).is_safe, 5_000)
    assert f"{other.name} does not hear the leader" in one.group.statuses.may_stop(one.name).text
    for cut in ((leader.name, other.name), (other.name, leader.name)):
        trio.network.heal(*cut)
    trio.pass_ms(2_000)  # late messages of the cut must be outdated
    assert leader.group.statuses.may_stop(one.name).is_safe
    other.runtime.pause()
    trio.until(lambda: not leader.group.statuses.may_stop(one.name).is_safe, 5_000)
    assert "does not answer" in leader.group.statuses.may_stop(one.name).text
    assert leader.group.statuses.may_stop(other.name).is_safe


def test_leader_without_a_majority_proposes_an_entry_only(trio: Trio) -> None:
    leader = trio.start()
    leader.set_alarms(200, 300, 400)
    others = [member for member in trio.members if member is not leader]
    cuts = [cut for member in others for cut in ((leader.name, member.name), (member.name, leader.name))]
    for cut in cuts:
        trio.network.cut(*cut)
    trio.pass_ms(1_000)
    assert len(leader.ticks()) == 1
    assert leader.machine.rung == []
    trio.until(lambda: len(others[0].machine.rung) == 3)
    for cut in cuts:
        trio.network.heal(*cut)
    trio.until(lambda: leader.machine.rung == others[0].machine.rung)
    assert leader.ticks() == others[0].ticks()


def test_alarm_due_by_the_state_rings_after_the_clock_goes_back(trio: Trio) -> None:
    leader = trio.start()
    leader.set_alarms(*[0] * 9)
    leader.wall.skew_ms -= 20_000
    trio.pass_ms(1_000)
    assert len(leader.machine.rung) == 9
    times = [time_ms for _, time_ms in leader.machine.rung]
    assert all(before <= after for before, after in pairwise(times))


@pytest.mark.parametrize("names", ["a", "abc"], ids=["one member", "three members"])
@pytest.mark.parametrize("affected", ["leader", "all"])
@pytest.mark.parametrize("lasts_ms", [3_000, None], ids=["for 3 s", "for ever"])
@pytest.mark.parametrize(
    "jump_ms", [DAY_MS, -DAY_MS, -10 * EPOCH_MS, 10 * EPOCH_MS], ids=["+1 day", "-1 day", "1500", "2500"]
)
def test_time_goes_on_when_wall_clocks_jump(
    names: str, affected: str, lasts_ms: int | None, jump_ms: int
) -> None:
    trio = Trio(list(names))
    leader = trio.start()
    leader.set_alarms(500, 5_000, 3_600_000)
    begin_s = trio.world.now_s
    hurt = trio.members if affected == "all" else [leader]
    for member in hurt:
        member.wall.skew_ms += jump_ms
    for due_s, number in ((0.5, 1), (5.0, 2)):
        # Entries that come meanwhile bring the wrong time nowhere.
        leader.set_alarms()
        trio.until(lambda: len(leader.machine.rung) == number)  # noqa: B023
        assert due_s - 0.02 <= trio.world.now_s - begin_s < due_s + COMMIT_MS / 1000
        if lasts_ms is not None and number == 1:
            trio.pass_ms(lasts_ms)
            for member in hurt:
                member.wall.skew_ms -= jump_ms
    assert len(leader.machine.rung) == 2


def test_leader_with_a_right_clock_ignores_a_wrong_predecessor(
    trio: Trio,
) -> None:
    leader = trio.start()
    leader.wall.skew_ms += DAY_MS
    leader.set_alarms(2_000)
    leader.end()
    trio.pass_ms(2_000 + ELECTION_MS)
    successor = trio.leader()
    successor.set_alarms(2_000)
    trio.pass_ms(2_000 + COMMIT_MS)
    assert len(successor.machine.rung) == 2


@pytest.mark.parametrize("names", ["a", "abc"], ids=["one member", "three members"])
def test_lasting_clock_jump_of_all_members_is_believed(names: str) -> None:
    trio = Trio(list(names))
    leader = trio.start()
    leader.set_alarms(DAY_MS)
    for member in trio.members:
        member.wall.skew_ms += DAY_MS
    trio.pass_ms(int(PATIENCE_S * 1000) - 1_000)
    assert leader.machine.rung == []
    trio.pass_ms(3_000 + COMMIT_MS)
    assert len(leader.machine.rung) == 1


def test_day_without_a_running_node_counts(trio: Trio) -> None:
    leader = trio.start()
    leader.set_alarms(DAY_MS, 2 * DAY_MS)
    trio.pass_ms(100)
    for member in trio.members:
        member.end()
    trio.pass_ms(DAY_MS)
    trio.start()
    trio.until(lambda: all(len(member.machine.rung) == 1 for member in trio.members))


@pytest.mark.parametrize("names", ["a", "abc"], ids=["one member", "three members"])
def test_log_with_times_of_wrong_clocks_does_not_wait(names: str) -> None:
    trio = Trio(list(names))
    for member in trio.members:
        member.wall.skew_ms += DAY_MS
    trio.start().set_alarms(20_000)
    for member in trio.members:
        member.end()
        member.wall.skew_ms -= DAY_MS
    begin_s = trio.world.now_s
    trio.start()
    trio.until(lambda: all(len(member.machine.rung) == 1 for member in trio.members), 30_000)
    assert trio.world.now_s - begin_s > 20_000 / 1000 - 1


@pytest.mark.parametrize("names", ["a", "abc"], ids=["one member", "three members"])
@pytest.mark.parametrize("years", [(-500, -500, -500), (500, 500, 500), (-500, 0, 500)])
def test_node_with_a_wrong_clock_starts_and_serves(names: str, years: tuple[int, ...]) -> None:
    trio = Trio(list(names))
    for member, off in zip(trio.members, years, strict=False):
        member.wall.skew_ms += off * 365 * DAY_MS
    trio.start().set_alarms(100)
    trio.pass_ms(100 + COMMIT_MS)
    assert all(len(member.machine.rung) == 1 for member in trio.members)


def test_resumed_machine_takes_its_time_from_the_leader(trio: Trio) -> None:
    """Its monotonic clock stood still meanwhile, and no entry has told it the time."""
    leader = trio.start()
    leader.set_alarms(100_000)
    begin_s = trio.world.now_s
    sleeper, other = (member for member in trio.members if member is not leader)
    sleeper.runtime.pause()
    trio.pass_ms(60_000)
    sleeper.runtime.monotonic = lambda: trio.world.now_s - 60
    sleeper.runtime.go_on()
    trio.pass_ms(10_000)
    other.group.engine.may_lead = False
    other.group._low_space.check = ignore
    leader.end()
    trio.until(lambda: sleeper.group.engine.is_leader)
    trio.until(lambda: bool(sleeper.machine.rung), 100_000)
    assert trio.world.now_s - begin_s < 100 + COMMIT_MS / 1000


def test_alarm_that_was_due_while_all_were_down_rings_at_start(trio: Trio) -> None:
    leader = trio.start()
    leader.set_alarms(5_000)
    trio.pass_ms(100)
    for member in trio.members:
        member.group.housekeeping.checkpoint_now(*member.group.engine.last_applied())
        member.end()
    trio.pass_ms(10_000)
    trio.start()
    trio.until(lambda: all(len(member.machine.rung) == 1 for member in trio.members))


def test_full_disk_holds_a_single_entry_back(alone: Trio) -> None:
    member = alone.start()
    member.set_alarms(*[100] * 5)
    member.disk.full = True
    alone.pass_ms(3_000)
    assert len(member.ticks()) == 1
    assert member.machine.rung == []
    member.disk.full = False
    alone.until(lambda: len(member.machine.rung) == 5)


def test_sole_voter_takes_submissions_in_at_the_end_of_any_sync(alone: Trio) -> None:
    """It waited for the next beat if the sync had brought no entry."""
    member = alone.start()
    journal, log_sync = member.group.journal, member.group._log_sync

    def store_something_else() -> None:
        journal.seal()
        log_sync.begin()

    begun_s = alone.world.now_s
    for _ in range(10):
        member.runtime.enter(store_something_else)
        assert journal.sync_in_flight
        member.set_alarms()
    assert alone.world.now_s - begun_s < 10 * COMMIT_MS / 1000 / 2


def test_earlier_alarm_replaces_a_later_alarm(alone: Trio) -> None:
    member = alone.start()
    member.set_alarms(45)
    member.set_alarms(10)
    alone.pass_ms(100)
    assert [time_ms - due_ms <= 2 for due_ms, time_ms in member.machine.rung] == [True, True]
    assert len(member.ticks()) == 2


def test_a_group_is_whole_before_it_takes_part(trio: Trio) -> None:
    member = trio.members[0]
    whole: list[set[str]] = []

    class Noted(Group):
        def start(self, events: GroupEvents) -> None:
            whole.append(set(vars(self)))
            super().start(events)

    member.start(group=Noted)
    for other in trio.members[1:]:
        other.start()
    trio.until(lambda: all(other.machine.entries > 0 for other in trio.members))
    trio.pass_ms(3_000)
    member.group.stop()
    assert [set(vars(member.group))] == whole


def test_disk_failure_at_the_start_is_raised_and_remembered(
    alone: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    [member] = alone.members
    sync_now = SegmentedJournal.sync_now

    def fail(journal: SegmentedJournal) -> None:
        member.disk.fail_next_sync(errno.EIO)
        sync_now(journal)

    monkeypatch.setattr(SegmentedJournal, "sync_now", fail)
    with pytest.raises(OSError, match="Input/output error"):
        member.start()
    assert not alone.failures
    directory = GroupDirectory(member.disk, "groups/0", Owner("test", "a", 0))
    assert directory.claim(0, Versions(*member.machine.versions), ["a"], 1).writes_lost
