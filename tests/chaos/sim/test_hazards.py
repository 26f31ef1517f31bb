"""The simulation's checks can fail: each hazard that the cluster closes, put back, is found within a few seeds."""

# ruff: noqa: N802 - the hazards are put back under pysyncobj's private names

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from traceback import format_exception
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import pytest
from pysyncobj.node import Node

from chaos.sim.checks.checks import Checks, ViolationError
from chaos.sim.run import LARGEST_BYTES, Outcome, Simulation, draw_options, run, with_largest_entries
from chaos.sim.workload import queue_features
from chaos.sim.world.cluster import Parts, SimulationOptions
from chaos.sim.world.compared_machines import WatchedMachine
from chaos.sim.world.network import ANY_VERSIONS, LinkEpoch, Network, NetworkOptions, Pipe, SimulatedLinks
from cluster.configuration import quorum
from cluster.configuration.configuration import Configuration, Member, Versions
from cluster.configuration.quorum import Membership
from cluster.engine.engine import Engine
from cluster.engine.rejoin import Rejoin
from cluster.group.bootstrap import Bootstrap
from cluster.group.group import Group
from cluster.group.reads import Reads
from cluster.log.compaction import Compact, compact_entry
from cluster.log.housekeeping import Housekeeping
from cluster.log.journal import SegmentedJournal
from cluster.log.register import Register
from cluster.log.segment import Segment
from cluster.raft.cluster_clock import ClusterClock
from cluster.raft.messages import Append, AppendResponse
from cluster.raft.proposals import LeaderTerm, PendingProposals, ProposalQueue
from cluster.raft.read_index import ReadRounds
from cluster.runtime.ports import Disk
from cluster.state.dedup import Admission, Origins
from cluster.state.group_state import GroupState, ReadState
from cluster.storage import identity
from cluster.storage.fail_stop import RemovedFromCluster
from cluster.storage.identity import Identity, Owner
from cluster.transport.connection import LinkBacklog
from qq.machine.catalog.deduplication import FrozenPublishers, Publishers
from qq.machine.catalog.sinks import FrozenSink, Sink, StagedRun
from qq.machine.catalog.vhost import VirtualHost
from qq.machine.handlers.leasing import GroupHandlers
from qq.machine.handlers.moving import MoveHandlers
from qq.machine.handlers.publishing import PublishHandlers, _as_publish
from qq.machine.handlers.sinking import SinkHandlers
from qq.machine.machine import QueueMachine
from qq.machine.protocol.codec import Buffer, encode_batch
from qq.machine.protocol.commands import (
    Command,
    CommitEpoch,
    DeadLetter,
    DeclareQueue,
    Enqueue,
    LeaseMessages,
    MoveMessages,
    Publish,
)
from qq.machine.protocol.effects import ConnectionForced, ConsumerState, Effect
from qq.machine.queue.backlog import Backlog
from qq.machine.queue.consumers import Budget, Holder
from qq.machine.queue.leases import LeaseChunk, LeaseHolder
from qq.machine.queue.queue import Consumer, DeadMessages, FrozenQueue, LeaseGroup, Queue
from qq.ranges import Range
from qq.sessions.dead_letters import DeadLetters
from qq.sessions.stuck_dead_letters import Candidates, StuckDeadLetters
from qq.tables import TABLE_DEPTH_MAX, Table
from tests.chaos.sim import absences
from tests.harness.long_cases import cases

ROLLBACKS = SimulationOptions(
    faults={"roll back": 3.0, "kill": 1.0, "isolate": 2.0, "partition": 1.0, "reset": 1.0, "pause": 1.0},
    duration_s=25.0,
    fault_interval_s=0.5,
    submit_interval_s=0.1,
)
SLOW_ROLLBACKS = replace(
    ROLLBACKS,
    faults={"roll back": 3.0, "kill": 3.0, "power loss of all": 1.0},
    duration_s=40.0,
    fault_interval_s=1.0,
    submit_interval_s=0.4,
    disk_slowness=100.0,
)
POWER_LOSSES = SimulationOptions(
    duration_s=12.0,
    submit_interval_s=0.08,
    disk_slowness=30.0,
    faults={"power loss of all": 1.0, "power loss": 0.5},
)
PARTITIONS = SimulationOptions(
    nodes=5,
    duration_s=15.0,
    submit_interval_s=0.3,
    faults={"partition": 2.0, "isolate": 1.0},
    network=NetworkOptions(delay_max_s=0.02, timeout_min_s=10.0, timeout_max_s=15.0),
)


ONE_WAY_CUTS = SimulationOptions(
    nodes=5,
    duration_s=25.0,
    submit_interval_s=0.3,
    fault_interval_s=0.7,
    faults={"lag": 1.0, "one-way cut": 3.0, "isolate": 1.0, "bridge": 2.0, "partition": 2.0, "kill": 1.0},
    network=NetworkOptions(delay_max_s=0.02, timeout_min_s=10.0, timeout_max_s=15.0),
)
LONG_LOGS = SimulationOptions(
    duration_s=20.0,
    submit_interval_s=0.1,
    fault_interval_s=0.5,
    faults={"kill": 1.0, "isolate": 2.0, "partition": 1.0, "reset": 1.0, "lag": 1.0, "transfer": 0.5},
    retained_bytes=2**26,
    message_bytes_max=1024,
)
SMALL_LOGS = replace(
    POWER_LOSSES, segment_bytes=2 * 1024, checkpoint_entries=10, checkpoint_bytes=2**20, retained_bytes=0
)
FULL_DISKS = replace(
    SMALL_LOGS,
    fault_interval_s=0.3,
    disk_slowness=1.0,
    faults={"full disk": 1.0, "small disk": 1.0, "kill": 2.0, "crash in a write": 1.0},
)
SLOW_DISKS = SimulationOptions(
    duration_s=15.0,
    submit_interval_s=0.05,
    fault_interval_s=0.5,
    faults={"slow disk": 1.0, "power loss": 1.0},
    checkpoint_entries=2,
)
LOSSES = SimulationOptions(
    duration_s=15.0,
    submit_interval_s=0.1,
    fault_interval_s=0.7,
    faults={"lose directory": 1.0, "kill": 1.0, "transfer": 0.5, "power loss": 0.5},
)
SHORTENED_LOGS = replace(LOSSES, faults={"shorten log": 1.0, "kill": 0.5, "power loss": 0.5})
NO_FAULTS = SimulationOptions(duration_s=5.0, fault_interval_s=1e9, faults={"reset": 1.0})
LISTS = SimulationOptions(
    nodes=5,
    duration_s=15.0,
    submit_interval_s=0.15,
    fault_interval_s=1.0,
    faults={"wrong members": 2.0, "partition": 1.0, "kill": 1.0},
)
VERSIONS = replace(LISTS, nodes=3, faults={"foreign version": 1.0})
QUEUES = SimulationOptions(
    duration_s=12.0,
    submit_interval_s=0.08,
    fault_interval_s=1.0,
    queues=True,
    faults={"kill": 1.0, "transfer": 1.0, "isolate": 0.5, "power loss of all": 0.3},
)
LEASING = {
    "chaos.sim.workload.queue_workload.LEASING_RUNS": 1.0,
    "chaos.sim.workload.queue_workload.MOVING_RUNS": 0.0,
}
SINKING = {
    "chaos.sim.workload.queue_workload.SINKING_RUNS": 1.0,
    "chaos.sim.workload.queue_workload.MOVING_RUNS": 0.0,
}
LINKING = {
    "chaos.sim.workload.queue_workload.LINKING_RUNS": 1.0,
    "chaos.sim.workload.queue_workload.MOVING_RUNS": 0.0,
}
LARGEST = with_largest_entries(
    SimulationOptions(
        fault_interval_s=1.5,
        faults={"kill": 2.0, "pause": 1.0, "isolate": 1.0, "reset": 0.5},
        retained_bytes=2**26,
        network=NetworkOptions(timeout_min_s=10.0, timeout_max_s=15.0),
    ),
    bytes_per_s=60_000,
)
"""The largest takes several times as long as an election."""
MOSTLY_LARGE = replace(LARGEST, large_batches=0.6, network=replace(LARGEST.network, bytes_per_s=2**40))
SMALL_QUEUES = replace(
    LARGEST,
    network=replace(
        LARGEST.network, limits=LARGEST.network.limits._replace(queued_bytes_max=LARGEST_BYTES * 3 // 4)
    ),
)
CLOCK_JUMPS = SimulationOptions(
    duration_s=12.0,
    submit_interval_s=0.1,
    fault_interval_s=2.0,
    queues=True,
    faults={"clock jump": 1.0, "kill": 0.2, "transfer": 0.3},
)
OUTAGES = SimulationOptions(
    duration_s=15.0,
    submit_interval_s=0.3,
    fault_interval_s=0.7,
    queues=True,
    faults={"pause": 3.0, "kill all": 0.5, "isolate": 1.0, "partition": 1.0, "clock jump": 1.0},
)
FOUR_VOTERS = SimulationOptions(
    nodes=4,
    duration_s=20.0,
    submit_interval_s=0.3,
    fault_interval_s=0.3,
    faults={"remove member": 2.0, "partition": 2.0, "transfer": 1.0, "isolate": 1.0, "kill": 0.5},
    network=NetworkOptions(delay_max_s=0.05),
    disk_slowness=30.0,
)
"""Two different majorities of three nodes need have no voter in common."""
REMOVALS = SimulationOptions(
    duration_s=15.0,
    submit_interval_s=0.2,
    fault_interval_s=0.5,
    faults={"remove member": 1.0, "isolate": 1.0, "pause": 0.5, "kill": 0.5},
)
LEARNERS = replace(
    LOSSES,
    nodes=5,
    faults={"lose directory": 1.0, "partition": 1.5, "kill": 1.0, "isolate": 0.5, "remove member": 0.3},
)
SLOW_LEARNERS = replace(LEARNERS, nodes=4, disk_slowness=10.0)
WRONG_LISTS = replace(LISTS, faults={"wrong members": 1.0, "partition": 1.0, "kill": 0.5, "isolate": 0.5})
ADOPT = GroupState.adopt
UPGRADES = SimulationOptions(
    is_upgrade=True, fault_interval_s=1.0, faults={"kill": 1.0, "isolate": 0.5, "transfer": 0.5}
)
BACKUPS = SimulationOptions(makes_backup=True, duration_s=8.0, faults={"kill": 1.0, "isolate": 0.5})
DRAINS = SimulationOptions(duration_s=8.0, faults={"drain": 1.0, "revive": 0.5, "kill": 0.5})
OLD_DIRECTORIES = replace(LEARNERS, nodes=3, faults={"old directory": 1.0, "partition": 1.0, "kill": 1.0})
AFTERWARDS_S = 1.0
"""Virtual seconds for which the world runs on without the hazard, after it was found."""
_APPENDED = b"\x03"
"""First byte of the frame of an acknowledgement."""


class AcknowledgesBeforeTheSync(Engine):
    """H1, the follower's side."""

    def _acknowledgement_sync_point(self) -> int:
        return 0


class CountsItsUnsyncedTail(Engine):
    """H1, the leader's side."""

    def _stored_index(self) -> int:
        return self.journal.last_index


class ForgetsItsVote(Engine):
    """H1: the vote is not on disk when the answer leaves."""

    def _SyncObj__setCurrentTerm(self, term: int, voted_for: str | None) -> None:
        self._SyncObj__raftCurrentTerm = term
        self._SyncObj__votedForNodeId = voted_for
        self.journal.setCurrentTerm(term, None)


class ForgetsItsTerm(Engine):
    """H1: nor is the term."""

    def _SyncObj__setCurrentTerm(self, term: int, voted_for: str | None) -> None:
        self._SyncObj__raftCurrentTerm = term
        self._SyncObj__votedForNodeId = voted_for


class SendsEverythingAgain(Engine):
    """No hazard: as the stock package does, each new link begins with the start of the log, and so do H2 and H3."""

    def peer_connected(self, peer: str) -> None:
        super().peer_connected(peer)
        if self.is_leader:
            self.progress[peer].next_index = max(self.acknowledged_index(peer), 1) + 1


def believe_the_commit_index(message: Append) -> Append:
    """In place of `limit_commit_index` (H2, H3): commits entries beyond those of the message."""
    return message


class TruncatesAlways(SendsEverythingAgain):
    """H2: deletes everything behind the previous index, as the stock package does."""

    def _match(self, node: Node, message: Append) -> None:
        self._deliver_append(node, message)


class CountsAcknowledgementsOfAnyTerm(Engine):
    """H4."""

    def _is_current_acknowledgement(self, message: AppendResponse) -> bool:
        return self.is_leader


class CampaignsWithoutAsking(Engine):
    """H9: no pre-vote."""

    def _hold_pre_vote(self) -> bool:
        # The deadline is allowed to fire, unless this node would not be elected at all.
        return (self.may_vote and self.may_lead) or super()._hold_pre_vote()


class CampaignsIfTheDeadlinePassesMeanwhile(Engine):
    """H9: pysyncobj looks at the deadline once more, a moment after the turn has found that it has not passed."""

    def _SyncObj__connectedToAnyone(self) -> bool:
        return True


class LeadsForEver(Engine):
    """H9: the stock time for a leader to notice that it has lost the majority."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._SyncObj__conf.leaderFallbackTimeout = 30.0


class HearsWholeMessagesOnly(Engine):
    """H9: a leader that is in the middle of sending much is silent."""

    def part_received(self, peer: str) -> None:
        """Wait for the rest."""


def two_entries_at_least(journal: SegmentedJournal, index: int, end: int) -> int:
    """In place of `SegmentedJournal.slice_end`: ignores their size."""
    return min(max(slice_end(journal, index, end), index + 2), end)


slice_end = SegmentedJournal.slice_end


def admit_up_to_the_bound(backlog: LinkBacklog, _length: int, queued_bytes: int) -> bool:
    """In place of `LinkBacklog.admits`: it was no larger for a large frame."""
    return queued_bytes <= backlog._bytes_max


class ForgetfulOrigins(Origins):
    """Invariant 3 off: a batch takes effect as often as it is in the log."""

    def admit(self, name: str, incarnation: int, sequence: int) -> Admission:
        admission = super().admit(name, incarnation, sequence)
        return Admission.APPLY if admission is Admission.DROP else admission


class ForgetfulSubmissions(PendingProposals):
    """Invariant 3 off: proposals sent to an old leader are not sent to the new leader."""

    def has_unsent(self, leader_term: LeaderTerm) -> bool:
        if self._sent_sequence:
            self._sent_to = leader_term
        return super().has_unsent(leader_term)


class TruncatesWithoutACheckpoint(Housekeeping):
    """Deletes all applied entries."""

    def _free_segments(self) -> list[Segment]:
        second_index, self.second_index = self.second_index, self._applied_index
        try:
            return super()._free_segments()
        finally:
            self.second_index = second_index


class WritesCheckpointsOfUnsyncedEntries(Housekeeping):
    def _proceed(self) -> None:
        if self._taken is not None and not (self._busy or self._stopped):
            self._write(self._taken)
        else:
            super()._proceed()


def drop_a_live_message(
    payload: bytes, messages: Mapping[int, Sequence[tuple[int, int]]], compact: Compact
) -> bytes | None:
    """In place of `compact_entry`: each entry loses the first of its live messages."""
    (ordinal, ranges), *others = messages.items()
    first, count = ranges[0]
    rest = [(first + 1, count - 1), *ranges[1:]] if count > 1 else ranges[1:]
    return compact_entry(payload, dict([(ordinal, rest), *others]), compact)


class ForgetsWhatItSkipped(Group):
    """An installed snapshot is all there is to tell."""

    def _resume(self, index: int) -> None:
        machine, self.machine = self.machine, OwesNothing()
        super()._resume(index)
        self.machine = machine


class WaitsForSubmissions(Group):
    """Due timers run only after a submission."""

    def _tick_if_due(self) -> None:
        """Leave the machine alone."""


class TellsTheTimeOfItsNode(Group):
    """Each replica goes by its own clock."""

    def _apply(self, index: int, term: int, payload: bytes) -> None:
        self._state.time_ms = max(self._state.time_ms, self._runtime.wall_ms())
        super()._apply(index, term, payload)


class GoesByTheLeadersClock(Group):
    """As it was: an entry has the leader's wall clock, or the time of the state while that is ahead."""

    def time_ms(self) -> int:
        return max(self._runtime.wall_ms(), self._state.time_ms)

    def _wake_in(self, delay_s: float) -> None:
        """Each beat looks at that clock, which is soon enough."""


class OwesNothing:
    def outstanding(self, origin: str) -> Sequence[Any]:
        return []


class LetsLearnersVote(Engine):
    """A node that lost acknowledged entries votes, and campaigns."""

    @property
    def may_vote(self) -> bool:
        return True

    @may_vote.setter
    def may_vote(self, value: bool) -> None:
        """Ignore the value."""


class VotesForAnyLog(Engine):
    """A node that has heard of a committed entry votes for a log without it."""

    def _may_lead_with(self, last_index: int) -> bool:
        return True


def ignore_what_others_remember(rejoin: Rejoin, peer: str, *_: object) -> None:
    """In place of `Rejoin.record_memory`: a directory that was put back votes at once."""
    rejoin._memories.add(peer)


@contextmanager
def all_is_committed(engine: Engine) -> Iterator[None]:
    """Let all entries count as committed within the block."""
    commit_index = engine.commit_index
    engine._SyncObj__raftCommitIndex = engine.journal.last_index
    try:
        yield
    finally:
        engine._SyncObj__raftCommitIndex = commit_index


class ProposesTooEarly(Group):
    """Ignores one of the two reasons to delay a change of the members."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        propose = self.reconfiguration.propose

        def propose_early(step: Callable[[Configuration], Configuration]) -> int:
            if self._waits():
                return propose(step)
            with all_is_committed(self.engine):
                return propose(step)

        self.reconfiguration.propose = propose_early

    def _waits(self) -> bool:
        """Whether the other reason holds."""
        raise NotImplementedError


class ChangesMembersBeforeItCommits(ProposesTooEarly):
    """Thesis 4.1, before its correction of 2015: a leader need not have committed anything of its own term."""

    def _waits(self) -> bool:
        return self.configurations.newest_index > self.engine.commit_index


class MakesSeveralChangesAtOnce(ProposesTooEarly):
    """The next change does not wait until the previous change is committed."""

    def _waits(self) -> bool:
        return self.journal.term_at(self.engine.commit_index) != self.engine.term


class StaysThoughRemoved(Group):
    """Ignores the report of its removal."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        stop_for = self.fail_stop.stop_for
        self.fail_stop.stop_for = lambda error: (
            None if isinstance(error, RemovedFromCluster) else stop_for(error)
        )


class LeadsUnderMaintenance(Group):
    """A leader under maintenance stays leader."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.leadership.leave_for_maintenance = lambda: None


class ChangesMembersUnjudged(Group):
    """A leader makes each possible change of the members, without a check of the remaining majority."""

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.reconfiguration._judged = lambda change, before: change.step(before)


def go_by_the_list_in_the_file(bootstrap: Bootstrap, index: int) -> None:
    """In place of `Bootstrap.find_configurations`: the node's list applies after each start, until the log has a
    configuration.
    """
    find_configurations(bootstrap, index)
    held = bootstrap.configurations
    if held.newest.cluster:
        listed = [Member(name, address) for name, address in bootstrap.config.nodes.items()]
        held.find(Configuration.of(held.newest.version, listed), held.newest_index, [])


find_configurations = Bootstrap.find_configurations


def reached_by_anybody(membership: Membership, values: Mapping[str, Any]) -> Any:
    """In place of `Membership.reached`: acknowledgements of learners count for the majority of voters."""
    return quorum.reached(values.values(), len(membership.voters))


class AsksLearners(Engine):
    """Learners are asked for votes, and vote."""

    @property
    def may_vote(self) -> bool:  # type: ignore[override]
        return True

    @may_vote.setter
    def may_vote(self, _: bool) -> None: ...

    def follow_configuration(self, non_members: Iterable[str]) -> None:
        super().follow_configuration(non_members)
        self._SyncObj__otherNodes |= self._SyncObj__readonlyNodes
        self._SyncObj__readonlyNodes = set()


def known_by_name(configuration: Configuration, name: str, _member_id: bytes) -> bool:
    """In place of `Configuration.has`: any directory of that name is the member."""
    return configuration.member(name) is not None


class SendsTwoInTheWrongOrder(Network):
    """The law of the links broken: not FIFO."""

    def _put(self, connection: LinkEpoch, pipe: Pipe, frame: bytes | None) -> None:
        super()._put(connection, pipe, frame)
        if len(pipe.frames) > 1 and frame is not None and self._random.random() < 0.2:
            last, before = pipe.frames.pop(), pipe.frames.pop()
            pipe.frames.extend([(before[0], last[1]), (last[0], before[1])])


class LosesFrames(Network):
    """The law of the links broken: a gap within an epoch."""

    def _put(self, connection: LinkEpoch, pipe: Pipe, frame: bytes | None) -> None:
        if frame is None or self._random.random() > 0.02:
            super()._put(connection, pipe, frame)


class RepeatsAcknowledgements(Network):
    """The law of the links broken: old acknowledgements come again, also after their connection."""

    def _receive(self, connection: LinkEpoch, pipe: Pipe, frame: bytes) -> None:
        super()._receive(connection, pipe, frame)
        if frame[:1] == _APPENDED and self._random.random() < 0.2:
            delay_s = self._random.uniform(0.2, 6.0)
            self._world.after(delay_s, partial(self._receive_again, pipe.source, pipe.target, frame))

    def _receive_again(self, source: str, target: str, frame: bytes) -> None:
        links = self._links.get(target)
        if links is not None and source in links.current and links.events is not None:
            links.runtime.enter(partial(links.events.frame_received, source, frame))


class LinksWhoeverIsListed(Network):
    """The handshake compares neither lists nor versions."""

    def _agree(self, dialler: SimulatedLinks, acceptor: SimulatedLinks) -> bool:
        return dialler.name in acceptor.known.addresses

    def _still_agree(self, *_: object) -> bool:
        return True


class LinksAnybody(LinksWhoeverIsListed):
    """The handshake compares no terms: an earlier cluster has the same name and secret."""

    def _agree(self, dialler: SimulatedLinks, acceptor: SimulatedLinks) -> bool:
        return True


def replace_instead_of_overwriting(register: Register, path: str, data: bytes) -> None:
    """In place of `Register._write`: replaces the file, which needs space, instead of overwriting it in place."""
    register._disk.replace_file(path, data)


def let_everybody_in(
    _disk: Disk, _directory: str, owner: Owner, versions: Versions, members: tuple[str, ...], **_: bool
) -> Identity:
    """In place of `identity._checked`: accepts the node's present file in any case."""
    return Identity(owner, versions.low, members)


def believe_in_any_version(
    disk: Disk, directory: str, owner: Owner, _versions: Versions, members: tuple[str, ...], *, is_blank: bool
) -> Identity:
    """In place of `identity._checked`: starts a program on data that it cannot run."""
    return check_identity(disk, directory, owner, ANY_VERSIONS, members, is_blank=is_blank)


check_identity = identity._checked


def skip_entries_after_the_checkpoint(*_: object) -> None:
    """In place of `new_cluster._apply`: skips the entries after the checkpoint."""


def let_clocks_jump(_checks: Checks, _time_ms: int) -> None:
    """In place of `Checks._check_clocks`, to show further findings."""


def follow_the_clock_of_a_single_peer(clock: ClusterClock, _peer: str, steady_ms: int, now_s: float) -> None:
    """In place of `ClusterClock.add_peer_reading`: no majority is asked."""
    clock.advance_to(steady_ms, now_s)


def take_dead_letters_twice(
    handlers: PublishHandlers, vhost: VirtualHost, queue: Queue, command: DeadLetter
) -> dict[str, int]:
    """In place of `_dead_letter_stuck`: a command that was carried out before is carried out on those that follow."""
    return handlers._dead_letter_first(vhost, queue, command._replace(first=queue.first_dead))


def take_dead_letters_and_keep_them(queue: Queue, first: int, count: int) -> list[DeadMessages]:
    """In place of `Queue.take_dead`: the moved messages also stay."""
    taken = take_dead(queue, first, count)
    for dead in reversed(taken):
        queue.dead.appendleft(dead)
        queue.dead_count += dead.range.count
    return taken


take_dead = Queue.take_dead


class GoesByItsOwnClock(QueueMachine):
    """Messages expire when the node finds that it is time."""

    _machines = count()

    def __init__(self) -> None:
        super().__init__()
        self._ahead_ms = 400 * (next(self._machines) % 3)

    def end_entry(self, time_ms: int) -> list[Effect]:
        return super().end_entry(time_ms + self._ahead_ms)


draw_arguments = queue_features._draw_arguments


def draw_expiring_arguments(random: Random, queue: str) -> Table:
    """In place of `queue_features._draw_arguments`: queues are deleted when they were unused for two seconds."""
    return draw_arguments(random, queue) | {"x-expires": 2_000}


def count_an_outage_as_idle_time(_machine: QueueMachine, _length_ms: int) -> None:
    """In place of `QueueMachine.outage`."""


def forget_publishers(publishers: Publishers) -> FrozenPublishers:
    """In place of `Publishers.freeze`: a checkpoint has no publishers."""
    return FrozenPublishers(*publishers.bounds, [])


def leave_the_dead(_: DeadLetters) -> None:
    """In place of `DeadLetters.submit_step`."""


def leave_the_stuck(_: StuckDeadLetters) -> Iterator[Candidates]:
    """In place of `StuckDeadLetters.candidates`: a stuck dead letter is never tried again."""
    return iter(())


take_lease = GroupHandlers.lease


def take_lease_anew(handlers: GroupHandlers, command: LeaseMessages) -> None:
    """In place of `GroupHandlers.lease`: a lease that is taken again has the next messages."""
    queue = handlers._core.catalog.vhosts[command.vhost].queues.get(command.queue)
    group = None if queue is None else queue.groups.get(command.group)
    if queue is not None and group is not None and command.lease in group.leases:
        queue.release_lease(group, command.lease)
    take_lease(handlers, command)


def accept_any_fence(_group: LeaseHolder, _fence: int) -> None:
    """In place of `LeaseHolder.check_fence`."""


commit_epoch = SinkHandlers.commit


def commit_epoch_again(handlers: SinkHandlers, command: CommitEpoch) -> None:
    """In place of `SinkHandlers.commit`: an epoch may be committed twice, the second time by a zombie."""
    sink = handlers._core.catalog.vhosts[command.vhost].sinks.get(command.sink)
    if sink is not None:
        sink.first_free = min(sink.first_free, command.epoch)
    commit_epoch(handlers, command)


def keep_losers(sink: Sink, name: str) -> list[StagedRun]:
    """In place of `Sink.take`: attempts that were committed or dropped stay."""
    return sink.attempts[name].runs


def restore_no_attempts(frozen: FrozenSink) -> Sink:
    """In place of `Sink.restore`: a state that is loaded has no attempts."""
    return Sink(*frozen[:6])


def forget_group(_queue: Queue, _group: LeaseGroup) -> None:
    """In place of `Queue.restore_group`: a state that is loaded has no groups."""


def leave_leases_out(_queue: FrozenQueue) -> Iterator[LeaseChunk]:
    """In place of `FrozenQueue.leased_chunks`: compaction takes leased messages for settled ones."""
    return iter(())


set_credit, restore_consumer, activity_reports = (
    Queue.set_credit,
    Queue.restore_consumer,
    Queue.activity_reports,
)


def add_credit(
    queue: Queue, consumer: Consumer, number: int, limit: int, *, is_drain: bool, wants_state: bool
) -> None:
    """In place of `Queue.set_credit`: credit comes on top of former credit, also by a repeated command."""
    if consumer.client_credit is not None:
        consumer.client_credit.number = min(consumer.client_credit.number, number - 1)
    more = limit + consumer.credit
    set_credit(queue, consumer, number, more, is_drain=is_drain, wants_state=wants_state)


def restore_consumer_without_credit(queue: Queue, consumer: Consumer) -> None:
    """In place of `Queue.restore_consumer`: credit that a client has set is lost with a snapshot."""
    if consumer.client_credit is not None:
        consumer.credit = 0
    restore_consumer(queue, consumer)


def report_drains_first(queue: Queue) -> list[ConsumerState]:
    """In place of `Queue.activity_reports`: a drain ends before the queue has delivered its messages."""
    reports = activity_reports(queue)
    for consumer in list(queue.to_report):
        credit = consumer.client_credit
        if credit is not None and credit.is_draining:
            credit.is_draining = credit.wants_state = False
            queue.give_credit(consumer, -consumer.credit)
            reports.append(queue.state_of(consumer))
            queue._keep_reporting(consumer)
    return reports


def leave_where_it_was(queue: Queue, _place: int, found: Sequence[tuple[int, Range]]) -> None:
    """In place of `Queue.move_out`: moved messages also stay in their queue."""
    queue.forget(messages for _, messages in found)


take_step = MoveHandlers.step


def take_any_step(moving: MoveHandlers, command: MoveMessages) -> None:
    """In place of `MoveHandlers.step`: a step that was taken is taken again."""
    move = moving._core.catalog.moves.all.get((command.vhost, command.move))
    take_step(moving, command if move is None else command._replace(step=move.step))


outstanding = QueueMachine.outstanding


def omit_forced_closes(machine: QueueMachine, origin: str) -> list[Effect]:
    """In place of `QueueMachine.outstanding`: omits forced closes of connections."""
    return [effect for effect in outstanding(machine, origin) if not isinstance(effect, ConnectionForced)]


def find_room_for_all(
    publishing: PublishHandlers, vhost: VirtualHost, content: Sequence[Command]
) -> list[Any]:
    """In place of `PublishHandlers._check`: carries out a part of a transaction for which there is no room."""
    ways: list[Any] = []
    slot = publishing._core.next_slot
    for command in content:
        if isinstance(command, Enqueue | Publish):
            published = command if isinstance(command, Publish) else _as_publish(command)
            ways.append((published, slot, publishing._parts(vhost, published, slot)))
            slot += command.count
    return ways


def let_everybody_take(_queue: Queue, _consumer: Holder) -> bool:
    """In place of `Queue._may_get`: there is no single active consumer."""
    return True


def ignore_the_channel_limit(consumer: Holder) -> int:
    """In place of `Holder.room`: ignores the messages that other consumers of the channel hold."""
    return consumer.credit


def refuse_despite_waiting_consumers(
    _queue: Queue, _count: int, _now_ms: int, _promised: dict[Budget, int], _lost: Container[str]
) -> int:
    """In place of `Queue.wanted`: a full queue refuses messages that a waiting consumer could have."""
    return 0


def delay_serving_until_the_end_of_the_entry(
    _publishing: PublishHandlers, _queues: Iterable[Queue], _count: int
) -> None:
    """In place of `PublishHandlers.serve_if_full`: messages for waiting consumers stay until the entry ends."""


def release_as_of_then(backlog: Backlog, now_ms: int, limit: int) -> int:
    """In place of `Backlog.release`: the delay of the leader shortens the time to live."""
    released = 0
    while released < limit and 0 < (due_ms := backlog._delayed.due_ms) <= now_ms:
        released += release(backlog, due_ms, limit - released)
    return released


release = Backlog.release


def answer_reads_unconfirmed(_rounds: ReadRounds, _names: set[str]) -> bool:
    """In place of `ReadRounds._is_majority`: the leader answers reads although a newer leader may exist."""
    return True


def answer_reads_with_the_commit_index(reads: Reads) -> int:
    """In place of `Reads._read_index`: a new leader may not know yet that entries of earlier terms are committed."""
    return reads._engine.commit_index


def keep_batches_that_may_wait(proposals: ProposalQueue, _now_s: float) -> float:
    """In place of `wait_s`: such a batch waits until a client submits a batch that must not wait."""
    return 0.0 if proposals._is_due else 3600.0


def ignore_the_sync_mark(*_: object) -> None:
    """In place of `load_mark`: a missing end of the open segment counts as never written."""


def lets_in_too_deep_a_table(commands: Sequence[Command], messages: Sequence[bytes]) -> list[Buffer]:
    """A batch that a reader with limits other than the codec's would make."""
    table: dict[str, Any] = {}
    for _ in range(TABLE_DEPTH_MAX):
        table = {"a": table}
    deep = DeclareQueue(1, 1, "deep", True, False, False, False, False, table)
    return encode_batch([*commands, deep], messages)


def counts_by_its_program(machine: WatchedMachine) -> bool:
    """Use the newest version of the program instead of the agreed version."""
    return machine.versions[1] > machine.inner.versions[0]


def adopt_and_go_by_the_lowest_version(state: GroupState, read: ReadState) -> None:
    ADOPT(state, read)
    state.machine.raise_to(state.machine.versions[0])


UNASKED = {"chaos.sim.checks.campaigns.Campaigns.take": lambda _self, _name, _members: True}
"""Ignore pre-votes."""

OFTEN_READ = {"chaos.sim.workload.workload.READS": 1.0}
"""Clients read each time that they act."""

KNOWN_BY_NAMES = {"chaos.sim.workload.ledger.Ledger.versions": (1, 1)}
"""The nodes' files list the members all the time, as with release 0.1."""


class Hazard(NamedTuple):
    parts: Parts
    options: SimulationOptions | None
    """None: drawn from the seed."""
    seeds: int
    finding: str
    replaced: tuple[str, object] | None = None
    """A name in the production code, and its replacement."""
    shown_by: int = 0
    """The seed that shows the hazard soonest. If it shows no finding, all seeds are tried."""
    absences: bool = False
    """Whether the nodes are cut off in turn."""
    world: Mapping[str, object] = MappingProxyType({})
    """Further replacements in its world, also without the hazard: names and values."""
    is_long: bool = False
    """Whether it takes a second until it shows."""


class Over(Exception):
    """Ends a run early."""


def end() -> NoReturn:
    raise Over


def run_in(
    hazard: Hazard, seed: int, options: SimulationOptions, parts: Parts, until_s: float = float("inf")
) -> Outcome:
    """A run in a hazard's world, up to this time."""
    simulation = Simulation(seed, options, parts)
    if hazard.absences:
        absences.cut_off_nodes_in_turn(simulation)
    if until_s < float("inf"):
        simulation.world.at(until_s, end)
    violation = ""
    try:
        simulation.run()
    except Over:
        pass
    except ViolationError as error:
        violation = str(error)
    except Exception as error:  # noqa: BLE001 - some hazards end the run in another way
        violation = "".join(format_exception(error))
    return simulation.outcome(violation)


HAZARDS = [
    Hazard(Parts(engine=AcknowledgesBeforeTheSync), None, 5, "believes that", shown_by=0),
    Hazard(Parts(engine=CountsItsUnsyncedTail), POWER_LOSSES, 60, "entry", shown_by=55),
    Hazard(Parts(engine=ForgetsItsVote), POWER_LOSSES, 5, "has forgotten that it voted", shown_by=4),
    Hazard(Parts(engine=ForgetsItsTerm), POWER_LOSSES, 60, "has forgotten term", shown_by=280),
    Hazard(Parts(engine=TruncatesAlways), LONG_LOGS, 30, "which it had applied", shown_by=12, is_long=True),
    Hazard(
        Parts(engine=SendsEverythingAgain),
        LONG_LOGS,
        30,
        "has committed another entry",
        ("cluster.engine.engine.limit_commit_index", believe_the_commit_index),
        shown_by=0,
    ),
    Hazard(
        Parts(engine=CountsAcknowledgementsOfAnyTerm, network=RepeatsAcknowledgements),
        ONE_WAY_CUTS,
        30,
        "believes that",
        shown_by=2,
        is_long=True,
    ),
    Hazard(
        Parts(engine=CampaignsWithoutAsking),
        PARTITIONS,
        5,
        "campaigns though cut off",
        shown_by=4,
        world=UNASKED,
    ),
    Hazard(
        Parts(engine=LeadsForEver),
        replace(PARTITIONS, submit_interval_s=0.1),
        5,
        "was committed before the read",
        ("cluster.raft.read_index.ReadRounds._is_majority", answer_reads_unconfirmed),
        shown_by=0,
        world=OFTEN_READ | {"chaos.sim.checks.checks.MINORITY_GRACE_S": 1e9},
    ),
    Hazard(
        Parts(),
        replace(PARTITIONS, nodes=3, submit_interval_s=0.05, faults={"kill": 1.0, "isolate": 1.0}),
        5,
        "was committed before the read",
        ("cluster.group.reads.Reads._read_index", answer_reads_with_the_commit_index),
        shown_by=0,
        world=OFTEN_READ,
    ),
    Hazard(Parts(engine=LeadsForEver), PARTITIONS, 10, "leads though cut off", shown_by=9),
    Hazard(Parts(engine=HearsWholeMessagesOnly), LARGEST, 10, "has not converged", shown_by=5, is_long=True),
    Hazard(
        Parts(),
        MOSTLY_LARGE,
        10,
        "is above the limit",
        ("cluster.log.journal.SegmentedJournal.slice_end", two_entries_at_least),
        shown_by=3,
    ),
    Hazard(
        Parts(),
        SMALL_QUEUES,
        10,
        "has not converged",
        ("cluster.transport.connection.LinkBacklog.admits", admit_up_to_the_bound),
        shown_by=7,
        is_long=True,
    ),
    Hazard(
        Parts(),
        None,
        20,
        "took effect, batch",
        ("cluster.state.group_state.Origins", ForgetfulOrigins),
        shown_by=6,
        is_long=True,
    ),
    Hazard(
        Parts(),
        None,
        20,
        "has not converged",
        ("cluster.group.bootstrap.PendingProposals", ForgetfulSubmissions),
        shown_by=1,
    ),
    Hazard(
        Parts(),
        SMALL_LOGS,
        20,
        "are live",
        ("cluster.group.bootstrap.Housekeeping", TruncatesWithoutACheckpoint),
        shown_by=5,
        is_long=True,
    ),
    Hazard(
        Parts(),
        SLOW_DISKS,
        30,
        "has given its log up",
        ("cluster.group.bootstrap.Housekeeping", WritesCheckpointsOfUnsyncedEntries),
        shown_by=34,
    ),
    Hazard(
        Parts(),
        None,
        10,
        "which is live",
        ("cluster.log.compaction.compact_entry", drop_a_live_message),
        shown_by=2,
    ),
    Hazard(
        Parts(group=ForgetsWhatItSkipped),
        absences.OPTIONS,
        10,
        "client",
        shown_by=27,
        absences=True,
        is_long=True,
    ),
    Hazard(Parts(group=WaitsForSubmissions), NO_FAULTS, 5, "leaves undone what was due", shown_by=4),
    Hazard(Parts(group=TellsTheTimeOfItsNode), NO_FAULTS, 5, "was Applied", shown_by=0),
    Hazard(
        Parts(group=GoesByTheLeadersClock), CLOCK_JUMPS, 5, "ahead of the clocks of any majority", shown_by=36
    ),
    Hazard(
        Parts(group=GoesByTheLeadersClock),
        CLOCK_JUMPS,
        10,
        "leaves undone what was due",
        ("chaos.sim.checks.checks.Checks._check_clocks", let_clocks_jump),
        shown_by=6,
        is_long=True,
    ),
    Hazard(
        Parts(),
        CLOCK_JUMPS,
        10,
        "ahead of the clocks of any majority",
        ("cluster.raft.cluster_clock.ClusterClock.add_peer_reading", follow_the_clock_of_a_single_peer),
        shown_by=26,
    ),
    Hazard(
        Parts(),
        QUEUES,
        20,
        "that nobody asked for",
        (
            "qq.machine.handlers.publishing.PublishHandlers._dead_letter_stuck",
            take_dead_letters_twice,
        ),
        shown_by=8,
        is_long=True,
    ),
    Hazard(
        Parts(),
        QUEUES,
        10,
        "and should not be",
        ("qq.machine.queue.queue.Queue.take_dead", take_dead_letters_and_keep_them),
        shown_by=21,
    ),
    Hazard(
        Parts(),
        QUEUES,
        10,
        "neither settled",
        ("qq.sessions.dead_letters.DeadLetters.submit_step", leave_the_dead),
        shown_by=1,
        is_long=True,
    ),
    Hazard(
        Parts(),
        QUEUES,
        20,
        "neither settled",
        ("qq.sessions.stuck_dead_letters.StuckDeadLetters.candidates", leave_the_stuck),
        shown_by=1,
        is_long=True,
    ),
    Hazard(
        Parts(),
        QUEUES,
        20,
        "has what should not be there",
        ("qq.machine.handlers.leasing.GroupHandlers.lease", take_lease_anew),
        world=LEASING,
        shown_by=0,
    ),
    Hazard(
        Parts(),
        QUEUES,
        20,
        "has lost",
        ("qq.machine.queue.leases.LeaseHolder.check_fence", accept_any_fence),
        world=LEASING,
        shown_by=0,
    ),
    Hazard(
        Parts(),
        QUEUES,
        20,
        "has another state",
        ("qq.machine.queue.queue.Queue.restore_group", forget_group),
        world=LEASING,
        shown_by=0,
    ),
    *(
        Hazard(Parts(), QUEUES, 40, error, (f"qq.machine.{place}", change), world=SINKING)
        for error, place, change in (
            ("has the sinks", "handlers.sinking.SinkHandlers.commit", commit_epoch_again),
            ("has the sinks", "catalog.sinks.Sink.take", keep_losers),
            ("has another state", "catalog.sinks.Sink.restore", restore_no_attempts),
        )
    ),
    Hazard(
        Parts(),
        QUEUES,
        20,
        "EntryNotFound",
        ("qq.machine.queue.queue.FrozenQueue.leased_chunks", leave_leases_out),
        world=LEASING,
        shown_by=0,
    ),
    *(
        Hazard(Parts(), QUEUES, 20, error, (f"qq.machine.queue.queue.Queue.{method}", change), world=LINKING)
        for error, method, change in (
            ("and has credit up to", "set_credit", add_credit),
            ("has another state", "restore_consumer", restore_consumer_without_credit),
            ("has drained with", "activity_reports", report_drains_first),
        )
    ),
    Hazard(
        Parts(),
        QUEUES,
        10,
        "has what should not be there",
        ("qq.machine.queue.queue.Queue.move_out", leave_where_it_was),
        shown_by=5,
    ),
    Hazard(
        Parts(),
        QUEUES,
        40,
        "has gone on by itself",
        ("qq.machine.handlers.moving.MoveHandlers.step", take_any_step),
        shown_by=38,
        is_long=True,
    ),
    Hazard(
        Parts(),
        QUEUES,
        10,
        "elsewhere and is",
        ("chaos.sim.run.QueueMachine", GoesByItsOwnClock),
        shown_by=2,
    ),
    Hazard(
        Parts(),
        QUEUES,
        20,
        "another state",
        ("qq.machine.catalog.deduplication.Publishers.freeze", forget_publishers),
        shown_by=0,
        is_long=True,
    ),
    Hazard(
        Parts(),
        QUEUES,
        10,
        "has lost",
        ("qq.machine.handlers.publishing.PublishHandlers._check", find_room_for_all),
        shown_by=0,
        is_long=True,
    ),
    Hazard(
        Parts(),
        QUEUES,
        10,
        "both active",
        ("qq.machine.queue.queue.Queue._may_get", let_everybody_take),
        shown_by=0,
        is_long=True,
    ),
    Hazard(
        Parts(),
        QUEUES,
        10,
        "and may hold",
        ("qq.machine.queue.consumers.Holder.room", property(ignore_the_channel_limit)),
        shown_by=29,
    ),
    Hazard(
        Parts(),
        QUEUES,
        20,
        "though consumers wait",
        ("qq.machine.queue.queue.Queue.wanted", refuse_despite_waiting_consumers),
        shown_by=18,
    ),
    Hazard(
        Parts(),
        QUEUES,
        20,
        "has taken a message more",
        (
            "qq.machine.handlers.publishing.PublishHandlers.serve_if_full",
            delay_serving_until_the_end_of_the_entry,
        ),
        shown_by=6,
    ),
    Hazard(
        Parts(),
        QUEUES,
        20,
        "is said to expire",
        ("qq.machine.queue.backlog.Backlog.release", release_as_of_then),
        shown_by=51,
    ),
    Hazard(
        Parts(),
        absences.OPTIONS,
        10,
        "was not told to close",
        ("qq.machine.machine.QueueMachine.outstanding", omit_forced_closes),
        shown_by=4,
        absences=True,
        world={"chaos.sim.workload.queue_workload.TENANTS": 0.5},
        is_long=True,
    ),
    Hazard(
        Parts(),
        OUTAGES,
        8,
        "ms in which it could be used",
        ("qq.machine.machine.QueueMachine.outage", count_an_outage_as_idle_time),
        shown_by=2,
        world={"chaos.sim.workload.queue_features._draw_arguments": draw_expiring_arguments},
    ),
    Hazard(
        Parts(),
        OUTAGES,
        20,
        "and there was a majority for",
        ("cluster.membership.outages.Outages._is_counted", False),
        shown_by=162,
        world={"chaos.sim.workload.queue_features._draw_arguments": draw_expiring_arguments},
    ),
    Hazard(
        Parts(),
        QUEUES,
        1,
        "a field table is nested deeper than",
        ("chaos.sim.workload.queue_workload.encode_batch", lets_in_too_deep_a_table),
        shown_by=26,
    ),
    Hazard(Parts(engine=LetsLearnersVote), LOSSES, 30, "is a learner and", shown_by=33),
    Hazard(
        Parts(engine=VotesForAnyLog),
        ROLLBACKS,
        10,
        "than the committed one",
        ("cluster.engine.rejoin.Rejoin.record_memory", ignore_what_others_remember),
        shown_by=6,
    ),
    Hazard(
        Parts(engine=VotesForAnyLog),
        replace(ROLLBACKS, nodes=5),
        10,
        "than the committed one",
        ("cluster.engine.rejoin.Rejoin.record_memory", ignore_what_others_remember),
        shown_by=2,
    ),
    Hazard(
        Parts(),
        SHORTENED_LOGS,
        10,
        "which it had acknowledged",
        ("cluster.log.segment_reader.load_mark", ignore_the_sync_mark),
        shown_by=1,
        is_long=True,
    ),
    Hazard(
        Parts(),
        FULL_DISKS,
        20,
        "No space left",
        ("cluster.log.register.Register._write", replace_instead_of_overwriting),
        shown_by=8,
    ),
    Hazard(
        Parts(),
        LISTS,
        20,
        "both lead term",
        ("cluster.storage.identity._checked", let_everybody_in),
        shown_by=74,
        world=KNOWN_BY_NAMES,
        is_long=True,
    ),
    Hazard(Parts(network=LinksWhoeverIsListed), VERSIONS, 20, "another state", shown_by=9),
    Hazard(
        Parts(network=LinksWhoeverIsListed),
        LISTS,
        20,
        "both lead term",
        ("cluster.storage.identity._checked", let_everybody_in),
        shown_by=6,
        world=KNOWN_BY_NAMES,
        is_long=True,
    ),
    Hazard(
        Parts(group=ChangesMembersBeforeItCommits), FOUR_VOTERS, 30, "before it has committed", shown_by=1
    ),
    Hazard(
        Parts(engine=CampaignsIfTheDeadlinePassesMeanwhile), PARTITIONS, 20, "without a pre-vote", shown_by=0
    ),
    Hazard(Parts(group=MakesSeveralChangesAtOnce), FOUR_VOTERS, 30, "twice at once", shown_by=1),
    Hazard(
        Parts(engine=CampaignsWithoutAsking, group=StaysThoughRemoved),
        REMOVALS,
        20,
        "campaigns though it was removed",
        shown_by=2,
        world=UNASKED,
    ),
    Hazard(
        Parts(),
        LEARNERS,
        30,
        "which of the voters only",
        ("cluster.configuration.quorum.Membership.reached", reached_by_anybody),
        shown_by=16,
        is_long=True,
    ),
    Hazard(Parts(engine=AsksLearners), SLOW_LEARNERS, 80, "is a learner and votes for", shown_by=7),
    Hazard(
        Parts(),
        WRONG_LISTS,
        20,
        "than the committed one",
        ("cluster.group.bootstrap.Bootstrap.find_configurations", go_by_the_list_in_the_file),
        shown_by=108,
    ),
    Hazard(
        Parts(group=StaysThoughRemoved),
        OLD_DIRECTORIES,
        30,
        "has synced entry",
        ("cluster.configuration.configuration.Configuration.has", known_by_name),
        shown_by=3,
    ),
    Hazard(
        Parts(),
        UPGRADES,
        20,
        "and its program can run",
        ("cluster.storage.identity._checked", believe_in_any_version),
        shown_by=8,
    ),
    Hazard(
        Parts(),
        UPGRADES,
        20,
        "elsewhere and is",
        ("chaos.sim.world.compared_machines.WatchedMachine.counts_entries", property(counts_by_its_program)),
        shown_by=1,
    ),
    Hazard(
        Parts(),
        UPGRADES,
        20,
        "elsewhere and is",
        ("cluster.state.group_state.GroupState.adopt", adopt_and_go_by_the_lowest_version),
        shown_by=3,
        is_long=True,
    ),
    Hazard(
        Parts(),
        BACKUPS,
        5,
        "elsewhere and is",
        ("cluster.snapshots.restore._apply", skip_entries_after_the_checkpoint),
        shown_by=0,
        is_long=True,
    ),
    Hazard(Parts(network=LinksAnybody), BACKUPS, 5, "members have lost their logs", shown_by=0),
    Hazard(Parts(group=ChangesMembersUnjudged), DRAINS, 20, "are all under maintenance", shown_by=0),
    Hazard(Parts(group=LeadsUnderMaintenance), DRAINS, 20, "has not converged", shown_by=3, is_long=True),
    Hazard(
        Parts(network=SendsTwoInTheWrongOrder),
        replace(NO_FAULTS, submit_interval_s=0.03, network=NetworkOptions(delay_max_s=0.05)),
        20,
        "has not converged",
        shown_by=2,
        is_long=True,
    ),
    Hazard(Parts(network=LosesFrames), NO_FAULTS, 20, "has not converged", shown_by=0),
    Hazard(
        Parts(),
        NO_FAULTS,
        20,
        "has not converged",
        ("cluster.raft.proposals.ProposalQueue.wait_s", keep_batches_that_may_wait),
        shown_by=0,
    ),
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nodes in trouble have a lot to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def _name(hazard: Hazard) -> str:
    names = [part.__name__ for part in hazard.parts if part not in Parts()]
    if hazard.replaced is not None:
        names.append(getattr(hazard.replaced[1], "__name__", hazard.replaced[0]))
    if hazard.options is not None and hazard.options.nodes > 3:
        names.append(f"{hazard.options.nodes} nodes")
    return "-".join(names)


@pytest.mark.parametrize("hazard", cases(HAZARDS, lambda hazard: not hazard.is_long), ids=_name)
def test_a_hazard_put_back_is_found(hazard: Hazard, monkeypatch: pytest.MonkeyPatch) -> None:
    findings: list[str] = []
    for name, value in hazard.world.items():
        monkeypatch.setattr(name, value)
    for seed in dict.fromkeys([hazard.shown_by, *range(hazard.seeds)]):
        options = hazard.options or draw_options(seed)
        with monkeypatch.context() as patched:
            if hazard.replaced is not None:
                patched.setattr(*hazard.replaced)
            outcome = run_in(hazard, seed, options, hazard.parts)
        findings.append(outcome.violation)
        if hazard.finding in outcome.violation:
            # The same world without the hazard must have no such finding.
            closed = hazard.parts._replace(engine=Engine, group=Group)
            is_network = closed == hazard.parts and hazard.replaced is None
            until_s = outcome.virtual_s + AFTERWARDS_S
            assert (
                is_network or hazard.finding not in run_in(hazard, seed, options, closed, until_s).violation
            )
            return
    pytest.fail(f"{hazard.seeds} seeds did not find it: {list(filter(None, findings))}")


def test_entry_is_lost_when_acknowledgements_precede_the_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The damage of H1 in committed entries, without the checks of beliefs."""
    monkeypatch.setattr(Checks, "_check_beliefs", lambda _self, _leader: None)
    parts = Parts(engine=AcknowledgesBeforeTheSync)
    assert any("entry" in run(seed, POWER_LOSSES, parts).violation for seed in range(120))


@pytest.mark.parametrize(
    "options",
    [POWER_LOSSES, PARTITIONS, LARGEST, SMALL_QUEUES],
    ids=["power losses", "partitions", "largest entries", "small queues"],
)
def test_without_the_hazard_the_same_worlds_are_survived(options: SimulationOptions) -> None:
    assert run(0, options).violation == ""


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        pytest.param(20, ROLLBACKS, id="the leader alone knew of its last commit"),
        pytest.param(
            30, replace(ROLLBACKS, disk_slowness=50.0), id="acknowledged entries were not committed"
        ),
        pytest.param(122, SLOW_ROLLBACKS, id="nobody had heard of the vote"),
        pytest.param(98, SLOW_ROLLBACKS, id="a log had another entry in the place of a committed one"),
    ],
)
def test_rollbacks_stay_within_the_memories_of_peers(seed: int, options: SimulationOptions) -> None:
    """No node could know what the directory lacked, or it was judged by what it did not owe."""
    assert not run(seed, options).violation
