"""What a message is given on its way: another exchange and key, properties, and headers that tell where it has been.

Invariant: what is not to be changed stays octet for octet as it came. How often the source has delivered a message is
the source's affair, and is not passed on.
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
"""The headers by which a target knows a message again (docs/how-to/publish-exactly-once.md)."""
COUNTS = ("x-delivery-count", "x-acquired-count")
"""What the source has added because it has delivered the message before."""
WAY, WHEN = "x-shovelled", "x-shovelled-timestamp"
WAYS_MAX = 100
"""How many shovels a message is told of, the last ones: it may go in a circle."""
_COUNTS = frozenset(name.encode() for name in COUNTS)


class Way(NamedTuple):
    """From where to where messages go, as they are told."""

    vhost: str
    name: str
    cluster: str
    source_uri: str
    target_uri: str


class Outbound:
    """Prepares messages for the target."""

    def __init__(
        self, shovel: Definition, way: Way, source_frame_max: int, frame_max: int, *, knows_publishers: bool
    ) -> None:
        """`frame_max` is that of the target, which may know publishers.

        Then it is not told those of the messages: another shovel, or the same, may have published them there, too.
        """
        self._shovel = shovel
        self._frame_max = frame_max
        self._reframes = source_frame_max > frame_max
        self._removals = (*COUNTS, PUBLISHER, NUMBER) if knows_publishers else COUNTS
        self._way = _told(shovel, way) if shovel.forwards_headers else None
        target = shovel.target
        exchange, key = ("", target.queue) if target.queue else (target.exchange, target.key)
        self._exchange = None if exchange is None else exchange.encode()
        self._key = None if key is None else key.encode()

    def address(self, delivery: Delivery) -> tuple[bytes, bytes]:
        """The exchange and the routing key with which a message is published."""
        exchange = delivery.exchange if self._exchange is None else self._exchange
        return exchange, delivery.routing_key if self._key is None else self._key

    def message(self, delivery: Delivery, now_s: int, number: tuple[str, int] | None) -> bytes:
        """The message as it is published; `number` is its publisher and its number there."""
        message, additions = delivery.message, dict[str, "HeaderValue"]()
        if self._way is not None:
            additions[WAY] = [self._way, *_earlier(message)[: WAYS_MAX - 1]]
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
        """Change headers. What there is no room for is not added: the target would not take the message at all."""
        changed = with_headers([message], additions=additions, removals=self._removals)
        if layout.frame_stop(changed[0], 0) <= self._frame_max:
            return changed
        return with_headers([message], removals=self._removals)


def key_of(delivery: Delivery) -> bytes | None:
    """What tells a message from all others of its source; None if it has nothing that no other has.

    That is a `message-id`, or the number of its publisher.
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
    """Whether a message has one of these headers."""
    if not layout.flags(message) & layout.HEADERS:
        return False
    wanted = {name.encode() for name in names}
    return any(name in wanted for name, *_ in layout.pairs(message, layout.place(message, layout.HEADERS)))


def _told(shovel: Definition, way: Way) -> dict[str, HeaderValue]:
    """What a message is told of this shovel, in RabbitMQ's order."""
    told = {
        "shovelled-by": way.cluster,
        "shovel-type": "dynamic",
        "shovel-name": way.name,
        "shovel-vhost": way.vhost,
        "src-uri": way.source_uri,
        "dest-uri": way.target_uri,
    }
    for side, end in (("src", shovel.source), ("dest", shovel.target)):
        if end.queue:
            told[f"{side}-queue"] = end.queue
        if end.exchange is not None:
            told[f"{side}-exchange"] = end.exchange
        if end.key is not None:
            told[f"{side}-exchange-key"] = end.key
    return dict[str, "HeaderValue"](told)


def _earlier(message: bytes) -> list[HeaderValue]:
    """What a message was told by other shovels, as far as it is what shovels tell."""
    if not _has(message, (WAY,)):
        return []
    ways = (content(message).properties.headers or {}).get(WAY)
    tables = [each for each in ways if isinstance(each, dict)] if isinstance(ways, list) else []
    return [{key: value for key, value in each.items() if isinstance(value, str)} for each in tables]
