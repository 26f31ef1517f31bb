"""Consumers, as they are told over HTTP: each with the channel that it is of.

Invariant: no more channels are asked for than those of the consumers that are told.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from qq.http.base.slices import Slices
from qq.http.documents.lists import Listing
from qq.http.documents.rendering import by_place, consumer_document
from qq.http.view import ConsumerStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from qq.http.view import ManagementView

_KNOWN = {
    name: attrgetter(name)
    for name in ConsumerStatus._fields
    if name not in ("channel_details", "arguments", "credit")
}
"""What is told of a consumer that is the same without its channel, and in JSON."""


async def consumer_documents(
    management: ManagementView, consumers: Sequence[ConsumerStatus]
) -> list[dict[str, Any]]:
    """What is told of consumers, in their order."""
    places = [(each.channel_details["node"], each.channel_details["id"]) for each in consumers]
    channels = by_place(await management.channels_at(places))
    documents: list[dict[str, Any]] = []
    slices = Slices()
    for each in consumers:
        documents.append(consumer_document(each, channels))
        await slices.give_way()
    return documents


def consumer_listing(
    management: ManagementView, consumers: Iterable[ConsumerStatus], is_seen: Callable[[str], bool]
) -> Listing[ConsumerStatus]:
    """The list of these consumers, as far as their virtual hosts are seen."""

    async def whole(some: Sequence[ConsumerStatus]) -> Sequence[dict[str, Any]]:
        return await consumer_documents(management, some)

    def is_seen_consumer(consumer: ConsumerStatus) -> bool:
        return is_seen(consumer.queue["vhost"])

    return Listing(consumers, _KNOWN, is_seen_consumer, whole=whole)
