"""Open sockets, and set the kernel's options for connections between peers.

Invariant: a connection counts as refused only if no process listens at any address of the host.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from functools import cache
from typing import TYPE_CHECKING, Any

from cluster.net.acceptor import listen_on

if TYPE_CHECKING:
    from cluster.net.resolver import Resolver

Address = tuple[str, int]

_SOCKET_BUFFER_BYTES = 4 << 20
# The kernel closes a connection if data stays unacknowledged for this long. Otherwise, after a partition, TCP might
# wait for minutes before it tries again. TCP keepalive is not needed, because each node sends its status to all peers
# once a second (`Group._report_status`), so there is always data to acknowledge.
_UNANSWERED_MS_MAX = 5_000
_BACKLOG = 1024


async def listen(bind: Address) -> list[socket.socket]:
    """Listen for peers on all addresses of a host name. Raises OSError."""
    listeners = await listen_on(*bind, _BACKLOG)
    for listener in listeners:
        _tune(listener)
    return listeners


async def connect(names: Resolver, host: str, port: int, *, is_peer: bool = True) -> socket.socket:
    """Open a connection to the first address of the host that accepts it. `is_peer` sets the options for peers.

    Raises ConnectionRefusedError only if every current address of the host refuses, OSError otherwise.
    """
    addresses = await names.resolve(host, port)
    problem = (
        ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens")
        if addresses.is_current
        else OSError(errno.EHOSTUNREACH, f"{host} cannot be looked up, and nobody listens where it was")
    )
    for family, address in addresses.found:
        try:
            return await _connect_to(family, address, is_peer=is_peer)
        except ConnectionRefusedError:
            continue
        except OSError as error:
            problem = error
    raise problem


async def _connect_to(family: socket.AddressFamily, address: Any, *, is_peer: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if is_peer:
            _tune(sock)
        await asyncio.get_running_loop().sock_connect(sock, address)
        _check_not_self(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _check_not_self(sock: socket.socket) -> None:
    # TCP lets a socket connect to itself if its random local port is the port that it dials, and no process listens
    # there.
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
    """Return the options of the buffers that the kernel grants the wanted size.

    A fixed size switches off the kernel's own growth to several MiB, which is better if the kernel grants less.
    """
    with socket.socket() as sock:
        granted: list[int] = []
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)
            if sock.getsockopt(socket.SOL_SOCKET, option) >= _SOCKET_BUFFER_BYTES:
                granted.append(option)
    return granted
