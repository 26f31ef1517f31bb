"""One replicated group on one node: submissions in, applied entries out.

One turn = what was received, tick, compose an entry, start a sync, send. Everything that happens (a frame, a synced
write, a submission, a timer) asks for a turn; turns run one at a time on the loop. Disk and network overlap: appends
leave before the leader's own sync, acknowledgements wait for it, and a leader counts no entry beyond its own synced
tail (the engine sees to that).

Lives here: the driving of the engine, exactly-once submission (`submit`), forwarding to the leader, the decision to
stop waiting for a node. Not here: consensus (engine.py), files (journal.py), sockets (links.py), what an entry
means (the machine).

Law: no entry is applied twice, none out of order, and a submission is repeated until this node has seen it applied.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from cluster.engine import Engine, Role, Timing, is_regular
from cluster.entry import (
    BATCHES_MAX,
    KIND_EXPEL,
    KIND_SUBMITTED,
    Batch,
    BatchView,
    MalformedEntry,
    batch_at,
    batches_of,
    entry_time_ms,
    make_batch,
    make_entry,
    read_batches,
)
from cluster.envelope import Forward, MalformedFrame, Message, Status, decode, encode
from cluster.identity import Owner, next_incarnation
from cluster.journal import SegmentedJournal
from cluster.machine import Machine
from cluster.origins import Admission, Origins
from cluster.ports import Buffer, Disk, Links, Runtime, pack

log = logging.getLogger(__name__)

IN_FLIGHT_MAX = 2
"""Entries proposed and not yet committed. Two keep disk and network busy; more would only make the entries smaller."""
STATUS_INTERVAL_S = 1.0
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
    segment_bytes: int = 64 * 1024 * 1024
    cache_bytes: int = 32 * 1024 * 1024
    entry_bytes_max: int = 1024 * 1024
    """An entry gathers batches up to about this size; a larger batch travels alone."""
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


class NodeStatus(NamedTuple):
    """One node as this node sees it; None where it does not know."""

    name: str
    state: str
    term: int | None
    last_index: int | None
    commit_index: int | None
    applied_index: int | None


class Group:
    """One member of the group."""

    def __init__(
        self,
        config: GroupConfig,
        machine: Machine,
        runtime: Runtime,
        disk: Disk,
        links: Links,
        events: GroupEvents,
        engine: type[Engine] = Engine,
    ) -> None:
        self.config = config
        self.machine = machine
        self._runtime = runtime
        self._disk = disk
        self._links = links
        self._events = events
        self._engine_type = engine
        self._directory = f"groups/{config.group_id}"
        self._owner = Owner(config.cluster, config.name, config.group_id)
        self._origins = Origins()
        self._time_ms = 0
        self._running = False
        self._turn_asked = False
        self._leader: tuple[str | None, int] = (None, 0)
        # Submissions of this node, oldest first, until they are seen applied; and how far they were sent to whom.
        self._pending: deque[Batch] = deque()
        self.pending_bytes = 0
        self._next_sequence = 1
        self._sent_sequence = 0
        self._sent_to: tuple[str | None, int] = (None, 0)
        # The leader's side: batches for the next entries, and what it has taken in during this reign.
        self._proposals: deque[Batch] = deque()
        self._accepted: dict[str, tuple[int, int]] = {}
        self._expelling: set[tuple[str, int]] = set()
        self._handover_ends_s = 0.0
        self._handover_asked = False
        self._waiting: deque[tuple[int, str, Message]] = deque()
        self._peer_status: dict[str, Status] = {}
        self._heard_s: dict[str, float] = {}
        self._dead_since_s: dict[str, float] = {}

    def start(self) -> None:
        """Open the journal and take part. Raises the journal's and the identity's errors."""
        config = self.config
        self._disk.make_directory(self._directory)
        self._count_incarnation()
        self.journal = SegmentedJournal(
            self._disk,
            f"{self._directory}/log",
            self._owner.key(),
            self._runtime.fail,
            segment_bytes=config.segment_bytes,
            cache_bytes=config.cache_bytes,
            slice_bytes=config.append_bytes_max,
        )
        self.engine = self._engine_type(
            config.name, config.peers, self.journal, config.timing, self._runtime, self._apply
        )
        self.journal.sync_now()
        now_s = self._runtime.monotonic()
        self._heard_s = dict.fromkeys(config.peers, now_s)
        self._running = True
        self._links.register(config.group_id, self)
        self.submit([])  # tells the cluster that this incarnation lives, so that it forgets the last one
        self._beat()
        self._tell_status()

    def _count_incarnation(self) -> None:
        wall_ms = self._runtime.wall_ms()
        self._incarnation = next_incarnation(self._disk, self._directory, self._owner, wall_ms)

    def stop(self) -> None:
        """Take no further part. What was submitted and not applied has an unknown outcome."""
        self._running = False

    # Submitting

    def submit(self, payload: Sequence[Buffer]) -> int:
        """Have a batch applied exactly once on every node, after all earlier ones of this node. Returns its sequence.

        It is repeated to every new leader until a `Confirmed` effect reports it, or `Expelled` gives it up.
        """
        batch = make_batch(self.config.name, self._incarnation, self._next_sequence, payload)
        self._next_sequence += 1
        self._pending.append(batch)
        self.pending_bytes += batch.size
        self._wake()
        return batch.sequence

    @property
    def pending_batches(self) -> int:
        return len(self._pending)

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
        return self._leader[0]

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
        indexes = status[1:] if status else (None, None, None, None)
        if not is_self and not self._links.connected(name):
            return NodeStatus(name, "down", *indexes)
        if name == self.leader:
            return NodeStatus(name, "leader", *indexes)
        campaigns = status is not None and status.state == Role.CANDIDATE
        return NodeStatus(name, "candidate" if campaigns else "follower", *indexes)

    def _own_status(self) -> Status:
        engine = self.engine
        return Status(
            engine.role, engine.term, self.journal.last_index, engine.commit_index, engine.applied_index
        )

    def dump(self) -> bytes:
        """The replicated state, the group's own part included; equal on every replica at equal index."""
        return pack([self._time_ms, self._origins.dump(), self.machine.dump()])

    # Links

    def peer_connected(self, peer: str) -> None:
        self._heard_s[peer] = self._runtime.monotonic()
        self._dead_since_s.pop(peer, None)
        self._drop_waiting(peer)
        self.engine.peer_connected(peer)
        if self._sent_to[0] == peer:
            self._sent_to = (None, 0)
        self._wake()

    def peer_lost(self, peer: str, *, dead: bool) -> None:
        self._drop_waiting(peer)
        self.engine.peer_lost(peer)
        if dead:
            self._dead_since_s.setdefault(peer, self._runtime.monotonic())
        if self._leader[0] == peer:
            self._runtime.call_later(self.config.timing.campaign_jitter_s, self._wake)
        self._wake()

    def _drop_waiting(self, peer: str) -> None:
        """What waits for a sync was meant for an epoch that is over (hazard H4)."""
        self._waiting = deque(waiting for waiting in self._waiting if waiting[1] != peer)

    def peer_drained(self, peer: str) -> None:
        if self._links.connected(peer):
            self.engine.peer_resumed(peer)
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
        if isinstance(message, Forward):
            self._receive_forward(peer, message)
        elif isinstance(message, Status):
            self._peer_status[peer] = message
        else:
            self.engine.receive(peer, message)
            self._start_sync()
        self._wake()

    # The turn

    def _wake(self) -> None:
        if self._running and not self._turn_asked:
            self._turn_asked = True
            self._runtime.call_soon(self._turn)

    def _beat(self) -> None:
        """Heartbeats and election deadlines fall due between events, too."""
        if self._running:
            self._wake()
            if self.engine.is_leader:
                self._expel_the_gone()
            self._runtime.call_later(self.config.timing.heartbeat_s / 2, self._beat)

    def _turn(self) -> None:
        self._turn_asked = False
        if not self._running:
            return
        # A lone member counts itself as the majority, so it must not tick while its tail is not on disk.
        alone_and_unsynced = not self.config.peers and self.journal.synced < self.journal.written
        if not alone_and_unsynced:
            self._note_leader()
            self._forward()
            last_index = self.journal.last_index
            self.engine.turn(self._compose)
            self._note_leader()
            if self.journal.last_index > last_index:
                self._send()  # new entries: every peer's disk is waiting for them
        self._start_sync()
        if self.engine.outbox:
            self._runtime.call_soon(self._send)  # mere notices: clients hear first what was just applied
        if self.engine.behind:
            self._wake()

    def _note_leader(self) -> None:
        leader = (self.engine.leader, self.engine.term)
        if leader == self._leader:
            return
        was_leading = self._leader[0] == self.config.name
        self._leader = leader
        log.info("leader of term %d: %s", leader[1], leader[0] or "none")
        if was_leading or leader[0] == self.config.name:
            self._proposals.clear()
            self._accepted.clear()
            self._expelling.clear()
            self._handover_ends_s = 0.0
        self._wake()  # submissions go to the new leader
        self._events.leader_changed(*leader)

    def _start_sync(self) -> None:
        if self.journal.dirty and not self.journal.sync_in_flight:
            self.journal.start_sync(self._synced)

    def _synced(self) -> None:
        if self._running:
            self.engine.synced()
            self._start_sync()
            self._send()
            self._wake()

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

    def _tell_status(self) -> None:
        if self._running:
            status = self._own_status()
            for peer in self.config.peers:
                self._transmit(peer, status)
            self._runtime.call_later(STATUS_INTERVAL_S, self._tell_status)

    # Submissions on their way

    def _forward(self) -> None:
        """Give the leader what it has not got from this node yet; a new leader, or a new link to it, gets all again."""
        leader = self._leader
        if not self._pending or leader[0] is None:
            return
        if leader != self._sent_to:
            self._sent_to = leader
            self._sent_sequence = self._pending[0].sequence - 1
        # Batches that the last leader had proposed may have been applied before this one was sent them.
        self._sent_sequence = max(self._sent_sequence, self._pending[0].sequence - 1)
        unsent = self._sent_sequence + 1 - self._pending[0].sequence
        if unsent >= len(self._pending):
            return
        if leader[0] == self.config.name:
            self._accept_own(unsent)
        elif self._links.connected(leader[0]) and not self._links.congested(leader[0]):
            self._forward_to(leader[0], unsent)

    def _accept_own(self, unsent: int) -> None:
        for position in range(unsent, len(self._pending)):
            self._proposals.append(self._pending[position])
        self._sent_sequence = self._pending[-1].sequence

    def _forward_to(self, leader: str, unsent: int) -> None:
        buffers: list[Buffer] = []
        size = 0
        for position in range(unsent, len(self._pending)):
            batch = self._pending[position]
            if size and size + batch.size > self.config.forward_bytes_max:
                self._wake()
                break
            buffers.extend(batch.buffers)
            size += batch.size
            self._sent_sequence = batch.sequence
        self._transmit(leader, Forward(self._leader[1], buffers))

    def _receive_forward(self, peer: str, message: Forward) -> None:
        """Take in batches of a reign that is still on; a node repeats what an ended reign dropped."""
        if not self.engine.is_leader or message.term != self.engine.term:
            return
        data = b"".join(message.batches)
        try:
            views = list(read_batches(data, 0))
        except MalformedEntry:
            log.exception("peer %s forwarded malformed batches; ignored", peer)
            return
        for view in views:
            accepted = self._accepted.get(view.origin, (0, 0))
            if (
                view.kind == KIND_SUBMITTED
                and view.origin == peer
                and (view.incarnation, view.sequence) > accepted
            ):
                self._accepted[view.origin] = (view.incarnation, view.sequence)
                self._proposals.append(batch_at(data, view))

    def _compose(self) -> None:
        """Propose the batches that have gathered, as one entry, unless enough is under way already."""
        self._note_leader()
        if self._runtime.monotonic() < self._handover_ends_s:
            self._handover_asked = self._handover_asked or self.engine.transfer_leadership()
            return
        while self._proposals and self.journal.last_index - self.engine.commit_index < IN_FLIGHT_MAX:
            batches = [self._proposals.popleft()]
            size = batches[0].size
            while self._proposals and len(batches) < BATCHES_MAX:
                size += self._proposals[0].size
                if size > self.config.entry_bytes_max:
                    break
                batches.append(self._proposals.popleft())
            time_ms = max(self._runtime.wall_ms(), self._time_ms)
            self.engine.propose(make_entry(time_ms, batches))

    def _expel_the_gone(self) -> None:
        now_s = self._runtime.monotonic()
        for peer in self.config.peers:
            origin = self._origins.get(peer)
            if origin is None or origin.expelled or (peer, origin.incarnation) in self._expelling:
                continue
            dead_s = self._dead_since_s.get(peer, now_s)
            silent = now_s - self._heard_s[peer] > self.config.silent_origin_grace_s
            if silent or now_s - dead_s > self.config.dead_origin_grace_s:
                log.warning("node %s is gone: its consumers' messages return", peer)
                self._expelling.add((peer, origin.incarnation))
                self._proposals.append(make_batch(peer, origin.incarnation, 0, [], KIND_EXPEL))
                self._wake()

    # Applying

    def _apply(self, index: int, _term: int, payload: bytes) -> None:
        if not is_regular(payload):
            return
        try:
            effects = self._apply_entry(index, payload)
        except BaseException as error:
            # H10: whatever this is, every further entry would build on a state that differs from the other nodes'.
            self._running = False
            self._runtime.fail(error)
            raise
        self._events.applied(index, effects)

    def _apply_entry(self, index: int, payload: bytes) -> list[Any]:
        self._time_ms = max(self._time_ms, entry_time_ms(payload))
        view = memoryview(payload)
        effects: list[Any] = []
        for ordinal, batch in enumerate(batches_of(payload)):
            if batch.kind == KIND_EXPEL:
                self._apply_expulsion(batch, effects)
            else:
                self._apply_batch(index, ordinal, batch, view, effects)
        effects.extend(self.machine.end_entry())
        return effects

    def _apply_batch(
        self, index: int, ordinal: int, batch: BatchView, payload: memoryview, effects: list[Any]
    ) -> None:
        admission = self._origins.admit(batch.origin, batch.incarnation, batch.sequence)
        if admission is Admission.DROP:
            return
        if admission is Admission.APPLY_AFTER_RESTART:
            effects.extend(self.machine.origin_down(batch.origin, expelled=False))
        if batch.end > batch.start:
            part = payload[batch.start : batch.end]
            effects.extend(self.machine.apply_batch(batch.origin, index, ordinal, self._time_ms, part))
        if batch.origin == self.config.name and batch.incarnation == self._incarnation:
            self._confirm(batch.sequence, effects)

    def _confirm(self, sequence: int, effects: list[Any]) -> None:
        while self._pending and self._pending[0].sequence <= sequence:
            self.pending_bytes -= self._pending.popleft().size
        effects.append(Confirmed(sequence))

    def _apply_expulsion(self, batch: BatchView, effects: list[Any]) -> None:
        if not self._origins.expel(batch.origin, batch.incarnation):
            return
        effects.extend(self.machine.origin_down(batch.origin, expelled=True))
        if batch.origin == self.config.name and batch.incarnation == self._incarnation:
            self._begin_incarnation()
            effects.append(Expelled())

    def _begin_incarnation(self) -> None:
        """The others gave this node up while it was away: all that its clients held has gone back to the queues."""
        self._count_incarnation()
        self._pending.clear()
        self.pending_bytes = 0
        self._next_sequence = 1
        self._sent_to = (None, 0)
        self.submit([])
