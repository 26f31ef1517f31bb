"""TLS handshakes of clients: when they may begin, and how long they may take.

Invariant: a port begins a bounded number of handshakes in a second, and serves the addresses of clients in turn.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypedDict

from cluster.net.acceptor import readable
from cluster.net.connection_slots import Stage
from cluster.net.work_rate import WorkRate
from qq.tls.begun import BegunTls

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

    from cluster.net.connection_slots import Slot

GOODBYE_S = 3.0
"""Seconds that the client may take for its part of closing a TLS connection."""
TLS_HANDSHAKE = b"\x16"
"""The first octet of a TLS connection: the content type of its first record (RFC 8446, 5.1)."""
TLS_PER_S = 300
"""TLS handshakes that a port begins in a second. Each takes 0.5 to 0.8 ms, so a flood of them uses a quarter of a core,
and 2,000 clients that reconnect at once have all begun in 7 s."""
TLS_AT_ONCE = 8
"""TLS handshakes that may begin together after a quiet time. Other clients then wait for 5 ms."""


class TlsOptions(TypedDict, total=False):
    """The options of `connect_accepted_socket` for TLS; empty for a connection without TLS."""

    ssl: ssl.SSLContext
    ssl_handshake_timeout: float
    ssl_shutdown_timeout: float


class TlsHandshakes:
    """The handshakes of a port."""

    def __init__(self, context: Callable[[], ssl.SSLContext], timeout_s: float) -> None:
        """`context` returns the TLS context, with the newest certificate, for a connection that begins now.

        `timeout_s` is the time that a client may be silent, and the time that its handshake may take.
        """
        self._context = context
        self._timeout_s = timeout_s
        self._rate = WorkRate(TLS_PER_S, TLS_AT_ONCE)

    async def wait_first_octet(self, sock: socket.socket) -> None:
        """Wait until the client sends. Raises TimeoutError.

        The state of a TLS connection takes ten times the memory of the rest, so it is allocated only then.
        """
        async with asyncio.timeout(self._timeout_s):
            await readable(sock)

    async def wait_turn(self, slot: Slot) -> None:
        """Wait until the handshake of this connection may begin."""
        await self._rate.wait(slot.source)
        slot.step(Stage.TLS_BEGUN)

    def begin(self) -> BegunTls:
        """Begin the TLS of a connection on this thread."""
        return BegunTls(self._context())

    def options(self, begun: BegunTls | None = None) -> TlsOptions:
        """Return the options for a connection whose handshake begins now, or that was `begun`."""
        return {
            "ssl": self._context() if begun is None else begun.context(),
            "ssl_handshake_timeout": self._timeout_s,
            "ssl_shutdown_timeout": GOODBYE_S,
        }
