"""A publisher of messages of AMQP 1.0 at a node, without a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.management.changes.request_session import RequestSession, until_applied
from qq.sessions.pending_requests import OpenEnqueue
from qq.stored.kinds import SECTIONS_CHANNEL
from qq.stored.publishing10 import PublishedSections

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.sessions.broker import Broker


async def publish_sections(
    broker: Broker, exchange: str, routing_key: str, messages: Sequence[bytes]
) -> None:
    """Publish messages as the user guest, and wait until they are in their queues."""
    async with RequestSession(broker, "/", "guest") as requests:
        session = requests._session
        session.number = SECTIONS_CHANNEL
        for attributes, alike in PublishedSections("guest").group(messages):
            run = OpenEnqueue(session, 0, exchange, routing_key, False, attributes)
            broker.submissions.publish(run, alike, is_new=True)
        await until_applied(broker, [], lambda: None, session.connection.lane, changes=True)
        assert session.failure is None, session.failure
