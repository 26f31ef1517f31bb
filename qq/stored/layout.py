"""The layout of a stored message: where its properties and its headers are.

A stored message is its content header frame and body frames as the publisher sent them (AMQP 0-9-1 2.3.5); whoever has
taken them in has checked them, and `check_properties` what is in the header.

Invariant: nothing is decoded that is not asked for. A field is passed over by its length, so that a client's own
headers cost little and are never changed by passing through.
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
_BODY_SIZE_AT = 11
"""Where a message says how long its body is: behind the frame header, class and weight."""
FLAGS_AT = 19
"""Where a message's properties begin, with their flags: behind the frame header, class, weight and body size."""
PROPERTIES_AT = FLAGS_AT + 2
"""Where a message's first property begins."""

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
"""The flags of properties in the order of their values; those that come behind are never looked for."""
_FIXED_SIZES = {DELIVERY_MODE: 1, PRIORITY: 1, TIMESTAMP: 8}

_VALUE_SIZES = {
    ord(kind): size
    for kinds, size in (("tbB", 1), ("su", 2), ("Iif", 4), ("lLdT", 8), ("D", 5), ("V", 0))
    for kind in kinds
}
"""Octets of a field value, by the octet that names its type. Values of all other types begin with their length."""


Pair = tuple[bytes, int, int, int]
"""A header: its name, and where it begins, where its value begins (with the octet of its type), and where it ends."""


def frame_stop(message: bytes, at: int) -> int:
    """Find where the frame that begins at `at` ends."""
    return at + FRAME_OVERHEAD + _U32.unpack_from(message, at + 3)[0]


def body_size(message: bytes) -> int:
    """How many octets the body of a message has, as its header says."""
    return _U64.unpack_from(message, _BODY_SIZE_AT)[0]


def flags(message: bytes) -> int:
    """The flags of the properties that a message has."""
    return _U16.unpack_from(message, FLAGS_AT)[0]


def place(message: bytes, wanted: int) -> int:
    """Find the place of the property with the flag `wanted`, or the place where it would have to be."""
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
    """The short string at `at`."""
    return message[at + 1 : at + 1 + message[at]]


def table_stop(message: bytes, at: int) -> int:
    """Find where the table at `at` ends."""
    return at + 4 + _U32.unpack_from(message, at)[0]


def pairs(message: bytes, at: int) -> Iterator[Pair]:
    """The headers in the table at `at`, in order."""
    stop = table_stop(message, at)
    at += 4
    while at < stop:
        value_at = at + 1 + message[at]
        end = value_stop(message, value_at)
        yield message[at + 1 : value_at], at, value_at, end
        at = end


def value_stop(message: bytes, at: int) -> int:
    """Find the end of the field value whose type is at `at`."""
    size = _VALUE_SIZES.get(message[at])
    return at + 1 + size if size is not None else at + 5 + _U32.unpack_from(message, at + 1)[0]
