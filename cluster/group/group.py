"""A replicated group on a single node: it proposes batches and applies committed entries.

A turn takes in messages, ticks the engine, composes an entry, starts a sync, and sends. Each event (a frame, a synced
write, a submission, a timer) asks for a turn. Turns run on the event loop and never overlap. Disk and network overlap:
appends leave before the leader's own sync, acknowledgements wait for a sync, and the leader counts itself only as far
as its own disk has synced (the engine enforces that).

Invariant: each entry is applied once and in order. A submission is repeated until this node has seen it applied.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence

from cluster.config import GroupConfig
from cluster.configuration.configuration import Versions, is_configuration
from cluster.engine.engine import Engine
from cluster.group.assembly import Assembly
from cluster.group.bootstrap import Ports
from cluster.group.entry_times import EntryTimes
from cluster.group.events import GroupEvents, NoEvents
from cluster.group.hooks import Hooks
from cluster.log.entry import ProposedBatch, entry_time_ms, is_regular, make_entry
from cluster.log.segment import CorruptJournal
from cluster.machine import Machine
from cluster.membership.peer_status import STATUS_INTERVAL_S
from cluster.raft.cluster_clock import bounded
from cluster.raft.messages import Forward
from cluster.raft.proposals import LeaderTerm
from cluster.runtime.histogram import Histogram
from cluster.runtime.ports import Buffer, Disk, Runtime
from cluster.state.apply import Confirmed, Evicted
from cluster.transport.ports import Links

log = logging.getLogger(__name__)

CHORES_S = 0.01
"""Seconds between two rounds of chores, work that no client waits for."""

IN_FLIGHT_MAX = 2
"""Entries that may be proposed and uncommitted at the same time. A higher limit would only make entries smaller."""

TIMES_READ = 256
"""Entries of the log whose times are read after a start, for the ages of messages."""
TIMED_BYTES_MAX = 256 * 1024
"""Size of the largest entry that is read for its time, in bytes."""


class Group:
    """A member of a group."""

    def __init__(
        self,
        config: GroupConfig,
        machine: Machine,
        runtime: Runtime,
        disk: Disk,
        links: Links,
        engine: type[Engine] = Engine,
    ) -> None:
        """Read the data directory, which may take seconds. Any thread may call it, before the group is shared.

        Raises the errors of the journal and of the identity, and OSError.
        """
        self.config = config
        self.machine = machine
        self._runtime = runtime
        self._links = links
        self._events: GroupEvents = NoEvents()
        self.apply_times = Histogram()
        """Time to apply each entry, without the time that this node takes to carry out the effects."""
        self.heartbeat_delays = Histogram()
        """Delay of each heartbeat timer on the event loop. It shows every stall longer than a heartbeat interval, at
        its end."""
        self._heartbeat_due_s = math.inf
        self._disk = disk
        hooks = Hooks(
            turn=self._turn,
            apply=self._apply,
            installed=self._installed,
            needed_from=self._needed_from,
            propose_nothing=self._propose_nothing,
            alarm_changed=self._alarm_changed,
            give_way=self._give_way,
        )
        parts = Assembly(config, machine, Ports(runtime, disk, links), engine, hooks)
        replica, membership = parts.replica, parts.membership

        # Parts that a turn uses
        self.engine = replica.engine
        self.journal = replica.journal
        self.housekeeping = replica.housekeeping
        self._state = replica.state
        self._clock = replica.clock
        self._incarnations = replica.incarnations
        self._turns = replica.turns
        self._pending = replica.pending
        self._proposals = replica.proposals
        self._outbox = replica.outbox
        self._log_sync = replica.log_sync
        self._applying = parts.applying
        self._sender = parts.sender
        self._installer = parts.installer
        self._discovery = membership.discovery
        self._evictions = membership.evictions
        self._outages = membership.outages
        self._low_space = parts.low_space
        self._reads = parts.reads
        self._broker_messages = parts.broker_messages

        # Parts that the broker queries
        self.configurations = replica.configurations
        """The configurations in the log. The newest counts."""
        self.rejoin = replica.rejoin
        self.fail_stop = replica.fail_stop
        self.members = membership.members
        self.alarms = membership.alarms
        self.own_status = membership.own_status
        self.statuses = membership.statuses
        self.leadership = membership.leadership
        self.reconfiguration = membership.reconfiguration
        self.backups = parts.backups
        self.queries = parts.queries
        self.inbox = parts.inbox
        """Receiver of the events of the links."""
        self.entry_times = EntryTimes(self.engine.applied_index, self._state.time_ms)
        """Times of some entries, for the ages of messages."""
        self._chores_s = 0.0
        """Time of the last chores, in seconds of the monotonic clock."""
        held, low = replica.configurations, replica.versions.low
        self._version = held.committed.version if held.is_settled else low
        """Version of the state that the log was last known to be at."""

    def start(self, events: GroupEvents) -> None:
        """Take part in the group. `events` receives committed effects and all other events for the broker."""
        self._events = events
        self._turns.is_on = True
        self.rejoin.advance(self.engine, self.journal, self._log_sync.awake_s)
        self._discovery.introduce()
        self._links.register(self.config.group_id, self.inbox)
        self.propose([])  # reports the new incarnation, so the cluster releases all held by the last
        self._heartbeat()
        self._report_status()

    def stop(self) -> None:
        """Stop taking part. Submitted batches that are not yet applied have an unknown outcome."""
        if self._turns.is_on:
            self._turns.is_on = False
            self.housekeeping.checkpoint_now(*self.engine.last_applied())

    # Submitting

    def propose(self, payload: Sequence[Buffer], weight: int = 0, *, may_wait: bool = False) -> int:
        """Propose a batch to be applied exactly once on every node, after all earlier batches of this node.

        Return its sequence. `weight` is the estimated cost of applying the batch, in milliseconds
        (`GroupConfig.entry_weight_max`). The leader may keep a batch that `may_wait` for its next entry, for
        `COMPANY_S` at most. The batch is sent to every new leader until a `Confirmed` effect reports it, or `Evicted`
        reports that it is dropped. Raises ValueError if it has more than `BATCH_BYTES_MAX`, which fits no entry.
        """
        sequence = self._pending.add(payload, weight, may_wait=may_wait)
        self._turns.request()
        return sequence

    # Reading the state

    @property
    def can_read(self) -> bool:
        """Whether `read` would probably succeed now."""
        return self._reads.are_possible

    def read(self, done: Callable[[], None], failed: Callable[[], None]) -> None:
        """Call `done` when this node has applied all entries committed before this call, or `failed` (`Reads`)."""
        self._reads.read(done, failed)

    # Messages between brokers

    def send_message(self, peer: str, data: Sequence[Buffer]) -> bool:
        """Send a message to a peer's broker, or return False if its link cannot take it now (`BrokerMessages`)."""
        return self._broker_messages.send(peer, data)

    def receive_messages(self, receive: Callable[[str, bytes], None]) -> None:
        """Pass the messages of peers' brokers to `receive`."""
        self._broker_messages.set_receiver(receive)

    # Reading entries

    @property
    def last_index(self) -> int:
        """Index of the newest entry in this node's log."""
        return self.journal.last_index

    @property
    def applied_index(self) -> int:
        """Index of the newest entry that was applied."""
        return self.engine.applied_index

    def payload(self, index: int) -> bytes | None:
        """Return the payload of an entry if it is in memory, else None."""
        return self.journal.payload(index)

    def read_job(self, indexes: Sequence[int], bytes_max: int) -> Callable[[], list[bytes]]:
        """Return a job that reads these entries from the disk (`SegmentedJournal.read_job`). Raises EntryNotFound."""
        return self.journal.read_job(indexes, bytes_max)

    def disk_failed(self, error: Exception) -> None:
        """Report that a read of the log has failed (`FailStop.disk_failed`)."""
        self.fail_stop.disk_failed(error)

    @property
    def pending_batches(self) -> int:
        """Number of batches that this node has submitted and not yet seen applied."""
        return len(self._pending)

    @property
    def pending_bytes(self) -> int:
        return self._pending.pending_bytes

    # State of the group

    @property
    def leader(self) -> str | None:
        return self.leadership.leader_term.leader

    @property
    def catch_up_times(self) -> Histogram:
        """Time that each catch-up of this node by a peer's snapshot took."""
        return self._installer.receiver.times

    @property
    def snapshots_installed(self) -> int:
        """Number of peers' snapshots that have replaced this node's log since its start."""
        return self._installer.count

    def why_undecided(self) -> str | None:
        """Return why no batch of this node can be committed now; None if a leader is known and hears this node."""
        return self.statuses.why_undecided()

    def undecided(self) -> Collection[str]:
        """Return the members that may have died just now.

        The cluster evicts them soon, or they turn out to be alive.
        """
        return self._evictions.undecided()

    def _is_majority_alone(self) -> bool:
        return self.configurations.membership.is_majority([self.config.name])

    def time_ms(self) -> int:
        """Return the cluster's time in ms, as this node knows it. It never goes back and never stands still."""
        return self._clock.time_ms(self._runtime.monotonic())

    def load_entry_times(self) -> None:
        """Read in the background the times of entries that were applied before the state was loaded."""
        applied = self.engine.applied_index

        def time_ms(payload: bytes) -> int | None:
            return entry_time_ms(payload) if is_regular(payload) else None

        def loaded(found: Sequence[tuple[int, int | None]] | None, _error: Exception | None) -> None:
            self.entry_times.add_stored(
                (index, time_ms) for index, time_ms in found or () if index <= applied and time_ms is not None
            )

        job = self.journal.samples_job(TIMES_READ, TIMED_BYTES_MAX, time_ms)
        self._disk.submit_background(job, loaded)

    def dump(self) -> bytes:
        """Return the replicated state, the group's own part included. It is equal on every replica at equal index."""
        return self._state.freeze().dump()

    def versions_of(self, name: str) -> Versions | None:
        """Return the versions of the state that a node's program can run, as reported; None if the node is not up."""
        return self._discovery.versions_of(name)

    # The turn

    def _heartbeat(self) -> None:
        """Ask for a turn, and poll all parts with deadlines, once in each heartbeat interval.

        Heartbeats and elections become due without an event.
        """
        if self._turns.is_on:
            now_s = self._runtime.monotonic()
            self.heartbeat_delays.add(max(0.0, now_s - self._heartbeat_due_s))
            self._turns.request()
            self._log_sync.awake_s()
            self.leadership.update_candidacy(may_lead=not self.journal.full and self.fail_stop.damage is None)
            self._low_space.check()
            self._reads.beat()
            self._outages.check()
            self.fail_stop.stop_if_damaged()
            self._evictions.check()
            if self.engine.is_leader:
                self.leadership.leave_if_late(self._turns.heartbeat_s)
                self.leadership.leave_for_maintenance()
                self.reconfiguration.take_due_step()
            self._heartbeat_due_s = now_s + self._turns.heartbeat_s
            self._runtime.call_later(self._turns.heartbeat_s, self._heartbeat)

    def _turn(self) -> None:
        try:
            self._take_turn()
        except CorruptJournal as damage:
            self.disk_failed(damage)

    def _take_turn(self) -> None:
        # Send leftover messages before this turn makes new ones, because a link reports congestion only after a write.
        if self.engine.outbox:
            self._log_sync.send()
        self.members.follow()
        # A lone member counts itself as the majority, so it must not tick while its tail is not on disk.
        alone_and_unsynced = self.journal.synced < self.journal.written and self._is_majority_alone()
        if not alone_and_unsynced:
            self._check_leader()
            self._forward()
            if self.rejoin.advance(self.engine, self.journal, self._log_sync.awake_s):
                self._discovery.introduce()
                self._outbox.transmit_to_all(self.own_status.now())
            last_index = self.journal.last_index
            self.engine.turn(self._compose)
            if self._reads.unapplied:
                self._reads.applied(self.engine.applied_index)
            self._check_leader()
            if self.journal.last_index > last_index:
                self._log_sync.send()  # new entries: every peer's disk is waiting for them
        if self._runtime.monotonic() - self._chores_s >= CHORES_S:
            self._do_chores()
        if alone_and_unsynced:
            self._log_sync.request_turn()
        self._log_sync.begin()
        if self.engine.outbox:
            # These are only notices of the commit index. Clients get their effects first.
            self._runtime.call_soon(self._log_sync.send)
        if alone_and_unsynced:
            return
        if self.engine.behind:
            self._turns.request()
        else:
            self._turns.request_in(self.engine.resume_s - self._runtime.monotonic())

    def _do_chores(self) -> None:
        self._chores_s = self._runtime.monotonic()
        self._check_incarnation()
        self._sender.turn(self.engine)
        self.housekeeping.turn(*self.engine.last_applied(), self.apply_times.total)

    def _check_leader(self) -> None:
        engine, known = self.engine, self.leadership.leader_term
        if engine.term == known.term and engine.leader == known.leader:
            return
        leader_term = LeaderTerm(engine.leader, engine.term)
        if self.leadership.record_leader(leader_term):
            self._proposals.clear()
            self._evictions.check()
        # Otherwise peers would believe for up to a second that this node still hears its old leader.
        self._outbox.transmit_to_all(self.own_status.now())
        self._reads.leader_changed()
        self._turns.request()  # pending batches go to the new leader
        self._events.leader_changed(*leader_term)

    def _needed_from(self) -> int | None:
        """Return the index of the first entry that must stay in the log for the broker or for followers, or None."""
        needed = self._events.needed_from()
        if not self.engine.is_leader:
            return needed
        fed = self._sender.needed_from(self.engine, self.members.linked.members)
        return min((index for index in (needed, fed) if index is not None), default=None)

    def _propose_nothing(self) -> None:
        self.propose([])

    def _give_way(self) -> bool:
        return self.leadership.give_way()

    def _alarm_changed(self, reason: str | None) -> None:
        self._events.alarm_changed(reason)

    def _report_status(self) -> None:
        if self._turns.is_on:
            self._clock.add_reading(bounded(self._runtime.wall_ms()), self._runtime.monotonic())
            self._discovery.forget_lost_cluster(self._runtime.monotonic())
            if self.engine.is_leader:
                self.leadership.leave_if_apart()
            self._outbox.transmit_to_all(self.own_status.now())
            self._sender.tick(self.engine)
            self._installer.receiver.tick()
            self._installer.clean_up()
            self._runtime.call_later(STATUS_INTERVAL_S, self._report_status)

    # Forwarding and composing

    def _forward(self) -> None:
        """Send the leader the pending batches that it lacks; after a new leader or link, all of them."""
        leader_term, pending = self.leadership.leader_term, self._pending
        if leader_term.leader is None or not pending.has_unsent(leader_term):
            return
        if leader_term.leader == self.config.name:
            self._proposals.extend(self.config.name, pending.take_unsent())
        elif self._links.connected(leader_term.leader) and not self._links.congested(leader_term.leader):
            batches = pending.take_unsent(self.config.forward_bytes_max)
            buffers = [buffer for batch in batches for buffer in batch.buffers]
            are_known = self.configurations.agree_on(self.machine.waiting_batches_since)
            may_wait = are_known and all(batch.may_wait for batch in batches)
            self._outbox.transmit(leader_term.leader, Forward(leader_term.term, buffers, may_wait=may_wait))
            if pending.has_unsent(leader_term):
                self._turns.request()

    def _compose(self) -> None:
        """Propose the waiting batches as an entry, unless all may wait or `IN_FLIGHT_MAX` entries are uncommitted."""
        self._check_leader()
        if self.leadership.handover.is_on(self._runtime.monotonic()):
            self.leadership.transfer_to_successor()
            return
        while self._proposals and self.journal.last_index - self.engine.commit_index < IN_FLIGHT_MAX:
            wait_s = self._proposals.wait_s(self._runtime.monotonic())
            if wait_s:
                self._wake_in(wait_s)
                break
            batches = self._proposals.next_entry(self.config.entry_bytes_max, self.config.entry_weight_max)
            self._propose_entry(batches)
        self._tick_if_due()

    def _propose_entry(self, batches: list[ProposedBatch]) -> None:
        """Propose an entry of these batches, after the declaration of an outage if there was an outage."""
        outage = self._outages.declaration()
        if outage is not None:
            batches.insert(0, outage)
        self.engine.propose(make_entry(self.time_ms(), batches))

    def _tick_if_due(self) -> None:
        """Propose a tick entry if the machine has work that is due, or ask for a turn at the time of its next work.

        A tick entry also declares an outage that is over, because the next leader may have seen a shorter outage. While
        an entry is in flight, the function returns: that entry brings the time as well, and a turn follows it.
        """
        if self.engine.applied_index < self.journal.last_index:
            return
        if self._outages.is_over:
            self._propose_entry([])
            return
        due_ms = self.machine.due_ms()
        if due_ms is None:
            return
        time_ms = self.time_ms()
        if due_ms <= time_ms:
            self._propose_entry([])
        else:
            self._wake_in(self._clock.wait_s(due_ms, self._runtime.monotonic()))

    def _wake_in(self, delay_s: float) -> None:
        self._turns.request_in(delay_s)

    # Applier

    def _apply(self, index: int, _term: int, payload: bytes) -> None:
        changes_members = is_configuration(payload)
        if not (changes_members or is_regular(payload)):
            return
        begun_s = self._runtime.monotonic()
        try:
            if changes_members:
                outcome = self._applying.apply_configuration(payload)
                committed = self.configurations.applied(index)
                self._log_version()
                if committed.is_removed(self.members.id):
                    self.fail_stop.removed()
            else:
                outcome = self._applying.apply_entry(index, payload)
            self._clock.advance_to(self._state.time_ms, begun_s)
            self.entry_times.record(index, self._state.time_ms)
            if self._outages.gap is not None:
                self._outages.applied(index, self._state.time_ms)
        except BaseException as error:
            # H10: after any error, the state differs from the other nodes' state, and further entries would build on
            # it.
            self.fail_stop.stop_for(error)
            raise
        self.apply_times.add(self._runtime.monotonic() - begun_s)
        effects, evicted_at, awaited_by = outcome
        if self.engine.is_leader:
            self.engine.notify_soon(awaited_by)
            ours = (Confirmed, Evicted)
            self.engine.notify_soon(
                self.machine.concerned([each for each in effects if type(each) not in ours])
            )
        if evicted_at is not None:
            # The broker may submit batches while it handles these effects. Those still belong to the old incarnation.
            self._events.applied(index, effects[:evicted_at])
            effects = effects[evicted_at:]
            self._begin_incarnation()
        self._events.applied(index, effects)

    def _installed(self, index: int) -> None:
        """Continue from a snapshot of `index`, and report its effects to the broker."""
        self.entry_times.record(index, self._state.time_ms)
        self._log_version()
        self._resume(index)
        self._turns.request()

    def _resume(self, index: int) -> None:
        origin = self._state.origins.get(self.config.name)
        if origin is None or origin.incarnation != self._pending.incarnation:
            return  # no batch of this incarnation is applied yet
        if origin.evicted:
            self._begin_incarnation()
            self._events.applied(index, [Evicted()])
            return
        self._pending.applied(origin.sequence)
        self._events.resumed(origin.sequence, self.machine.outstanding(self.config.name))

    def _log_version(self) -> None:
        """Log the version of the state when a committed configuration changes it.

        Versions told by peers do not count.
        """
        version = self.configurations.committed.version
        if self.configurations.is_settled and version != self._version:
            self._version = version
            log.info("the cluster is at version %d of the state now", version)

    def _check_incarnation(self) -> None:
        """Begin a new incarnation if the log knows a higher incarnation of this node.

        That happens when the directory was lost and the clock set back, because the first incarnation is taken from the
        clock.
        """
        origin = self._state.origins.get(self.config.name)
        if origin is not None and origin.incarnation > self._pending.incarnation:
            self._begin_incarnation()
            self._events.applied(self.engine.applied_index, [Evicted()])

    def _begin_incarnation(self) -> None:
        """Continue under a higher incarnation, because the last was evicted. Pending batches are dropped."""
        known = self._state.origins.get(self.config.name)
        claim = self._incarnations.begin(known.incarnation if known else None)
        self._pending.begin(claim.incarnation)
        self.propose([])
