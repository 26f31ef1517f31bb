"""The part of a session of the log that publishes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qq.machine.protocol.effects import Returned


class NoPublisher:
    """The events of a `Publisher`, for a session without publishes."""

    __slots__ = ()

    number = published = 0

    def confirm(self, published: int) -> None:
        """Ignored: the session publishes nothing."""

    def refuse(self, first: int, last: int, queue: str) -> None:
        """Ignored: the session publishes nothing."""

    def refuse_unconfirmed(self, published: int) -> None:
        """Ignored: the session publishes nothing."""

    def unroutable(self, effect: Returned) -> None:
        """Ignored: the session publishes nothing."""
