"""Peer links on asyncio: one authenticated FIFO TCP connection per pair of nodes.

Lives here: dialling, accepting, framing, epochs, congestion, and finding out that a lost peer is dead.
Not here: who somebody is (handshake.py), what a frame means (envelope.py), heartbeats (the group sends them).

Of two nodes the one with the smaller name dials. Each authenticated connection is a new epoch: `_links` holds
the connection of the current one, and whatever another connection object still has to say is not heard.

A frame is ``<IH``, the length of the body and the group id, then the body. Whatever a group makes is carried: one frame
of any size that the log can hold passes a queue that is not congested, and its parts are heard of as they come.

Law: a stranger costs bounded memory, time and log lines, and no peer waits for it. Nothing that a group sends ends a
link or a turn; a peer that does not read is given up all the same.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
import socket
from collections import deque
from contextlib import suppress
from functools import cache, partial
from itertools import chain, repeat
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from cluster.accepting import accept_all
from cluster.complaints import Complaints
from cluster.envelope import FRAME_BYTES_MAX
from cluster.handshake import (
    MESSAGE_BYTES_MAX,
    NONCE_BYTES,
    PROCESS_BYTES,
    AcceptorHandshake,
    DiallerHandshake,
    DisagreementError,
    Handshake,
    HandshakeError,
    Identity,
    Terms,
)
from cluster.strangers import Places

if TYPE_CHECKING:
    import ssl
    from collections.abc import Coroutine, Mapping, Sequence

    from cluster.ports import Buffer, LinkEvents

log = logging.getLogger(__name__)

Address = tuple[str, int]
Frame = tuple[int, bytes]
"""Group id and body."""

_HEADER = Struct("<IH")

# Holds a whole append of the usual ~1 MiB, so that it is read in few calls; small frames share one read.
_RECEIVE_BYTES = 2 << 20
# A partial frame below this is moved to the front of the buffer, so that the next read is a large one.
_MOVED_BYTES_MAX = 64 << 10

# What is larger goes to the transport in pieces of this size, as far as that takes them: TLS encrypts at once what it
# is given, and for 100 MiB a leader would be silent for too long.
_PIECE_BYTES = 1 << 20

_SOCKET_BUFFER_BYTES = 4 << 20
# With unanswered data a connection is given up after this. Otherwise, when a partition heals, TCP might wait
# for minutes before it tries again.
_UNANSWERED_MS_MAX = 5_000
_BACKLOG = 1024
_FLUSH_ON_STOP_S = 1.0
_TLS_GOODBYE_S = 1.0

# A killed process may lose its connections a moment before its listener: ask again soon. A frozen one may be killed
# later: go on asking.
_PROBE_DELAYS_S = (0.0, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.4)
_PROBE_INTERVAL_S = 2.0
_PROBE_TIMEOUT_S = 1.0

# A peer that has not connected so long after the start may be dead. Nodes that start together need less.
_ABSENT_AFTER_S = 1.0

# A peer that works says something every second. One that has been silent for so long may be gone with its host, and the
# process that now has its name is its next life.
_SILENT_AFTER_S = 3.0


class Limits(NamedTuple):
    frame_bytes_max: int = FRAME_BYTES_MAX
    """Of one body. The same for all nodes, since what one of them may send the others must take."""
    queued_bytes_max: int = 96 << 20
    """A peer that lets more than this pile up, besides the largest frame of it, is disconnected."""
    high_water_bytes: int = 8 << 20
    """With more than this queued a link is congested ..."""
    low_water_bytes: int = 2 << 20
    """... until less than this is left."""
    retry_first_s: float = 0.1
    retry_max_s: float = 1.0
    handshake_timeout_s: float = 5.0
    """From the connection attempt to the last proof, TLS included."""
    stranger_bytes_max: int = 4096
    """Read at once from an unauthenticated connection; must hold a handshake message."""
    strangers_max: int = 64
    """Unauthenticated connections at a time; one more pushes out the oldest of the address that has most of them."""


class Tls(NamedTuple):
    """Contexts for accepted and dialled connections; both should demand a certificate of the cluster's CA."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class FrameTooLargeError(Exception):
    """A frame above the limit, which no node of this version makes."""


class Backlog:
    """What one end of a link lets pile up for a peer that does not read; the same for real and simulated links."""

    def __init__(self, limits: Limits) -> None:
        self._bytes_max = limits.queued_bytes_max
        self._largest = 0
        """Frame of those that have been queued since the link was last free."""

    def admits(self, length: int, queued_bytes: int) -> bool:
        """Whether a frame may be queued behind so many bytes, 0 if the link is not congested.

        One of any size may be then: groups hold back on a congested link, so only a peer that has not read for a
        very long time finds more behind it than the limit.
        """
        if not queued_bytes:
            self._largest = 0
        admitted = queued_bytes <= self._bytes_max + self._largest
        self._largest = max(self._largest, length)
        return admitted


class PeerLinks:
    """The `Links` port on real sockets. All calls and callbacks are on the loop that `start` ran on."""

    def __init__(
        self,
        node: str,
        cluster: str,
        secret: bytes,
        peers: Mapping[str, Address],
        bind: Address,
        *,
        state_version: int,
        tls: Tls | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`peers` are the other nodes and where they listen, `bind` is where this one does.

        They, and this node, are the members: a peer with another list, or another `state_version`, is refused.
        """
        if node in peers:
            raise ValueError(f"node {node!r} is listed as its own peer")
        terms = Terms.of([node, *peers], state_version, secrets.token_bytes(PROCESS_BYTES))
        self._identity = Identity(cluster, node, secret, terms)
        self._peers = dict(peers)
        self._bind = bind
        self._tls = tls
        self._limits = limits or Limits()
        if self._limits.stranger_bytes_max < MESSAGE_BYTES_MAX:
            raise ValueError(
                f"stranger_bytes_max is at least {MESSAGE_BYTES_MAX}, the longest handshake message"
            )
        self._groups: dict[int, LinkEvents] = {}
        self._links: dict[str, _Connection] = {}
        """The connections of the current epochs."""
        self._strangers = Places(self._limits.strangers_max)
        """Accepted, not yet authenticated."""
        self._missing: set[str] = set()
        """Lost, or awaited since the start, and neither there nor known to be dead."""
        self._awaited = set(peers)
        """Those who have not connected since the start: they may be starting, too."""
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._accepting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._complaints = Complaints(log)
        self._refusals: dict[str, str] = {}
        """What was last said of members that are refused: not again with each of their attempts."""

    async def start(self) -> None:
        """Listen, then dial. Raises OSError when the address cannot be bound."""
        # First the listener: a dying process closes its files in the order of their numbers, so the listener
        # refuses by the time the peers see their connections break.
        listener = await _listen(self._bind)
        self._accepting = self._spawn(accept_all(listener, self._take, self._complaints, "peer"))
        self._accepting.add_done_callback(lambda _: listener.close())
        for peer in sorted(self._peers):
            if self._identity.node < peer:
                self._spawn(self._keep_dialled(peer))
            self._probes[peer] = self._spawn(self._probe_absent(peer))

    async def stop(self) -> None:
        """Close everything, after sending what is queued if that goes quickly. No more events."""
        self._groups.clear()
        connections = self._take_links()
        # First alone: what it has accepted must be begun, or nobody closes those sockets.
        if self._accepting is not None:
            await _cancel({self._accepting})
        while self._tasks:
            await _cancel(self._tasks)
        connections += self._take_links()
        for connection in connections:
            connection.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_ON_STOP_S):
                for connection in connections:
                    await connection.gone.wait()
        for connection in connections:
            connection.abort()

    def renew_tls(self, tls: Tls) -> None:
        """Use other contexts for the connections that begin from now on."""
        self._tls = tls

    def _take_links(self) -> list[_Connection]:
        connections = list(self._links.values())
        self._links.clear()
        return connections

    # The port.

    def register(self, group_id: int, events: LinkEvents) -> None:
        """Deliver frames of this group, and connection events from now on, to `events`."""
        if group_id in self._groups:
            raise ValueError(f"group {group_id} is registered already")
        self._groups[group_id] = events

    def send(self, peer: str, group_id: int, buffers: Sequence[Buffer]) -> None:
        """Queue one frame on the peer's current epoch; dropped if there is none.

        The buffers are not copied: they must not change afterwards. A frame above the limit cannot be; if there is one
        all the same, the epoch ends with it, because those behind it must not arrive without it.
        """
        connection = self._links.get(peer)
        if connection is None:
            return
        length = sum(map(len, buffers))
        if length > self._limits.frame_bytes_max:
            error = FrameTooLargeError(
                f"a frame of {length} bytes is above the limit of {self._limits.frame_bytes_max}"
            )
            self._complaints.about(type(error), f"cannot send to peer {peer}: {error}", logging.CRITICAL)
            connection.abort()
            return
        connection.write([_HEADER.pack(length, group_id), *buffers], length)

    def connected(self, peer: str) -> bool:
        return peer in self._links

    def congested(self, peer: str) -> bool:
        connection = self._links.get(peer)
        return connection is not None and connection.congested

    # Epochs: what the connections report.

    def _begin_epoch(self, connection: _Connection) -> None:
        """Make a connection that has just authenticated the peer's only one."""
        peer = connection.peer
        old = self._links.pop(peer, None)
        if old is not None:
            log.info("peer %s connects anew: its old connection is dropped", peer)
            old.abort()
            self._report_lost(peer, dead=False)
        self._missing.discard(peer)
        self._awaited.discard(peer)
        if (probe := self._probes.pop(peer, None)) is not None:
            probe.cancel()
        self._links[peer] = connection
        self._refusals.pop(peer, None)
        log.info("peer %s is connected", peer)
        for events in list(self._groups.values()):
            events.peer_connected(peer)

    def _end_epoch(self, connection: _Connection, error: Exception | None) -> None:
        """Note that a connection is gone; only the end of the current one is an event."""
        peer = connection.peer
        if self._links.get(peer) is not connection:
            return
        del self._links[peer]
        log.info("the connection to peer %s is lost: %s", peer, error or "closed")
        self._missing.add(peer)
        self._probes[peer] = self._spawn(self._probe(peer))
        self._report_lost(peer, dead=False)

    def _deliver(self, connection: _Connection, frames: list[Frame]) -> None:
        peer = connection.peer
        for group_id, body in frames:
            # Asked for each frame, because the one before may have ended the epoch.
            if self._links.get(peer) is not connection:
                return
            events = self._groups.get(group_id)
            if events is not None:
                events.frame_received(peer, body)

    def _part_received(self, connection: _Connection) -> None:
        if self._links.get(connection.peer) is connection:
            for events in list(self._groups.values()):
                events.part_received(connection.peer)

    def _drained(self, connection: _Connection) -> None:
        if self._links.get(connection.peer) is connection:
            for events in list(self._groups.values()):
                events.peer_drained(connection.peer)

    def _report_lost(self, peer: str, *, dead: bool) -> None:
        for events in list(self._groups.values()):
            events.peer_lost(peer, dead=dead)

    def _refused(self, peer: str) -> None:
        """Take note that nobody listens at the peer's address: news if it was there, or was expected, before.

        For this node that is nothing wrong, and it may last for days.
        """
        if peer in self._missing:
            self._missing.discard(peer)
            found = f"waiting for peer {peer}" if peer in self._awaited else f"peer {peer} is dead"
            log.info("%s: nobody listens at %s:%d", found, *self._peers[peer])
            self._report_lost(peer, dead=True)

    async def _probe_absent(self, peer: str) -> None:
        """Find out about a peer that died before this node started: what its clients held must come back, too."""
        await asyncio.sleep(_ABSENT_AFTER_S)
        self._missing.add(peer)
        await self._probe(peer)

    async def _probe(self, peer: str) -> None:
        """Find out whether a lost peer is dead. The accepting side has no other way: it never dials."""
        for delay_s in chain(_PROBE_DELAYS_S, repeat(_PROBE_INTERVAL_S)):
            await asyncio.sleep(delay_s)
            try:
                async with asyncio.timeout(_PROBE_TIMEOUT_S):
                    sock = await _connect(*self._peers[peer])
            except ConnectionRefusedError:
                self._refused(peer)
                return
            except OSError:
                continue
            sock.close()

    # The dialling side.

    async def _keep_dialled(self, peer: str) -> None:
        retry_s = self._limits.retry_first_s
        logged = ""
        while True:
            try:
                connection = await self._dial(peer)
            except (OSError, HandshakeError) as error:
                reason = _reason(error)
                if isinstance(error, ConnectionRefusedError):
                    self._refused(peer)
                elif reason != logged:
                    log.warning("cannot connect to peer %s at %s:%d: %s", peer, *self._peers[peer], reason)
                logged = reason
            else:
                await connection.gone.wait()
                retry_s = self._limits.retry_first_s
                logged = ""
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, self._limits.retry_max_s)

    async def _dial(self, peer: str) -> _Connection:
        """Return an authenticated connection; raises OSError (also for time and TLS) or HandshakeError."""
        host, port = self._peers[peer]
        handshake = DiallerHandshake(self._identity, peer, secrets.token_bytes(NONCE_BYTES))
        connection = _Connection(self, handshake, self._limits)
        try:
            async with asyncio.timeout(self._limits.handshake_timeout_s):
                sock = await _connect(host, port)
                await asyncio.get_running_loop().create_connection(
                    lambda: connection,
                    sock=sock,
                    ssl=self._tls.client if self._tls else None,
                    server_hostname=host if self._tls else None,
                    ssl_shutdown_timeout=_TLS_GOODBYE_S if self._tls else None,
                )
                await connection.wait_authenticated()
        finally:
            connection.abandon()
        return connection

    # The accepting side.

    def _take(self, sock: socket.socket, address: Any) -> None:
        place = self._strangers.take(address[0])
        assert place is not None  # nobody who is known keeps one of these
        task = self._spawn(self._admit(sock, address[0]))
        place.push_out = partial(self._push_out, task)

        def ended(task: asyncio.Task[None]) -> None:
            place.leave()
            if task.cancelled():  # perhaps before it had begun
                sock.close()

        task.add_done_callback(ended)

    def _push_out(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        text = f"dropped an unauthenticated connection: {self._limits.strangers_max} others wait for authentication"
        self._complaints.about("strangers", text)

    async def _admit(self, sock: socket.socket, host: str) -> None:
        callers = [peer for peer in self._peers if peer < self._identity.node]
        nonce = secrets.token_bytes(NONCE_BYTES)
        handshake = AcceptorHandshake(self._identity, callers, nonce, self._is_second)
        connection = _Connection(self, handshake, self._limits)
        try:
            async with asyncio.timeout(self._limits.handshake_timeout_s):
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: connection,
                    sock,
                    ssl=self._tls.server if self._tls else None,
                    ssl_shutdown_timeout=_TLS_GOODBYE_S if self._tls else None,
                )
                await connection.wait_authenticated()
        except ConnectionError:
            # Left by itself: a peer's probe, or a health check.
            log.debug("%s left during the handshake", host)
        except DisagreementError as error:
            self._refuse(connection.peer, host, str(error))
        except (OSError, HandshakeError) as error:
            self._complaints.about(type(error), f"dropped a connection from {host}: {_reason(error)}")
        finally:
            connection.abandon()

    def _is_second(self, peer: str, process: bytes) -> bool:
        """Whether another process of this name is connected and works: what two promise is not what one does."""
        link = self._links.get(peer)
        if link is None or link.process == process:
            return False
        return asyncio.get_running_loop().time() - link.heard_s < _SILENT_AFTER_S

    def _refuse(self, peer: str, host: str, why: str) -> None:
        if self._refusals.get(peer) != why:
            self._refusals[peer] = why
            log.warning("refused a connection from %s: %s", host, why)

    # Tasks.

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Operating errors are handled where they occur: this one is a bug, and the loop's owner decides.
            context = {"message": "the peer links are broken", "exception": error, "task": task}
            task.get_loop().call_exception_handler(context)


class _Connection(asyncio.BufferedProtocol):
    """One TCP connection: first the handshake, then frames. Never used for a second one."""

    def __init__(self, links: PeerLinks, handshake: Handshake, limits: Limits) -> None:
        self.congested = False
        """More is queued than the high water; not until there is less than the low water is it false again."""
        self.gone = asyncio.Event()
        self._links = links
        self._handshake = handshake
        self._limits = limits
        self._backlog = Backlog(limits)
        self._pieces: deque[memoryview] = deque()
        """Of large frames and what follows them: what the transport has not been given yet."""
        self._pieces_bytes = 0
        self._writing_paused = False
        self._transport: asyncio.Transport | None = None
        self._verdict: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self.heard_s = self._loop.time()
        """When the other side last sent anything."""
        self._stranger_bytes = memoryview(bytearray(limits.stranger_bytes_max))
        self._frames: _FrameBuffer | None = None
        self._closing = False

    @property
    def peer(self) -> str:
        return self._handshake.peer

    @property
    def process(self) -> bytes:
        return self._handshake.process

    async def wait_authenticated(self) -> None:
        """Return once the epoch has begun; raises HandshakeError or OSError if it never does."""
        error = await self._verdict
        if error is not None:
            raise error

    def write(self, buffers: list[Buffer], length: int) -> None:
        transport = self._transport
        if transport is None or self._closing:
            return
        queued_bytes = transport.get_write_buffer_size() + self._pieces_bytes if self.congested else 0
        if not self._backlog.admits(length, queued_bytes):
            log.warning("peer %s does not read: its connection is dropped", self.peer)
            self.abort()
            return
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
        """Give the transport what it takes."""
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
        """Close at once what has not become a link, unless it is closing with a last word."""
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
            self._frames = _FrameBuffer(self._limits.frame_bytes_max)
            self._decide(None)
            self._links._begin_epoch(self)
            rest = self._handshake.rest
            self._frames.space()[: len(rest)] = rest
            self._receive_frames(self._frames, len(rest))

    def _receive_frames(self, buffer: _FrameBuffer, nbytes: int) -> None:
        try:
            frames = buffer.advance(nbytes)
        except FrameTooLargeError as error:
            self._links._complaints.about(type(error), f"dropped the connection of peer {self.peer}: {error}")
            self.abort()
            return
        if frames:
            self._links._deliver(self, frames)
        elif nbytes:
            self._links._part_received(self)

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
        self._links._drained(self)

    def eof_received(self) -> None:
        # A peer never closes one direction only: what is still queued has no reader.
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._transport = None
        self._pieces.clear()
        self._decide(exc or ConnectionResetError("the other side closed the connection during the handshake"))
        self.gone.set()
        self._links._end_epoch(self, exc)

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


class _FrameBuffer:
    """Cuts a stream into frames. The socket reads straight into it; each body is copied once, out of it."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._bytes = bytearray(_RECEIVE_BYTES)
        self._view = memoryview(self._bytes)
        self._start = 0
        self._end = 0

    def space(self) -> memoryview:
        """Where the next bytes of the stream go; never empty."""
        return self._view[self._end :]

    def advance(self, count: int) -> list[Frame]:
        """Return the frames that are complete with `count` more bytes in `space`."""
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
        """See to it that a frame of `needed` bytes fits, of which a part is there.

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


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _reason(error: Exception) -> str:
    return str(error) or "no answer in time"


async def _listen(bind: Address) -> socket.socket:
    loop = asyncio.get_running_loop()
    host, port = bind
    candidates = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = candidates[0]
    listener = socket.create_server(address, family=family, backlog=_BACKLOG)
    listener.setblocking(False)
    _tune(listener)
    return listener


async def _connect(host: str, port: int) -> socket.socket:
    """Open a connection to the first address of the host that takes it.

    Raises ConnectionRefusedError only if every address refuses, OSError otherwise.
    """
    problem: OSError = ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens")
    for family, address in await _resolve(host, port):
        try:
            return await _connect_to(family, address)
        except ConnectionRefusedError:
            continue
        except OSError as error:
            problem = error
    raise problem


async def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, Any]]:
    try:
        # A literal address needs no thread, which might be busy when a dead peer is to be found out.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


async def _connect_to(family: socket.AddressFamily, address: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        _tune(sock)
        await asyncio.get_running_loop().sock_connect(sock, address)
        _check_not_self(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _check_not_self(sock: socket.socket) -> None:
    # TCP lets a socket connect to itself when its own random port is the very one that nobody listens on.
    if sock.getsockname() == sock.getpeername():
        raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens")


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS_MAX)
    for option in _granted_buffers():
        sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)


@cache
def _granted_buffers() -> list[int]:
    """Return the buffer options worth setting.

    A fixed size switches off the kernel's own growth to several MiB, which is better where less is granted.
    """
    with socket.socket() as sock:
        granted: list[int] = []
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)
            if sock.getsockopt(socket.SOL_SOCKET, option) >= _SOCKET_BUFFER_BYTES:
                granted.append(option)
    return granted
