"""Documents of consumers, each with its channel.

Invariant: channels are requested from nodes only for the consumers that are shown.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from qq.http.documents.lists import Listing
from qq.http.documents.rendering import by_place, consumer_document
from qq.management.reports.queues import ConsumerStatus
from qq.management.time_slices import Slices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from qq.management.management import Management

_KNOWN = {
    name: attrgetter(name)
    for name in ConsumerStatus._fields
    if name not in ("channel_details", "arguments", "credit")
}
"""Fields of a consumer that need no lookup of its channel, and are JSON values already."""


async def consumer_documents(
    management: Management, consumers: Sequence[ConsumerStatus]
) -> list[dict[str, Any]]:
    """Return the documents of consumers, in their order."""
    places = [(each.channel_details["node"], each.channel_details["id"]) for each in consumers]
    channels = by_place(await management.clients.channels_at(places))
    documents: list[dict[str, Any]] = []
    slices = Slices()
    for each in consumers:
        documents.append(consumer_document(each, channels))
        await slices.give_way()
    return documents


def consumer_listing(
    management: Management, consumers: Iterable[ConsumerStatus], is_seen: Callable[[str], bool]
) -> Listing[ConsumerStatus]:
    """Return the list of these consumers, limited to visible virtual hosts."""

    async def whole(some: Sequence[ConsumerStatus]) -> Sequence[dict[str, Any]]:
        return await consumer_documents(management, some)

    def is_seen_consumer(consumer: ConsumerStatus) -> bool:
        return is_seen(consumer.queue["vhost"])

    return Listing(consumers, _KNOWN, is_seen_consumer, whole=whole)
