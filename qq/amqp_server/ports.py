"""What a channel asks of its connection.

Invariant: a channel never sees a socket; what it writes leaves at the end of this pass of the loop, in the order of
writing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from qq.sessions.ports import Connection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.errors import AmqpError


class Pumped(Protocol):
    """A channel that waits for room in the socket."""

    def pump(self) -> None:
        """Go on writing to the socket."""
        ...


class NumberedChannel(Protocol):
    """A channel, as far as its connection has to tell it from others."""

    @property
    def number(self) -> int: ...


class Carrier(Connection, Protocol):
    """An AMQP connection, as its channels see it."""

    @property
    def frame_max(self) -> int: ...

    @property
    def wants_live_prefetch(self) -> bool: ...

    @property
    def wants_cancel_notify(self) -> bool: ...

    # Out

    @property
    def has_room(self) -> bool:
        """Whether the socket takes more bytes, in this pass of the event loop."""
        ...

    def write(self, buffers: Sequence[bytes], /) -> None: ...

    def pump_later(self, waiting: Pumped, /) -> None:
        """Have `Pumped.pump` called when the socket has room."""
        ...

    # In

    def pause_for(self, reason: object, /) -> None:
        """Stop reading from the client, for one reason of perhaps several."""
        ...

    def resume_for(self, reason: object, /) -> None: ...

    def publish_fields(self, method: bytes, /) -> tuple[str, str, bool]:
        """Exchange, routing key and mandatory flag of a raw basic.publish. Raises ConnectionFault on `immediate`."""
        ...

    def publishes(self) -> None:
        """Note that the client publishes: it is one of those who wait while there is an alarm."""
        ...

    def holds_back(self, channel: NumberedChannel, /) -> None:
        """Note that the channel keeps the client's methods, for now, without carrying them out."""
        ...

    def released(self, channel: NumberedChannel, /) -> None:
        """Note that the channel has carried out all that it kept."""
        ...

    # Ends

    def fail(self, error: AmqpError, /) -> None:
        """Close the connection with an error."""
        ...

    def unexpected(self, error: Exception, /) -> None:
        """End the connection because of an error in the node itself."""
        ...

    def fail_channel(self, channel: NumberedChannel, error: AmqpError, /) -> None: ...

    def channel_closed(self, channel: NumberedChannel, /) -> None:
        """Note that the client has closed the channel, and that what it was doing has ended."""
        ...
