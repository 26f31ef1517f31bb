"""The turns of a client's connection: received octets are parsed, and requests carried out, when it is next.

Invariant: octets are parsed in the order of their arrival, and each turn ends soon after its time. A connection whose
client is gone carries out the requests that were received before, and then cleans up, in turns as well.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Generic, Protocol

from qq.client_sockets.back_pressure import HELD, HELD_BYTES_MAX, BackPressuredProtocol
from qq.client_sockets.client_protocol import EngineT

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.client_sockets.shared import ClientSockets, Peer
    from qq.sessions.broker import Broker

SHORT_READ_BYTES = 4096
"""Octets of a read that costs too little to be charged."""
READ_S_PER_BYTE = 0.5e-9
"""Seconds of the processor that the system and the event loop take to read an octet, before the connection's turn.

Discarded octets cost little more than this, such as the octets after a connection.close."""
_TURN = "received octets wait for the connection's turn"


class ReadyRequests(Protocol):
    """A session with held back requests that it can carry out now."""

    def carry_out_some(self) -> None:
        """Carry out a few of the requests, and ask for a further turn if some are left."""
        ...


class TurnTakingProtocol(BackPressuredProtocol[EngineT], Generic[EngineT]):
    """A client's connection that works in its turns."""

    __slots__ = (
        "_is_ended",
        "_is_half_served",
        "_is_left",
        "_is_lost",
        "_later_unread",
        "_place",
        "_ready",
        "_turns",
        "_unread",
    )

    def __init__(self, broker: Broker, sockets: ClientSockets, peer: Peer) -> None:
        super().__init__(broker, sockets, peer)
        self._turns = sockets.turns
        self._place = self._turns.new_place(self, self.peer_host)
        """The place in the order of turns at the node's processor."""
        self._unread = b""
        """Received octets that wait for a turn."""
        self._later_unread: list[bytes] = []
        """Octets received after those, a read each: they are not joined, which would copy all of them each time."""
        self._is_half_served = False
        """Whether the last turn has left received octets."""
        self._ready: dict[ReadyRequests, None] = {}
        """The sessions that have held back requests, and can carry them out now."""
        self._is_left = self._is_lost = self._is_ended = False
        """Whether the client has closed its side, the socket is closed, and all is cleaned up after that."""

    @property
    def unread_bytes(self) -> int:
        """Received octets in the node's memory that no request has used yet."""
        return len(self._unread) + sum(map(len, self._later_unread)) + self._engine.held_bytes

    # Socket

    def data_received(self, data: bytes) -> None:
        self._unused_memory_slots = 0
        if self._holding:
            self._held_bytes += len(data)
            if self._held_bytes > HELD_BYTES_MAX:
                self.pause_for(HELD)
                self._check_hang_up_later()
        self._count_read(len(data))
        if self._unread:
            self._later_unread.append(data)
        else:
            self._unread = data
        self._turns.request(self._place)
        if self._is_half_served or self._unread:
            self.pause_for(_TURN)

    def eof_received(self) -> bool:
        self._release_output()  # the transport closes in a moment, and writes no more
        self._close_later()
        self._place = self._turns.begin_leaving(self._place)
        self._is_left = True
        self._leave()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if not self._is_left:
            self._place = self._turns.begin_leaving(self._place)
        self._is_lost = True
        self._is_ended = False
        self._leave()

    def _leave(self) -> None:
        """Clean up in turns, after the messages that the client has published before.

        Its first turn shows whether the client publishes. After that, a client that does not loses its waiting octets.
        """
        if self._is_half_served and not self._is_publisher:
            self._drop_input()
        self._turns.request(self._place)

    # Turns

    @property
    def _has_work(self) -> bool:
        if self._ready:
            return True
        if self._engine.has_more or self._unread:
            return self._may_parse()
        return (self._is_left or self._is_lost) and not self._is_ended

    def take_turn(self, until_s: float) -> bool:
        """Parse received octets, carry out requests, and write the answers, until this time of the processor."""
        if self._is_half_served and not self._is_publisher and self._has_hung_up():
            self._drop_input()
            self._transport.abort()
        left = self._take_step()
        while left and self._turns.clock() < until_s:
            left = self._take_step()
        self._is_half_served = bool(left or self._reasons_to_pause) and (
            self._engine.has_more or bool(self._unread)
        )
        if self._reasons_to_pause and not self._is_half_served:
            self.resume_for(_TURN)
        if self._engine.out:
            self._flush()
        return left

    def _take_step(self) -> bool:
        """Do a piece of the work. Return whether work is left."""
        try:
            if self._ready:
                requests = next(iter(self._ready))
                del self._ready[requests]
                requests.carry_out_some()
            elif self._unread or self._engine.has_more:
                if self._may_parse():
                    self._receive()
            elif self._is_left or self._is_lost:
                self._clean_up()
        except Exception as error:  # noqa: BLE001  # it is logged
            self.unexpected(error)
        return self._has_work

    def _receive(self) -> None:
        later, data = self._later_unread, b""
        if not (later and self._engine.has_more):
            data, self._unread = self._unread, later.pop(0) if later else b""
        if len(data) > SHORT_READ_BYTES:
            self._turns.charge(len(data) * READ_S_PER_BYTE)
        self._process(self._engine.receive, data)
        partial_bytes = self._engine.partial_bytes
        if partial_bytes or self._partial_bytes:
            self._partial_bytes = partial_bytes
            self._sockets.partial_messages.record(self, partial_bytes, len(data))
            self.mark_publisher()  # so that a first message that never ends waits for memory, too

    def _process(self, take: Callable[..., list[Any]], *arguments: bytes) -> None:
        """Carry out the events that `take` returns for the received bytes, and write the output."""
        try:
            self._handle_all(take(*arguments))
        except Exception as error:  # noqa: BLE001  # it is logged
            self.unexpected(error)
        if self._engine.phase is not self.OPEN:
            self._follow_phase()
        self._schedule_flush()

    def continue_later(self, requests: ReadyRequests) -> None:
        """Give a session turns to carry out the requests that it has held back."""
        self._ready[requests] = None
        self._turns.request(self._place)

    def _continue_input(self) -> None:
        if self._has_work:
            self._turns.request(self._place)

    def _drop_input(self) -> None:
        self._unread = b""
        self._later_unread.clear()
        self._engine.drop_input()

    # The parts of a turn that the classes above define

    @abstractmethod
    def _handle_all(self, events: list[Any]) -> None:
        """Carry out events of the engine, except those behind an event that has failed the connection."""

    @abstractmethod
    def _follow_phase(self) -> None:
        """React to the engine's phase, which is not OPEN, after events."""

    @abstractmethod
    def _clean_up(self) -> None:
        """End a session or, after the last session, what is left of the connection."""

    @abstractmethod
    def _close_later(self) -> None:
        """Drop the connection when the client has had the time to read its remaining output."""

    @abstractmethod
    def unexpected(self, error: Exception) -> None:
        """Close the connection because of an error in the node itself."""
