"""The layout of a stored message: the offsets of its properties and headers.

A stored message is its content header frame and body frames as the publisher sent them (AMQP 0-9-1 2.3.5). The receiver
has checked the frames, and `check_properties` has checked the header.

Invariant: only requested fields are decoded. All other fields are skipped by their length, so a client's own headers
cost little and stay unchanged.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

FRAME_HEADER, FRAME_BODY = 2, 3
FRAME_END = 0xCE
FRAME_OVERHEAD = 8
"""Octets of a frame around its payload: type, channel, size, end octet."""
FRAME_MAX = 131_072
"""Largest frame of a message that the broker itself makes, in octets: RabbitMQ's default of frame_max."""
_BODY_SIZE_AT = 11
"""Offset of the body's size: behind the frame header, class and weight."""
FLAGS_AT = 19
"""Offset of the properties, which begin with their flags: behind the frame header, class, weight and body size."""
PROPERTIES_AT = FLAGS_AT + 2
"""Offset of the first property."""

CONTENT_TYPE = 0x8000
CONTENT_ENCODING = 0x4000
HEADERS = 0x2000
DELIVERY_MODE = 0x1000
PRIORITY = 0x0800
CORRELATION_ID = 0x0400
REPLY_TO = 0x0200
EXPIRATION = 0x0100
MESSAGE_ID = 0x0080
TIMESTAMP = 0x0040
MESSAGE_TYPE = 0x0020
USER_ID = 0x0010

_U16 = Struct(">H")
_U32 = Struct(">I")
_U64 = Struct(">Q")

_ORDER = (
    CONTENT_TYPE,
    CONTENT_ENCODING,
    HEADERS,
    DELIVERY_MODE,
    PRIORITY,
    CORRELATION_ID,
    REPLY_TO,
    EXPIRATION,
    MESSAGE_ID,
    TIMESTAMP,
    MESSAGE_TYPE,
    USER_ID,
)
"""Flags of properties in the order of their values; later properties are never looked up."""
_FIXED_SIZES = {DELIVERY_MODE: 1, PRIORITY: 1, TIMESTAMP: 8}

_VALUE_SIZES = {
    ord(kind): size
    for kinds, size in (("tbB", 1), ("su", 2), ("Iif", 4), ("lLdT", 8), ("D", 5), ("V", 0))
    for kind in kinds
}
"""Octets of a field value, by the octet of its type. Values of all other types begin with their length."""


Pair = tuple[bytes, int, int, int]
"""A header: its name, its offset, the offset of its value (at the octet of the type), and its end."""


def frame_stop(message: bytes, at: int) -> int:
    """Return the end of the frame that begins at `at`."""
    return at + FRAME_OVERHEAD + _U32.unpack_from(message, at + 3)[0]


def body_size(message: bytes) -> int:
    """Return the body size of a message in octets, as its header declares it."""
    return _U64.unpack_from(message, _BODY_SIZE_AT)[0]


def flags(message: bytes) -> int:
    """Return the flags of the properties that a message has."""
    return _U16.unpack_from(message, FLAGS_AT)[0]


def place(message: bytes, wanted: int) -> int:
    """Return the offset of the property with the flag `wanted`, or its offset if it were inserted."""
    present, at = flags(message), PROPERTIES_AT
    for flag in _ORDER:
        if flag == wanted:
            break
        if not present & flag:
            continue
        if flag == HEADERS:
            at += 4 + _U32.unpack_from(message, at)[0]
        elif flag in _FIXED_SIZES:
            at += _FIXED_SIZES[flag]
        else:
            at += 1 + message[at]
    return at


def short_string(message: bytes, at: int) -> bytes:
    """Return the short string at `at`."""
    return message[at + 1 : at + 1 + message[at]]


def table_stop(message: bytes, at: int) -> int:
    """Return the end of the table at `at`."""
    return at + 4 + _U32.unpack_from(message, at)[0]


def pairs(message: bytes, at: int) -> Iterator[Pair]:
    """Yield the headers in the table at `at`, in order."""
    stop = table_stop(message, at)
    at += 4
    while at < stop:
        value_at = at + 1 + message[at]
        end = value_stop(message, value_at)
        yield message[at + 1 : value_at], at, value_at, end
        at = end


def value_stop(message: bytes, at: int) -> int:
    """Return the end of the field value whose type is at `at`."""
    size = _VALUE_SIZES.get(message[at])
    return at + 1 + size if size is not None else at + 5 + _U32.unpack_from(message, at + 1)[0]
