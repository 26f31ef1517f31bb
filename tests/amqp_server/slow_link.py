"""Clients at the other end of a slow link, which come in a herd, and strangers that never log in.

The link is slow by a wait in the client before each of its answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

HEADER = b"AMQP\0\0\x09\x01"
PAUSE_S = (0.1, 0.5)
"""How long a client waits before it tries again."""


def _short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def _long(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


def _method(method: int, arguments: bytes) -> bytes:
    payload = struct.pack(">HH", 10, method) + arguments
    return struct.pack(">BHI", 1, 0, len(payload)) + payload + b"\xce"


def start_ok(user: str, password: str) -> bytes:
    response = _long(f"\0{user}\0{password}".encode())
    return _method(11, _long(b"") + _short(b"PLAIN") + response + _short(b"en_US"))


TUNE_OK_AND_OPEN = _method(31, struct.pack(">HIH", 2047, 131_072, 0)) + _method(
    40, _short(b"/") + _short(b"") + b"\0"
)
OPEN_OK = struct.pack(">HH", 10, 41)
Attempt = Callable[[], Awaitable[asyncio.StreamWriter]]
"""Raises if the client does not get in."""


@contextlib.asynccontextmanager
async def connected(
    port: int, host: str = "127.0.0.1", context: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection from an address of this machine, which ends if the block raises."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1",
        port,
        local_addr=(host, 0),
        ssl=context,
        server_hostname="localhost" if context is not None else None,
    )
    try:
        yield reader, writer
    except BaseException:
        writer.transport.abort()
        raise


async def log_in(
    port: int, round_trip_s: float, host: str = "127.0.0.1", context: ssl.SSLContext | None = None
) -> asyncio.StreamWriter:
    """Open a connection of AMQP as guest."""
    async with connected(port, host, context) as (reader, writer):

        async def answer() -> bytes:
            head = await reader.readexactly(7)
            payload = await reader.readexactly(int.from_bytes(head[3:], "big") + 1)
            await asyncio.sleep(round_trip_s)
            return payload[:4]

        await asyncio.sleep(round_trip_s)
        for data in (HEADER, start_ok("guest", "guest"), TUNE_OK_AND_OPEN):
            writer.write(data)
            last = await answer()
        assert last == OPEN_OK
        return writer


async def connect(port: int, round_trip_s: float, host: str = "127.0.0.1") -> asyncio.StreamWriter:
    """Send an HTTP request with its header in two parts, and read the answer."""
    async with connected(port, host) as (reader, writer):
        await asyncio.sleep(round_trip_s)
        writer.write(b"GET /api/whoami HTTP/1.1\r\nHost: localhost\r\n")
        await asyncio.sleep(round_trip_s)
        writer.write(b"Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\nConnection: close\r\n\r\n")
        assert (await reader.readuntil(b"\r\n")).split()[1] == b"200"
        return writer


async def herd(
    clients: int, attempt: Attempt, within_s: float, *, attempt_s: float = 10.0
) -> tuple[float, int]:
    """Let that many clients try until each is in; returns after how many seconds, and how many attempts failed.

    A client gives an attempt up after `attempt_s`. Raises TimeoutError.
    """
    inside: list[asyncio.StreamWriter] = []
    failures = 0

    async def client() -> None:
        nonlocal failures
        while True:
            try:
                inside.append(await asyncio.wait_for(attempt(), attempt_s))
            except (OSError, EOFError, TimeoutError):
                failures += 1
                await asyncio.sleep(random.uniform(*PAUSE_S))
            else:
                return

    began_s = time.monotonic()
    try:
        async with asyncio.timeout(within_s), asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(client())
    except TimeoutError:
        raise TimeoutError(f"{len(inside)} of {clients} are in, {failures} attempts failed") from None
    finally:
        for writer in inside:
            writer.transport.abort()
    return time.monotonic() - began_s, failures


@contextlib.asynccontextmanager
async def unauthenticated_flood(
    count: int, port: int, host: str, first: bytes, pause_s: float = 0.2
) -> AsyncIterator[None]:
    """Keep `count` unauthenticated connections, each of which sends only `first` and reconnects when it ends."""

    async def idle_connection() -> None:
        while True:
            with contextlib.suppress(OSError):
                async with connected(port, host) as (reader, writer):
                    writer.write(first)
                    while await reader.read(4096):
                        pass
                    writer.transport.abort()
            await asyncio.sleep(pause_s)

    tasks = [asyncio.create_task(idle_connection()) for _ in range(count)]
    try:
        await asyncio.sleep(1.0)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
