"""Messages of AMQP 1.0 for readers of AMQP 0-9-1: sections become a content header frame and body frames.

The rules are RabbitMQ's (mc_amqpl.erl, convert_from). Parts without a counterpart are lost: subject, to, expiry time,
group sequence, characters, decimals, described values.

Invariant: each message that was accepted (publishing10.py) can be converted, and the result is valid. Headers beyond
`HEADERS_BYTES_MAX` octets are left out.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

from qq.amqp10.addresses import source_queue
from qq.amqp10.conditions import InvalidFieldValue
from qq.amqp10.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    LONG_DATA,
    PROPERTIES,
    SHORT_DATA,
    MessageHeader,
    MessageProperties,
    code_at,
    decode_section,
    first_from,
    joined_data,
    section_items,
)
from qq.amqp10.values import (
    STRINGS,
    ULONG,
    UUID,
    VARIABLE,
    WITHOUT_OCTETS,
    Array,
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
    ULong,
    UShort,
    Uuid,
    Value,
    decode,
)
from qq.octets import octets_of
from qq.stored import layout
from qq.stored.attributes10 import delay_ms
from qq.stored.editing import WORTHWHILE_BYTES, body_frames, short_string, sized
from qq.stored.fields import join_properties, property_of
from qq.stored.known import remembers
from qq.stored.layout import FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_OVERHEAD
from qq.stored.leading import read_leading
from qq.stored.publishing10 import decode_properties
from qq.stored.similar import RecentReplacements, Replaced, Replacement, replacement
from qq.tables import NAME_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

HEADERS_BYTES_MAX = 120 * 1024
"""Octets of the headers of a message. With all other properties they fit into a frame of the usual size."""
ENCODED_TYPE = "amqp-1.0"
"""The property `type` of a message with encoded sections instead of data as its body."""
BASIC_TYPE = "x-basic-type"
"""The annotation for the property `type`."""
RECEIVED_TIME = "x-opt-rabbitmq-received-time"
DEATHS = "x-opt-deaths"
_LOST = frozenset(("x-exchange", "x-routing-key", "x-death"))
_DEATH = frozenset(("count", "reason", "queue", "first-time", "exchange", "routing-keys"))
"""Keys of a death in an annotation."""
_SHORT_BYTES_MAX = 255
_DURABLE = 2
_SECOND_MS = 1000
_MASK = 2**64 - 1

_USUAL_DATA = SHORT_DATA[:3]
_DATA_HEADS = (len(SHORT_DATA) + 1, len(LONG_DATA) + 4)
"""Octets of a usual data section before its contents. Several sections have more."""
_URN_OCTETS = 45
_FROM_ANNOTATIONS = frozenset((b"CC", b"timestamp_in_ms"))
"""Headers that stand for annotations, besides those with the prefix `x-`."""
_VARIED = layout.MESSAGE_ID | layout.CORRELATION_ID | layout.TIMESTAMP | layout.HEADERS
PLACES = {
    MessageProperties._fields.index("message_id"): layout.MESSAGE_ID,
    MessageProperties._fields.index("correlation_id"): layout.CORRELATION_ID,
    MessageProperties._fields.index("creation_time"): layout.TIMESTAMP,
}
"""Places of properties in their section, and the flags of their counterparts."""
_SAME_OCTETS = frozenset((0x50, 0x51, 0x60, 0x61, 0x70, 0x71, 0x80, 0x81, 0x82))
"""Constructors of numbers whose octets stay as they are. A binary32 may be a NaN that the conversion makes quiet."""
_CONTENT_CLASS = 60
_END = bytes([FRAME_END])
_HEADER = Struct(">BHIHHQ")
_HEADER_OCTETS = 12
"""Octets of a content header's payload before its properties."""
_BODY = Struct(">BHI")
_LENGTH = Struct(">I")
_U64 = Struct(">Q")


def to_frames(messages: Sequence[bytes], channel: int, frame_max: int) -> list[bytes]:
    """Return messages that consist of sections as frames of a channel, of at most `frame_max` octets.

    If the body of a message is cut off before it begins, the result has no body.
    """
    converted: list[bytes] = []
    begin: bytes | None = None
    """The last message up to the constructor of its data section; None if its body is different."""
    stop, properties, has_data = 0, b"", True
    same, before, length = b"", b"", -1
    """The last message up to its body, its result up to the body, its size. Size -1: all octets must be read."""
    for message in messages:
        if len(message) == length and message.startswith(same):
            converted.append(b"".join((before, message[len(same) :], _END)))
            continue
        length = -1
        is_similar = begin is not None and message.startswith(begin)
        if not is_similar:
            known = _similar.convert(message)
            if known is not None:
                properties, stop = known
                has_data, begin = True, message[: stop + len(_USUAL_DATA)]
            else:
                stop = first_from(message, DATA)
                has_data = stop == len(message) or code_at(message, stop) == DATA
                properties = (_properties_of_data if has_data else _properties_of_encoded)(message[:stop])
                begin = None
                if message.startswith(_USUAL_DATA, stop):
                    begin = message[: stop + len(_USUAL_DATA)]
                    _similar.add(_replacement(message, stop, properties), stop)
        body = _joined(message, stop) if has_data else message[stop:]
        size = len(body)
        header = _HEADER.pack(
            FRAME_HEADER, channel, _HEADER_OCTETS + len(properties), _CONTENT_CLASS, 0, size
        )
        if 0 < size <= frame_max - FRAME_OVERHEAD:
            frames = _BODY.pack(FRAME_BODY, channel, size), body, _END
            if is_similar and len(message) - size - stop in _DATA_HEADS:
                same, length = message[:-size], len(message)
                before = b"".join((header, properties, _END, frames[0]))
        else:
            frames = (body_frames(body, channel, frame_max),)
        converted.append(b"".join((header, properties, _END, *frames)))
    return converted


def _replacement(message: bytes, stop: int, properties: bytes) -> Replacement | None:
    """Return the replacement of ids, time and headers in messages like this; `None` without such values."""
    header = _HEADER.pack(FRAME_HEADER, 0, 0, _CONTENT_CLASS, 0, 0) + properties
    present = layout.flags(header)
    if not present & _VARIED:
        return None
    begin = first_from(message, PROPERTIES)
    end = first_from(message, APPLICATION_PROPERTIES, begin)
    values: list[Replaced] = []
    found = section_items(message, begin, end)
    for place, flag in PLACES.items():
        if place < len(found) and present & flag:
            at = layout.place(header, flag)
            values += _replaced(found[place], at - layout.FLAGS_AT, header[at], flag)
    if present & layout.HEADERS:
        places = {name: at for name, _, at, _ in layout.pairs(header, layout.place(header, layout.HEADERS))}
        named = section_items(message, end, stop)
        for key, item in zip(named[::2], named[1::2], strict=True):
            name = message[key.at : key.end]
            is_header = key.code in STRINGS and name in places
            if is_header and not name.startswith(b"x-") and name not in _FROM_ANNOTATIONS:
                values += _replaced_field(item, places[name] - layout.FLAGS_AT)
    return replacement(message, stop + len(_USUAL_DATA), properties, values)


def _replaced(item: Item, at: int, octet: int, flag: int) -> Iterator[Replaced]:
    """Yield the place of a property at `at` of the result, where `octet` is, if its value can be replaced."""
    size = item.end - item.at
    if flag == layout.TIMESTAMP:
        yield Replaced(item.at, item.end, at, at + size, _seconds_octets)
    elif item.code in STRINGS and size <= _SHORT_BYTES_MAX:
        yield Replaced(item.at, item.end, at + 1, at + 1 + size)
    elif item.code == UUID:
        yield Replaced(item.at, item.end, at + 1, at + 1 + _URN_OCTETS, _urn_octets)
    elif item.code == ULONG:
        yield Replaced(item.at, item.end, at, at + 1 + octet, _digits)


def _replaced_field(item: Item, at: int) -> Iterator[Replaced]:
    """Yield the place of a header whose type is at `at` of the result, if its value can be replaced."""
    size = item.end - item.at
    if item.code in VARIABLE:
        yield Replaced(item.at, item.end, at + 5, at + 5 + size)
    elif item.code in _SAME_OCTETS:
        yield Replaced(item.at, item.end, at + 1, at + 1 + size)


def _seconds_octets(milliseconds: bytes) -> bytes:
    seconds = _seconds(int.from_bytes(milliseconds, signed=True))
    return _U64.pack(seconds)


def _digits(number: bytes) -> bytes:
    return short_string(str(int.from_bytes(number)))


def _urn_octets(uuid: bytes) -> bytes:
    return _urn(uuid).encode()


def _urn(uuid: bytes) -> str:
    text = uuid.hex()
    return f"urn:uuid:{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _joined(message: bytes, at: int) -> bytes | memoryview:
    """Return the contents of the data sections at `at`. Those of a single large section are not copied."""
    begin = message[at : at + 8]
    if begin.startswith(SHORT_DATA) and len(begin) > 4 and at + 5 + begin[4] == len(message):
        return message[at + 5 :]
    if (
        begin.startswith(LONG_DATA)
        and len(begin) == 8
        and at + 8 + _LENGTH.unpack_from(begin, 4)[0] == len(message)
    ):
        return memoryview(message)[at + 8 :] if len(message) - at > WORTHWHILE_BYTES else message[at + 8 :]
    return joined_data(message, at)


_similar: RecentReplacements[int] = RecentReplacements()
"""Replacements, each with the position of the body."""


@remembers
def _properties_of_data(head: bytes) -> bytes:
    return _properties(head, None)


@remembers
def _properties_of_encoded(head: bytes) -> bytes:
    return _properties(head, ENCODED_TYPE)


def _properties(head: bytes, message_type: str | None) -> bytes:
    """Return the flags and values of the properties for the sections before a body."""
    at = first_from(head, PROPERTIES)
    stop = first_from(head, APPLICATION_PROPERTIES, at)
    header, encoded = read_leading(head[:at])
    headers = headers_of((str(key), value) for key, value in encoded if isinstance(key, Symbol))
    message_type = message_type or _type_of(encoded)
    properties = decode_properties(head[at:stop])
    named: dict[Value, Value] = decode_section(head[stop:]) if stop < len(head) else {}
    values: dict[str, str | int | None] = _header_properties(header) | {
        "content_type": properties.content_type,
        "content_encoding": properties.content_encoding,
        "correlation_id": _id_text(properties.correlation_id, "x-correlation-id", headers),
        "reply_to": _reply_to(properties.reply_to),
        "message_id": _id_text(properties.message_id, "x-message-id", headers),
        "timestamp": None if properties.creation_time is None else _seconds(properties.creation_time),
        "message_type": message_type,
        "user_id": _user(properties.user_id),
        "app_id": properties.group_id,
    }
    for name, value in named.items():
        if type(name) is str:
            _add(headers, name, field_of(value))
    written = {
        name: property_of(name, value) if isinstance(value, int) else short_string(value)
        for name, value in values.items()
        if value is not None and (isinstance(value, int) or len(octets_of(value)) <= _SHORT_BYTES_MAX)
    }
    table = _table(headers)
    if table:
        written["headers"] = _LENGTH.pack(len(table)) + table
    return join_properties(written)


def _header_properties(header: MessageHeader) -> dict[str, str | int | None]:
    return {
        # In RabbitMQ 4.0 a message without the field is durable, and a transient message has no delivery mode.
        "delivery_mode": None if header.durable is False else _DURABLE,
        "priority": header.priority,
        "expiration": None if header.ttl is None else str(header.ttl),
    }


def headers_of(annotations: Iterable[tuple[str, bytes]]) -> dict[str, bytes]:
    """Return the headers for annotations by their names. Values are encoded, here and there."""
    headers: dict[str, bytes] = {}
    for name, encoded in annotations:
        value = decode(encoded)
        match name:
            case "x-cc":
                _add(headers, "CC", field_of(value))
            case "x-delay" if delay := delay_ms(value):
                _add(headers, name, field_of(Long(-delay)))
            case _ if name == RECEIVED_TIME and type(value) is Timestamp:
                _add(headers, "timestamp_in_ms", field_of(Long(value)))
            case _ if name == DEATHS:
                _add(headers, "x-death", _deaths(value))
            case _ if name.startswith("x-") and not name.startswith("x-basic-") and name not in _LOST:
                _add(headers, name, field_of(value))
            case _:
                pass
    return headers


def _add(headers: dict[str, bytes], name: str, field: bytes | None) -> None:
    """Add a header, unless its name is too long or there, or the value has no counterpart."""
    if field is not None and len(octets_of(name)) <= NAME_BYTES_MAX:
        headers.setdefault(name, field)


def _table(headers: dict[str, bytes]) -> bytes:
    """Return the table of headers, as many as it has room for."""
    pairs: list[bytes] = []
    left = HEADERS_BYTES_MAX
    for name, field in headers.items():
        pair = short_string(name) + field
        if len(pair) <= left:
            pairs.append(pair)
            left -= len(pair)
    return b"".join(pairs)


def _id_text(value: int | Uuid | bytes | str | None, name: str, headers: dict[str, bytes]) -> str | None:
    """Return an id as a text. A binary or too long id becomes the header `name` instead."""
    match value:
        case None:
            return None
        case int():
            return str(int(value))
        case Uuid():
            return _urn(value)
        case str() if len(value.encode()) <= _SHORT_BYTES_MAX:
            return value
        case str():
            _add(headers, name, field_of(value))
        case bytes():
            _add(headers, name, sized(b"x", value))
    return None


def _reply_to(address: str | None) -> str | None:
    """Return the queue of an address, or any other address as it is."""
    if address is None:
        return None
    try:
        return source_queue(address)
    except InvalidFieldValue:
        return address


def _user(octets: bytes | None) -> str | None:
    if octets is None or 0 in octets:
        return None
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return None


def _type_of(annotations: Iterable[tuple[Value, bytes]]) -> str | None:
    for key, encoded in annotations:
        if key == BASIC_TYPE:
            value = decode(encoded)
            return str(value) if isinstance(value, str) else None
    return None


def _seconds(milliseconds: int) -> int:
    """Return a time in seconds, rounded towards zero. AMQP 0-9-1 has no negative times, so these wrap."""
    seconds = milliseconds // _SECOND_MS if milliseconds >= 0 else -(-milliseconds // _SECOND_MS)
    return seconds & _MASK


# --- values of headers


def field_of(value: Value) -> bytes | None:
    """Encode a value for a table, or return `None` if it has no counterpart there."""
    encode = _FIELDS.get(type(value))
    return None if encode is None else encode(value)


def _fixed(layout: str, kind: str) -> Callable[[Any], bytes]:
    pack, octet = Struct(f">c{layout}").pack, kind.encode()
    return lambda value: pack(octet, value)


def _string(value: str) -> bytes:
    return sized(b"S", octets_of(value))


def _binary(value: bytes) -> bytes:
    return sized(b"S", value)


def _timestamp(value: Timestamp) -> bytes:
    return _fixed_timestamp(_seconds(value))


def _array(values: Iterable[Value]) -> bytes:
    return sized(b"A", b"".join(field for value in values if (field := field_of(value)) is not None))


def _elements(array: Array) -> bytes | None:
    """Return the field, or `None` if the elements have no octets: the field might be a thousand times larger."""
    is_lost = array.descriptor is not None or array.code in WITHOUT_OCTETS
    return None if is_lost else _array(array.elements)


def _map(pairs: dict[Value, Value]) -> bytes:
    fields: dict[str, bytes] = {}
    for name, value in pairs.items():
        if isinstance(name, str):
            _add(fields, str(name), field_of(value))
    return sized(b"F", b"".join(short_string(name) + field for name, field in fields.items()))


_fixed_timestamp = _fixed("Q", "T")
_FIELDS: dict[type, Callable[[Any], bytes | None]] = {
    type(None): lambda _: b"V",
    bool: _fixed("?", "t"),
    UByte: _fixed("B", "B"),
    Byte: _fixed("b", "b"),
    UShort: _fixed("H", "u"),
    Short: _fixed("h", "s"),
    UInt: _fixed("I", "i"),
    Int: _fixed("i", "I"),
    ULong: _fixed("Q", "l"),
    Long: _fixed("q", "l"),
    Float: _fixed("f", "f"),
    float: _fixed("d", "d"),
    Timestamp: _timestamp,
    str: _string,
    Symbol: _string,
    bytes: _binary,
    list: _array,
    Array: _elements,
    dict: _map,
}


def _deaths(value: Value) -> bytes | None:
    """Return the header `x-death` for the annotation `x-opt-deaths`, or `None` for a malformed annotation."""
    if not isinstance(value, Array):
        return None
    tables = [_death(death) for death in value.elements if isinstance(death, dict) and death.keys() >= _DEATH]
    return _array(tables) if len(tables) == len(value.elements) else None


def _death(death: dict[Value, Value]) -> dict[Value, Value]:
    ttl, keys = death.get("ttl"), death["routing-keys"]
    table: dict[Value, Value] = {} if ttl is None else {"original-expiration": str(ttl)}
    rest: dict[Value, Value] = {
        "count": death["count"],
        "reason": death["reason"],
        "queue": death["queue"],
        "time": death["first-time"],
        "exchange": death["exchange"],
        "routing-keys": keys.elements if isinstance(keys, Array) else keys,
    }
    return table | rest
