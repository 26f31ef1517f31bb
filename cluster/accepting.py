"""Accepting connections in a task that may be cancelled.

Lives here: the wait for a connection. Not here: what an error means, and how many are taken (the callers).
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any


async def accept(listener: socket.socket) -> tuple[socket.socket, Any]:
    """Wait for a connection; returns its non-blocking socket and its address, raises OSError.

    A loop's own `sock_accept` loses the socket if it is cancelled when it has it already. Here a wait that is
    cancelled has accepted nothing. And it always is a wait: a flood of strangers does not hold up the loop.
    """
    loop = asyncio.get_running_loop()
    while True:
        come: asyncio.Future[None] = loop.create_future()

        def notice(come: asyncio.Future[None] = come) -> None:
            loop.remove_reader(listener)
            come.set_result(None)

        loop.add_reader(listener, notice)
        try:
            await come
        finally:
            loop.remove_reader(listener)
        with suppress(BlockingIOError):  # it has left again
            sock, address = listener.accept()
            sock.setblocking(False)
            return sock, address
