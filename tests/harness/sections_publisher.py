"""A publisher of messages of either kind at a node, without a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.management.changes.request_session import RequestSession, until_applied
from qq.sessions.pending_requests import OpenEnqueue
from qq.stored.kinds import SECTIONS_CHANNEL
from qq.stored.publishing10 import PublishedSections

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from qq.sessions.broker import Broker
    from qq.stored.properties import Attributes


async def publish_sections(
    broker: Broker, exchange: str, routing_key: str, messages: Sequence[bytes]
) -> None:
    """Publish messages as the user guest, and wait until they are in their queues."""
    groups = PublishedSections("guest").group(list(messages))
    await publish_stored(broker, exchange, routing_key, groups, SECTIONS_CHANNEL)


async def publish_stored(
    broker: Broker,
    exchange: str,
    routing_key: str,
    groups: Iterable[tuple[Attributes | None, list[bytes]]],
    channel: int,
) -> None:
    """Publish groups of messages in their stored form, as `publish_sections` does."""
    async with RequestSession(broker, "/", "guest") as requests:
        session = requests._session
        session.number = channel
        for attributes, alike in groups:
            run = OpenEnqueue(session, 0, exchange, routing_key, False, attributes)
            broker.submissions.publish(run, alike, is_new=True)
        await until_applied(broker, [], lambda: None, session.connection.lane, changes=True)
        assert session.failure is None, session.failure
