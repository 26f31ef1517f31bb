"""The port of tracing: how a protocol reports the steps of a message, if messages are traced.

Invariant: reporting is cheap and never waits. A message that is not traced has no span (None).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from qq.sessions.ports import Connection


class Address(NamedTuple):
    """The address that a message was published to, and the queue that it was taken from."""

    exchange: str
    routing_key: str
    queue: str = ""
    """The queue of a delivered message, if it is known."""


class TraceSpan(Protocol):
    """A span: a step on the way of a message."""

    def event(self, name: str, /) -> None:
        """Record an event at the present time in this span."""
        ...

    def end(self, error: str = "", /) -> None:
        """End the span now, unless it has ended. `error` is the kind of failure, empty if there was none."""
        ...

    def settle(self, operation: str, began_ns: int, /) -> TraceSpan | None:
        """Begin the span of a client's settlement (such as `ack`) of the message delivered in this span."""
        ...


class MessageTracer(Protocol):
    """Makes the spans of messages."""

    def publish(
        self, message: bytes, address: Address, connection: Connection, began_ns: int, /
    ) -> TraceSpan | None:
        """Begin the span of a message that a client has published. Times are nanoseconds since 1970."""
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
        """Begin the span of a message that a client receives by `deliver` or by `get`."""
        ...
