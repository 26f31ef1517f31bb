"""A process that floods a node: connections that write the same octets again and again, as fast as the node reads.

`python -m chaos.fuzz.flooder PORT [CA]` reads a plan in JSON from its standard input, and floods over TLS if the file
with the node's authority is given. The process ends when it is killed, and its kernel closes all connections at once.
"""

from __future__ import annotations

import base64
import json
import selectors
import socket
import ssl
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

READ_BYTES = 256 * 1024
CONNECT_S = 0.005
"""Seconds between two new connections, so that the node's slots for connections before their login are not used up."""


class Flood(NamedTuple):
    """The frames of a flood."""

    again: Sequence[bytes]
    """Repeated without end."""
    before: Sequence[bytes] = ()
    """Sent once, after connection and channel 1 are open."""
    opened: bool = True
    """Whether the connection is opened first."""
    life_s: float = 0.0
    """Life of a connection in seconds, before a new connection replaces it; 0: for ever."""
    is_amqp10: bool = False


@dataclass(frozen=True)
class Plan:
    """The octets of the connections."""

    opening: bytes
    """Written once by each connection."""
    awaited: bytes
    """Octets of the node's answer that each connection waits for."""
    again: bytes
    """Written without end after that."""
    connections: int
    life_s: float = 0.0
    """Life of a connection in seconds, before a new connection replaces it; 0: for ever."""

    def dump(self) -> str:
        octets = (base64.b64encode(part).decode() for part in (self.opening, self.awaited, self.again))
        return json.dumps([*octets, self.connections, self.life_s])

    @classmethod
    def load(cls, text: str) -> Plan:
        *octets, connections, life_s = json.loads(text)
        opening, awaited, again = map(base64.b64decode, octets)
        return cls(opening, awaited, again, connections, life_s)


class _Connection:
    def __init__(self, port: int, plan: Plan, tls: ssl.SSLContext | None) -> None:
        self.socket = socket.socket()
        if tls is not None:
            self.socket = tls.wrap_socket(
                self.socket, server_hostname="127.0.0.1", do_handshake_on_connect=False
            )
        self.socket.setblocking(False)
        self.socket.connect_ex(("127.0.0.1", port))
        self._waits_to_read = False
        """Whether the last write must be repeated after a read, because a TLS handshake is under way."""
        self.began_s = time.monotonic()
        self._rest = memoryview(plan.opening)
        self._awaited = plan.awaited
        self._answer = b""
        self._again = memoryview(plan.again)

    def go_on(self, events: int) -> bool:
        """Read, and write as much as the socket takes. Return whether the connection is still open."""
        try:
            return (not events & selectors.EVENT_READ or self._read()) and (
                not events & selectors.EVENT_WRITE or self._write()
            )
        except OSError:
            return False

    def _read(self) -> bool:
        self._waits_to_read = False
        with suppress(BlockingIOError, ssl.SSLWantReadError):
            data = self.socket.recv(READ_BYTES)
            self._wait_for(data)
            return bool(data)
        return True

    def _write(self) -> bool:
        try:
            self._rest = self._rest[self.socket.send(self._rest) :]
        except ssl.SSLWantReadError:
            self._waits_to_read = True
        except (BlockingIOError, ssl.SSLWantWriteError):
            pass
        if not self._rest and not self._awaited:
            self._rest = self._again
        return True

    def _wait_for(self, data: bytes) -> None:
        if self._awaited:
            self._answer += data
            if self._awaited in self._answer:
                self._awaited, self._rest = b"", self._again

    @property
    def events(self) -> int:
        """The events that the connection waits for."""
        writes = self._rest and not self._waits_to_read
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if writes else 0)


def flood(port: int, plan: Plan, tls: ssl.SSLContext | None = None) -> None:
    """Flood until the process is killed. A connection that the node closes is opened again."""
    selector = selectors.DefaultSelector()
    count, last_s = 0, 0.0
    while True:
        now_s = time.monotonic()
        if count < plan.connections and now_s - last_s >= CONNECT_S:
            connection = _Connection(port, plan, tls)
            selector.register(connection.socket, connection.events, connection)
            count, last_s = count + 1, now_s
        for key, events in selector.select(CONNECT_S):
            connection = key.data
            is_old = bool(plan.life_s) and now_s - connection.began_s > plan.life_s
            if is_old or not connection.go_on(events):
                selector.unregister(connection.socket)
                connection.socket.close()
                count -= 1
            elif key.events != connection.events:
                selector.modify(connection.socket, connection.events, connection)


if __name__ == "__main__":
    flood(
        int(sys.argv[1]),
        Plan.load(sys.stdin.read()),
        ssl.create_default_context(cafile=sys.argv[2]) if len(sys.argv) > 2 else None,
    )
