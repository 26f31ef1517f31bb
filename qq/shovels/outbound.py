"""Rewrites messages for the target: exchange, routing key, properties, and headers about the shovels passed.

Invariant: parts that are not to be changed stay byte for byte as received. The headers that count the source's
deliveries are removed, because they concern only the source.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from qq.shovels.frames import CHANNEL
from qq.shovels.ledger import KEY_BYTES
from qq.stored import layout
from qq.stored.editing import content, reframe, with_headers, with_properties
from qq.stored.properties import PUBLISH_SEQ, PUBLISHER_ID

if TYPE_CHECKING:
    from collections.abc import Collection

    from qq.shovels.definition import Definition
    from qq.shovels.frames import Delivery
    from qq.stored.editing import HeaderValue

PUBLISHER, NUMBER = PUBLISHER_ID.decode(), PUBLISH_SEQ.decode()
"""Headers by which a target recognises a repeated message (docs/how-to/publish-exactly-once.md)."""
COUNTS = ("x-delivery-count", "x-acquired-count")
"""Headers that the source adds to a message that it has delivered before."""
ROUTE, WHEN = "x-shovelled", "x-shovelled-timestamp"
ROUTES_MAX = 100
"""Maximum number of shovels listed in a message, the latest first: a message may go in a circle."""
_COUNTS = frozenset(name.encode() for name in COUNTS)


class Route(NamedTuple):
    """The source and the target of a shovel, as the header `x-shovelled` shows them."""

    vhost: str
    name: str
    cluster: str
    source_uri: str
    target_uri: str


class Outbound:
    """Prepares messages for the target."""

    def __init__(
        self,
        shovel: Definition,
        route: Route,
        source_frame_max: int,
        frame_max: int,
        *,
        knows_publishers: bool,
    ) -> None:
        """`frame_max` is the largest frame of the target; `knows_publishers` says whether the target deduplicates.

        For such a target the publisher headers of the messages are removed: this shovel, or a second shovel, may have
        published the same messages there before.
        """
        self._shovel = shovel
        self._frame_max = frame_max
        self._reframes = source_frame_max > frame_max
        self._removals = (*COUNTS, PUBLISHER, NUMBER) if knows_publishers else COUNTS
        self._route = _route_header(shovel, route) if shovel.forwards_headers else None
        target = shovel.target
        exchange, key = ("", target.queue) if target.queue else (target.exchange, target.key)
        self._exchange = None if exchange is None else exchange.encode()
        self._key = None if key is None else key.encode()

    def address(self, delivery: Delivery) -> tuple[bytes, bytes]:
        """Return the exchange and the routing key with which a message is published."""
        exchange = delivery.exchange if self._exchange is None else self._exchange
        return exchange, delivery.routing_key if self._key is None else self._key

    def message(self, delivery: Delivery, now_s: int, number: tuple[str, int] | None) -> bytes:
        """Return the message to publish; `number` is its publisher id and number, or `None`."""
        message, additions = delivery.message, dict[str, "HeaderValue"]()
        if self._route is not None:
            additions[ROUTE] = [self._route, *_earlier(message)[: ROUTES_MAX - 1]]
        if self._shovel.tells_time:
            additions[WHEN] = now_s
        if number is not None:
            additions[PUBLISHER], additions[NUMBER] = number
        if self._shovel.properties:
            message = with_properties(message, self._shovel.properties)
        if additions or _has(message, self._removals):
            (message,) = self._with_headers(message, additions)
        return reframe(message, CHANNEL, self._frame_max) if self._reframes else message

    def _with_headers(self, message: bytes, additions: dict[str, HeaderValue]) -> list[bytes]:
        """Change headers. If the additions exceed the largest frame, only remove headers.

        Otherwise the target would refuse the message.
        """
        changed = with_headers([message], additions=additions, removals=self._removals)
        if layout.frame_stop(changed[0], 0) <= self._frame_max:
            return changed
        return with_headers([message], removals=self._removals)


def key_of(delivery: Delivery) -> bytes | None:
    """Return a hash that identifies a message at its source, or `None` if the message has no id.

    The id is a `message-id`, or the number of its publisher.
    """
    message = delivery.message
    if not layout.flags(message) & layout.MESSAGE_ID and not _has(message, (PUBLISHER,)):
        return None
    digest = blake2b(digest_size=KEY_BYTES)
    digest.update(bytes([len(delivery.exchange)]) + delivery.exchange + delivery.routing_key + b"\0")
    flags, table_at, at = layout.flags(message), layout.place(message, layout.HEADERS), layout.PROPERTIES_AT
    digest.update((flags & ~layout.HEADERS).to_bytes(2, "big"))
    if flags & layout.HEADERS:
        digest.update(message[at:table_at])
        at = layout.table_stop(message, table_at)
        for name, pair_at, _, stop in layout.pairs(message, table_at):
            if name not in _COUNTS:
                digest.update(message[pair_at:stop])
    stop = layout.frame_stop(message, 0)
    digest.update(message[at : stop - 1])
    while stop < len(message):
        at, stop = stop, layout.frame_stop(message, stop)
        digest.update(message[at + 7 : stop - 1])
    return digest.digest()


def _has(message: bytes, names: Collection[str]) -> bool:
    """Return whether a message has any of these headers."""
    if not layout.flags(message) & layout.HEADERS:
        return False
    wanted = {name.encode() for name in names}
    return any(name in wanted for name, *_ in layout.pairs(message, layout.place(message, layout.HEADERS)))


def _route_header(shovel: Definition, route: Route) -> dict[str, HeaderValue]:
    """Return the entry of this shovel in `x-shovelled`, with keys in RabbitMQ's order."""
    entry = {
        "shovelled-by": route.cluster,
        "shovel-type": "dynamic",
        "shovel-name": route.name,
        "shovel-vhost": route.vhost,
        "src-uri": route.source_uri,
        "dest-uri": route.target_uri,
    }
    for side, end in (("src", shovel.source), ("dest", shovel.target)):
        if end.queue:
            entry[f"{side}-queue"] = end.queue
        if end.exchange is not None:
            entry[f"{side}-exchange"] = end.exchange
        if end.key is not None:
            entry[f"{side}-exchange-key"] = end.key
    return dict[str, "HeaderValue"](entry)


def _earlier(message: bytes) -> list[HeaderValue]:
    """Return the entries of earlier shovels in `x-shovelled`; malformed parts are left out."""
    if not _has(message, (ROUTE,)):
        return []
    ways = (content(message).properties.headers or {}).get(ROUTE)
    tables = [each for each in ways if isinstance(each, dict)] if isinstance(ways, list) else []
    return [{key: value for key, value in each.items() if isinstance(value, str)} for each in tables]
