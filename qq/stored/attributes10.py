"""The header and the message annotations that matter to queues, of a message of AMQP 1.0.

Invariant: an annotation means what the header of that name means in AMQP 0-9-1 (properties.py). An unusable value of
`x-delay` is ignored there and here; all other unusable values are refused.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import TYPE_CHECKING, cast

from qq.amqp10.conditions import InvalidFieldValue
from qq.amqp10.sections import MESSAGE_ANNOTATIONS, first_from, split_annotations
from qq.amqp10.values import Array, Described, Symbol, Timestamp, Value, decode
from qq.octets import is_utf8, octets_of
from qq.stored.known import remembers
from qq.stored.leading import read_header
from qq.stored.properties import (
    DURATION_MAX_MS,
    KEYS_MAX,
    NO_PRIORITY,
    NO_TTL,
    PLAIN,
    PUBLISHER_BYTES_MAX,
    Attributes,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

CC, DELAY, PUBLISHER_ID, PUBLISH_SEQ = "x-cc", "x-delay", "x-publisher-id", "x-publish-seq"
_PARTS_OF_OURS = (b"x-cc", b"x-delay", b"x-publish")
"""Octets in sections with such annotations: a search for them is fast."""
SHOWN_MAX = 500
"""Characters of an invalid value in an error."""
_OURS = frozenset((CC, DELAY, PUBLISHER_ID, PUBLISH_SEQ))
SEQUENCE_MAX = 2**63 - 1
_DELAY_BYTES_MAX = 64
"""Octets of the longest usable value of `x-delay` as it is encoded: a string of 33 digits."""
_DECIMAL = re.compile(r"[+-]?[0-9]{1,32}", re.ASCII)
_NO_INTEGERS = (bool, Timestamp)


@remembers
def attributes_of(leading: bytes) -> Attributes | None:
    """Return the attributes in the sections before the bare message, or `None` if all have their default values.

    Raises a `ConditionError` for invalid values.
    """
    header = read_header(leading)
    values: dict[str, Value] = {}
    annotations = leading[first_from(leading, MESSAGE_ANNOTATIONS) :]
    if any(name in annotations for name in _PARTS_OF_OURS):
        items = split_annotations(annotations)
        values = {
            str(key): decode(octets) for key, octets in items if isinstance(key, Symbol) and key in _OURS
        }
    publisher, sequence = _publisher(values) if values else ("", 0)
    found = Attributes(
        _keys(values[CC]) if CC in values else (),
        NO_PRIORITY if header.priority is None else header.priority,
        NO_TTL if header.ttl is None else header.ttl,
        delay_ms(values[DELAY]) if DELAY in values else 0,
        publisher,
        sequence,
    )
    return None if found == PLAIN else found


def delay_ms(value: Value) -> int:
    """Return the delay in milliseconds that an annotation wants; 0 if its value is unusable."""
    is_integer = isinstance(value, int) and not isinstance(value, _NO_INTEGERS)
    is_text = isinstance(value, str) and _DECIMAL.fullmatch(value) is not None
    is_number = isinstance(value, float) and isfinite(value)
    if not (is_integer or is_text or is_number):
        return 0
    delay = int(cast("int | float | str", value))
    return delay if 0 < delay <= DURATION_MAX_MS else 0


def encoded_delay_ms(octets: bytes) -> int:
    """Return the delay in milliseconds that an encoded annotation wants; 0 if its value is unusable.

    The value may come from a header of AMQP 0-9-1, and have more parts than `decode` reads.
    """
    return delay_ms(decode(octets)) if len(octets) <= _DELAY_BYTES_MAX else 0


def _keys(value: Value) -> tuple[str, ...]:
    if not isinstance(value, list) or any(type(key) is not str for key in value):
        raise InvalidFieldValue(f"bad value for 'x-cc' message-annotation: {_erlang_text(value)[:SHOWN_MAX]}")
    if len(value) > KEYS_MAX:
        raise InvalidFieldValue(
            f"{len(value)} routing keys in the annotation 'x-cc', above the limit KEYS_MAX={KEYS_MAX}"
        )
    return tuple(map(str, value))


def _publisher(values: Mapping[str, Value]) -> tuple[str, int]:
    """Return the name and the sequence number of a publisher, or the default values without both."""
    if PUBLISHER_ID not in values and PUBLISH_SEQ not in values:
        return "", 0
    for name, other in ((PUBLISHER_ID, PUBLISH_SEQ), (PUBLISH_SEQ, PUBLISHER_ID)):
        if name not in values:
            raise InvalidFieldValue(f"annotation '{other}' without annotation '{name}'")
    publisher, sequence = values[PUBLISHER_ID], values[PUBLISH_SEQ]
    if (
        not isinstance(publisher, str)
        or not is_utf8(publisher)
        or not 1 <= len(publisher.encode()) <= PUBLISHER_BYTES_MAX
    ):
        raise InvalidFieldValue(
            f"invalid annotation '{PUBLISHER_ID}': not a string of 1 to {PUBLISHER_BYTES_MAX} octets of UTF-8"
        )
    if not isinstance(sequence, int) or isinstance(sequence, _NO_INTEGERS):
        sequence = 0
    if not 1 <= sequence <= SEQUENCE_MAX:
        raise InvalidFieldValue(f"invalid annotation '{PUBLISH_SEQ}': not an integer from 1 to 2^63-1")
    return str(publisher), int(sequence)


def _erlang_text(value: Value) -> str:
    """Return a value as RabbitMQ prints it: a tuple of its type and its Erlang term."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str() | bytes():
            kind = "symbol" if isinstance(value, Symbol) else "utf8" if isinstance(value, str) else "binary"
            return f"{{{kind},{_erlang_binary(value)}}}"
        case list():
            return f"{{list,[{','.join(map(_erlang_text, value))}]}}"
        case dict() | Array() | Described():
            return "{map,...}" if isinstance(value, dict) else f"{{{type(value).__name__.lower()},...}}"
        case _:
            kind = "double" if type(value) is float else type(value).__name__.lower()
            return f"{{{kind},{value}}}"


def _erlang_binary(value: str | bytes) -> str:
    octets = octets_of(value) if isinstance(value, str) else value
    if isinstance(value, str) and value.isprintable():
        return f'<<"{value}"{"" if value.isascii() else "/utf8"}>>'
    return f"<<{','.join(map(str, octets))}>>"
