"""Listening for HTTP: needed before the rest of the HTTP code has been imported (qq/node/http_port.py).

Invariant: this module does not import aiohttp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cluster.net.acceptor import listen_on
from qq.errors import StartError

if TYPE_CHECKING:
    import socket

    from cluster.net.keepalive import Keepalive

BACKLOG = 1024


class HttpLimits(NamedTuple):
    """Limits of HTTP, as in `[limits]` of the configuration."""

    connections: int = 256
    requests: int = 128
    """Requests of users that may run at a time."""
    lease_streams: int = 16
    """Streams of leased messages that may be written at a time."""
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    idle_timeout_s: float = 60.0
    metrics_need_login: bool = False
    """Whether metrics are only for users with the tag monitoring or administrator."""
    keepalive: Keepalive | None = None
    """TCP keepalive of the connections."""


async def listen(host: str, port: int, keepalive: Keepalive | None = None) -> list[socket.socket]:
    """Listen on an address; connections wait until a server accepts them. Raises StartError if it cannot be used."""
    try:
        return await listen_on(host, port, BACKLOG, keepalive)
    except OSError as error:
        raise StartError(f"HTTP cannot listen on {host}:{port}: {error.strerror}") from None
