"""The first octets of a connection choose its protocol, so that all client protocols share a port.

    octets                  answer
    header of a protocol    that protocol's connection takes the socket over, with all octets
    other version of it     the protocol's header, then the end
    anything else           the header of the last protocol, then the end

Invariant: a client has the same time for its handshake whether its header takes a part of that time or not. The octets
that wait here are the beginning of a header.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from cluster.net.connection_slots import Stage
from qq.client_sockets.closing import CLOSE_GRACE_S

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Sequence

    from cluster.runtime.ports import Runtime
    from qq.client_sockets.client_connection import ClientConnection
    from qq.client_sockets.shared import Arrival, ClientSockets

HEADER_OCTETS = 8
"""Octets of a protocol header, in all versions of AMQP."""
GUESSES = {
    b"\x16\x03": ", but TLS",  # the client uses the wrong port
    b"PROXY ": ", but the PROXY protocol",  # the configuration does not name this proxy
    b"\r\n\r\n\0\r\n": ", but the PROXY protocol",
}
"""First octets of other protocols, and the addition to the log line about them."""


class ServedProtocol(NamedTuple):
    """A client protocol of a port."""

    name: str
    """The name in log lines: "AMQP 0-9-1"."""
    headers: tuple[bytes, ...]
    """The headers with which its clients begin, of HEADER_OCTETS each. The first is the node's own."""
    other_versions: re.Pattern[bytes]
    """Matches the first octets of versions whose clients get the node's own header as the answer."""
    make: Callable[[Arrival], ClientConnection[Any]]
    """Makes a connection, which releases the slot of its arrival."""


class ProtocolChooser(asyncio.Protocol):
    """An accepted connection until its protocol is known."""

    __slots__ = (
        "_arrival",
        "_begun",
        "_deadline",
        "_runtime",
        "_served",
        "_sockets",
        "_transport",
        "_until_s",
    )

    def __init__(
        self, runtime: Runtime, sockets: ClientSockets, served: Sequence[ServedProtocol], arrival: Arrival
    ) -> None:
        """Create a chooser. The last protocol of `served` answers clients of unknown protocols."""
        self._runtime = runtime
        self._sockets = sockets
        self._served = served
        self._arrival = arrival
        self._begun = b""
        """The octets that have arrived of a header."""

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport
        timeout_s = self._sockets.limits.handshake_timeout_s
        self._until_s = self._runtime.monotonic() + timeout_s
        self._deadline = self._runtime.call_later(timeout_s, self._timed_out)
        slot = self._arrival.slot
        if not slot.is_taken:
            transport.abort()
            return
        slot.evict = transport.abort
        if self._arrival.certificate_name is not None:
            slot.step(Stage.TLS)

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return  # the client was refused or has taken too long
        data = self._begun + data
        header = data[:HEADER_OCTETS]
        for protocol in self._served:
            if any(known.startswith(header) for known in protocol.headers):
                if len(header) < HEADER_OCTETS:
                    self._begun = header
                else:
                    self._hand_over(protocol, data)
                return
        self._refuse(header)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._deadline.cancel()
        self._arrival.slot.release()

    def _hand_over(self, protocol: ServedProtocol, data: bytes) -> None:
        self._deadline.cancel()
        self._arrival.slot.step(Stage.HEADER)
        connection = protocol.make(self._arrival)
        self._transport.set_protocol(connection)
        connection.begin(self._transport, max(0.0, self._until_s - self._runtime.monotonic()))
        connection.data_received(data)

    def _refuse(self, header: bytes) -> None:
        """Answer octets that no protocol begins with, and close the connection."""
        names = " or ".join(protocol.name for protocol in self._served)
        guess = next((guess for begin, guess in GUESSES.items() if header.startswith(begin)), "")
        self._log("header", f"not {names}{guess}: {header!r}")
        relatives = [protocol for protocol in self._served if protocol.other_versions.match(header)]
        answering = relatives[0] if relatives else self._served[-1]
        self._transport.write(answering.headers[0])
        self._transport.close()
        self._deadline.cancel()
        self._deadline = self._runtime.call_later(CLOSE_GRACE_S, self._transport.abort)

    def _timed_out(self) -> None:
        self._log("handshake", "no handshake in time")
        self._transport.abort()

    def _log(self, kind: str, text: str) -> None:
        peer = self._arrival.peer
        self._sockets.throttled_log.warning(kind, f"connection from {peer.host}:{peer.port}: {text}")
