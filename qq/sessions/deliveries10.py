"""Messages as a consumer of AMQP 1.0 gets them: header and message annotations of a delivery, and the rest as stored.

Invariant: bare message and footer of a publisher of AMQP 1.0 stay as they were sent. Names, types and order of the
annotations that the broker adds are RabbitMQ's (mc_amqp.erl).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from qq.amqp10.composites import encode_composite
from qq.amqp10.sections import MESSAGE_ANNOTATIONS, encode_annotations
from qq.amqp10.values import Array, Long, Symbol, Timestamp, UInt, ULong, Value, encode
from qq.octets import is_utf8, octets_of
from qq.sessions.headers import published_to, redelivery_headers
from qq.stored.attributes10 import DELAY, encoded_delay_ms
from qq.stored.known import KNOWN_BYTES_MAX, KNOWN_MAX
from qq.stored.leading import split_leading
from qq.stored.to_frames import DEATHS
from qq.stored.to_sections import split_frames

if TYPE_CHECKING:
    from qq.machine.protocol.death_history import Death, History
    from qq.machine.protocol.effects import CountContract
    from qq.ranges import Range
    from qq.sessions.entries import Messages
    from qq.stored.leading import Leading

_ACQUIRED_COUNT = "x-acquired-count"
_UINT_MAX = 2**32 - 1
_STRING, _LONG_STRING, _MAP = 0xA1, 0xB1, 0xD1
_SHORT_BYTES_MAX = 255


def delivered10(
    stored: Messages, part: Range, history: History | None, *, count_contract: CountContract | None
) -> list[tuple[bytes, list[bytes]]]:
    """Return stored messages of either kind as heads and rests, which are sent one behind the other.

    A head is header and message annotations, which the rests behind it share. A rest is bare message and footer. `part`
    holds the number of earlier deliveries, and `history` its deaths and annotations or None. `count_contract` says
    which annotations of the queue count deliveries.
    """
    delivered: list[tuple[bytes, list[bytes]]] = []
    place = published_to(stored, history)
    split = split_frames if stored.frames_channel else split_leading
    is_first = not part.deliveries and history is None
    for leading, alike in split(stored.messages):
        if not is_first:
            head = _head(leading, place, part, history, count_contract)
        elif sum(len(str(key)) + len(value) for key, value in leading.annotations) > KNOWN_BYTES_MAX:
            head = _first_head(leading, place)
        else:
            head = _known_first_head(leading, place)
        delivered.append((head, alike))
    return delivered


def _first_head(leading: Leading, place: tuple[str, str]) -> bytes:
    """Return the head of a message that was never delivered and is no dead letter."""
    return _encoded(leading, place, {}, is_first=True, delivery_count=0)


_known_first_head = lru_cache(KNOWN_MAX)(_first_head)


def _head(
    leading: Leading,
    place: tuple[str, str],
    part: Range,
    history: History | None,
    count_contract: CountContract | None,
) -> bytes:
    """Return the head of any other message."""
    counts = redelivery_headers(part, history, count_contract=count_contract)
    if part.deliveries and count_contract is not None:
        counts[_ACQUIRED_COUNT] = part.deliveries  # RabbitMQ 4.0 counts these, too
    additions: dict[str, Value] = {
        name: Long(count) for name, count in counts.items() if isinstance(count, int)
    }
    failures, is_first = part.failures, not part.deliveries
    if history is not None:
        failures = failures or history.failures
        modified = dict(leading.annotations) | {Symbol(key): value for key, value in history.annotations}
        leading = leading._replace(annotations=tuple(modified.items()))
        if history.deaths:
            is_first = False
            leading = leading._replace(header=leading.header._replace(ttl=None))
            additions |= _death_annotations(history)
    return _encoded(leading, place, additions, is_first=is_first, delivery_count=failures)


def _encoded(
    leading: Leading,
    place: tuple[str, str],
    additions: dict[str, Value],
    *,
    is_first: bool,
    delivery_count: int,
) -> bytes:
    header, published = leading
    # RabbitMQ 4.0 takes a message that does not say for durable.
    durable = True if header.durable is None else header.durable
    now = header._replace(
        durable=durable, first_acquirer=is_first, delivery_count=min(delivery_count, _UINT_MAX)
    )
    annotations = dict(published)
    delay = encoded_delay_ms(annotations[DELAY]) if DELAY in annotations else 0
    if delay:  # as in AMQP 0-9-1: it says how long the message was delayed
        annotations[DELAY] = encode(Long(-delay))
    exchange, routing_key = place
    additions = {"x-exchange": _text(exchange), "x-routing-key": _text(routing_key)} | additions
    annotations |= {Symbol(name): encode(value) for name, value in additions.items()}
    pairs = ((encode(key), value) for key, value in annotations.items())
    return encode_composite(now) + encode_annotations(MESSAGE_ANNOTATIONS, pairs)


def _text(name: str) -> Value:
    """Return a name as a string, or as binary if its octets are not UTF-8."""
    return name if is_utf8(name) else octets_of(name)


def _death_annotations(history: History) -> dict[str, Value]:
    """Return the annotations that describe how a message became a dead letter."""
    annotations: dict[str, Value] = {}
    for which, cause in (("first", history.first), ("last", history.last)):
        for name, value in zip(("reason", "queue", "exchange"), cause, strict=True):
            annotations[f"x-{which}-death-{name}"] = _text(value)
    return annotations | {DEATHS: Array(_MAP, list(map(_death, history.deaths)))}


def _death(death: Death) -> dict[Value, Value]:
    time = Timestamp(death.time_ms)
    described: dict[Value, Value] = {}
    if death.original_expiration is not None:  # first field, as in RabbitMQ
        described[Symbol("ttl")] = UInt(min(int(death.original_expiration), _UINT_MAX))
    return described | {
        Symbol("queue"): _text(death.queue),
        Symbol("reason"): Symbol(death.reason),
        Symbol("count"): ULong(death.count),
        Symbol("first-time"): time,
        # The history holds the time of the first death only.
        Symbol("last-time"): time,
        Symbol("exchange"): _text(death.exchange),
        Symbol("routing-keys"): _keys(death.routing_keys),
    }


def _keys(keys: tuple[str, ...]) -> Value:
    """Return routing keys as an array of strings, or as a list if octets of a key are not UTF-8."""
    if not all(map(is_utf8, keys)):
        return list(map(_text, keys))
    is_short = all(len(key.encode()) <= _SHORT_BYTES_MAX for key in keys)
    return Array(_STRING if is_short else _LONG_STRING, list[Value](keys))
