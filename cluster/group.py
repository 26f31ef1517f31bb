"""One replicated group on one node: submissions in, applied entries out.

One turn = what was received, tick, compose an entry, start a sync, send. Everything that happens (a frame, a synced
write, a submission, a timer) asks for a turn; turns run one at a time on the loop. Disk and network overlap: appends
leave before the leader's own sync, acknowledgements wait for it, and a leader counts no entry beyond its own synced
tail (the engine sees to that).

Lives here: the driving of the engine, exactly-once submission (`submit`), forwarding to the leader, *tick entries* that
bring the machine nothing but the time, the decision to stop waiting for a node. Not here: consensus (engine.py), files
(directory.py, log), snapshots (catch_up.py), standing (recovery.py), who the members are (members.py), who leads
(leadership.py), why a node stops (stopping.py), sockets (links.py), what an entry means (the machine).

Law: no entry is applied twice, none out of order, and a submission is repeated until this node has seen it applied.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from cluster.alarms import Alarms
from cluster.applying import Applying, Confirmed, Expelled
from cluster.backup_source import BackupSource
from cluster.catch_up import Installable, SnapshotGiver, SnapshotTaker
from cluster.clock import ClusterClock, bounded
from cluster.configuration import (
    Versions,
    is_configuration,
)
from cluster.configurations import Configurations
from cluster.departures import Departures
from cluster.directory import GroupDirectory
from cluster.elections import Role
from cluster.engine import Engine
from cluster.enrolment import Enrolment
from cluster.entry import MalformedEntry, is_regular, make_entry
from cluster.envelope import (
    Alarm,
    Append,
    Appended,
    ChangeRefused,
    ChangeRequest,
    Fetch,
    Forward,
    Introduction,
    MalformedFrame,
    MembersTold,
    Message,
    Offer,
    SnapshotChunk,
    Spoilt,
    Status,
    Transfer,
    Withdrawn,
    decode,
)
from cluster.group_config import GroupConfig
from cluster.group_events import GroupEvents, Nobody
from cluster.identity import Owner
from cluster.incarnation import Incarnations
from cluster.introductions import Introductions
from cluster.leadership import Leadership
from cluster.link_ports import Links
from cluster.log.hardstate import Standing
from cluster.log.housekeeping import Housekeeping
from cluster.log.journal import SegmentedJournal
from cluster.log.manifest import log_start
from cluster.log.segment import CorruptJournal
from cluster.log.space import CHECK_INTERVAL_S, Space
from cluster.log_matching import ForeignLog
from cluster.machine import Machine
from cluster.maintenance import Maintenance
from cluster.members import Members
from cluster.own_status import OwnStatus
from cluster.peers import Peers
from cluster.ports import Buffer, Disk, Runtime
from cluster.presence import Presence
from cluster.reconfiguration import Reconfiguration
from cluster.recovery import Recovery
from cluster.state import GroupState
from cluster.statuses import STATUS_INTERVAL_S, Statuses
from cluster.stopping import RemovedFromCluster, Stopping
from cluster.submission import PendingSubmissions, Proposals, Reign
from cluster.turns import TurnTimer

log = logging.getLogger(__name__)

SNAPSHOT_ID_BITS = 19
"""Snapshots are numbered from the incarnation shifted by this many bits: one life gives fewer, so none is repeated.

An incarnation is about as high as a clock may be (`WALL_MAX_MS`), so the numbers stay below 2^63, as all of them do."""

IN_FLIGHT_MAX = 2
"""At most this many entries are proposed and not yet committed. More would only make the entries smaller."""


class Group:
    """One member of the group."""

    def __init__(
        self,
        config: GroupConfig,
        machine: Machine,
        runtime: Runtime,
        disk: Disk,
        links: Links,
        engine: type[Engine] = Engine,
    ) -> None:
        """Read what is on the disk, which may take seconds: on any thread, before anybody else has the group.

        Raises the errors of the journal and of the identity, and OSError.
        """
        self.config = config
        self.machine = machine
        self.snapshots_installed = 0
        self._runtime = runtime
        self._links = links
        self._events: GroupEvents = Nobody()
        self._tried_full_disk_s = 0.0
        self._cleaned = False
        self._malformed: set[str] = set()
        """The peers of whom it was logged, on their links as they are now, that they send malformed frames."""
        self._installed_at = 0
        """When the journal has synced this many changes, the last installed snapshot is durable; 0 if none waits."""
        self._applying_s = 0.0
        """Seconds that applying entries has taken in all, without what this node does with the effects."""

        self._state = GroupState(machine)
        self._submissions = PendingSubmissions(config.name)
        self._proposals = Proposals()
        self._applying = Applying(self._state, self._submissions)
        self._enrolment = Enrolment(
            config.timing.election_min_s,
            machine.versions[1],
            replaces_emptied=config.replaces_emptied,
            raises_version=config.raises_version,
        )
        self._turns = TurnTimer(runtime, self._turn, config.timing.heartbeat_s / 2)

        # What is on the disk
        name, versions = config.name, Versions(*machine.versions)
        owner = Owner(config.cluster, name, config.group_id)
        directory = self._directory = GroupDirectory(disk, f"groups/{config.group_id}", owner)
        listed = [] if config.joins else sorted(config.nodes)
        self._incarnations = Incarnations(directory, runtime, versions, listed)
        claim = self._incarnations.begin()
        self._submissions.begin(claim.incarnation)
        configurations = self.configurations = Configurations(
            config.listed_configuration(versions.low, lists_members=False)
        )
        """The configurations in the log. The newest one counts."""
        maintenance = Maintenance(name, configurations, runtime.monotonic())
        self.stopping = Stopping(name, configurations, directory, self._turns, runtime, self._gives_way)
        self.disk_failed = self.stopping.disk_failed
        """What a reader of the log reports a failure to, too."""
        self.journal, checkpoint = directory.start(
            claim,
            self._state,
            partial(
                SegmentedJournal,
                disk,
                directory.log,
                directory.identity,
                self.disk_failed,
                directory.hard_state,
                configurations,
                segment_bytes=config.segment_bytes,
                segment_entries=config.segment_entries,
                cache_bytes=config.cache_bytes,
                slice_bytes=config.append_bytes_max,
            ),
            repairable=config.joins or len(config.nodes) > 1,
        )
        member_id, cluster, *_ = directory.id(claim.incarnation)
        configurations.note_cluster(cluster)
        if directory.lists_members:
            configurations.begin(config.listed_configuration(versions.low, lists_members=True))
        listed_members = configurations.known
        self._find_configurations(checkpoint.index if checkpoint else 0)
        if configurations.committed.is_removed(member_id):
            raise RemovedFromCluster(name)
        self._version = configurations.committed.version if configurations.is_settled else versions.low
        """The version of the state that the log was last known to be at."""

        # What takes part in the log
        clocks, now_s = configurations.newest.clocks(name, member_id), runtime.monotonic()
        wall_ms = bounded(runtime.wall_ms())
        self._clock = ClusterClock(name, clocks, self._state.time_ms, wall_ms, now_s, config.clock_patience_s)
        self.engine = engine(
            name,
            member_id,
            configurations,
            self.journal,
            config.timing,
            runtime,
            self._apply,
            checkpoint.index if checkpoint else 1,
        )
        self.engine.may_lead = self.stopping.damage is None
        directory.make_durable(self.journal)
        self.recovery = Recovery(name, member_id, configurations, directory.hard_state)
        self.housekeeping = Housekeeping(
            disk,
            directory.log,
            directory.identity,
            self.journal,
            config.housekeeping,
            freeze=self._state.freeze,
            compact=machine.compact,
            needed_from=self._needed_from,
            now=runtime.monotonic,
            failed=self.disk_failed,
        )
        self.housekeeping.begin(checkpoint)
        self._departures = Departures(links, config.group_id, self.engine.hold_back)
        transmit, ask_turn = self._departures.transmit, self._turns.ask

        # Who the others are, and what is known of them
        presence = self._presence = Presence(configurations)
        peers = self._peers = Peers(configurations.others(name), runtime.monotonic())
        space = Space(disk, self.journal, config.disk_free_limit_bytes, runtime.monotonic())
        self.alarms = Alarms(configurations, peers, space)
        self.members = Members(
            name,
            member_id,
            configurations,
            presence,
            peers,
            self.engine,
            self._clock,
            directory,
            links,
            runtime,
            listed_members,
            self._members_changed,
        )
        self._introductions = Introductions(
            self.members,
            config.nodes[name],
            config.joins,
            versions,
            self.recovery,
            self._enrolment,
            self.engine,
            transmit,
            self.stopping.removed,
        )
        self.own_status = OwnStatus(
            self.engine,
            self.recovery,
            self.housekeeping,
            self.alarms,
            self._clock,
            self.stopping,
            self.members,
            runtime,
        )
        self.statuses = Statuses(
            self.members, peers, maintenance, self.own_status, lambda: self.leader, runtime
        )

        # What a leader does
        self.leadership = Leadership(
            self.members,
            peers,
            self.statuses,
            maintenance,
            self.engine,
            runtime,
            transmit,
            ask_turn,
        )
        self.reconfiguration = Reconfiguration(
            self.members,
            self._enrolment,
            self.leadership,
            self.statuses,
            self.engine,
            runtime,
            self.time_ms,
            transmit,
        )

        # How copies are made
        self._giver = SnapshotGiver(
            disk,
            directory,
            self.journal,
            self.housekeeping,
            runtime,
            transmit,
            self.disk_failed,
            claim.incarnation << SNAPSHOT_ID_BITS,
        )
        self._taker = SnapshotTaker(disk, directory, self.journal, runtime, transmit, self._install)
        self.backups = BackupSource(
            disk,
            directory,
            owner,
            self.journal,
            self.housekeeping,
            self.engine,
            configurations,
            self._state,
            ask_turn,
        )

    def start(self, events: GroupEvents) -> None:
        """Take part; `events` is told what is committed, and what else the shell has to know."""
        self._events = events
        self._turns.is_on = True
        self.recovery.turn(self.engine, self.journal)
        self._introductions.introduce()
        self._links.register(self.config.group_id, self)
        self.submit([])  # tells the cluster that this incarnation lives, so that it forgets the last one
        self._beat()
        self._tell_status()

    def _find_configurations(self, index: int) -> None:
        """Find the configurations of the log behind `index`, the entry that the state is of."""
        self.configurations.find(self._state.configuration, index, self._readable_from(index + 1))

    def _readable_from(self, first: int) -> Iterator[tuple[int, bytes]]:
        """The entries from `first` on with their indexes, but for those that are damaged.

        Those behind the damage count: by an earlier configuration, the others might never be able to go on without
        this node.
        """
        for index in range(first, self.journal.last_index + 1):
            try:
                yield index, self.journal.read(index)
            except CorruptJournal as error:
                self.stopping.configuration_unreadable(error)

    def _stop_for_foreign_log(self, error: ForeignLog) -> None:
        """Write a checkpoint and stop: the next start knows what was applied, and refuses the same leader again."""
        self.housekeeping.checkpoint_now(*self._applied())
        self.stopping.stop_for(error)

    def stop(self) -> None:
        """Take no further part. What was submitted and not applied has an unknown outcome."""
        if self._turns.is_on:
            self._turns.is_on = False
            self.housekeeping.checkpoint_now(*self._applied())

    # Submitting

    def submit(self, payload: Sequence[Buffer], weight: int = 0) -> int:
        """Have a batch applied exactly once on every node, after all earlier ones of this node. Returns its sequence.

        `weight` is what the batch is expected to cost every node, in milliseconds (`GroupConfig.entry_weight_max`).
        The batch is sent to every new leader until a `Confirmed` effect reports it, or `Expelled` gives it up. Raises
        ValueError if it has more than `BATCH_BYTES_MAX`, which no entry could hold.
        """
        sequence = self._submissions.add(payload, weight)
        self._turns.ask()
        return sequence

    # What entries hold, for whoever delivers it

    @property
    def last_index(self) -> int:
        """Index of the newest entry in this node's log."""
        return self.journal.last_index

    def payload(self, index: int) -> bytes | None:
        """The payload of an entry if it is in memory, else None."""
        return self.journal.payload(index)

    def read_job(self, indexes: Sequence[int], bytes_max: int) -> Callable[[], list[bytes]]:
        """Make a job that reads these entries from the disk: see `SegmentedJournal.read_job`. Raises EntryGone."""
        return self.journal.read_job(indexes, bytes_max)

    @property
    def pending_batches(self) -> int:
        """How many batches this node has submitted and not yet seen applied."""
        return len(self._submissions)

    @property
    def pending_bytes(self) -> int:
        return self._submissions.pending_bytes

    # Reading

    @property
    def leader(self) -> str | None:
        return self.leadership.reign.leader

    def _is_majority_alone(self) -> bool:
        return self.configurations.membership.is_majority([self.config.name])

    def time_ms(self) -> int:
        """The cluster's time, as this node knows it. It never goes back and never stands still."""
        return self._clock.time_ms(self._runtime.monotonic())

    def dump(self) -> bytes:
        """The replicated state, the group's own part included; equal on every replica at equal index."""
        return self._state.freeze().dump()

    def versions_of(self, name: str) -> Versions | None:
        """Which versions of the state the program of a node can run, as it tells itself; None if it is not up."""
        return self._introductions.versions_of(name)

    # Links

    def peer_connected(self, peer: str) -> None:
        self._presence.link_began(peer, self._links.peer_id(peer))
        self._departures.drop(peer)
        self._malformed.discard(peer)
        if not self.members.follow():
            self.members.meet()
        if not self._presence.is_member(peer):
            self.engine.guest_connected()
        self._introductions.greet(peer)
        self._departures.transmit(peer, self.own_status.now())
        self._taker.connected(peer)
        self._submissions.link_is_new(peer)
        self._turns.ask()

    def peer_lost(self, peer: str, *, dead: bool) -> None:
        self.members.follow()
        self._departures.drop(peer)
        self._clock.forget(peer)
        self._enrolment.left(peer)
        if peer in self.engine.progress:
            self.engine.peer_lost(peer)
        self._presence.link_ended(peer)
        self.members.meet()
        if dead and peer in self.members.known:
            self._peers.died(peer, self._runtime.monotonic())
        if self.leadership.reign.leader == peer:
            self._runtime.call_later(self.config.timing.campaign_jitter_s, self._turns.ask)
        self._turns.ask()

    def peer_drained(self, peer: str) -> None:
        self.members.follow()
        if self._presence.is_member(peer):
            self.engine.peer_resumed(peer)
            self._turns.ask()

    def part_received(self, peer: str) -> None:
        if not self._turns.is_on:
            return
        self.members.follow()
        is_member = self._presence.is_member(peer)
        if is_member:
            self._peers.heard(peer, self._runtime.monotonic())
        self._taker.part_received(peer)
        if self.recovery.standing is not Standing.BLANK and (is_member or not self.engine.is_leader):
            self.engine.part_received(peer)
            if self.engine.outbox:
                self._turns.ask()

    def frame_received(self, peer: str, frame: bytes) -> None:
        if not self._turns.is_on:
            return
        self.members.follow()
        if self._presence.is_member(peer):
            self._peers.heard(peer, self._runtime.monotonic())
        try:
            message = decode(frame)
        except MalformedFrame as error:
            if peer not in self._malformed:
                log.error("peer %s sends malformed frames, which are ignored; the first one: %s", peer, error)  # noqa: TRY400
                self._malformed.add(peer)
            return
        try:
            self._receive(peer, message)
        except ForeignLog as error:
            self._stop_for_foreign_log(error)
        if not isinstance(message, Append | Appended) or self.engine.wants_turn:
            self._turns.ask()

    def _receive(self, peer: str, message: Message) -> None:
        if not (self._presence.is_member(peer) or self.members.hears_guest(message)):
            return
        match message:
            case Forward():
                self._receive_forward(peer, message)
            case Status():
                self._receive_status(peer, message)
            case Introduction():
                self._enrolment.introduced(peer, message)
            case MembersTold():
                self._introductions.members_told(message)
            case Transfer():
                if message.term == self.engine.term:
                    self.leadership.transfer(message.to or None)
            case ChangeRequest():
                self.reconfiguration.requested(peer, message)
            case ChangeRefused():
                self.reconfiguration.refused(message)
            case Offer():
                self.engine.check_snapshot(peer, message.index, message.term)
                self._taker.offered(peer, message)
            case Fetch():
                self._giver.fetch(peer, message)
            case SnapshotChunk():
                self._taker.chunk(peer, message)
            case Withdrawn():
                self._taker.withdrawn(peer, message)
            case Spoilt():
                self._giver.spoilt(peer, message)
            case _ if self.recovery.standing is not Standing.BLANK:
                self.engine.receive(peer, message)
                self.members.follow()
                self._start_sync()
            case _:
                pass  # a blank node must promise nothing: it may have promised something else before

    def _receive_status(self, peer: str, status: Status) -> None:
        if status.state == Role.LEADER:
            self.engine.check_end_of(peer, status.term, status.last_index)
            self.recovery.heard_leader(status)
        if self._presence.is_member(peer):
            self._peers.said(peer, status)
            if status.standing != Standing.VOTER:
                self.engine.peer_has_lost(peer, status.last_index)
            if peer in self.configurations.membership.voters:
                self._clock.hear(peer, status.steady_ms, self._runtime.monotonic())
            self.recovery.heard(peer, status)
        elif peer in self.configurations.membership.voters:
            self.recovery.heard_other(peer, status)

    # The turn

    def _beat(self) -> None:
        """Ask for a turn at regular intervals: heartbeats and elections fall due without any event, too."""
        if self._turns.is_on:
            self._turns.ask()
            self.leadership.look(is_fit=not self.journal.full and self.stopping.damage is None)
            self._watch_space()
            self.stopping.leave_if_the_others_can_go_on()
            if self.engine.is_leader:
                self.leadership.leave_for_maintenance()
                self._expel_the_gone()
                self.reconfiguration.take_due_step()
            self._runtime.call_later(self._turns.beat_s, self._beat)

    def _turn(self) -> None:
        try:
            self._take_turn()
        except CorruptJournal as damage:
            self.disk_failed(damage)

    def _take_turn(self) -> None:
        # What the last turn has left is sent before this one makes more: only a link that has been written to tells
        # that it is congested.
        if self.engine.outbox:
            self._send()
        self.members.follow()
        # A lone member counts itself as the majority, so it must not tick while its tail is not on disk.
        alone_and_unsynced = self.journal.synced < self.journal.written and self._is_majority_alone()
        if not alone_and_unsynced:
            self._note_leader()
            self._check_incarnation()
            self._forward()
            if self.recovery.turn(self.engine, self.journal):
                self._introductions.introduce()
                self._tell_peers(self.own_status.now())
            last_index = self.journal.last_index
            self.engine.turn(self._compose)
            self._note_leader()
            if self.journal.last_index > last_index:
                self._send()  # new entries: every peer's disk is waiting for them
        self._giver.turn(self.engine)
        self.housekeeping.turn(*self._applied(), self._applying_s)
        self._start_sync()
        if self.engine.outbox:
            # These are mere notices of the commit index: clients hear first what was just applied.
            self._runtime.call_soon(self._send)
        if alone_and_unsynced:
            return  # the end of the sync asks for a turn
        if self.engine.behind:
            self._turns.ask()
        elif self.engine.resume_s < math.inf:
            self._turns.ask_in(self.engine.resume_s - self._runtime.monotonic())

    def _note_leader(self) -> None:
        if (self.engine.leader, self.engine.term) == self.leadership.reign:
            return
        reign = Reign(self.engine.leader, self.engine.term)
        if self.leadership.begins(reign):
            self._proposals.clear()
        # Else they would know for up to a second that this node hears no leader.
        self._tell_peers(self.own_status.now())
        self._turns.ask()  # submissions go to the new leader
        self._events.leader_changed(*reign)

    def _gives_way(self) -> bool:
        """Whether this node, whose log is damaged, can stop; it leads no more."""
        return self.leadership.give_way()

    def _members_changed(self) -> None:
        self._introductions.tell_members()
        self._turns.ask()

    def _start_sync(self) -> None:
        if self.journal.dirty and not self.journal.sync_in_flight:
            self.journal.start_sync(self._synced)

    def _synced(self) -> None:
        if self._turns.is_on:
            self.engine.synced()
            self._start_sync()
            self._send()
            if self.engine.wants_turn:
                self._turns.ask()

    def _applied(self) -> tuple[int, int]:
        """Index and term of the last entry that the state holds."""
        index = self.engine.applied_index
        return index, self.journal.term_at(index)

    def _needed_from(self) -> int | None:
        """Index of the first entry that must stay in the log for the shell or for followers; None if none must."""
        needed = self._events.needed_from()
        if not self.engine.is_leader:
            return needed
        fed = self._giver.needed_from(self.engine, self._presence.members, self.config.retained_bytes)
        return min((index for index in (needed, fed) if index is not None), default=None)

    # Space

    def _watch_space(self) -> None:
        now_s = self._runtime.monotonic()
        self.housekeeping.is_space_scarce = bool(self.alarms.own(now_s) & Alarm.DISK)
        if self.alarms.look(now_s):
            reason = self.alarms.reason
            log.warning("publishers must wait: %s", reason) if reason else log.info("publishers may go on")
            self._events.alarm_changed(reason)
        if self.journal.full:
            self._try_full_disk()

    def _try_full_disk(self) -> None:
        """Try again now and then to write, and ask a member whose disk is not full to lead."""
        now_s = self._runtime.monotonic()
        if now_s - self._tried_full_disk_s < CHECK_INTERVAL_S:
            return
        self._tried_full_disk_s = now_s
        if not self.journal.sync_in_flight:
            self.journal.start_sync(self._synced)
        if self.engine.is_leader:
            self.leadership.ask_somebody()

    # Snapshots

    def _install(self, installable: Installable) -> None:
        """Take over another node's log and state, and tell the shell what has happened meanwhile."""
        checkpoint = installable.checkpoint
        try:
            self._check_log_of(installable)
        except ForeignLog as error:
            self._directory.remove_checkpoint(checkpoint.index)  # or the next start would load it
            self._stop_for_foreign_log(error)
            return
        self._directory.restore(self._state, checkpoint)
        self._clock.follow(self._state.time_ms, self._runtime.monotonic())
        self.journal.adopt(installable.segments, installable.runs)
        self._find_configurations(checkpoint.index)
        self._tell_version()
        self.engine.installed(checkpoint.index)
        self.members.follow()
        self.housekeeping.begin(checkpoint)
        self.snapshots_installed += 1
        self._installed_at = self.journal.written
        log.info("installed a snapshot of index %d", checkpoint.index)
        self._resume(checkpoint.index)
        self._turns.ask()

    def _tell_version(self) -> None:
        """Log the version of the state, if this node has come to another one: what it was told does not count."""
        version = self.configurations.committed.version
        if self.configurations.is_settled and version != self._version:
            self._version = version
            log.info("the cluster is at version %d of the state now", version)

    def _check_log_of(self, installable: Installable) -> None:
        """Raise ForeignLog if the snapshot contradicts what is committed here (hazard H12)."""
        checkpoint, segments, runs = installable
        giver, commit_index = self.leader or "unknown", self.engine.commit_index
        self.engine.check_snapshot(giver, checkpoint.index, checkpoint.term)
        if log_start(segments, segments[-1].end) <= commit_index < segments[-1].end:
            self.engine.check_snapshot(giver, commit_index, runs.at(commit_index))

    def _resume(self, index: int) -> None:
        origin = self._state.origins.get(self.config.name)
        if origin is None or origin.incarnation != self._submissions.incarnation:
            return  # nothing of this life was applied yet
        if origin.expelled:
            self._begin_incarnation()
            self._events.applied(index, [Expelled()])
            return
        self._submissions.applied(origin.sequence)
        self._events.resumed(origin.sequence, self.machine.outstanding(self.config.name))

    def _send(self) -> None:
        """Send what may leave: everything at once, except acknowledgements of what is not yet synced (hazard H1)."""
        outbox, self.engine.outbox = self.engine.outbox, []
        self._departures.send(outbox, self.journal.synced)

    def _tell_peers(self, message: Message) -> None:
        for peer in self._presence.linked:
            self._departures.transmit(peer, message)

    def _tell_status(self) -> None:
        if self._turns.is_on:
            self._clock.look(bounded(self._runtime.wall_ms()), self._runtime.monotonic())
            self._tell_peers(self.own_status.now())
            self._giver.tick(self.engine)
            self._taker.tick()
            self._clean_up()
            self._runtime.call_later(STATUS_INTERVAL_S, self._tell_status)

    def _clean_up(self) -> None:
        """Remove a snapshot's directory once it is installed durably, and damaged logs once this node is a voter."""
        if self._installed_at and self.journal.synced >= self._installed_at:
            self._installed_at = 0
            self._taker.remove_installed()
        if not self._cleaned and self.recovery.standing is Standing.VOTER:
            self._cleaned = True
            self._directory.remove_set_aside()

    # Submissions on their way

    def _forward(self) -> None:
        """Send the leader the pending batches that it has not been sent; after a new leader or link, all of them."""
        reign, submissions = self.leadership.reign, self._submissions
        if reign.leader is None or not submissions.has_unsent(reign):
            return
        if reign.leader == self.config.name:
            self._proposals.extend(submissions.take_unsent())
        elif self._links.connected(reign.leader) and not self._links.congested(reign.leader):
            batches = submissions.take_unsent(self.config.forward_bytes_max)
            buffers = [buffer for batch in batches for buffer in batch.buffers]
            self._departures.transmit(reign.leader, Forward(reign.term, buffers))
            if submissions.has_unsent(reign):
                self._turns.ask()

    def _receive_forward(self, peer: str, message: Forward) -> None:
        """Take in batches that a peer forwarded, unless they are for another term: then the peer sends them again."""
        if not self.engine.is_leader or message.term != self.engine.term:
            return
        try:
            self._proposals.take_in(peer, b"".join(message.batches))
        except MalformedEntry:
            log.exception("peer %s forwarded malformed batches; ignored", peer)

    def _compose(self) -> None:
        """Propose the batches that have gathered, as one entry, unless enough is under way already."""
        self._note_leader()
        if self.leadership.handover.is_on(self._runtime.monotonic()):
            self.leadership.ask_successor()
            return
        while self._proposals and self.journal.last_index - self.engine.commit_index < IN_FLIGHT_MAX:
            batches = self._proposals.next_entry(self.config.entry_bytes_max, self.config.entry_weight_max)
            self.engine.propose(make_entry(self.time_ms(), batches))
        self._tick_if_due()

    def _tick_if_due(self) -> None:
        """Propose a tick entry if the machine has something to do by now, or ask for a turn at the time when it will.

        Nothing is done while an entry is under way: it brings the time as well, and is followed by another turn.
        """
        if self.engine.applied_index < self.journal.last_index:
            return
        due_ms = self.machine.due_ms()
        if due_ms is None:
            return
        time_ms = self.time_ms()
        if due_ms <= time_ms:
            self.engine.propose(make_entry(time_ms, []))
        else:
            self._wake_in(self._clock.wait_s(due_ms, self._runtime.monotonic()))

    def _wake_in(self, delay_s: float) -> None:
        self._turns.ask_in(delay_s)

    def _expel_the_gone(self) -> None:
        now_s = self._runtime.monotonic()
        for peer in self.members.peers:
            origin = self._state.origins.get(peer)
            if origin is None or origin.expelled:
                continue
            is_silent = self._peers.silent_s(peer, now_s) > self.config.silent_origin_grace_s
            is_dead = self._peers.dead_s(peer, now_s) > self.config.dead_origin_grace_s
            if (is_silent or is_dead) and self._proposals.expel(peer, origin.incarnation):
                log.warning("node %s is gone: its consumers' messages return", peer)
                self._turns.ask()

    # Applying

    def _apply(self, index: int, _term: int, payload: bytes) -> None:
        changes_members = is_configuration(payload)
        if not (changes_members or is_regular(payload)):
            return
        begun_s = self._runtime.monotonic()
        try:
            if changes_members:
                outcome = self._applying.configuration(payload)
                committed = self.configurations.applied(index)
                self._tell_version()
                if committed.is_removed(self.members.id):
                    self.stopping.removed()
            else:
                outcome = self._applying.entry(index, payload)
            self._clock.follow(self._state.time_ms, begun_s)
        except BaseException as error:
            # H10: whatever this is, every further entry would build on a state that differs from the other nodes'.
            self.stopping.stop_for(error)
            raise
        self._applying_s += self._runtime.monotonic() - begun_s
        effects, expelled_at, awaited_by = outcome
        if self.engine.is_leader:
            self.engine.tell_soon(awaited_by)
            ours = (Confirmed, Expelled)
            self.engine.tell_soon(
                self.machine.concerned([each for each in effects if type(each) not in ours])
            )
        if expelled_at is not None:
            # What the shell submits while it hears of these belongs to the life that is over.
            self._events.applied(index, effects[:expelled_at])
            effects = effects[expelled_at:]
            self._begin_incarnation()
        self._events.applied(index, effects)

    def _check_incarnation(self) -> None:
        """Begin a new incarnation if the log knows a higher one of this node.

        That happens when its directory was lost and its clock set back, since incarnations then begin with the clock.
        """
        origin = self._state.origins.get(self.config.name)
        if origin is not None and origin.incarnation > self._submissions.incarnation:
            self._begin_incarnation()
            self._events.applied(self.engine.applied_index, [Expelled()])

    def _begin_incarnation(self) -> None:
        """Go on under a higher incarnation, because the last one was given up; batches that are pending are dropped."""
        known = self._state.origins.get(self.config.name)
        claim = self._incarnations.begin(known.incarnation if known else None)
        self._submissions.begin(claim.incarnation)
        self.submit([])
