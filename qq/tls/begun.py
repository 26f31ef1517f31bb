"""TLS connections that a thread begins, and that an event loop may continue.

The thread that answers health checks learns only after the handshake whether a request is such a check. If it is not,
the thread hands the connection over, and the event loop continues its TLS.

Invariant: a connection belongs to a single thread at a time.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_READ_BYTES = 16 * 1024


class BegunTls:
    """The TLS of a connection, with the octets that its client has sent so far."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.from_socket, self.to_socket = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.from_socket, self.to_socket, server_side=True)
        self.received = b""
        """Decrypted octets."""
        self._is_open = False

    def receive(self, data: bytes) -> None:
        """Decrypt octets of the socket, or continue the handshake. Raises ssl.SSLError."""
        self.from_socket.write(data)
        with suppress(ssl.SSLWantReadError):
            if not self._is_open:
                self.tls.do_handshake()
                self._is_open = True
            while part := self.tls.read(_READ_BYTES):
                self.received += part

    def write_last(self, data: bytes) -> None:
        """Encrypt the last octets for the client, and the end of the TLS connection."""
        with suppress(ssl.SSLError):  # the client's end may be missing, or be there already
            self.tls.write(data)
            self.tls.unwrap()

    def output(self) -> bytes:
        """Return the octets for the socket."""
        return self.to_socket.read()

    def context(self) -> ssl.SSLContext:
        """Return a context with which an event loop continues this connection, and begins no handshake."""
        context = _Continuing(ssl.PROTOCOL_TLS_SERVER)
        context.begun = self
        return context


class _Continuing(ssl.SSLContext):
    """A context for a single connection, which has begun."""

    begun: BegunTls

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *_: Any, **__: Any) -> Any:
        return _ContinuedTls(self.begun, incoming, outgoing)


class _ContinuedTls:
    """An `ssl.SSLObject` for an event loop: moves octets between the loop's buffers and those of the begun TLS."""

    def __init__(self, begun: BegunTls, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self._begun = begun
        self._incoming = incoming
        self._outgoing = outgoing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._begun.tls, name)

    def do_handshake(self) -> None:
        self._call(self._begun.tls.do_handshake)

    def read(self, size: int = 1024, buffer: memoryview | None = None) -> Any:
        """Return the next decrypted octets, or their number if they are put into `buffer`."""
        if not self._begun.received:
            arguments = (size,) if buffer is None else (size, buffer)
            return self._call(self._begun.tls.read, *arguments)
        part = self._begun.received[:size]
        self._begun.received = self._begun.received[size:]
        if buffer is None:
            return part
        buffer[: len(part)] = part
        return len(part)

    def write(self, data: Any) -> int:
        return self._call(self._begun.tls.write, data)

    def unwrap(self) -> None:
        self._call(self._begun.tls.unwrap)

    def pending(self) -> int:
        """Return the octets that wait in memory for `read`."""
        begun = self._begun
        return len(begun.received) + begun.tls.pending() + begun.from_socket.pending

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self._begun.from_socket.write(self._incoming.read())
        try:
            return function(*arguments)
        finally:
            self._outgoing.write(self._begun.to_socket.read())
