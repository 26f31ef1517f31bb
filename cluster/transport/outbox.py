"""Persist, then send (hazard H1): the outgoing messages of a group, and the syncs of the log that they wait for.

Invariant: a message with a sync_point leaves when the journal has synced that far, in the order of the calls. It is
dropped if the epoch of its peer ends before (H4). Only a single sync runs at a time, and the next begins when it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from cluster.raft.failure_detector import AwakeClock
from cluster.raft.messages import Status, encode, encode_for_release_0_1, encode_without_losses
from cluster.transport.handshake import VERSIONS as PROTOCOLS

if TYPE_CHECKING:
    from cluster.engine.engine import Engine
    from cluster.log.journal import SegmentedJournal
    from cluster.raft.messages import Message, OutgoingMessage
    from cluster.runtime.ports import Buffer, Runtime
    from cluster.runtime.turn_timer import TurnTimer
    from cluster.transport.linked_nodes import LinkedNodes
    from cluster.transport.ports import Links

OLDEST_PROTOCOL = PROTOCOLS[0]
"""The version of the peer protocol that nodes of release 0.1 speak; it has no introductions."""
HANGS_S = 3.0
"""Seconds after which a running sync counts as hanging: the disk will not be of use soon."""
STALL_S = 1.0
"""Seconds above which a stall of this node, as when its process was stopped, does not count as time of the disk."""


class PeerOutbox:
    """The outgoing messages of a group, and those that wait for a sync."""

    def __init__(
        self,
        links: Links,
        group_id: int,
        linked: LinkedNodes,
        congested: Callable[[str], None],
        reports_losses: Callable[[], bool],
    ) -> None:
        """`congested` is called with each peer whose link has more queued than it takes for now.

        `reports_losses` returns whether all members know the messages about losses.
        """
        self._links = links
        self._group_id = group_id
        self._linked = linked
        self._congested = congested
        self._reports_losses = reports_losses
        self._waiting: deque[OutgoingMessage] = deque()
        """The messages that wait for a sync, in the order of the calls."""
        self._encoded: tuple[Message | None, list[Buffer]] = (None, [])
        """The last message and its encoded frame: most appends go to more than one peer."""

    def is_new(self, peer: str) -> bool:
        """Return whether the peer has a link, and speaks a newer protocol than release 0.1."""
        return self._links.connected(peer) and self._links.protocol(peer) > OLDEST_PROTOCOL

    @property
    def reports_losses(self) -> bool:
        """Whether all members know the messages about losses."""
        return self._reports_losses()

    def transmit(self, peer: str, message: Message) -> None:
        """Send a message at once. Drops it if the peer has no link or does not know its type."""
        if not self._links.connected(peer):
            return
        buffers = self._frame(message) if self.is_new(peer) else encode_for_release_0_1(message)
        if buffers:
            self._links.send(peer, self._group_id, buffers)
        if self._links.congested(peer):
            self._congested(peer)

    def _frame(self, message: Message) -> list[Buffer]:
        if message is not self._encoded[0]:
            if isinstance(message, Status) and not self.reports_losses:
                buffers = encode_without_losses(message)
            else:
                buffers = encode(message)
            self._encoded = message, buffers
        return self._encoded[1]

    def transmit_to_all(self, message: Message) -> None:
        """Send a message at once to every linked node."""
        for peer in self._linked.names:
            self.transmit(peer, message)

    def send(self, messages: Iterable[OutgoingMessage], synced: int) -> None:
        """Send the waiting messages and these, up to the sync point `synced`; later messages go on waiting."""
        while self._waiting and self._waiting[0].sync_point <= synced:
            _, peer, message = self._waiting.popleft()
            self.transmit(peer, message)
        for outgoing in messages:
            if outgoing.sync_point <= synced:
                self.transmit(outgoing.peer, outgoing.message)
            else:
                self._waiting.append(outgoing)

    def drop(self, peer: str) -> None:
        """Drop the messages that wait for this peer, because its epoch has ended."""
        self._waiting = deque(waiting for waiting in self._waiting if waiting.peer != peer)


class LogSync:
    """Starts syncs of the journal, and sends the engine's messages."""

    def __init__(
        self,
        engine: Engine,
        journal: SegmentedJournal,
        outbox: PeerOutbox,
        turns: TurnTimer,
        runtime: Runtime,
    ) -> None:
        self._engine = engine
        self._journal = journal
        self._outbox = outbox
        self._turns = turns
        self._runtime = runtime
        self._awake = AwakeClock(runtime.monotonic(), STALL_S)
        self._began_s = 0.0
        self._turn_is_asked = False

    @property
    def hangs(self) -> bool:
        """Whether a sync hangs, so that this node acknowledges no entry."""
        return self._journal.sync_in_flight and self.awake_s() - self._began_s > HANGS_S

    def awake_s(self) -> float:
        """Return the monotonic time without this node's stalls; must be called in each heartbeat interval."""
        return self._awake.read(self._runtime.monotonic())

    def begin(self) -> None:
        """Begin a sync if the journal has unsynced changes and no sync is running."""
        if self._journal.dirty and not self._journal.sync_in_flight:
            self._start()

    def request_turn(self) -> None:
        """Ask for a turn after the running sync, or the next sync, has ended."""
        self._turn_is_asked = True

    def try_again(self) -> None:
        """Begin a sync even without new changes, because the disk was full at the last attempt."""
        if not self._journal.sync_in_flight:
            self._start()

    def _start(self) -> None:
        self._began_s = self.awake_s()
        self._journal.start_sync(self._synced)

    def _synced(self) -> None:
        if self._turns.is_on:
            self._engine.synced()
            self.begin()
            self.send()
            if self._turn_is_asked or self._engine.wants_turn:
                self._turn_is_asked = False
                self._turns.request()

    def send(self) -> None:
        """Send the engine's messages; acknowledgements of unsynced entries wait in the outbox (hazard H1)."""
        outbox, self._engine.outbox = self._engine.outbox, []
        self._outbox.send(outbox, self._journal.synced)
