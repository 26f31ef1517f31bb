"""One connection to a peer: first the handshake, then frames.

A frame is ``<IH``, the length of the body and the group id, then the body. Whatever a group makes is carried: one frame
of any size that the log can hold passes a queue that is not congested, and its parts are heard of as they come.

Invariant: a stranger costs bounded memory; a peer that does not read is given up, whatever it is sent.
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
"""The group id and the body of a frame."""

_HEADER = Struct("<IH")

# Holds a whole append of the usual ~1 MiB, so that it is read in few calls; small frames share one read.
_RECEIVE_BYTES = 2 << 20
# A partial frame below this is moved to the front of the buffer, so that the next read is a large one.
_MOVED_BYTES_MAX = 64 << 10

# A larger frame is given to the transport in pieces of this size, as fast as it takes them: TLS encrypts at once what
# it is given, and for 100 MiB a leader would be silent for too long.
_PIECE_BYTES = 1 << 20


class LinkLimits(NamedTuple):
    frame_bytes_max: int = FRAME_BYTES_MAX
    """How large the body of a frame may be: the same on all nodes, since each must take what the others may send."""
    queued_bytes_max: int = 96 << 20
    """A peer that lets more than this pile up, besides the largest frame of it, is disconnected."""
    high_water_bytes: int = 8 << 20
    """A link becomes congested when more than this many bytes are queued."""
    low_water_bytes: int = 2 << 20
    """A link is not congested any more when fewer than this many bytes are queued."""
    retry_first_s: float = 0.1
    retry_max_s: float = 0.2
    """A peer that comes back waits for this attempt before it can serve anybody."""
    handshake_timeout_s: float = 5.0
    """How long it may take from the connection attempt to the last proof, TLS included."""
    stranger_bytes_max: int = 4096
    """How much is read at once from an unauthenticated connection; must hold a handshake message."""
    strangers_max: int = 64
    """Unauthenticated connections at a time."""
    stranger_fair_s: float = 0.5
    """How long a connection has for its handshake while others wait for its place. With TLS it takes four round trips,
    and those between members are short."""
    guests_max: int = 16
    """Authenticated nodes at a time that are no members: there may be seven members, so these are plenty."""


class FrameTooLargeError(Exception):
    """A frame above the limit, which no node of this version makes."""


class LinkBacklog:
    """What one end of a link lets pile up for a peer that does not read; the same for real and simulated links."""

    def __init__(self, limits: LinkLimits) -> None:
        self._bytes_max = limits.queued_bytes_max
        self._largest = 0
        """Length of the largest frame that was queued since the link was last not congested."""

    def admits(self, length: int, queued_bytes: int) -> bool:
        """Whether a frame of this length may be queued behind `queued_bytes`, which is 0 on a link without congestion.

        Its own length does not matter: groups hold back on a congested link, so more than the limit piles up only for
        a peer that has not read for a very long time.
        """
        if not queued_bytes:
            self._largest = 0
        admitted = queued_bytes <= self._bytes_max + self._largest
        self._largest = max(self._largest, length)
        return admitted


class ConnectionEvents(Protocol):
    """The receiver of a connection's events: the links of the node."""

    def begin(self, connection: PeerConnection) -> None:
        """The connection has authenticated the peer."""
        ...

    def deliver(self, connection: PeerConnection, frames: list[Frame]) -> None: ...

    def part_received(self, connection: PeerConnection) -> None:
        """A part of a frame has arrived, and none is complete."""
        ...

    def drained(self, connection: PeerConnection) -> None:
        """The connection is not congested any more."""
        ...

    def broken(self, connection: PeerConnection, error: FrameTooLargeError) -> None:
        """The peer has sent a frame above the limit, as no node of this version does."""
        ...

    def end(self, connection: PeerConnection, error: Exception | None) -> None:
        """The connection is closed, whether it was authenticated or not."""
        ...


class PeerConnection(asyncio.BufferedProtocol):
    """One TCP connection: first the handshake, then frames. Never used for a second one."""

    def __init__(
        self,
        epochs: ConnectionEvents,
        handshake: Handshake,
        limits: LinkLimits,
        dialled: Address | None = None,
    ) -> None:
        self.dialled = dialled
        """Where the other side listens, if it was dialled from here."""
        self.congested = False
        """Whether more than the high water was queued, and has not fallen below the low water since."""
        self.gone = asyncio.Event()
        self._epochs = epochs
        self._handshake = handshake
        self._limits = limits
        self._backlog = LinkBacklog(limits)
        self._pieces: deque[memoryview] = deque()
        """The pieces of large frames, and what follows them, that the transport has not been given yet."""
        self._pieces_bytes = 0
        self._writing_paused = False
        self._transport: asyncio.Transport | None = None
        self._verdict: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self.made_s = self._loop.time()
        """When this connection was made, by the clock of the event loop."""
        self.heard_s = self.made_s
        """When the other side last sent anything, by the clock of the event loop."""
        self._stranger_bytes = memoryview(bytearray(limits.stranger_bytes_max))
        self._frames: FrameBuffer | None = None
        self._closing = False

    @property
    def peer(self) -> str:
        return self._handshake.peer

    @property
    def protocol(self) -> int:
        """The version of the handshake, and so of the protocol behind it."""
        return self._handshake.version

    @property
    def terms(self) -> Terms | None:
        """What the peer has told about itself; None until it has proved who it is."""
        return self._handshake.terms

    async def wait_authenticated(self) -> None:
        """Return once the epoch has begun; raises HandshakeError or OSError if it never does."""
        error = await self._verdict
        if error is not None:
            raise error

    def write(self, group_id: int, body: Sequence[Buffer], length: int) -> None:
        """Send a frame, or queue it. `body` has `length` bytes; a peer that lets too much pile up is disconnected."""
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
        """Give the transport the pieces that wait to be sent, as long as it takes more."""
        while self._pieces and not self._writing_paused:
            piece = self._pieces.popleft()
            self._pieces_bytes -= len(piece)
            transport.write(piece)

    def close(self) -> None:
        """Close after what is queued has been sent; nothing is read any more."""
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

    # What the transport reports.

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
        return self._stranger_bytes if self._frames is None else self._frames.space()

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            return
        self.heard_s = self._loop.time()
        if self._frames is None:
            self._receive_handshake(bytes(self._stranger_bytes[:nbytes]))
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
        # A peer never closes one direction only: what is still queued has no reader.
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
    """Cuts a stream into frames. The socket reads straight into it; each body is copied once, out of it."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._bytes = bytearray(_RECEIVE_BYTES)
        self._view = memoryview(self._bytes)
        self._start = 0
        self._end = 0

    def space(self) -> memoryview:
        """The buffer that the next bytes of the stream go into; never empty."""
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
        """Make room for a frame of `needed` bytes in all, of which a part is there.

        Each byte of a frame is moved at most twice: as a short beginning, and into a place that holds it all.
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
