"""The port of tracing: what a protocol tells of the way of messages, if that is traced.

Invariant: to tell costs little and never waits. A message that is not traced has no span (None).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from qq.sessions.ports import Connection


class Address(NamedTuple):
    """Where a message was published to, and where it was taken from."""

    exchange: str
    routing_key: str
    queue: str = ""
    """The queue that a delivered message was in, if it is known."""


class TraceSpan(Protocol):
    """A step on the way of one message."""

    def event(self, name: str, /) -> None:
        """Note that something has happened in this step now."""
        ...

    def end(self, error: str = "", /) -> None:
        """End the step now, if it has not ended; `error` is the kind of what went wrong, if something did."""
        ...

    def settle(self, operation: str, began_ns: int, /) -> TraceSpan | None:
        """Begin the span of what a client says of the message that it was given in this step: `ack` or the like."""
        ...


class MessageTracer(Protocol):
    """Makes the spans of messages."""

    def publish(
        self, message: bytes, address: Address, connection: Connection, began_ns: int, /
    ) -> TraceSpan | None:
        """Begin the span of a message that a client has published; times are nanoseconds since 1970."""
        ...

    def deliver(
        self,
        operation: str,
        message: bytes,
        address: Address,
        connection: Connection,
        tag: int,
        began_ns: int,
        /,
    ) -> TraceSpan | None:
        """Begin the span of a message that a client is given: by `deliver`, or by `get`."""
        ...
