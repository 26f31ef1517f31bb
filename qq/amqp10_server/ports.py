"""The connection, as its links see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from qq.client_sockets.message_output import OutputSocket
from qq.sessions.ports import Connection

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.amqp10.link import Link10
    from qq.amqp10.performatives import ErrorReply
    from qq.amqp10.session import Session10
    from qq.sessions.broker import Broker


class LinkCarrier(Connection, OutputSocket, Protocol):
    """The connection of a link. It writes the output of the protocol at the end of the present work."""

    @property
    def broker(self) -> Broker: ...

    def schedule_flush(self, size: int = 0) -> None:
        """Write the output of the protocol in this pass of the event loop, with messages of `size` octets."""
        ...

    def unexpected(self, error: Exception, /) -> None:
        """Close the connection because of an error in the node itself."""
        ...

    def guarded(self, work: Callable[[], None], /) -> Callable[[], None]:
        """Return a function that does the work, and closes the connection if that raises an exception."""
        ...

    def mark_publisher(self) -> None:
        """Record that the client publishes, so that it waits during an alarm."""
        ...

    def hold_input(self, session: int, *, holds: bool) -> None:
        """Record whether the link with this session of the log holds messages back."""
        ...

    def end_session(self, session: Session10, error: ErrorReply, /) -> None:
        """End a session with all its links."""
        ...

    def detach(self, link: Link10, error: ErrorReply | None, /) -> None:
        """End a link, and its session in the log."""
        ...
