"""The HTTP port: bounds the number and the duration of connections.

Invariant: a connection without a running request of a logged-in user is unauthenticated. Such connections are bounded
in number and time, and may be evicted by new connections. Requests of users are bounded, too; a request above the bound
is refused.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from aiohttp import web

from cluster.net.acceptor import accept_all, begin
from cluster.net.connection_slots import QUICK_SHARE, ConnectionSlots, Slot, SlotLimits, Stage
from cluster.net.log_throttle import ThrottledLog
from qq.http.base.login import has_login, login_of
from qq.http.base.user_quota import UserShares
from qq.http.page.event_stream import STREAM_PATH

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from aiohttp.web_protocol import RequestHandler

    from qq.http.base.error_responses import Handler
    from qq.http.base.listener import HttpLimits

log = logging.getLogger(__name__)

LINE_BYTES_MAX = 8190
FIELD_BYTES_MAX = 8190
"""Bytes of the longest header field: an OAuth 2 token may have some thousand."""
FIELDS_MAX = 64
"""Header fields of a request at most."""
_STOP_TIMEOUT_S = 1.0


class HttpServer:
    """Serves an application on the sockets of an address."""

    def __init__(self, app: web.Application, limits: HttpLimits) -> None:
        self.limits = limits
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

    async def serve(self, listeners: Sequence[socket.socket]) -> None:
        """Serve connections to these sockets until `cleanup`, which closes them."""
        await self._runner.setup()
        self._listeners = listeners
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

    def _take(self, sock: socket.socket, address: Any) -> None:
        slot = self.slots.take(address[0])
        if slot is None:
            sock.close()
            return
        begin(self._spawn(self._begin(sock, slot)), sock, slot)

    async def _begin(self, sock: socket.socket, slot: Slot) -> None:
        make = self._runner.server
        assert make is not None  # set up before
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _HttpConnection(self, make(), slot), sock
            )
        except OSError:  # the client has closed it
            slot.release()


class _HttpConnection(asyncio.Protocol):
    """A connection: stands between the socket and aiohttp, and enforces the time limits."""

    def __init__(self, server: HttpServer, inner: RequestHandler, slot: Slot) -> None:
        self._server = server
        self._inner = inner
        self._slot = slot
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._is_idle = False
        """Whether the connection is between requests, before the first byte of the next request."""

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport
        self._inner.connection_made(transport)
        if not self._slot.is_taken:
            transport.abort()
            return
        self._slot.evict = transport.abort
        self._expect_within(self._server.limits.header_timeout_s)

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

    def data_received(self, data: bytes) -> None:
        if self._is_idle:
            self._is_idle = False
            self._expect_within(self._server.limits.header_timeout_s)
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
        self._inner.connection_lost(exc)

    # Called by the middlewares

    def request_begun(self) -> None:
        """Apply the limits for a request with a complete header. Its user is still unknown."""
        self._is_idle = False
        self._slot.step(Stage.HEADER)
        self._expect_within(self._server.limits.idle_timeout_s)

    def logged_in(self) -> None:
        """Lift the limits for unauthenticated connections, because the request's user has logged in."""
        self._slot.mark_authenticated()
        self._expect_nothing()

    def request_ended(self) -> None:
        self._slot.mark_unauthenticated()
        self._is_idle = True
        self._expect_within(self._server.limits.idle_timeout_s)


def _connection_of(request: web.Request) -> _HttpConnection | None:
    """Return the connection of a request, or None if another server accepted it (in tests)."""
    protocol = request.transport.get_protocol() if request.transport is not None else None
    return protocol if isinstance(protocol, _HttpConnection) else None


@web.middleware
async def strangers_watched(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware that tells a connection when a request begins and ends, before its user is known."""
    connection = _connection_of(request)
    if connection is None:
        return await handler(request)
    connection.request_begun()
    try:
        return await handler(request)
    finally:
        connection.request_ended()


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
