"""One replicated group on one node: submissions in, applied entries out.

One turn = what was received, tick, compose an entry, start a sync, send. Everything that happens (a frame, a synced
write, a submission, a timer) asks for a turn; turns run one at a time on the loop. Disk and network overlap: appends
leave before the leader's own sync, acknowledgements wait for it, and a leader counts no entry beyond its own synced
tail (the engine sees to that).

Lives here: the driving of the engine, exactly-once submission (`submit`), forwarding to the leader, *tick entries* that
bring the machine nothing but the time, the decision to stop waiting for a node. Not here: consensus (engine.py), files
(directory.py, journal.py, housekeeping.py), snapshots (catch_up.py), standing (recovery.py), sockets (links.py), what
an entry means (the machine).

Law: no entry is applied twice, none out of order, and a submission is repeated until this node has seen it applied.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from cluster.catch_up import Installable, SnapshotGiver, SnapshotTaker
from cluster.checkpoints import Checkpoint, remove_checkpoints
from cluster.clock import PATIENCE_S, ClusterClock, bounded
from cluster.directory import GroupDirectory
from cluster.engine import Engine, ForeignLog, Role, Timing
from cluster.entry import (
    KIND_EXPEL,
    BatchView,
    MalformedEntry,
    batches_of,
    entry_time_ms,
    is_regular,
    make_entry,
)
from cluster.envelope import (
    Alarm,
    Chunk,
    Fetch,
    Forward,
    MalformedFrame,
    Message,
    Offer,
    Spoilt,
    Status,
    Withdrawn,
    decode,
    encode,
)
from cluster.hardstate import Standing
from cluster.housekeeping import Housekeeping, HousekeepingSettings
from cluster.identity import Claim, Owner
from cluster.journal import SegmentedJournal
from cluster.machine import Machine
from cluster.manifest import log_start
from cluster.origins import Admission
from cluster.ports import Buffer, Disk, Links, Runtime, Timer
from cluster.recovery import Recovery
from cluster.segment import CorruptJournal
from cluster.space import CHECK_INTERVAL_S, Space
from cluster.state import GroupState
from cluster.submission import Proposals, Reign, Submissions

log = logging.getLogger(__name__)

INCARNATION_LEAP = 2**20
"""By so much, at most, an incarnation exceeds what is known of a node that has lost count."""
SNAPSHOT_ID_BITS = 20
"""A life of a node gives fewer than 2**20 snapshots, so their numbers never come again."""

IN_FLIGHT_MAX = 2
"""Entries proposed and not yet committed. Two keep disk and network busy; more would only make the entries smaller."""
STATUS_INTERVAL_S = 1.0
RESOURCES = {Alarm.MEMORY: "memory", Alarm.DISK: "disk"}
FED_RETAINED_MAX = 8
"""A follower that is being sent old entries keeps them from being deleted, up to this many times `retained_bytes`.

One that is sent a snapshot keeps what follows on that, up to the snapshot's own size: else it would need another one by
the time that it has it, unless the log grows faster than a snapshot is sent.
"""
HANDOVER_S = 1.0
"""A leader that hands over proposes nothing for so long at most; a handover takes two or three syncs."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Who the members are, and the group's patience."""

    name: str
    peers: Sequence[str]
    cluster: str
    group_id: int = 0
    timing: Timing = field(default_factory=Timing)
    dead_origin_grace_s: float = 1.0
    """A node whose process is known to be gone is expelled after this long: its consumers' messages return."""
    silent_origin_grace_s: float = 60.0
    """A node that merely does not answer may be paused or cut off: it keeps what its clients hold for this long."""
    clock_patience_s: float = PATIENCE_S
    """Where a wall clock jumps to counts when it has stayed there for so long."""
    segment_bytes: int = 64 * 1024 * 1024
    segment_entries: int = 65_536
    cache_bytes: int = 32 * 1024 * 1024
    checkpoint_entries: int = 16_384
    """A checkpoint is taken after so many entries, ..."""
    checkpoint_bytes: int = 64 * 1024 * 1024
    """... or so many bytes of entries, but at least as many as the last checkpoint has, ..."""
    checkpoint_interval_s: float = 60.0
    """... or after this time, if anything was applied."""
    retained_bytes: int = 128 * 1024 * 1024
    """Entries up to this size stay in the log for followers that were away; one that needs more gets a snapshot."""
    disk_free_limit_bytes: int = 50 * 1024 * 1024
    """With less free space than this, publishers have to wait."""
    entry_bytes_max: int = 1024 * 1024
    """An entry gathers batches up to about this size; a larger batch travels alone."""
    entry_weight_max: int = 15
    """Likewise, up to this weight, which is in milliseconds of applying: others wait until an entry is applied."""
    forward_bytes_max: int = 1024 * 1024
    """So does one message with submissions to the leader."""
    append_bytes_max: int = 1024 * 1024
    """So does one append with entries to a follower."""


class Confirmed(NamedTuple):
    """An effect made by the group itself: this node's batch `sequence` has been applied, once."""

    sequence: int


class Expelled(NamedTuple):
    """An effect made by the group itself: the others stopped waiting for this node, which goes on as a new incarnation.

    What it had submitted under the old one and not seen applied has an unknown outcome.
    """


class GroupEvents(Protocol):
    """What the shell hears from the group, on the loop."""

    def applied(self, index: int, effects: Sequence[Any]) -> None:
        """The entry at `index` is committed and applied, and `effects` follow from it, in order."""
        ...

    def leader_changed(self, leader: str | None, term: int) -> None: ...

    def resumed(self, sequence: int, outstanding: Sequence[Any]) -> None:
        """A snapshot was installed; nothing else is told of the entries that it stands for.

        This node's batches up to `sequence` have been applied, and `outstanding` is what the machine owes its sessions.
        """
        ...

    def needed_from(self) -> int | None:
        """The first entry that the shell will still read although the state may not refer to it any more."""
        ...

    def alarm_changed(self, reason: str | None) -> None:
        """From now on publishers must wait, for this reason, or (None) need not wait any more."""
        ...


class NodeStatus(NamedTuple):
    """One node as this node sees it; None where it does not know."""

    name: str
    state: str
    term: int | None
    last_index: int | None
    commit_index: int | None
    applied_index: int | None
    standing: str | None
    """"voter", "learner" or "blank"."""
    first_index: int | None
    checkpoint_index: int | None
    disk_bytes: int | None
    disk_free_bytes: int | None
    alarm: bool | None
    clock_offset_ms: int | None
    """By how much its wall clock is ahead of the cluster's time."""


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
        self.config = config
        self.machine = machine
        self.alarms = Alarm(0)
        """Why publishers must wait."""
        self.low_on_memory = False
        """Set by the shell, which knows how much the process may take; publishers then wait as with a full disk."""
        self.damage: CorruptJournal | None = None
        """What was found damaged, while the others cannot yet go on without this node."""
        self.snapshots_installed = 0
        self._state = GroupState(machine)
        self._runtime = runtime
        self._disk = disk
        self._links = links
        self._engine_type = engine
        self._owner = Owner(config.cluster, config.name, config.group_id)
        self._members = [config.name, *config.peers]
        self._is_open = False
        self._running = False
        self._turn_asked = False
        self._reign = Reign(None, 0)
        self._submissions = Submissions(config.name)
        self._proposals = Proposals()
        self._handover_ends_s = 0.0
        self._handover_asked = False
        self._beat_s = config.timing.heartbeat_s / 2
        self._timer: Timer | None = None
        self._timer_s = 0.0
        """When it goes off."""
        self._waiting: deque[tuple[int, str, Message]] = deque()
        self._peer_status: dict[str, Status] = {}
        self._tried_full_disk_s = 0.0
        self._cleaned = False
        self._installed_at = 0
        """The journal's count of changes with a snapshot that was installed; 0 if none waits for its sync."""
        self._heard_s: dict[str, float] = {}
        self._dead_since_s: dict[str, float] = {}

    def open(self) -> None:
        """Read what is on the disk, which may take seconds: on any thread, before anything else is asked for.

        Raises the errors of the journal and of the identity.
        """
        config = self.config
        self._directory = GroupDirectory(self._disk, f"groups/{config.group_id}", self._owner)
        claim = self._claim(self._wall_ms())
        self._incarnation = claim.incarnation
        self.journal, self._checkpoint = self._directory.start(
            claim, self._state, self._open_journal, repairable=bool(config.peers)
        )
        self._is_open = True

    def start(self, events: GroupEvents) -> None:
        """Come up from what is on the disk, which is read now unless it was, and take part. Raises as `open` does.

        From now on `events` is told what is committed, and what else the shell has to know.
        """
        self._events = events
        if not self._is_open:
            self.open()
        config, checkpoint = self.config, self._checkpoint
        self._checkpoint = None  # it may be large
        self._clock = ClusterClock(
            config.name,
            len(config.peers) + 1,
            self._state.time_ms,
            self._wall_ms(),
            self._runtime.monotonic(),
            config.clock_patience_s,
        )
        self.engine = self._engine_type(
            config.name,
            config.peers,
            self.journal,
            config.timing,
            self._runtime,
            self._apply,
            checkpoint.index if checkpoint else 1,
        )
        self.journal.sync_now()
        self._build_upkeep(checkpoint)
        self._heard_s = dict.fromkeys(config.peers, self._runtime.monotonic())
        self._was_expelled = False
        """By the entry that is being applied."""
        self._applying_s = 0.0
        """Time that applying entries has taken in all, without what this node makes of the effects."""
        self._running = True
        self.recovery.turn(self.engine, self.journal)
        self._links.register(config.group_id, self)
        self._submissions.begin(self._incarnation)
        self.submit([])  # tells the cluster that this incarnation lives, so that it forgets the last one
        self._beat()
        self._tell_status()

    def _open_journal(self, writes_lost: bool) -> SegmentedJournal:
        config = self.config
        return SegmentedJournal(
            self._disk,
            self._directory.log,
            self._directory.identity,
            self.disk_failed,
            self._directory.hard_state,
            writes_lost=writes_lost,
            segment_bytes=config.segment_bytes,
            segment_entries=config.segment_entries,
            cache_bytes=config.cache_bytes,
            slice_bytes=config.append_bytes_max,
        )

    def _build_upkeep(self, checkpoint: Checkpoint | None) -> None:
        """Build what looks after standing, space, checkpoints and snapshots."""
        config, directory, runtime = self.config, self._directory, self._runtime
        self.recovery = Recovery(config.name, config.peers, directory.hard_state)
        self._space = Space(self._disk, self.journal, config.disk_free_limit_bytes, runtime.monotonic())
        self.housekeeping = Housekeeping(
            self._disk,
            directory.log,
            directory.identity,
            self.journal,
            HousekeepingSettings(
                config.checkpoint_entries,
                config.checkpoint_bytes,
                config.checkpoint_interval_s,
                config.retained_bytes,
                config.segment_bytes,
                config.segment_entries,
            ),
            freeze=self._state.freeze,
            compact=self.machine.compact,
            needed_from=self._needed_from,
            now=runtime.monotonic,
            failed=self.disk_failed,
        )
        self.housekeeping.begin(checkpoint)
        self._giver = SnapshotGiver(
            self._disk,
            directory,
            self.journal,
            self.housekeeping,
            runtime,
            self._transmit,
            self.disk_failed,
            self._incarnation << SNAPSHOT_ID_BITS,
        )
        self._taker = SnapshotTaker(
            self._disk, directory, self.journal, runtime, self._transmit, self._install
        )

    def disk_failed(self, error: Exception) -> None:
        """What the disk holds cannot be trusted: stop, and let the next start know why.

        Damage of what was once stored is no reason to stop at once: the others must be able to go on without this node,
        since it comes back as a learner.
        """
        if isinstance(error, CorruptJournal) and self.config.peers:
            if self.damage is None:
                log.error("%s: this node will be repaired from the others", error)
                self.damage = error
            self._leave_if_the_others_can_go_on()
        else:
            self._directory.note_writes_lost()
            self._stop_for(error)

    def _leave_if_the_others_can_go_on(self) -> None:
        """Stop for damage, as a follower, once the other voters are a majority without this node."""
        if self.damage is None or not self._running:
            return
        self.engine.may_lead = False
        statuses = self._peer_status.items()
        voters = [
            peer
            for peer, status in statuses
            if status.standing == Standing.VOTER and self._links.connected(peer)
        ]
        if self.engine.is_leader:
            if self._runtime.monotonic() >= self._handover_ends_s:
                self.transfer_leadership()
        elif len(voters) * 2 > len(self.config.peers) + 1:
            self._directory.note_damage(self.damage)
            self._stop_for(self.damage)

    def _stop_for(self, error: Exception) -> None:
        self._running = False
        self._runtime.fail(error)

    def _stop_for_foreign_log(self, error: ForeignLog) -> None:
        """Stop. The next start will know what was applied, and refuse the same leader for the same reason."""
        self.housekeeping.checkpoint_now(*self._applied())
        self._stop_for(error)

    def stop(self) -> None:
        """Take no further part. What was submitted and not applied has an unknown outcome."""
        if self._running:
            self._running = False
            self.housekeeping.checkpoint_now(*self._applied())

    # Submitting

    def submit(self, payload: Sequence[Buffer], weight: int = 0) -> int:
        """Have a batch applied exactly once on every node, after all earlier ones of this node. Returns its sequence.

        `weight` says what it is expected to cost every node (`GroupConfig.entry_weight_max`).
        It is repeated to every new leader until a `Confirmed` effect reports it, or `Expelled` gives it up. Raises
        ValueError for more than `BATCH_BYTES_MAX`, which no entry could hold.
        """
        sequence = self._submissions.add(payload, weight)
        self._wake()
        return sequence

    # What entries hold, for whoever delivers it

    @property
    def last_index(self) -> int:
        """Of the newest entry of this node's log."""
        return self.journal.last_index

    def payload(self, index: int) -> bytes | None:
        """As `SegmentedJournal.payload`: an entry, if it is in memory."""
        return self.journal.payload(index)

    def read_job(self, indexes: Sequence[int], bytes_max: int) -> Callable[[], list[bytes]]:
        """As `SegmentedJournal.read_job`. Raises EntryGone."""
        return self.journal.read_job(indexes, bytes_max)

    @property
    def pending_batches(self) -> int:
        """Submitted and not yet seen applied."""
        return len(self._submissions)

    @property
    def pending_bytes(self) -> int:
        return self._submissions.pending_bytes

    def transfer_leadership(self) -> bool:
        """Hand leadership to a peer, before a planned stop; `leader` tells when it has changed. False if none is there.

        Nothing is proposed meanwhile: a peer that lacks the latest entry could not be elected.
        """
        if not self.engine.is_leader or self.is_alone:
            return False
        self._handover_ends_s = self._runtime.monotonic() + HANDOVER_S
        self._handover_asked = False
        self._wake()
        return True

    # Reading

    @property
    def leader(self) -> str | None:
        return self._reign.leader

    @property
    def is_alone(self) -> bool:
        """Whether no other member is connected."""
        return not any(map(self._links.connected, self.config.peers))

    def statuses(self) -> list[NodeStatus]:
        """Every member, this node first-hand and the others as they last said."""
        return [self._status_of(name) for name in sorted([self.config.name, *self.config.peers])]

    def _status_of(self, name: str) -> NodeStatus:
        is_self = name == self.config.name
        status = self._own_status() if is_self else self._peer_status.get(name)
        if not is_self and not self._links.connected(name):
            state = "down"
        elif name == self.leader:
            state = "leader"
        else:
            state = "candidate" if status is not None and status.state == Role.CANDIDATE else "follower"
        if status is None:
            return NodeStatus(name, state, *[None] * 11)
        standing = Standing(status.standing).name.lower()
        offset_ms = status.wall_ms - status.time_ms
        return NodeStatus(name, state, *status[1:5], standing, *status[6:10], bool(status.alarm), offset_ms)

    def _own_status(self) -> Status:
        engine, journal, now_s = self.engine, self.journal, self._runtime.monotonic()
        return Status(
            engine.role,
            engine.term,
            journal.last_index,
            engine.commit_index,
            engine.applied_index,
            self.recovery.standing,
            journal.first_index,
            self.housekeeping.newest_index,
            journal.disk_bytes,
            self._space.free_bytes,
            self._own_alarms,
            self._clock.time_ms(now_s),
            self._wall_ms(),
            self._clock.steady_ms(now_s),
        )

    def time_ms(self) -> int:
        """The cluster's time, as this node knows it. It never goes back and never stands still."""
        return self._clock.time_ms(self._runtime.monotonic())

    def _wall_ms(self) -> int:
        return bounded(self._runtime.wall_ms())

    def describe_standing(self) -> str | None:
        """Why this node does not take full part, or None if it does."""
        if self.damage is not None:
            return f"{self.damage}; this node will be repaired as soon as the others can go on without it"
        return self.recovery.describe()

    def dump(self) -> bytes:
        """The replicated state, the group's own part included; equal on every replica at equal index."""
        return self._state.freeze().dump()

    # Links

    def peer_connected(self, peer: str) -> None:
        self._heard_s[peer] = self._runtime.monotonic()
        self._dead_since_s.pop(peer, None)
        self._drop_waiting(peer)
        self._transmit(peer, self._own_status())
        self.engine.peer_connected(peer)
        self._taker.connected(peer)
        self._submissions.link_is_new(peer)
        self._wake()

    def peer_lost(self, peer: str, *, dead: bool) -> None:
        self._drop_waiting(peer)
        self._clock.forget(peer)
        self.engine.peer_lost(peer)
        if dead:
            self._dead_since_s.setdefault(peer, self._runtime.monotonic())
        if self._reign.leader == peer:
            self._runtime.call_later(self.config.timing.campaign_jitter_s, self._wake)
        self._wake()

    def _drop_waiting(self, peer: str) -> None:
        """What waits for a sync was meant for an epoch that is over (hazard H4)."""
        self._waiting = deque(waiting for waiting in self._waiting if waiting[1] != peer)

    def peer_drained(self, peer: str) -> None:
        if self._links.connected(peer):
            self.engine.peer_resumed(peer)
            self._wake()

    def part_received(self, peer: str) -> None:
        if not self._running:
            return
        self._heard_s[peer] = self._runtime.monotonic()
        self._taker.part_received(peer)
        if self.recovery.standing is not Standing.BLANK:
            self.engine.part_received(peer)
            if self.engine.outbox:
                self._wake()

    def frame_received(self, peer: str, frame: bytes) -> None:
        if not self._running:
            return
        self._heard_s[peer] = self._runtime.monotonic()
        try:
            message = decode(frame)
        except MalformedFrame:
            log.exception("peer %s sent a malformed frame; ignored", peer)
            return
        try:
            self._receive(peer, message)
        except ForeignLog as error:
            self._stop_for_foreign_log(error)
        self._wake()

    def _receive(self, peer: str, message: Message) -> None:
        match message:
            case Forward():
                self._receive_forward(peer, message)
            case Status():
                leads = message.state == Role.LEADER
                if leads:
                    self.engine.check_end_of(peer, message.term, message.last_index)
                self._peer_status[peer] = message
                self._clock.hear(peer, message.steady_ms, self._heard_s[peer])
                self.recovery.heard(peer, message, leads=leads)
            case Offer():
                self.engine.check_snapshot(peer, message.index, message.term)
                self._taker.offered(peer, message)
            case Fetch():
                self._giver.fetch(peer, message)
            case Chunk():
                self._taker.chunk(peer, message)
            case Withdrawn():
                self._taker.withdrawn(peer, message)
            case Spoilt():
                self._giver.spoilt(peer, message)
            case _ if self.recovery.standing is not Standing.BLANK:
                self.engine.receive(peer, message)
                self._start_sync()
            case _:
                pass  # whatever it promised now, it may have promised something else before

    # The turn

    def _wake(self) -> None:
        if self._running and not self._turn_asked:
            self._turn_asked = True
            self._runtime.call_soon(self._turn)

    def _beat(self) -> None:
        """Heartbeats and election deadlines fall due between events, too."""
        if self._running:
            self._wake()
            self._watch_space()
            self._leave_if_the_others_can_go_on()
            if self.engine.is_leader:
                self._expel_the_gone()
            self._runtime.call_later(self._beat_s, self._beat)

    def _turn(self) -> None:
        self._turn_asked = False
        if not self._running:
            return
        try:
            self._take_turn()
        except CorruptJournal as damage:
            self.disk_failed(damage)

    def _take_turn(self) -> None:
        # What the last turn left must not come on top of what this one makes: only a link that has been written to
        # says that it is congested.
        if self.engine.outbox:
            self._send()
        # A lone member counts itself as the majority, so it must not tick while its tail is not on disk.
        alone_and_unsynced = not self.config.peers and self.journal.synced < self.journal.written
        if not alone_and_unsynced:
            self._note_leader()
            self._check_incarnation()
            self._forward()
            if self.recovery.turn(self.engine, self.journal):
                self._tell_peers(self._own_status())
            last_index = self.journal.last_index
            self.engine.turn(self._compose)
            self._note_leader()
            if self.journal.last_index > last_index:
                self._send()  # new entries: every peer's disk is waiting for them
        self._giver.turn(self.engine)
        self.housekeeping.turn(*self._applied(), self._applying_s)
        self._start_sync()
        if self.engine.outbox:
            self._runtime.call_soon(self._send)  # mere notices: clients hear first what was just applied
        if self.engine.behind:
            self._wake()

    def _note_leader(self) -> None:
        if (self.engine.leader, self.engine.term) == self._reign:
            return
        reign = Reign(self.engine.leader, self.engine.term)
        if self.config.name in (self._reign.leader, reign.leader):
            self._proposals.clear()
            self._handover_ends_s = 0.0
        if reign.leader or self._reign.leader:  # not that there was none in an earlier term, either
            log.info("leader of term %d: %s", reign.term, reign.leader or "none")
        self._reign = reign
        self._wake()  # submissions go to the new leader
        self._events.leader_changed(*reign)

    def _start_sync(self) -> None:
        if self.journal.dirty and not self.journal.sync_in_flight:
            self.journal.start_sync(self._synced)

    def _synced(self) -> None:
        if self._running:
            self.engine.synced()
            self._start_sync()
            self._send()
            self._wake()

    def _applied(self) -> tuple[int, int]:
        """Index and term of the last entry that the state holds."""
        index = self.engine.applied_index
        return index, self.journal.term_at(index)

    def _needed_from(self) -> int | None:
        """The first entry that must stay: for the shell, or for followers that are sent old ones, or soon will be."""
        needed = self._events.needed_from()
        if not self.engine.is_leader:
            return needed
        for peer in filter(self._links.connected, self.config.peers):
            bytes_max = FED_RETAINED_MAX * self.config.retained_bytes
            offer = self._giver.offer_to(peer)
            if offer is None:
                index = self.engine.acknowledged_index(peer)
            else:
                index = offer.segments[-1].end
                bytes_max = max(bytes_max, offer.size)
            if index < self.journal.first_index:
                continue  # unknown, or it needs a snapshot anyway
            if self.journal.bytes_from(index) <= bytes_max:
                needed = index if needed is None else min(needed, index)
        return needed

    # Space

    @property
    def _low(self) -> bool:
        return self._space.is_low(self._runtime.monotonic())

    @property
    def alarm(self) -> str | None:
        """Why publishers must wait, in RabbitMQ's words; None if they need not."""
        short = [resource for alarm, resource in RESOURCES.items() if self.alarms & alarm]
        return f"low on {' & '.join(short)}" if short else None

    @property
    def _own_alarms(self) -> Alarm:
        disk = Alarm.DISK if self._low else Alarm(0)
        return disk | Alarm.MEMORY if self.low_on_memory else disk

    def _alarmed_peers(self, alarm: Alarm) -> list[str]:
        statuses = self._peer_status
        return [peer for peer in self.config.peers if peer in statuses and statuses[peer].alarm & alarm]

    def _watch_space(self) -> None:
        """Publishers wait while this node, or so many nodes that no majority can store, is low on disk or memory."""
        alarms, members = self._own_alarms, len(self.config.peers) + 1
        for alarm in Alarm:
            if len(self._alarmed_peers(alarm)) * 2 >= members:
                alarms |= alarm
        if alarms != self.alarms:
            self.alarms = alarms
            reason = self.alarm
            log.warning("publishers must wait: %s", reason) if reason else log.info("publishers may go on")
            self._events.alarm_changed(reason)
        self.engine.may_lead = not self.journal.full and self.damage is None
        if self.journal.full:
            self._try_full_disk(self._alarmed_peers(Alarm.DISK))

    def _try_full_disk(self, alarmed: Sequence[str]) -> None:
        """Write again now and then; meanwhile let somebody lead whose disk is not full."""
        now_s = self._runtime.monotonic()
        if now_s - self._tried_full_disk_s < CHECK_INTERVAL_S:
            return
        self._tried_full_disk_s = now_s
        if not self.journal.sync_in_flight:
            self.journal.start_sync(self._synced)
        if self.engine.is_leader:
            self.engine.transfer_leadership(without=[*alarmed, *self._not_voting()])

    def _not_voting(self) -> list[str]:
        statuses = self._peer_status.items()
        return [peer for peer, status in statuses if status.standing != Standing.VOTER]

    # Snapshots

    def _install(self, installable: Installable) -> None:
        """Take over another node's log and state, and tell the shell what has happened meanwhile."""
        checkpoint = installable.checkpoint
        try:
            self._check_log_of(installable)
        except ForeignLog as error:
            remove_checkpoints(
                self._disk, self._directory.log, [checkpoint.index]
            )  # a start would believe it
            self._stop_for_foreign_log(error)
            return
        self._directory.restore(self._state, checkpoint)
        self._clock.follow(self._state.time_ms, self._runtime.monotonic())
        self.journal.adopt(installable.segments, installable.runs)
        self.engine.installed(checkpoint.index)
        self.housekeeping.begin(checkpoint)
        self.snapshots_installed += 1
        self._installed_at = self.journal.written
        log.info("installed a snapshot of index %d", checkpoint.index)
        self._resume(checkpoint.index)
        self._wake()

    def _check_log_of(self, installable: Installable) -> None:
        """Raise ForeignLog if it is not of the log that is committed here."""
        checkpoint, segments, runs = installable
        giver, commit_index = self.leader or "unknown", self.engine.commit_index
        self.engine.check_snapshot(giver, checkpoint.index, checkpoint.term)
        if log_start(segments, segments[-1].end) <= commit_index < segments[-1].end:
            self.engine.check_snapshot(giver, commit_index, runs.at(commit_index))

    def _resume(self, index: int) -> None:
        origin = self._state.origins.get(self.config.name)
        if origin is None or origin.incarnation != self._incarnation:
            return  # nothing of this life was applied yet
        if origin.expelled:
            self._begin_incarnation()
            self._events.applied(index, [Expelled()])
            return
        self._submissions.applied(origin.sequence)
        self._events.resumed(origin.sequence, self.machine.outstanding(self.config.name))

    def _send(self) -> None:
        """Send what may leave: everything at once, except acknowledgements of what is not yet synced (hazard H1)."""
        synced = self.journal.synced
        while self._waiting and self._waiting[0][0] <= synced:
            _, peer, message = self._waiting.popleft()
            self._transmit(peer, message)
        outbox, self.engine.outbox = self.engine.outbox, []
        for outgoing in outbox:
            if outgoing.barrier <= synced:
                self._transmit(outgoing.peer, outgoing.message)
            else:
                self._waiting.append(outgoing)

    def _transmit(self, peer: str, message: Message) -> None:
        self._links.send(peer, self.config.group_id, encode(message))
        if self._links.congested(peer):
            self.engine.hold_back(peer)

    def _tell_peers(self, message: Message) -> None:
        for peer in self.config.peers:
            self._transmit(peer, message)

    def _tell_status(self) -> None:
        if self._running:
            self._clock.look(self._wall_ms(), self._runtime.monotonic())
            self._tell_peers(self._own_status())
            self._giver.tick(self.engine)
            self._taker.tick()
            self._clean_up()
            self._runtime.call_later(STATUS_INTERVAL_S, self._tell_status)

    def _clean_up(self) -> None:
        """Remove what only a crash or a loss that is now impossible would have needed."""
        if self._installed_at and self.journal.synced >= self._installed_at:
            self._installed_at = 0
            self._taker.remove_installed()
        if not self._cleaned and self.recovery.standing is Standing.VOTER:
            self._cleaned = True
            self._directory.remove_set_aside()

    # Submissions on their way

    def _forward(self) -> None:
        """Give the leader what it has not got from this node yet; a new leader, or a new link to it, gets all again."""
        reign, submissions = self._reign, self._submissions
        if reign.leader is None or not submissions.has_unsent(reign):
            return
        if reign.leader == self.config.name:
            self._proposals.extend(submissions.take_unsent())
        elif self._links.connected(reign.leader) and not self._links.congested(reign.leader):
            batches = submissions.take_unsent(self.config.forward_bytes_max)
            buffers = [buffer for batch in batches for buffer in batch.buffers]
            self._transmit(reign.leader, Forward(reign.term, buffers))
            if submissions.has_unsent(reign):
                self._wake()

    def _receive_forward(self, peer: str, message: Forward) -> None:
        """Take in batches of a reign that is still on; a node repeats what an ended reign dropped."""
        if not self.engine.is_leader or message.term != self.engine.term:
            return
        try:
            self._proposals.take_in(peer, b"".join(message.batches))
        except MalformedEntry:
            log.exception("peer %s forwarded malformed batches; ignored", peer)

    def _compose(self) -> None:
        """Propose the batches that have gathered, as one entry, unless enough is under way already."""
        self._note_leader()
        if self._runtime.monotonic() < self._handover_ends_s:
            self._handover_asked = self._handover_asked or self.engine.transfer_leadership(self._not_voting())
            return
        while self._proposals and self.journal.last_index - self.engine.commit_index < IN_FLIGHT_MAX:
            batches = self._proposals.next_entry(self.config.entry_bytes_max, self.config.entry_weight_max)
            self.engine.propose(make_entry(self.time_ms(), batches))
        self._tick_if_due()

    def _tick_if_due(self) -> None:
        """Propose a tick entry if the machine has something to do by now, and have a turn when it will have.

        Not while anything is under way: that brings the time as well, and there is a turn when it is applied.
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
        """Have a turn then, if there would be none before: each beat brings one, and so does an earlier timer."""
        goes_off_s = self._runtime.monotonic() + delay_s
        if delay_s > self._beat_s or (self._timer is not None and self._timer_s <= goes_off_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._runtime.call_later(delay_s, self._timer_went_off)
        self._timer_s = goes_off_s

    def _timer_went_off(self) -> None:
        self._timer = None
        self._wake()

    def _expel_the_gone(self) -> None:
        now_s = self._runtime.monotonic()
        for peer in self.config.peers:
            origin = self._state.origins.get(peer)
            if origin is None or origin.expelled:
                continue
            dead_s = self._dead_since_s.get(peer, now_s)
            silent = now_s - self._heard_s[peer] > self.config.silent_origin_grace_s
            is_gone = silent or now_s - dead_s > self.config.dead_origin_grace_s
            if is_gone and self._proposals.expel(peer, origin.incarnation):
                log.warning("node %s is gone: its consumers' messages return", peer)
                self._wake()

    # Applying

    def _apply(self, index: int, _term: int, payload: bytes) -> None:
        if not is_regular(payload):
            return
        begun_s = self._runtime.monotonic()
        try:
            effects = self._apply_entry(index, payload)
            self._clock.follow(self._state.time_ms, begun_s)
        except BaseException as error:
            # H10: whatever this is, every further entry would build on a state that differs from the other nodes'.
            self._running = False
            self._runtime.fail(error)
            raise
        self._applying_s += self._runtime.monotonic() - begun_s
        if self._was_expelled:
            self._was_expelled = False
            position = next(i for i, effect in enumerate(effects) if type(effect) is Expelled)
            # What the shell submits while it hears of these belongs to the life that is over.
            self._events.applied(index, effects[:position])
            effects = effects[position:]
            self._begin_incarnation()
        self._events.applied(index, effects)

    def _apply_entry(self, index: int, payload: bytes) -> list[Any]:
        self._state.time_ms = max(self._state.time_ms, entry_time_ms(payload))
        view = memoryview(payload)
        effects: list[Any] = []
        for ordinal, batch in enumerate(batches_of(payload)):
            if batch.kind == KIND_EXPEL:
                self._apply_expulsion(batch, effects)
            else:
                self._apply_batch(index, ordinal, batch, view, effects)
        effects.extend(self.machine.end_entry(self._state.time_ms))
        return effects

    def _apply_batch(
        self, index: int, ordinal: int, batch: BatchView, payload: memoryview, effects: list[Any]
    ) -> None:
        admission = self._state.origins.admit(batch.origin, batch.incarnation, batch.sequence)
        if admission is Admission.DROP:
            return
        if admission is Admission.APPLY_AFTER_RESTART:
            effects.extend(self.machine.origin_down(batch.origin, self._state.time_ms, expelled=False))
        if batch.end > batch.start:
            part = payload[batch.start : batch.end]
            effects.extend(self.machine.apply_batch(batch.origin, index, ordinal, self._state.time_ms, part))
        if batch.origin == self.config.name and batch.incarnation == self._incarnation:
            self._submissions.applied(batch.sequence)
            effects.append(Confirmed(batch.sequence))

    def _apply_expulsion(self, batch: BatchView, effects: list[Any]) -> None:
        if not self._state.origins.expel(batch.origin, batch.incarnation):
            return
        effects.extend(self.machine.origin_down(batch.origin, self._state.time_ms, expelled=True))
        if batch.origin == self.config.name and batch.incarnation == self._incarnation:
            self._was_expelled = True
            effects.append(Expelled())

    def _check_incarnation(self) -> None:
        """A node that lost its directory counts by the clock: if that was set back, an earlier life is ahead."""
        origin = self._state.origins.get(self.config.name)
        if origin is not None and origin.incarnation > self._incarnation:
            self._begin_incarnation()
            self._events.applied(self.engine.applied_index, [Expelled()])

    def _claim(self, wall_ms: int) -> Claim:
        return self._directory.claim(wall_ms, self.machine.version, self._members, self._leap())

    def _leap(self) -> int:
        return self._runtime.random.randint(1, INCARNATION_LEAP)

    def _begin_incarnation(self) -> None:
        """The others gave this node up while it was away: all that its clients held has gone back to the queues."""
        known = self._state.origins.get(self.config.name)
        # Not simply the next one: a life that was lost may have had that, in entries that are yet to come.
        least = known.incarnation + self._leap() if known else 0
        claim = self._claim(max(self._wall_ms(), least))
        self._incarnation = claim.incarnation
        self._submissions.begin(self._incarnation)
        self.submit([])
