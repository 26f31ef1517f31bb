"""The sections in front of a stored message's bare message: header and message annotations. The broker may change them.

Invariant: equal octets give equal results, and most messages of a publisher have equal octets here, so they are read
once. Sections that were checked when they were published (publishing10.py) can be read.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from qq.amqp10.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    MessageHeader,
    decode_section,
    first_from,
    split_annotations,
)
from qq.amqp10.values import DESCRIBED, SMALL_ULONG
from qq.octet_columns import begin_alike
from qq.stored.known import remembers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from qq.amqp10.values import Value

ALIKE_MIN = 16
"""Messages that are first taken for alike. Fewer take no longer each by itself."""
NO_HEADER = MessageHeader()
_BARE = frozenset(
    bytes((DESCRIBED, SMALL_ULONG, code))
    for code in (PROPERTIES, APPLICATION_PROPERTIES, DATA, SEQUENCE, VALUE)
)
"""The usual beginnings of a bare message. In its other encodings, the first octets of a descriptor are no proof."""


class Leading(NamedTuple):
    """Header and message annotations."""

    header: MessageHeader = NO_HEADER
    annotations: tuple[tuple[Value, bytes], ...] = ()
    """Keys, and values as they are encoded."""


NOTHING = Leading()


@remembers
def read_leading(octets: bytes) -> Leading:
    """Read these sections. Raises a `ConditionError`."""
    annotations = octets[first_from(octets, MESSAGE_ANNOTATIONS) :]
    return Leading(read_header(octets), tuple(split_annotations(annotations)) if annotations else ())


def read_header(octets: bytes) -> MessageHeader:
    """Return the header at the beginning of the octets, if they have one. Raises a `ConditionError`."""
    end = first_from(octets, DELIVERY_ANNOTATIONS)
    return decode_section(octets[:end]) if end else NO_HEADER


def split_leading(messages: Sequence[bytes]) -> Iterator[tuple[Leading, list[bytes]]]:
    """Yield header and annotations of consecutive messages, and the rest of each message: bare message and footer."""
    if len(messages) >= ALIKE_MIN and (alike := _split_alike(messages)) is not None:
        yield alike
        return
    leading, rests = NOTHING, list[bytes]()
    begin: bytes | None = None
    """The beginning of messages like the last, up to the descriptor of the bare message."""
    size = 0
    for message in messages:
        if begin is not None and message.startswith(begin):
            rests.append(message[size:])
            continue
        if rests:
            yield leading, rests
        size = first_from(message, PROPERTIES)
        leading, rests = read_leading(message[:size]), [message[size:]]
        bare = message[size : size + 3]
        begin = message[: size + 3] if bare in _BARE else None
    if rests:
        yield leading, rests


def _split_alike(messages: Sequence[bytes]) -> tuple[Leading, list[bytes]] | None:
    """Return header, annotations and rests of messages of equal size that all begin like the first, or `None`."""
    first = messages[0]
    size = first_from(first, PROPERTIES)
    if first[size : size + 3] not in _BARE or not begin_alike(messages, first[: size + 3]):
        return None
    return read_leading(first[:size]), list(map(itemgetter(slice(size, None)), messages))
