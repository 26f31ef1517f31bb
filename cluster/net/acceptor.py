"""Accept TCP connections in a task that may be cancelled.

Invariant: no error ends the accepting. If the process has no file descriptors left, it continues when some are free.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.net.connection_slots import Slot
    from cluster.net.keepalive import Keepalive
    from cluster.net.log_throttle import ThrottledLog

log = logging.getLogger(__name__)

_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors of an address that this machine does not have, such as an IPv6 address where IPv6 is off."""
PAUSE_S = 0.2
"""Seconds to wait after a failed accept, because the process or the system may have no file descriptors left."""
RETRY_S = 0.5
"""Seconds between two attempts to bind a port that is in use."""
ENDING_S = 5.0
"""Seconds to wait for a port at which a process listens: the process may be about to end."""
KEPT_S = 65.0
"""Seconds to wait for a port without a listener: the system keeps a port for 60 s after an outgoing connection."""


async def listen_on(
    host: str, port: int, backlog: int, keepalive: Keepalive | None = None
) -> list[socket.socket]:
    """Listen on all addresses of the host name, and return the sockets. Raises OSError.

    `::` means all addresses of both families, as in other programs. Each family has a socket of its own, so that the
    addresses of IPv4 clients are IPv4 addresses. Addresses that this machine does not have are left out, if others
    are left. A port of 0 is the same free port at all addresses. A port that is in use is tried again for a while.
    """
    loop = asyncio.get_running_loop()
    began_s, is_logged = loop.time(), False
    while True:
        try:
            return _listen(await _addresses(host, port), port, backlog, keepalive)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            is_served = await _is_served(host, port)
            patience_s = ENDING_S if is_served else KEPT_S
            if loop.time() - began_s >= patience_s:
                raise
            if not is_logged:
                is_logged = True
                holder = (
                    "another process" if is_served else "an outgoing connection, perhaps one that has ended"
                )
                log.warning("%s:%d is in use by %s; trying again for %g s", host, port, holder, patience_s)
        await asyncio.sleep(RETRY_S)


async def _is_served(host: str, port: int) -> bool:
    """Return whether a process listens at this address."""
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


def _listen(
    addresses: list[tuple[int, Any]], port: int, backlog: int, keepalive: Keepalive | None
) -> list[socket.socket]:
    """Listen on each of these addresses (`listen_on`)."""
    listeners: list[socket.socket] = []
    problem: OSError | None = None
    try:
        for family, address in addresses:
            bound = (
                (address[0], port or listeners[0].getsockname()[1], *address[2:]) if listeners else address
            )
            try:
                listener = socket.create_server(bound, family=family, backlog=backlog)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                problem = error
                continue
            listeners.append(listener)
            listener.setblocking(False)
            # Accepted sockets inherit all options. Not every event loop sets TCP_NODELAY, and an answer in two parts
            # would take 40 ms.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if keepalive is not None:
                keepalive.set_on(listener)
        if problem is not None and not listeners:
            raise problem
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


async def _addresses(host: str, port: int) -> list[tuple[int, Any]]:
    """Return the families and addresses to bind, each once. Raises OSError."""
    look_up = asyncio.get_running_loop().getaddrinfo
    found = await look_up(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    if any(address[0] == "::" for *_, address in found):
        found += await look_up(
            None, port, family=socket.AF_INET, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


async def accept_all(
    listener: socket.socket,
    take: Callable[[socket.socket, Any], None],
    throttled_log: ThrottledLog,
    what: str,
) -> NoReturn:
    """Call `take` with socket and address of each connection until cancelled.

    `what` names the connections in the log.
    """
    while True:
        try:
            sock, address = await accept(listener)
        except OSError as error:  # no file descriptors left, or the client has left the queue
            throttled_log.warning("accept", f"cannot accept a {what} connection: {error}")
            await asyncio.sleep(PAUSE_S)
        else:
            take(sock, address)


def begin(task: asyncio.Task[None], sock: socket.socket, slot: Slot) -> None:
    """Cancel `task` when its connection is evicted from `slot`.

    `task` works on the socket of an unauthenticated connection.
    """
    slot.evict = task.cancel

    def ended(task: asyncio.Task[None]) -> None:
        if task.cancelled():  # a task cancelled before its begin does not close the socket itself
            slot.release()
            sock.close()

    task.add_done_callback(ended)


async def accept(listener: socket.socket) -> tuple[socket.socket, Any]:
    """Wait for a connection, and return its non-blocking socket and its address. Raises OSError.

    An event loop's own `sock_accept` loses a socket that it has when it is cancelled. Here a cancelled wait has
    accepted no connection. Each call waits, so a flood of connections does not hold up the event loop.
    """
    while True:
        await readable(listener)
        with suppress(BlockingIOError):  # the client has left again
            sock, address = listener.accept()
            sock.setblocking(False)
            return sock, address


async def readable(sock: socket.socket) -> None:
    """Wait until the socket can be read, or has a connection to accept."""
    loop = asyncio.get_running_loop()
    come: asyncio.Future[None] = loop.create_future()

    def notice() -> None:
        loop.remove_reader(sock)
        if not come.done():  # the waiting task may be cancelled in this very pass of the loop
            come.set_result(None)

    loop.add_reader(sock, notice)
    try:
        await come
    finally:
        loop.remove_reader(sock)
