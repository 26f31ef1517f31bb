"""The port between a channel and its connection.

Invariant: a channel never sees a socket. Its writes leave in order, at the end of the current pass of the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from qq.client_sockets.message_output import OutputSocket
from qq.sessions.ports import Connection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.client_sockets.back_pressure import NumberedSession
    from qq.client_sockets.turn_taking import ReadyRequests
    from qq.errors import AmqpError


class Carrier(Connection, OutputSocket, Protocol):
    """An AMQP connection, as its channels see it."""

    @property
    def frame_max(self) -> int: ...

    @property
    def wants_live_prefetch(self) -> bool: ...

    @property
    def wants_cancel_notify(self) -> bool: ...

    def write(self, buffers: Sequence[bytes], /) -> None: ...

    def publish_fields(self, method: bytes, /) -> tuple[str, str, bool]:
        """Return exchange, routing key and mandatory flag of a raw basic.publish.

        Raises ConnectionFault on `immediate`.
        """
        ...

    def mark_publisher(self) -> None:
        """Mark the client as a publisher, so that it waits while there is an alarm."""
        ...

    def requests_held(self, session: NumberedSession, /) -> None:
        """Record that the channel holds back methods, or would hold back the next method."""
        ...

    def requests_released(self, session: NumberedSession, /) -> None:
        """Record that the channel has carried out all methods that it held back."""
        ...

    def continue_later(self, requests: ReadyRequests, /) -> None:
        """Call `carry_out_some` of a channel in this connection's turn."""
        ...

    # Ends

    def fail(self, error: AmqpError, /) -> None:
        """Close the connection with an error."""
        ...

    def unexpected(self, error: Exception, /) -> None:
        """Close the connection because of an error in the node itself."""
        ...

    def fail_channel(self, channel: NumberedSession, error: AmqpError, /) -> None: ...

    def channel_closed(self, channel: NumberedSession, /) -> None:
        """Answer the client's channel.close, after the work of the channel has ended."""
        ...
