"""Operations that run as an AMQP client of a user would run them: declare, publish, get.

Invariant: permissions are checked like those of AMQP clients, and limits of the user apply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.errors import ReplyCode
from qq.management.changes.permission_checks import check
from qq.management.changes.request_session import RequestSession, until_applied
from qq.management.errors import NOT_CARRIED_OUT, RequestRefused, Unavailable
from qq.sessions.access import Access, AccessRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.machine.protocol.commands import Declaration
    from qq.management.changes.permission_checks import CheckedCommand
    from qq.management.reports.messages import AckMode, Message, NewMessage
    from qq.scopes import Scopes
    from qq.sessions.broker import Broker

DECLARATIONS_PER_BATCH = 100
"""Declarations submitted together at most: they take some milliseconds of every node's time."""


class Operations:
    """Runs operations of users. `scopes` are the scopes of the user's OAuth 2 token, if any."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def check_permitted(
        self,
        user: str,
        command: CheckedCommand,
        vhost: str,
        scopes: Scopes | None = None,
    ) -> None:
        """Raise RequestRefused if the user has no permission for this.

        The node catches up with the log before it refuses. Raises Unavailable.
        """
        access = Access(self._broker.machine, user, vhost, scopes)
        try:
            check(access, command)
        except AccessRefused:
            await until_applied(self._broker, [], lambda: None)
            access.certain = True
            try:
                check(access, command)
            except AccessRefused as refused:
                raise RequestRefused(ReplyCode.ACCESS_REFUSED, str(refused)) from None

    async def declare(
        self, vhost: str, user: str, declarations: Sequence[Declaration], scopes: Scopes | None = None
    ) -> None:
        """Carry out declarations in order. Raises RequestRefused at the first failure.

        The user needs any permissions in the virtual host.
        """
        async with RequestSession(self._broker, vhost, user, scopes) as session:
            for start in range(0, len(declarations), DECLARATIONS_PER_BATCH):
                await session.run(declarations[start : start + DECLARATIONS_PER_BATCH])

    async def publish(
        self, vhost: str, user: str, publication: NewMessage, scopes: Scopes | None = None
    ) -> bool:
        """Publish a message; return whether it was routed to a queue.

        Raises RequestRefused, Unavailable; PublicationRejected if a queue has no room.
        """
        if self._broker.alarm is not None:
            raise Unavailable(f"publishers must wait: {self._broker.alarm}; {NOT_CARRIED_OUT}")
        async with RequestSession(self._broker, vhost, user, scopes) as session:
            return await session.publish(publication)

    async def get(
        self,
        vhost: str,
        queue: str,
        user: str,
        count: int,
        ack_mode: AckMode,
        scopes: Scopes | None = None,
    ) -> Sequence[Message]:
        """Take up to `count` ready messages. Raises RequestRefused."""
        async with RequestSession(self._broker, vhost, user, scopes) as session:
            return await session.get(queue, count, ack_mode)
