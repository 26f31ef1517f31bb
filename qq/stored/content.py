"""Headers and properties of a stored message for routing.

Invariant: every node reads the same values from the same bytes, and no message in the log makes it raise. Unreadable
headers and properties count as missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from struct import Struct
from struct import error as StructError  # noqa: N812  # an exception, whatever its name

from qq.amqp10.conditions import ConditionError
from qq.amqp10.sections import BEGIN_BYTES_MAX, DATA, HEAD_BYTES_MAX, first_from
from qq.octets import text_of
from qq.routing.content import Content
from qq.stored import layout
from qq.stored.editing import short_string
from qq.stored.fields import VALID_PROPERTIES_BYTES_MAX, FieldError, decode_table
from qq.stored.kinds import has_sections
from qq.stored.to_frames import headers_of, to_frames
from qq.tables import InvalidTable, Table, check_table

KNOWN_MAX = 1000
"""Largest number of distinct property lists that are remembered, because many messages have equal properties."""

_U64 = Struct(">Q")
_SHORT_STRINGS = {"correlation_id": layout.CORRELATION_ID, "message_id": layout.MESSAGE_ID}

Read = tuple[Mapping[str, object], Mapping[str, str]]
"""Headers and properties of a message."""

_NOTHING: Read = ({}, {})


def content_of(message: bytes | bytearray | memoryview, number: int) -> Content:
    """Return a message's content for routers; `number` is unique to the message, and the same on every node."""
    try:
        header = _header_of(message)
        read = _read_known if len(header) <= VALID_PROPERTIES_BYTES_MAX else _read
        headers, properties = read(header)
    except (ConditionError, FieldError, IndexError, StructError):
        headers, properties = _NOTHING
    return Content(headers, properties, number)


def annotation_headers(annotations: Iterable[tuple[str, bytes]]) -> Table:
    """Return the headers that stand for encoded annotations; {} if they are nested too deep for a header."""
    pairs = b"".join(short_string(name) + field for name, field in headers_of(annotations).items())
    try:
        return decode_table(len(pairs).to_bytes(4, "big") + pairs, 0, 4 + len(pairs))[0]
    except FieldError:
        return {}


def with_headers(headers: Mapping[str, object], added: Table) -> Table:
    """Return headers with others that replace them, unless the log cannot hold as many."""
    table = {**headers, **added}
    try:
        check_table(table)
    except InvalidTable:
        return dict(headers)
    return table


def _header_of(message: bytes | bytearray | memoryview) -> bytes:
    """Return the content header frame of a message, which for sections is made."""
    begin = bytes(message[:7])
    if not has_sections(begin):
        return bytes(message[: layout.frame_stop(begin, 0)])
    leading = bytes(message[: HEAD_BYTES_MAX + BEGIN_BYTES_MAX])
    return to_frames([leading[: first_from(leading, DATA)]], 1, layout.FRAME_MAX)[0]


def _read(header: bytes) -> Read:
    """Read a content header frame. Raises the errors of `decode_table`."""
    present = layout.flags(header)
    properties = {
        name: text_of(layout.short_string(header, layout.place(header, flag)))
        for name, flag in _SHORT_STRINGS.items()
        if present & flag
    }
    if present & layout.TIMESTAMP:
        properties["timestamp"] = str(_U64.unpack_from(header, layout.place(header, layout.TIMESTAMP))[0])
    headers: Mapping[str, object] = {}
    if present & layout.HEADERS:
        headers = decode_table(header, layout.place(header, layout.HEADERS), len(header))[0]
    return headers, properties


_read_known = lru_cache(KNOWN_MAX)(_read)
