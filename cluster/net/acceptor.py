"""Accepting connections in a task that may be cancelled.

Invariant: no error ends the accepting; if the process has no files left, it goes on when there are some again.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.net.connection_slots import Place
    from cluster.net.log_throttle import Complaints

PAUSE_S = 0.2
"""How long to wait after a failed accept: the process or the system may have no files left."""


async def listen_on(host: str, port: int, backlog: int) -> list[socket.socket]:
    """The listening sockets of all addresses that the host's name stands for; raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    listeners: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            listener = socket.create_server(address, family=family, backlog=backlog)
            listeners.append(listener)
            listener.setblocking(False)
            # Accepted sockets inherit it; not every event loop sets it, and answers in two parts would take 40 ms.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


async def accept_all(
    listener: socket.socket, take: Callable[[socket.socket, Any], None], complaints: Complaints, what: str
) -> NoReturn:
    """Call `take` with the socket and address of each connection until cancelled; `what` names them in the log."""
    while True:
        try:
            sock, address = await accept(listener)
        except OSError as error:  # out of files, or the stranger has left the queue already
            complaints.about("accept", f"cannot accept a {what} connection: {error}")
            await asyncio.sleep(PAUSE_S)
        else:
            take(sock, address)


def begin(task: asyncio.Task[None], sock: socket.socket, place: Place) -> None:
    """Have `task`, which works on a stranger's socket, cancelled if the stranger is pushed out of `place`."""
    place.push_out = task.cancel

    def ended(task: asyncio.Task[None]) -> None:
        if task.cancelled():  # perhaps before it had begun, so that nothing else closes the socket
            place.leave()
            sock.close()

    task.add_done_callback(ended)


async def accept(listener: socket.socket) -> tuple[socket.socket, Any]:
    """Wait for a connection; returns its non-blocking socket and its address, raises OSError.

    A loop's own `sock_accept` loses the socket if it is cancelled when it has it already. Here a wait that is
    cancelled has accepted nothing. And it always is a wait: a flood of strangers does not hold up the loop.
    """
    while True:
        await readable(listener)
        with suppress(BlockingIOError):  # the stranger has left again
            sock, address = listener.accept()
            sock.setblocking(False)
            return sock, address


async def readable(sock: socket.socket) -> None:
    """Wait until something can be read, or accepted."""
    loop = asyncio.get_running_loop()
    come: asyncio.Future[None] = loop.create_future()

    def notice() -> None:
        loop.remove_reader(sock)
        if not come.done():  # whoever waits may have been cancelled in this very pass of the loop
            come.set_result(None)

    loop.add_reader(sock, notice)
    try:
        await come
    finally:
        loop.remove_reader(sock)
