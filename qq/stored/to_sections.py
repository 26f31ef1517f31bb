"""Messages of AMQP 0-9-1 for readers of AMQP 1.0: frames become sections.

The rules are RabbitMQ's (mc_amqpl.erl, convert_to). A header with the prefix `x-` becomes an annotation, and any other
header with a simple value an application property. Decimals and the cluster id are lost.

Invariant: each message that a client could publish can be converted, and the result is a valid message.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from qq.amqp10.addresses import queue_address
from qq.amqp10.composites import encode_composite
from qq.amqp10.conditions import ConditionError
from qq.amqp10.sections import (
    APPLICATION_PROPERTIES,
    LONG_DATA,
    MESSAGE_ANNOTATIONS,
    SHORT_DATA,
    MessageHeader,
    MessageProperties,
    encode_annotations,
    encode_section,
    find_sections,
    first_from,
    section_items,
)
from qq.amqp10.values import (
    STRINGS,
    TIMESTAMP,
    UUID,
    Byte,
    Float,
    Int,
    Item,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    UShort,
    Uuid,
    Value,
    encode,
)
from qq.octets import text_of
from qq.stored import layout
from qq.stored.editing import body_of
from qq.stored.fields import FIXED, split_properties
from qq.stored.known import remembers
from qq.stored.leading import Leading
from qq.stored.similar import RecentReplacements, Replaced, Replacement, replacement
from qq.stored.to_frames import BASIC_TYPE, ENCODED_TYPE, PLACES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_UUID = re.compile(rb"urn:uuid:[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_DIGITS = re.compile(rb"\+?[0-9]+")
_TTL_MAX = 2**32 - 1
_TIMESTAMP_MAX = 2**63 - 1
_SECOND_MS = 1000
_DURABLE = 2
_SHORT_BYTES_MAX = 255
_U32 = Struct(">I")
_U64 = Struct(">Q")
_TYPES: dict[int, Callable[..., Value]] = {
    ord("t"): bool,
    ord("b"): Byte,
    ord("B"): UByte,
    ord("s"): Short,
    ord("u"): UShort,
    ord("I"): Int,
    ord("i"): UInt,
    ord("l"): Long,
    ord("L"): Long,
    ord("f"): Float,
    ord("d"): float,
}
"""Types of values of a fixed size, by the octet of their type in a table."""
_COMPOUND = frozenset(b"AF")
_VARIED = layout.MESSAGE_ID | layout.CORRELATION_ID | layout.TIMESTAMP | layout.HEADERS


class _Head(NamedTuple):
    """The sections that stand for the properties of a message."""

    leading: Leading
    bare: bytes
    """Properties and application properties, encoded."""
    may_hold_sections: bool
    """Whether the body holds the sections of a body instead of data."""


_similar: RecentReplacements[_Head] = RecentReplacements()


def to_sections(message: bytes) -> bytes:
    """Return a message that consists of frames as sections."""
    [(leading, rests)] = split_frames([message])
    header = encode_composite(leading.header)
    annotations = [(encode(key), value) for key, value in leading.annotations]
    return header + (encode_annotations(MESSAGE_ANNOTATIONS, annotations) if annotations else b"") + rests[0]


def split_frames(messages: Sequence[bytes]) -> Iterator[tuple[Leading, list[bytes]]]:
    """Convert messages. Yield header and annotations of consecutive messages, and the rest of each message.

    The rest is bare message and footer, as in `leading.split_leading`.
    """
    leading, rests = Leading(), list[bytes]()
    begin: bytes | None = None
    head = _Head(leading, b"", may_hold_sections=False)
    same, before, length = b"", b"", -1
    """The last message up to its body, its rest up to the body, its size. Size -1: all octets must be read."""
    for message in messages:
        if len(message) == length and message.startswith(same):
            rests.append(before + message[len(same) : -1])
            continue
        length = -1
        is_similar = begin is not None and message.startswith(begin, layout.FLAGS_AT)
        if not is_similar:
            begin = message[layout.FLAGS_AT : layout.frame_stop(message, 0) - 1]
            head = _similar_head(begin)
            if rests and head.leading != leading:
                yield leading, rests
                rests = []
            leading = head.leading
        body = body_of(message)
        sections = _body_sections(body, head)
        rests.append(b"".join((head.bare, *sections)))
        if is_similar and body and not head.may_hold_sections:
            at = layout.frame_stop(message, 0)
            if layout.frame_stop(message, at) == len(message):
                same, length = message[: -len(body) - 1], len(message)
                before = b"".join((head.bare, *sections[:-1]))
    if rests:
        yield leading, rests


def _similar_head(octets: bytes) -> _Head:
    """Convert the flags and values of the properties of a message that may be similar to the last messages."""
    known = _similar.convert(octets)
    if known is not None:
        bare, head = known
        return _Head(head.leading, bare, head.may_hold_sections)
    head = _head_of(octets)
    if (octets[0] << 8 | octets[1]) & _VARIED:
        _similar.add(_replacement(octets, head.bare), head)
    return head


def _replacement(octets: bytes, bare: bytes) -> Replacement | None:
    """Return the replacement of ids, time and headers in properties like these; `None` without such values."""
    frame = bytes(layout.FLAGS_AT) + octets
    present = layout.flags(frame)
    end = first_from(bare, APPLICATION_PROPERTIES)
    found = section_items(bare, 0, end)
    values: list[Replaced] = []
    for place, flag in PLACES.items():
        if place < len(found) and present & flag:
            values += _replaced(frame, layout.place(frame, flag), found[place], flag)
    if present & layout.HEADERS:
        named = section_items(bare, end, len(bare))
        places = {bare[key.at : key.end]: item for key, item in zip(named[::2], named[1::2], strict=True)}
        for name, _, at, stop in layout.pairs(frame, layout.place(frame, layout.HEADERS)):
            # As in `_read_headers`: names that are not UTF-8 may be equal, and the first counts.
            shown = name.decode(errors="replace").encode()
            item = None if name.startswith(b"x-") else places.pop(shown, None)
            if item is not None:
                values += _replaced_field(frame, at, stop, item)
    return replacement(octets, len(octets), bare, values)


def _replaced(frame: bytes, at: int, item: Item, flag: int) -> Iterator[Replaced]:
    """Yield the property at `at` and its place in the sections, if its value can be replaced."""
    at -= layout.FLAGS_AT
    if flag == layout.TIMESTAMP:
        if item.code == TIMESTAMP:  # a time beyond the range is lost
            yield Replaced(at, at + 8, item.at, item.end, _milliseconds_octets)
        return
    stop = at + 1 + frame[at + layout.FLAGS_AT]
    if item.code in STRINGS:
        yield Replaced(at + 1, stop, item.at, item.end, _plain_id)
    elif item.code == UUID:
        yield Replaced(at + 1, stop, item.at, item.end, _uuid_octets)


def _replaced_field(frame: bytes, at: int, stop: int, item: Item) -> Iterator[Replaced]:
    """Yield the header at `at` (the octet of its type) and its place in the sections, if it can be replaced."""
    begin, end = at + 5 - layout.FLAGS_AT, stop - layout.FLAGS_AT
    if frame[at] == ord("S") and item.code in STRINGS:
        yield Replaced(begin, end, item.at, item.end, _plain_text)
    elif frame[at] == ord("x"):
        yield Replaced(begin, end, item.at, item.end)


def _milliseconds_octets(seconds: bytes) -> bytes | None:
    milliseconds = _milliseconds(int.from_bytes(seconds))
    return None if milliseconds is None else _U64.pack(milliseconds)


def _plain_id(octets: bytes) -> bytes | None:
    """Return the octets of an id that is surely a string."""
    return octets if octets.isascii() and not octets.startswith(b"urn:") else None


def _uuid_octets(octets: bytes) -> bytes | None:
    return _uuid_of(octets) if _UUID.fullmatch(octets) else None


def _plain_text(octets: bytes) -> bytes | None:
    """Return the octets of a long string that is surely a string."""
    return octets if octets.isascii() and 0 not in octets else None


def _uuid_of(octets: bytes) -> bytes:
    return bytes.fromhex(octets[9:].replace(b"-", b"").decode())


def _body_sections(body: bytes, head: _Head) -> tuple[bytes, ...]:
    """Return the sections of a body in parts, because joining copies it."""
    if head.may_hold_sections:
        try:
            if find_sections(body).body == 0:
                return (body,)
        except ConditionError:
            pass  # the client uses this type for a body of its own format
    size = len(body)
    if size <= _SHORT_BYTES_MAX:
        return SHORT_DATA, bytes((size,)), body
    return LONG_DATA, _U32.pack(size), body


@remembers
def _head_of(octets: bytes) -> _Head:
    """Convert the flags and values of the properties of a message."""
    values = split_properties(octets)
    texts = {name: value[1:] for name, value in values.items()}
    annotations: dict[str, bytes] = {}
    named: dict[Value, Value] = {}
    if "headers" in values:
        _read_headers(values["headers"], annotations, named)
    if "message_type" in texts:
        annotations.setdefault(BASIC_TYPE, encode(_text(texts["message_type"])))
    bare = b""
    properties = _properties(values, texts)
    if properties != MessageProperties():
        bare = encode_composite(properties)
    if named:
        bare += encode_section(APPLICATION_PROPERTIES, named)
    return _Head(
        Leading(_header(values, texts), tuple((Symbol(name), value) for name, value in annotations.items())),
        bare,
        texts.get("message_type") == ENCODED_TYPE.encode(),
    )


def _header(values: Mapping[str, bytes], texts: Mapping[str, bytes]) -> MessageHeader:
    expiration = texts.get("expiration")
    ttl = None
    if expiration is not None and _DIGITS.fullmatch(expiration):
        ttl = min(int(expiration), _TTL_MAX)
    priority = values.get("priority")
    return MessageHeader(
        values.get("delivery_mode") == bytes((_DURABLE,)), None if priority is None else priority[0], ttl
    )


def _properties(values: Mapping[str, bytes], texts: Mapping[str, bytes]) -> MessageProperties:
    reply_to = texts.get("reply_to")
    app_id = texts.get("app_id")
    seconds = _U64.unpack(values["timestamp"])[0] if "timestamp" in values else None
    return MessageProperties(
        message_id=_id(texts.get("message_id")),
        user_id=texts.get("user_id"),
        reply_to=None if reply_to is None else queue_address(text_of(reply_to)),
        correlation_id=_id(texts.get("correlation_id")),
        content_type=_symbol(texts.get("content_type")),
        content_encoding=_symbol(texts.get("content_encoding")),
        creation_time=None if seconds is None else _milliseconds(seconds),
        group_id=None if app_id is None else app_id.decode(errors="replace"),
    )


def _id(octets: bytes | None) -> Uuid | str | bytes | None:
    if octets is None:
        return None
    if _UUID.fullmatch(octets):
        return Uuid(_uuid_of(octets))
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return octets


def _symbol(octets: bytes | None) -> str | None:
    return None if octets is None else text_of(octets)


def _milliseconds(seconds: int) -> Timestamp | None:
    milliseconds = seconds * _SECOND_MS
    return Timestamp(milliseconds) if milliseconds <= _TIMESTAMP_MAX else None


def _text(octets: bytes) -> str | bytes:
    """Return a long string as a string, or as binary if it is no text."""
    if 0 in octets:
        return octets
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return octets


# --- headers


def _read_headers(table: bytes, annotations: dict[str, bytes], named: dict[Value, Value]) -> None:
    """Add the headers in a table to annotations, encoded, and to application properties. First of a name wins."""
    for name, _, at, stop in layout.pairs(table, 0):
        if name.startswith(b"x-") or (name == b"CC" and table[at] == ord("A")):
            for value in _values(table, at, stop):
                annotations.setdefault("x-cc" if name == b"CC" else text_of(name), encode(value))
        elif table[at] not in _COMPOUND:
            for value in _values(table, at, stop):
                named.setdefault(name.decode(errors="replace"), value)


def _values(table: bytes, at: int, stop: int) -> Iterator[Value]:
    """Yield the value at `at` (the octet of its type) if AMQP 1.0 has a counterpart."""
    kind = table[at]
    if kind in _TYPES:
        yield _TYPES[kind](FIXED[kind].unpack_from(table, at + 1)[0])
        return
    match chr(kind):
        case "S":
            yield _text(table[at + 5 : stop])
        case "x":
            yield table[at + 5 : stop]
        case "V":
            yield None
        case "T":
            milliseconds = _milliseconds(_U64.unpack_from(table, at + 1)[0])
            if milliseconds is not None:
                yield milliseconds
        case "A":
            yield list(_elements(table, at + 5, stop))
        case "F":
            pairs: dict[Value, Value] = {}
            for name, _, value_at, end in layout.pairs(table, at + 1):
                for value in _values(table, value_at, end):
                    pairs.setdefault(Symbol(text_of(name)), value)
            yield pairs
        case _:
            pass


def _elements(table: bytes, at: int, stop: int) -> Iterator[Value]:
    while at < stop:
        end = layout.value_stop(table, at)
        yield from _values(table, at, end)
        at = end
