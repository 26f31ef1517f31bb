"""Leaders declare the outages that happened, or a little more."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.configuration.configuration import Configuration, PeerAddress, make_configuration
from cluster.configuration.configuration import Member as Member_
from cluster.log.entry import KIND_OUTAGE, batches_of, is_regular, make_batch, make_entry
from cluster.membership.outages import ALL_MS, GAP_S, Outages
from cluster.raft.proposals import PendingProposals
from cluster.raft.timing import Timing
from cluster.state.apply import Applier
from cluster.state.group_state import GroupState
from tests.cluster.harness import Alarms, Member, Trio, ignore

DAY_MS = 86_400_000
OUTAGE_MS = 20_000
ELECTION_MS = 3_000
COUNTED_MS = GAP_S * 1000 + 200
"""So much of an outage may count as available time, at most: a short silence, and the time until it is seen."""
MARGIN_MS = 1000 * (Timing().election_min_s + GAP_S) + 200
"""So much available time may count as outage when the leader changes."""


def available_ms(trio: Trio) -> int:
    """The available time, at an entry that is made now."""
    trio.until(
        lambda: sum(member.runtime.alive and member.group.engine.is_leader for member in trio.members) == 1
    )
    leader = trio.leader()
    leader.set_alarms()
    return leader.group._state.time_ms - leader.machine.outage_ms


def begin(trio: Trio) -> int:
    trio.start()
    trio.pass_ms(2_000)
    return available_ms(trio)


def declared(member: Member) -> list[int]:
    """The outages that its log tells."""
    journal = member.group.journal
    entries = map(journal.read, range(journal.first_index, journal.last_index + 1))
    batches = [batch for entry in entries if is_regular(entry) for batch in batches_of(entry)]
    return [batch.sequence for batch in batches if batch.kind == KIND_OUTAGE]


def isolate_all(trio: Trio) -> None:
    for cut in permutations(trio.names, 2):
        trio.network.cut(*cut)


def heal(trio: Trio) -> None:
    for cut in permutations(trio.names, 2):
        trio.network.heal(*cut)


def cut_off(trio: Trio) -> None:
    isolate_all(trio)
    trio.pass_ms(OUTAGE_MS)
    heal(trio)


def pause(trio: Trio, members: list[Member]) -> None:
    for member in members:
        member.runtime.pause()
    trio.pass_ms(OUTAGE_MS)
    for member in members:
        member.runtime.go_on()


def pause_all(trio: Trio) -> None:
    pause(trio, trio.members)


def pause_followers(trio: Trio) -> None:
    leader = trio.leader()
    pause(trio, [member for member in trio.members if member is not leader])


def pause_leader_and_another(trio: Trio) -> None:
    leader = trio.leader()
    other = next(member for member in trio.members if member is not leader)
    pause(trio, [leader, other])


def kill_all(trio: Trio) -> None:
    for member in trio.members:
        member.end()
    trio.pass_ms(OUTAGE_MS)
    for member in trio.members:
        member.start()


def kill_all_with_checkpoints(trio: Trio) -> None:
    for member in trio.members:
        member.group.housekeeping.checkpoint_now(*member.group.engine.last_applied())
    kill_all(trio)


def hang_disks(trio: Trio) -> None:
    """An entry cannot be committed while no disk syncs."""
    leader = trio.leader()
    for member in trio.members:
        member.disk.slow = 1e5
    leader.runtime.enter(lambda: ignore(leader.group.propose([b"\x90"])))
    trio.pass_ms(OUTAGE_MS)
    for member in trio.members:
        member.disk.slow = 1.0


OUTAGES: list[Callable[[Trio], None]] = [
    cut_off,
    pause_all,
    pause_followers,
    pause_leader_and_another,
    kill_all,
    kill_all_with_checkpoints,
]


@pytest.mark.parametrize("goes_out", OUTAGES)
def test_a_leader_declares_the_time_of_an_outage(trio: Trio, goes_out: Callable[[Trio], None]) -> None:
    before_ms = begin(trio)
    begin_s = trio.world.now_s
    goes_out(trio)
    end_s = trio.world.now_s
    trio.pass_ms(ELECTION_MS)
    passed_ms = available_ms(trio) - before_ms
    lasted_ms = (trio.world.now_s - begin_s) * 1000
    assert lasted_ms > OUTAGE_MS
    assert -1 <= passed_ms <= COUNTED_MS + (trio.world.now_s - end_s) * 1000
    trio.pass_ms(1_000)
    machines = [member.machine for member in trio.members]
    if not goes_out.__name__.startswith("kill"):
        assert len({machine.outage_ms for machine in machines}) == 1


@pytest.mark.parametrize("goes_out", OUTAGES)
def test_time_after_an_outage_counts_again(trio: Trio, goes_out: Callable[[Trio], None]) -> None:
    begin(trio)
    goes_out(trio)
    trio.pass_ms(ELECTION_MS)
    before_ms = available_ms(trio)
    trio.pass_ms(10_000)
    assert 9_900 <= available_ms(trio) - before_ms <= 10_200


def test_a_leader_declares_no_outage_in_a_healthy_group(trio: Trio) -> None:
    before_ms = begin(trio)
    before = declared(trio.leader())
    for _ in range(100):
        trio.leader().set_alarms(40)
        trio.pass_ms(300)
    assert 30_000 <= available_ms(trio) - before_ms <= 32_000
    assert declared(trio.leader()) == before


def test_handovers_cost_little_available_time(trio: Trio) -> None:
    """Else an unused queue would stay for as long as leaders change."""
    before_ms = begin(trio)
    begin_s, changes = trio.world.now_s, 5
    for _ in range(changes):
        trio.pass_ms(10_000)
        leader = trio.leader()
        leader.runtime.enter(lambda leader=leader: ignore(leader.group.leadership.transfer()))
        trio.until(lambda leader=leader: not leader.group.engine.is_leader)
    lasted_ms = (trio.world.now_s - begin_s) * 1000
    passed_ms = available_ms(trio) - before_ms
    assert lasted_ms - changes * MARGIN_MS <= passed_ms <= lasted_ms + 200


def test_dead_leader_costs_the_time_until_the_next_election(trio: Trio) -> None:
    before_ms = begin(trio)
    trio.pass_ms(10_000)
    leader = trio.leader()
    leader.end()
    trio.pass_ms(ELECTION_MS)
    leader.start()
    trio.pass_ms(10_000)
    passed_ms = available_ms(trio) - before_ms
    assert 20_000 + ELECTION_MS - 1_000 - MARGIN_MS <= passed_ms <= 20_000 + ELECTION_MS + 500


def test_a_paused_follower_declares_the_outage_when_it_leads(trio: Trio) -> None:
    """The follower cannot know that the group served during its pause, and may declare too much."""
    before_ms = begin(trio)
    begin_s = trio.world.now_s
    leader = trio.leader()
    away = next(member for member in trio.members if member is not leader)
    away.runtime.pause()
    trio.pass_ms(5_000)
    away.runtime.go_on()
    leader.runtime.pause()
    trio.pass_ms(ELECTION_MS)
    lasted_ms = (trio.world.now_s - begin_s) * 1000
    leader.runtime.go_on()
    trio.pass_ms(500)
    assert available_ms(trio) - before_ms <= lasted_ms + 600


def test_a_disk_that_holds_up_each_commit_is_an_outage() -> None:
    trio = Trio(["a"])
    before_ms = begin(trio)
    hang_disks(trio)
    trio.until(lambda: trio.members[0].group.pending_batches == 0, 10**7)
    passed_ms = available_ms(trio) - before_ms
    assert (trio.world.now_s * 1000) > OUTAGE_MS
    assert passed_ms < COUNTED_MS + 1_000


def test_a_leap_of_time_is_an_outage(trio: Trio) -> None:
    """All machines were asleep: their monotonic clocks have stood still."""
    before_ms = begin(trio)
    for member in trio.members:
        member.wall.skew_ms += DAY_MS
    trio.pass_ms(70_000)
    leader = trio.leader()
    assert leader.group._state.time_ms - before_ms > DAY_MS
    assert available_ms(trio) - before_ms <= 71_000 + COUNTED_MS
    assert available_ms(trio) - before_ms >= 70_000 - COUNTED_MS


def test_the_first_entry_of_a_process_declares_all_the_time(trio: Trio) -> None:
    begin(trio)
    kill_all(trio)
    trio.until(lambda: all(member.is_settled for member in trio.members))
    assert max(declared(trio.leader())) == ALL_MS


def test_a_leader_declares_no_outage_before_its_version() -> None:
    trio = Trio()
    for member in trio.members:
        member.start(raises_version=False)
    trio.until(lambda: all(member.machine.entries > 0 for member in trio.members))
    pause_all(trio)
    trio.pass_ms(ELECTION_MS)
    trio.leader().set_alarms()
    assert declared(trio.leader()) == []


def test_first_entry_of_a_leader_declares_the_outage_first(trio: Trio) -> None:
    """A queue that is due by the cluster's time must not expire before the outage is declared."""
    begin(trio)
    last_index = trio.leader().group.journal.last_index
    for member in trio.members:
        member.machine.due = [member.group.time_ms() + 1_000]
    cut_off(trio)
    trio.pass_ms(ELECTION_MS)
    journal = trio.leader().group.journal
    # The former leader may have appended an entry when it was alone, and lead again with it.
    term = trio.leader().group.engine.term
    indexes = [
        index for index in range(last_index + 1, journal.last_index + 1) if journal.term_at(index) == term
    ]
    first = next(entry for entry in map(journal.read, indexes) if is_regular(entry))
    assert batches_of(first)[0].kind == KIND_OUTAGE
    assert sum(declared(trio.leader())) >= OUTAGE_MS - COUNTED_MS


def test_a_declaration_counts_from_the_entry_before_at_most() -> None:
    machine = Alarms()
    applying = Applier(GroupState(machine), PendingProposals("a"))
    outage = make_batch("a", 0, ALL_MS, [], KIND_OUTAGE)
    applying.apply_entry(1, make_entry(1_000, []))
    applying.apply_entry(2, make_entry(1_300, [outage, make_batch("a", 1, 1, [])]))
    applying.apply_entry(3, make_entry(1_300, [outage]))
    assert machine.outage_ms == 300


def test_a_configuration_counts_the_time_before_it_as_an_outage() -> None:
    machine = Alarms()
    applying = Applier(GroupState(machine), PendingProposals("a"))
    members = [Member_("a", PeerAddress("host", 1), b"1" * 16, is_voter=True)]
    applying.apply_entry(1, make_entry(1_000, []))
    applying.apply_configuration(make_configuration(1_700, Configuration.of(2, members)))
    applying.apply_entry(2, make_entry(2_000, []))
    assert machine.outage_ms == 700


class Account(Outages):
    """The account of a node; the test sets its inputs."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.engine = SimpleNamespace(
            term=1, commit_index=5, journal=SimpleNamespace(last_index=5), served_s=lambda: self.heard_s
        )
        self.heard_s: float | None = None
        self.clock = SimpleNamespace(leapt_ms=0.0, time_ms=lambda now_s: int(now_s * 1000))
        newest = SimpleNamespace(newest=SimpleNamespace(version=2))
        replica: Any = SimpleNamespace(
            name="a",
            engine=self.engine,
            configurations=newest,
            clock=self.clock,
            runtime=self,
            config=SimpleNamespace(timing=Timing()),
        )
        super().__init__(replica, since_version=2)

    def monotonic(self) -> float:
        return self.now_s

    def declared_ms(self) -> int:
        batch = self.declaration()
        return 0 if batch is None else batch.sequence


def test_a_new_process_declares_all_until_an_entry_is_applied() -> None:
    """It hears a leader that dies before its first entry; the outage before may be of any length."""
    account = Account()
    account.heard_s = 100.0
    account.check()
    account.engine.term = 2
    assert account.declared_ms() == ALL_MS
    account.applied(5, 99_000)  # the leader made this entry before the process heard it
    assert account.declared_ms() == ALL_MS
    account.applied(6, 101_000)
    assert account.declared_ms() == 0


def test_a_leader_declares_an_outage_again_until_it_is_applied() -> None:
    """The entry that declares it may get lost with its reign."""
    account = Account()
    account.heard_s = 100.0
    account.check()
    account.applied(6, 100_000)
    account.engine.journal.last_index = account.engine.commit_index = 6
    account.declared_ms()
    account.now_s = account.heard_s = 107.0
    account.check()
    assert account.declared_ms() == account.declared_ms() == 7_000
    account.applied(6, 110_000)  # it was in the log before the outage ended
    assert account.declared_ms() == 7_000
    account.applied(7, 107_000)
    assert account.declared_ms() == 0


def test_short_silences_are_no_outage() -> None:
    account = Account()
    account.heard_s = 100.0
    account.check()
    account.applied(6, 100_000)
    account.declared_ms()
    for _ in range(100):
        account.now_s = account.heard_s = account.now_s + GAP_S
        assert account.declared_ms() == 0
        account.check()
