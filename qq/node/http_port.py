"""The HTTP port of a node: it listens from the start, and answers after the HTTP modules have been imported.

That import takes half of the time that a process needs until it can serve. AMQP clients do not wait for it: it begins
when the node serves them, or when that takes longer than usual.

Invariant: a client that connects before the import is accepted, and waits. Health checks are answered at once, by the
thread that accepts connections (qq/http/base/door.py).
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from qq.http.base.door import HEARTBEAT_S, READING, Door
from qq.http.base.listener import listen
from qq.process import garbage

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from qq.http.base.listener import HttpLimits
    from qq.http.base.node_view import NodeView
    from qq.http.server import HttpServer
    from qq.management.management import Management
    from qq.metrics.counters import MetricsSnapshot
    from qq.tls.handshakes import TlsHandshakes

ANSWERING = ("qq.http.app", "qq.metrics.prometheus")
"""The modules that answer requests, which are imported late."""
PATIENCE_S = 1.0
"""Seconds after its start when a node that does not serve AMQP yet begins to answer HTTP.

Such a node reads a long log, hears no majority, or is under maintenance.
"""


class _Served(NamedTuple):
    view: NodeView
    management: Management
    metrics: Callable[[], MetricsSnapshot]


class HttpPort:
    """The listening sockets of the HTTP port, and the server that answers on them."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        limits: HttpLimits,
        failed: Callable[[BaseException], None],
        handshakes: TlsHandshakes | None = None,
    ) -> None:
        """`failed` is called with the error that ends the HTTP server."""
        self._listeners = listeners
        self._limits = limits
        self._handshakes = handshakes
        self._is_time = asyncio.Event()
        self._shown: asyncio.Future[_Served] = asyncio.get_running_loop().create_future()
        self._server: HttpServer | None = None
        self._failed = failed
        self._door = Door(listeners, asyncio.get_running_loop(), handshakes)
        self._door.open()
        self._updating = asyncio.create_task(self._update_health())
        self._updating.add_done_callback(self._check_end)
        self._answering = asyncio.create_task(self._answer())
        self._answering.add_done_callback(self._check_end)

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        limits: HttpLimits,
        failed: Callable[[BaseException], None],
        handshakes: TlsHandshakes | None = None,
    ) -> HttpPort:
        """Listen; raises StartError if the address cannot be used. Without `handshakes`, HTTP is served without TLS."""
        return cls(await listen(host, port, limits.keepalive), limits, failed, handshakes)

    @property
    def number(self) -> int:
        """The port number, also if the system has chosen it."""
        return self._listeners[0].getsockname()[1]

    def begin(self) -> None:
        """Import the HTTP modules and answer requests now, because AMQP clients no longer wait for the node."""
        self._is_time.set()

    def show(self, view: NodeView, management: Management, metrics: Callable[[], MetricsSnapshot]) -> None:
        """Serve the views of the node. Until this call, the port answers that the node reads its log."""
        self._shown.set_result(_Served(view, management, metrics))

    async def close(self) -> None:
        self._answering.cancel()
        self._updating.cancel()
        await asyncio.wait([self._answering, self._updating])
        self._door.close()
        if self._server is not None:
            await self._server.cleanup()
        for listener in self._listeners:
            listener.close()

    async def _answer(self) -> None:
        if not sys.modules.keys() >= set(ANSWERING):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_time.wait(), PATIENCE_S)
        await asyncio.to_thread(_import)
        # A thread has imported these modules before, so the event loop does not wait for them.
        from qq.http import app  # noqa: PLC0415
        from qq.metrics.prometheus import node_registry  # noqa: PLC0415

        serve = partial(
            app.serve,
            listeners=self._listeners,
            limits=self._limits,
            door=self._door,
            handshakes=self._handshakes,
        )
        repeated = self._door.repeated
        if not self._shown.done():
            self._server = await serve(app.reading_app(self._limits, repeated))
        view, management, metrics = await self._shown
        application = app.build_app(view, management, node_registry(metrics), self._limits, repeated)
        if self._server is None:
            self._server = await serve(application)
        else:
            await self._server.replace(application)

    async def _update_health(self) -> None:
        """Give the thread that answers health checks their newest results, until cancelled."""
        health = self._door.health
        while True:
            health.update(self._shown.result().view.ready() if self._shown.done() else READING)
            self._door.repeated.update()
            await asyncio.sleep(HEARTBEAT_S)

    def _check_end(self, answering: asyncio.Task[None]) -> None:
        if not answering.cancelled() and (error := answering.exception()) is not None:
            self._failed(error)


def _import() -> None:
    with garbage.none_expected():
        for name in ANSWERING:
            import_module(name)
