"""A TCP connection to a peer: first the handshake, then frames.

A frame is ``<IH``, the length of the body and the group id, then the body. A queue that is not congested accepts any
frame that the log can hold. The receiver reports each part of a large frame on its arrival.

Invariant: an unauthenticated connection costs bounded memory. A peer that does not read is disconnected.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from cluster.raft.messages import FRAME_BYTES_MAX
from cluster.transport.handshake import Handshake, HandshakeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.net.sockets import Address
    from cluster.runtime.ports import Buffer
    from cluster.transport.handshake import Terms

log = logging.getLogger(__name__)

Frame = tuple[int, bytes]
"""`(group id, body)` of a frame."""

_HEADER = Struct("<IH")

# Holds a whole append of the usual ~1 MiB, so that reading it takes few calls; small frames share a read.
_RECEIVE_BYTES = 2 << 20
# A partial frame below this size is moved to the front of the buffer, so that the next read is large.
_MOVED_BYTES_MAX = 64 << 10

# A larger frame goes to the transport in pieces of this size, as fast as the transport takes them. TLS encrypts at once
# all that it gets, and 100 MiB would silence a leader for too long.
_PIECE_BYTES = 1 << 20


class LinkLimits(NamedTuple):
    frame_bytes_max: int = FRAME_BYTES_MAX
    """Bytes that the body of a frame may have.

    The limit is the same on all nodes, because each must accept all peers' frames.
    """
    queued_bytes_max: int = 96 << 20
    """Bytes that may be queued for a peer, besides its largest frame. A peer that lets more pile up is disconnected."""
    high_water_bytes: int = 8 << 20
    """Queued bytes above which a link becomes congested."""
    low_water_bytes: int = 2 << 20
    """Queued bytes below which a congested link is free again."""
    retry_first_s: float = 0.1
    retry_max_s: float = 0.2
    """Seconds between two attempts to connect, at most.

    A returning peer waits for this attempt before it can serve clients.
    """
    handshake_timeout_s: float = 5.0
    """Seconds from the connection attempt to the last proof, TLS included."""
    unauthenticated_bytes_max: int = 4096
    """Bytes read at once from an unauthenticated connection; must hold a handshake message."""
    unauthenticated_max: int = 64
    """Unauthenticated connections at a time."""
    unauthenticated_fair_s: float = 0.5
    """Seconds that a connection may take for its handshake while others wait for a slot.

    With TLS the handshake takes four round trips, and those between members are short.
    """
    non_members_max: int = 16
    """Connected non-members at a time. A cluster has at most seven members, so this is plenty."""


class FrameTooLargeError(Exception):
    """A frame above the limit, which no node of this version sends."""


class LinkBacklog:
    """The limit of queued bytes on a link whose peer does not read; shared by real and simulated links."""

    def __init__(self, limits: LinkLimits) -> None:
        self._bytes_max = limits.queued_bytes_max
        self._largest = 0
        """Bytes of the largest frame that was queued since the link was last not congested."""

    def admits(self, length: int, queued_bytes: int) -> bool:
        """Return whether a frame of `length` bytes may be queued behind `queued_bytes`.

        A link without congestion passes `queued_bytes` 0. The frame's own length does not matter: groups hold back on a
        congested link, so more than the limit piles up only for a peer that has not read for a very long time.
        """
        if not queued_bytes:
            self._largest = 0
        admitted = queued_bytes <= self._bytes_max + self._largest
        self._largest = max(self._largest, length)
        return admitted


class ConnectionEvents(Protocol):
    """The receiver of a connection's events: the links of the node."""

    def begin(self, connection: PeerConnection) -> None:
        """Called when the connection has authenticated the peer."""
        ...

    def deliver(self, connection: PeerConnection, frames: list[Frame]) -> None: ...

    def part_received(self, connection: PeerConnection) -> None:
        """Called when a part of a frame has arrived that completes no frame."""
        ...

    def drained(self, connection: PeerConnection) -> None:
        """Called when the connection is congested no longer."""
        ...

    def broken(self, connection: PeerConnection, error: FrameTooLargeError) -> None:
        """Called when the peer has sent a frame above the limit, as no node of this version does."""
        ...

    def end(self, connection: PeerConnection, error: Exception | None) -> None:
        """Called when the connection is closed, authenticated or not."""
        ...


class PeerConnection(asyncio.BufferedProtocol):
    """A TCP connection: first the handshake, then frames. Never reused after it has closed."""

    def __init__(
        self,
        epochs: ConnectionEvents,
        handshake: Handshake,
        limits: LinkLimits,
        dialled: Address | None = None,
    ) -> None:
        self.dialled = dialled
        """The address that this node dialled, or None if the peer dialled."""
        self.congested = False
        """Whether the queue has exceeded the high-water mark and not fallen below the low-water mark since."""
        self.gone = asyncio.Event()
        self._epochs = epochs
        self._handshake = handshake
        self._limits = limits
        self._backlog = LinkBacklog(limits)
        self._pieces: deque[memoryview] = deque()
        """The pieces of large frames, and the frames behind them, that the transport has not been given yet."""
        self._pieces_bytes = 0
        self._writing_paused = False
        self._transport: asyncio.Transport | None = None
        self._verdict: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self.made_s = self._loop.time()
        """When this connection was made, by the clock of the event loop."""
        self.heard_s = self.made_s
        """When the peer last sent anything, by the clock of the event loop."""
        self._unauthenticated_bytes = memoryview(bytearray(limits.unauthenticated_bytes_max))
        self._frames: FrameBuffer | None = None
        self._closing = False

    @property
    def peer(self) -> str:
        return self._handshake.peer

    @property
    def protocol(self) -> int:
        """The version of the handshake, and so of the protocol after it."""
        return self._handshake.version

    @property
    def terms(self) -> Terms | None:
        """The terms that the peer has offered; None until the peer has proved its identity."""
        return self._handshake.terms

    async def wait_authenticated(self) -> None:
        """Return after the peer is authenticated; raise HandshakeError or OSError if the handshake fails."""
        error = await self._verdict
        if error is not None:
            raise error

    def write(self, group_id: int, body: Sequence[Buffer], length: int) -> None:
        """Send or queue a frame of `length` bytes in `body`. Disconnects a peer that has let too much pile up."""
        transport = self._transport
        if transport is None or self._closing:
            return
        queued_bytes = transport.get_write_buffer_size() + self._pieces_bytes if self.congested else 0
        if not self._backlog.admits(length, queued_bytes):
            log.warning("peer %s does not read: its connection is dropped", self.peer)
            self.abort()
            return
        buffers = [_HEADER.pack(length, group_id), *body]
        if length <= _PIECE_BYTES and not self._pieces:
            transport.writelines(buffers)
            return
        for view in map(memoryview, buffers):
            self._pieces.extend(
                view[start : start + _PIECE_BYTES] for start in range(0, len(view), _PIECE_BYTES)
            )
        self._pieces_bytes += length + _HEADER.size
        self._pump(transport)
        self.congested = self.congested or bool(self._pieces)

    def _pump(self, transport: asyncio.Transport) -> None:
        """Write waiting pieces to the transport until it pauses writing."""
        while self._pieces and not self._writing_paused:
            piece = self._pieces.popleft()
            self._pieces_bytes -= len(piece)
            transport.write(piece)

    def close(self) -> None:
        """Close after all queued bytes are sent; incoming bytes are ignored."""
        self._closing = True
        if self._transport is not None and not self._pieces:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def abandon(self) -> None:
        """Close at once if the peer was not authenticated, unless a rejection is still being sent."""
        if not self._handshake.authenticated and not self._closing:
            self.abort()

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._closing:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(self._limits.high_water_bytes, self._limits.low_water_bytes)
        if opening := self._handshake.opening():
            self._transport.write(opening)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._unauthenticated_bytes if self._frames is None else self._frames.space()

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            return
        self.heard_s = self._loop.time()
        if self._frames is None:
            self._receive_handshake(bytes(self._unauthenticated_bytes[:nbytes]))
        else:
            self._receive_frames(self._frames, nbytes)

    def _receive_handshake(self, data: bytes) -> None:
        try:
            answer = self._handshake.receive(data)
        except HandshakeError as error:
            self._decide(error)
            self._reject(error.reply)
            return
        self._send(answer)
        if self._handshake.authenticated:
            self._frames = FrameBuffer(self._limits.frame_bytes_max)
            self._decide(None)
            self._epochs.begin(self)
            rest = self._handshake.rest
            self._frames.space()[: len(rest)] = rest
            self._receive_frames(self._frames, len(rest))

    def _receive_frames(self, buffer: FrameBuffer, nbytes: int) -> None:
        try:
            frames = buffer.advance(nbytes)
        except FrameTooLargeError as error:
            self._epochs.broken(self, error)
            return
        if frames:
            self._epochs.deliver(self, frames)
        elif nbytes:
            self._epochs.part_received(self)

    def pause_writing(self) -> None:
        self._writing_paused = self.congested = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        transport = self._transport
        if transport is None:
            return
        self._pump(transport)
        if self._pieces or self._writing_paused:
            return
        if self._closing:
            transport.close()
            return
        self.congested = False
        self._epochs.drained(self)

    def eof_received(self) -> None:
        # A peer never closes only a single direction: the queued bytes have no reader.
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._transport = None
        self._pieces.clear()
        self._decide(exc or ConnectionResetError("the other side closed the connection during the handshake"))
        self.gone.set()
        self._epochs.end(self, exc)

    def _reject(self, reply: bytes) -> None:
        if reply:
            self._send(reply)
            self.close()
        else:
            self.abort()

    def _send(self, data: bytes) -> None:
        if data and self._transport is not None:
            self._transport.write(data)

    def _decide(self, error: Exception | None) -> None:
        if not self._verdict.done():
            self._verdict.set_result(error)


class FrameBuffer:
    """Cuts a stream into frames. The socket reads straight into its buffer; each body is copied out of it once."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._bytes = bytearray(_RECEIVE_BYTES)
        self._view = memoryview(self._bytes)
        self._start = 0
        self._end = 0

    def space(self) -> memoryview:
        """Return the buffer for the next bytes of the stream; never empty."""
        return self._view[self._end :]

    def advance(self, count: int) -> list[Frame]:
        """Return the frames that are complete with `count` more bytes in `space`; raises FrameTooLargeError."""
        frames: list[Frame] = []
        start = self._start
        end = self._end + count
        needed = _HEADER.size
        while end - start >= _HEADER.size:
            length, group_id = _HEADER.unpack_from(self._bytes, start)
            if length > self._frame_bytes_max:
                raise FrameTooLargeError(f"a frame of {length} bytes, the limit is {self._frame_bytes_max}")
            body = start + _HEADER.size
            if end < body + length:
                needed = _HEADER.size + length
                break
            start = body + length
            frames.append((group_id, bytes(self._view[body:start])))
        self._start = start
        self._end = end
        self._make_room(needed)
        return frames

    def _make_room(self, needed: int) -> None:
        """Make room for a frame of `needed` bytes in all, some of which have arrived.

        Each byte of a frame is moved at most twice: as a short beginning, and to a place with room for the whole frame.
        """
        start, end = self._start, self._end
        if needed > len(self._bytes):
            self._move_to(bytearray(needed))
        elif len(self._bytes) > max(needed, _RECEIVE_BYTES):
            self._move_to(bytearray(_RECEIVE_BYTES))
        elif start and (end - start <= _MOVED_BYTES_MAX or start + needed > len(self._bytes)):
            self._move_to(self._bytes)

    def _move_to(self, target: bytearray) -> None:
        length = self._end - self._start
        view = memoryview(target)
        view[:length] = self._view[self._start : self._end]
        self._bytes, self._view = target, view
        self._start, self._end = 0, length
