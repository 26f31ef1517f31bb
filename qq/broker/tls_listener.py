"""AMQP over TLS: accepting connections, and TLS handshakes with whoever comes.

Lives here: what is under way before a client is heard. Not here: certificates (qq/tls.py), what follows (listener.py).

An event loop's own servers do not say how many handshakes are under way; but each is an open file, and a stranger may
begin as many as it likes. So they are counted here, together with the connections.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Any

from cluster.accepting import accept
from qq.broker.listener import ClientConnection

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from qq.broker.broker import Broker

log = logging.getLogger(__name__)

BACKLOG = 1024
ACCEPT_PAUSE_S = 0.2
"""After an accept that failed: the process has no files left."""
GOODBYE_S = 3.0
"""For the other side's part of the end of a TLS connection."""


class TlsListener:
    """Listens on one address."""

    def __init__(
        self,
        broker: Broker,
        context: Callable[[], ssl.SSLContext],
        name_in: Callable[[Mapping[str, Any]], str | None],
    ) -> None:
        """`context` gives what a connection begins with now; `name_in` is as for `ClientConnection`."""
        self._broker = broker
        self._context = context
        self._name_in = name_in
        self._listeners: list[socket.socket] = []
        self._handshakes = 0
        """Under way."""

    async def listen(self, host: str, port: int) -> None:
        """Take the address; raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
                listener = socket.create_server(address, family=family, backlog=BACKLOG)
                self._listeners.append(listener)
                listener.setblocking(False)
        except OSError:
            self._close()
            raise

    @property
    def port(self) -> int:
        return self._listeners[0].getsockname()[1]

    async def serve(self) -> None:
        """Accept connections until cancelled, and give the address free then."""
        try:
            # The inner group ends first: what it has accepted must be begun, or nobody closes those sockets.
            async with asyncio.TaskGroup() as handshakes, asyncio.TaskGroup() as accepting:
                for listener in self._listeners:
                    accepting.create_task(self._accept(listener, handshakes))
        finally:
            self._close()

    def _close(self) -> None:
        for listener in self._listeners:
            listener.close()

    async def _accept(self, listener: socket.socket, handshakes: asyncio.TaskGroup) -> None:
        broker = self._broker
        while True:
            try:
                sock, address = await accept(listener)
            except OSError as error:
                log.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            if self._handshakes + len(broker.connections) >= broker.connections_max:
                log.warning("a connection from %s is refused: there are too many", address[0])
                sock.close()
            else:
                self._handshakes += 1
                handshakes.create_task(self._begin(sock, address[0]))

    async def _begin(self, sock: socket.socket, host: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: ClientConnection(self._broker, self._name_in),
                sock,
                ssl=self._context(),
                ssl_handshake_timeout=self._broker.limits.tls_handshake_timeout_s,
                ssl_shutdown_timeout=GOODBYE_S,
            )
        except OSError as error:  # also for time and TLS
            log.info("the TLS handshake with %s failed: %s", host, error)
        finally:
            self._handshakes -= 1
