"""The HTTP port: bounds the number and the duration of connections, their memory, and their work.

Connections parse what they receive in turns, and wait for a turn before each request, so that floods at the HTTP port
do not delay AMQP clients. Addresses share the turns, whatever their number of connections and requests.

Invariant: a connection without a running request of a logged-in user is unauthenticated. Such connections are bounded
in number and time, and may be evicted by new connections. Requests of users are bounded, too; a request above the bound
is refused. Between passes of the event loop, turns rest for as long as they took.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext
from http import HTTPStatus
from socket import MSG_PEEK, SO_RCVBUF, SOL_SOCKET
from time import thread_time
from typing import TYPE_CHECKING, Any, cast

from aiohttp import hdrs, web

from cluster.net.acceptor import accept_all, begin
from cluster.net.connection_slots import QUICK_SHARE, ConnectionSlots, Slot, SlotLimits, Stage
from cluster.net.log_throttle import ThrottledLog
from qq.client_sockets.turns import TURN_S, ProcessorTurns
from qq.http.base.error_responses import bad_request
from qq.http.base.login import OPEN_CHECKS, has_login, host, login_of
from qq.http.base.user_quota import UserShares
from qq.http.page.event_stream import STREAM_PATH
from qq.tls.handshakes import TLS_HANDSHAKE

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from aiohttp.web_protocol import RequestHandler

    from qq.http.base.door import Door
    from qq.http.base.error_responses import Handler
    from qq.http.base.listener import HttpLimits
    from qq.tls.begun import BegunTls
    from qq.tls.handshakes import TlsHandshakes, TlsOptions

log = logging.getLogger(__name__)

LINE_BYTES_MAX = 8190
FIELD_BYTES_MAX = 8190
"""Bytes of the longest header field: an OAuth 2 token may have some thousand."""
FIELDS_MAX = 64
"""Header fields of a request at most."""
HEADER_BYTES_MAX = 64 * 1024
"""Bytes that a connection may send before its next request begins: the header, and the beginning of the body."""
SKIPPED_BYTES_MAX = 1024 * 1024
"""Bytes of a body that are read and dropped after a refusal, so that the client reads the reason."""
READ_BYTES = 16 * 1024
"""Bytes read from a connection at a time; it is not read while more than that is not parsed."""
BODY_BUFFER_BYTES = 4 * 1024
"""Parsed bytes of a body above which the next bytes wait until the handler of the request has taken these."""
HANDLER_S = 0.002
"""Seconds of processor time that a handler takes for a full buffer of bytes that are costly to parse."""
COSTLY_SLICE_BYTES = 2048
"""Bytes are costly to parse if fewer than these take TURN_S / 2."""
SLICE_BYTES_MIN = 256
"""Bytes parsed at a time at least: 0.5 ms if the body consists of chunks of a single octet."""
TLS_RECEIVED_BYTES = 2 * READ_BYTES
"""Bytes of a TLS connection that the kernel buffers, to twice which it rounds up.

The event loop takes all of them at a time and keeps them, encrypted, until the connection may parse them.
"""
TLS_WRITE_BYTES = 64 * 1024
"""Bytes that wait to be written to a TLS connection, above which answers wait: as without TLS."""
HEALTH_PATHS = ("/livez", "/healthz", *OPEN_CHECKS)
"""Paths that are answered without TLS, too, because load balancers and orchestrators ask them by the node's address."""
REQUEST_S = 0.0005
"""Seconds of processor time that the start of a request is expected to take."""
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_STOP_TIMEOUT_S = 1.0


class HttpServer:
    """Serves an application on the sockets of an address."""

    def __init__(
        self, app: web.Application, limits: HttpLimits, handshakes: TlsHandshakes | None = None
    ) -> None:
        self.limits = limits
        self.handshakes = handshakes
        """The TLS handshakes of clients; None: plain HTTP is served."""
        self.throttled_log = ThrottledLog(log)
        self.slots = ConnectionSlots(
            SlotLimits(
                limits.connections - limits.connections // QUICK_SHARE,
                limits.connections,
                quick_max=limits.connections // QUICK_SHARE,
            ),
            throttled_log=self.throttled_log,
            label="HTTP connection",
        )
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        """The buffer that all connections read into. Each copies its data at once.

        A view: asyncio's TLS reads into slices of it, and the slice of a bytearray is a copy.
        """
        self.turns = ProcessorTurns(_call_after_rest, thread_time)
        # Data that is not HTTP would fill the log, so aiohttp's log lines about it are dropped.
        quiet = log.getChild("requests")
        quiet.setLevel(logging.CRITICAL)
        self._quiet = quiet
        self._idle_timeout_s = limits.idle_timeout_s
        self._runner = self._runner_of(app)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listeners: Sequence[socket.socket] = []

    def _runner_of(self, app: web.Application) -> web.AppRunner:
        return web.AppRunner(
            app,
            access_log=None,
            logger=self._quiet,
            shutdown_timeout=_STOP_TIMEOUT_S,
            keepalive_timeout=self._idle_timeout_s,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=FIELD_BYTES_MAX,
            max_headers=FIELDS_MAX,
            read_bufsize=BODY_BUFFER_BYTES,
            # aiohttp would decompress unauthenticated data at once, to a thousand times its size
            # (documents/requests.py).
            auto_decompress=False,
        )

    async def replace(self, app: web.Application) -> None:
        """Serve `app` from now on; connections of the last application are closed gracefully."""
        following = self._runner_of(app)
        await following.setup()
        last, self._runner = self._runner, following
        await last.cleanup()

    async def serve(self, listeners: Sequence[socket.socket], door: Door | None = None) -> None:
        """Serve connections to these sockets until `cleanup`, which closes them. A `door` accepts in place of tasks."""
        await self._runner.setup()
        self._listeners = listeners
        if door is not None:
            door.begin(self._take)
            return
        for listener in listeners:
            self._spawn(accept_all(listener, self._take, self.throttled_log, "HTTP"))

    @property
    def port(self) -> int:
        return self._listeners[0].getsockname()[1]

    async def cleanup(self) -> None:
        """Stop gracefully: running requests have _STOP_TIMEOUT_S seconds to end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        await self._runner.cleanup()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _take(self, sock: socket.socket, address: Any, begun: BegunTls | None = None) -> None:
        """Serve an accepted connection, whose TLS may have begun."""
        slot = self.slots.take(address[0])
        if slot is None:
            sock.close()
            return
        begin(self._spawn(self._begin(sock, address, slot, begun)), sock, slot)

    async def _begin(self, sock: socket.socket, address: Any, slot: Slot, begun: BegunTls | None) -> None:
        options = await self._tls_options(sock, slot, begun)
        if options is None:
            sock.close()
            slot.release()
            return
        make = self._runner.server
        assert make is not None  # set up before
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _HttpConnection(self, make(), slot), sock, **options
            )
        except OSError as error:  # the client has closed it, or its handshake has failed
            if options:
                text = f"the TLS handshake with {address[0]}:{address[1]} (HTTP) failed: {error}"
                self.throttled_log.warning("handshake", text)
            slot.release()

    async def _tls_options(
        self, sock: socket.socket, slot: Slot, begun: BegunTls | None
    ) -> TlsOptions | None:
        """Return the TLS options of a connection, empty ones for plain HTTP; None if the client is silent or gone."""
        if self.handshakes is None:
            return {}
        if begun is None:
            try:
                await self.handshakes.wait_first_octet(sock)
                if sock.recv(1, MSG_PEEK) != TLS_HANDSHAKE:
                    return {}
            except OSError:  # also TimeoutError
                return None
            await self.handshakes.wait_turn(slot)
        sock.setsockopt(SOL_SOCKET, SO_RCVBUF, TLS_RECEIVED_BYTES)
        return self.handshakes.options(begun)


def _call_after_rest(callback: Callable[[], None], rest_s: float) -> None:
    asyncio.get_running_loop().call_later(rest_s, callback)


class _RequestTurn:
    """The turn for which a request waits before it begins."""

    def __init__(self, turns: ProcessorTurns) -> None:
        self._turns = turns
        self.come: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take_turn(self, until_s: float) -> bool:
        del until_s
        if not self.come.done():  # else its task was cancelled
            self.come.set_result(None)
            self._turns.charge(REQUEST_S)
        return False


class _Transport:
    """The transport of a connection as aiohttp has it: pauses reading only as far as the connection allows."""

    def __init__(self, transport: asyncio.Transport, connection: _HttpConnection) -> None:
        self._transport = transport
        self.pause_reading = connection.pause_parsing
        self.resume_reading = connection.resume_parsing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _ClosedTransport(asyncio.Transport):
    """Takes the place of the transport of a lost connection, and so frees it at once.

    A TLS transport and the methods that it calls refer to each other, and the garbage collector comes late.
    """

    def is_closing(self) -> bool:
        return True

    def abort(self) -> None:
        """Do nothing."""


_CLOSED_TRANSPORT = _ClosedTransport()


class _HttpConnection(asyncio.BufferedProtocol):
    """A connection: stands between the socket and aiohttp, and enforces the limits of time, memory and work."""

    def __init__(self, server: HttpServer, inner: RequestHandler, slot: Slot) -> None:
        self._server = server
        self._inner = inner
        self._slot = slot
        self._place = server.turns.new_place(self, slot.source)
        """The place in the order of turns."""
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._is_idle = False
        """Whether the connection is between requests, before the first byte of the next request."""
        self._unparsed = bytearray()
        self._slice_bytes = SLICE_BYTES_MIN
        """Bytes parsed at a time. It follows the cost of the last bytes, and the room in aiohttp's buffers."""
        self._is_full = False
        """Whether aiohttp takes no data now: its buffers are full, or the connection is closed."""
        self._allowed_bytes: int | None = HEADER_BYTES_MAX
        """Bytes that may come before the next request begins; None during a request."""
        self._skips_body = False
        """Whether the body of an answered request is still coming."""

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport
        self._inner.connection_made(cast("asyncio.Transport", _Transport(transport, self)))
        if not self._slot.is_taken:
            transport.abort()
            return
        self._slot.evict = transport.abort
        if self.has_tls:
            self._slot.step(Stage.TLS)
            transport.set_read_buffer_limits(READ_BYTES)
            transport.set_write_buffer_limits(TLS_WRITE_BYTES)
        self._expect_within(self._server.limits.header_timeout_s)

    @property
    def has_tls(self) -> bool:
        """Whether the client speaks TLS to this node."""
        return self._transport.get_extra_info("sslcontext") is not None

    @property
    def must_use_tls(self) -> bool:
        """Whether the client must come again over TLS."""
        return self._server.handshakes is not None and not self.has_tls

    def _expect_within(self, seconds: float) -> None:
        self._expect_nothing()
        if not self._transport.is_closing():
            self._deadline = asyncio.get_running_loop().call_later(seconds, self._too_slow)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return self._server.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_idle:
            self._is_idle = False
            self._expect_within(self._server.limits.header_timeout_s)
        self._unparsed += self._server.read_buffer[:nbytes]
        if not self._is_full:
            self._server.turns.request(self._place)
        if self._unparsed and not self._transport.is_closing():
            self._transport.pause_reading()  # until all is parsed

    def pause_parsing(self) -> None:
        """Keep data back, because aiohttp's buffers are full."""
        self._is_full = True

    def resume_parsing(self) -> None:
        self._is_full = False
        if self._unparsed:
            self._server.turns.request(self._place)
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    def take_turn(self, until_s: float) -> bool:
        """Parse received bytes until this time of the processor. Return whether aiohttp takes more of them now."""
        now_s = thread_time()
        while self._unparsed and not self._is_full and now_s < until_s:
            part = bytes(self._unparsed[: self._slice_bytes])
            del self._unparsed[: self._slice_bytes]
            self._parse(part)
            slice_began_s, now_s = now_s, thread_time()
            if now_s - slice_began_s > TURN_S / 2 or self._is_full:
                self._slice_bytes = max(self._slice_bytes // 2, SLICE_BYTES_MIN)
            else:
                self._slice_bytes = min(self._slice_bytes * 2, READ_BYTES)
        if self._is_full and self._slice_bytes < COSTLY_SLICE_BYTES:
            self._server.turns.charge(HANDLER_S)
        if self._transport.is_closing():
            self._unparsed.clear()
        if self._is_full:
            return False
        if not self._unparsed and not self._transport.is_closing():
            self._transport.resume_reading()
        return bool(self._unparsed)

    def _parse(self, data: bytes) -> None:
        if self._allowed_bytes is not None:
            self._allowed_bytes -= len(data)
            if self._allowed_bytes < 0:
                if not self._skips_body:
                    self._transport.write(_TOO_LARGE)
                self._transport.close()
                return
        try:
            self._inner.data_received(data)
        except Exception:
            log.exception("aiohttp failed on data of a client")
            self._transport.abort()

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._stalled = asyncio.get_running_loop().call_later(
            self._server.limits.idle_timeout_s, self._too_slow
        )
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        if self._stalled is not None:
            self._stalled.cancel()
        self._slot.release()
        self._unparsed.clear()
        self._is_full = True
        self._server.turns.leave(self._place)
        self._inner.connection_lost(exc)
        self._transport = _CLOSED_TRANSPORT
        self._slot.evict = _CLOSED_TRANSPORT.abort

    # Called by the middlewares

    def request_begun(self) -> None:
        """Apply the limits for a request with a complete header. Its user is still unknown."""
        self._is_idle = False
        self._allowed_bytes = None
        self._slot.step(Stage.HEADER)
        self._expect_within(self._server.limits.idle_timeout_s)

    async def turn(self) -> None:
        """Wait until the request may begin. Raises ConnectionResetError if the client has left."""
        turns = self._server.turns
        turn = _RequestTurn(turns)
        turns.request(turns.new_place(turn, self._slot.source))
        await turn.come
        if self._transport.is_closing():
            raise ConnectionResetError

    def logged_in(self) -> None:
        """Lift the limits for unauthenticated connections, because the request's user has logged in."""
        self._slot.mark_authenticated()
        self._expect_nothing()

    def request_ended(self, *, has_read_body: bool) -> None:
        self._slot.mark_unauthenticated()
        self._is_idle = True
        self._skips_body = not has_read_body
        self._allowed_bytes = HEADER_BYTES_MAX if has_read_body else SKIPPED_BYTES_MAX
        self._expect_within(self._server.limits.idle_timeout_s)


def _connection_of(request: web.Request) -> _HttpConnection | None:
    """Return the connection of a request, or None if another server accepted it (in tests)."""
    protocol = request.transport.get_protocol() if request.transport is not None else None
    return protocol if isinstance(protocol, _HttpConnection) else None


@web.middleware
async def requests_watched(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware that tells a connection when a request begins and ends, before its user is known."""
    connection = _connection_of(request)
    if connection is None:
        return await handler(request)
    connection.request_begun()
    try:
        await connection.turn()
        return await handler(request)
    finally:
        connection.request_ended(has_read_body=request.content.is_eof())


@web.middleware
async def tls_required(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware that redirects requests without TLS, except health checks, if the port speaks TLS."""
    connection = _connection_of(request)
    if connection is None or not connection.must_use_tls or request.path in HEALTH_PATHS:
        return await handler(request)
    if hdrs.HOST not in request.headers:
        raise bad_request("this port speaks TLS: use https")
    location = f"https://{host(request)}{request.rel_url.raw_path_qs}"
    return web.Response(status=HTTPStatus.PERMANENT_REDIRECT, headers={hdrs.LOCATION: location})


def users_bounded(limits: HttpLimits) -> Callable[..., Awaitable[web.StreamResponse]]:
    """Make the middleware that bounds the running requests of logged-in users.

    Each user has a share of them (base/user_quota.py). Streams last for minutes and have a bound of their own
    (page/event_stream.py).
    """
    requests = UserShares(limits.requests, "requests", "http_request_max")

    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not has_login(request):
            return await handler(request)
        is_stream = request.path == STREAM_PATH
        with nullcontext() if is_stream else requests.place(login_of(request).user):
            connection = _connection_of(request)
            if connection is not None:
                connection.logged_in()
            return await handler(request)

    return count
