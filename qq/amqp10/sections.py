"""The sections of a message (part 3.2 of the standard): where each begins, without decoding their values.

A message is header, delivery annotations, message annotations, the bare message (properties, application properties,
body), and footer. A consumer gets the bare message and the footer octet for octet, so they are passed on as octets.

Invariant: finding the sections reads the constructors between them only. Values inside of them may be invalid.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.amqp10.composites import (
    Boolean,
    FourOctets,
    MessageId,
    Name,
    Octets,
    OneOctet,
    Text,
    Time,
    composite,
    from_described,
)
from qq.amqp10.conditions import UndecodableValue
from qq.amqp10.values import (
    DESCRIBED,
    EMPTY_LIST,
    LIST8,
    LIST32,
    MAP8,
    MAP32,
    SMALL_ULONG,
    Described,
    Item,
    Symbol,
    ULong,
    Value,
    ValueReader,
    decode,
    encode,
    encode_map,
    items,
    skip,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

SECTIONS_MAX = 10_000
"""Sections of a message. Each is found by a step."""
HEAD_BYTES_MAX = 128 * 1024
"""Octets of the sections before the body. Each delivery reads or writes some of them."""
BEGIN_BYTES_MAX = 64
"""Octets that tell the code of a section, at most."""

HEADER = 0x70
DELIVERY_ANNOTATIONS = 0x71
MESSAGE_ANNOTATIONS = 0x72
PROPERTIES = 0x73
APPLICATION_PROPERTIES = 0x74
DATA = 0x75
SEQUENCE = 0x76
VALUE = 0x77
FOOTER = 0x78

_BY_NAME = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}
_BODY = frozenset((DATA, SEQUENCE, VALUE))
_REPEATED = frozenset((DATA, SEQUENCE))
_BINARY8, _BINARY32 = 0xA0, 0xB0
_SHORT = frozenset((LIST8, MAP8, _BINARY8))
_MAPS = frozenset((MAP8, MAP32))
_LISTS = frozenset((EMPTY_LIST, LIST8, LIST32))
_CONSTRUCTORS = {
    HEADER: _LISTS | _MAPS,
    DELIVERY_ANNOTATIONS: _MAPS,
    MESSAGE_ANNOTATIONS: _MAPS,
    PROPERTIES: _LISTS | _MAPS,
    APPLICATION_PROPERTIES: _MAPS,
    DATA: frozenset((_BINARY8, _BINARY32)),
    SEQUENCE: _LISTS,
    VALUE: frozenset(range(256)),
    FOOTER: _MAPS,
}
"""Constructors of each section's value."""
_USUAL = {
    bytes((DESCRIBED, SMALL_ULONG, code, constructor)): (
        code,
        0 if constructor == EMPTY_LIST else 1 if constructor in _SHORT else 4,
    )
    for code, constructors in _CONSTRUCTORS.items()
    for constructor in constructors
    if code != VALUE
}
"""The usual beginnings of sections, each with the section's code and the octets of the size that follows."""
SHORT_DATA = bytes((DESCRIBED, SMALL_ULONG, DATA, _BINARY8))
LONG_DATA = bytes((DESCRIBED, SMALL_ULONG, DATA, _BINARY32))
"""The usual beginnings of data sections, before a length of 1 and of 4 octets."""
_USUAL_CODES = {bytes((DESCRIBED, SMALL_ULONG, code)): code for code in _CONSTRUCTORS}
_USUAL_DESCRIPTOR = bytes((DESCRIBED, SMALL_ULONG))
_U32 = Struct(">I")


@composite(HEADER, "amqp:header:list")
class MessageHeader(NamedTuple):
    """How the message is to be delivered. Queues treat an absent field differently from its default."""

    durable: Boolean | None = None
    priority: OneOctet | None = None
    ttl: FourOctets | None = None
    """Milliseconds."""
    first_acquirer: Boolean | None = None
    delivery_count: FourOctets = 0
    """Failed deliveries."""


@composite(PROPERTIES, "amqp:properties:list")
class MessageProperties(NamedTuple):
    """What the publisher says of the message."""

    message_id: MessageId | None = None
    user_id: Octets | None = None
    to: Text | None = None
    subject: Text | None = None
    reply_to: Text | None = None
    correlation_id: MessageId | None = None
    content_type: Name | None = None
    content_encoding: Name | None = None
    absolute_expiry_time: Time | None = None
    creation_time: Time | None = None
    group_id: Text | None = None
    group_sequence: FourOctets | None = None
    reply_to_group_id: Text | None = None


class Sections(NamedTuple):
    """Positions in a message at which its sections begin. An absent section begins where the next section does.

    The header begins at 0.
    """

    delivery_annotations: int
    message_annotations: int
    properties: int
    """The beginning of the bare message."""
    application_properties: int
    body: int
    body_kind: int
    """DATA, SEQUENCE or VALUE."""
    footer: int
    """0 if the message has no footer."""


def find_sections(message: bytes) -> Sections:
    """Find the sections. Raises `UndecodableValue` if they are not those of a message."""
    begins: dict[int, int] = {}
    at, end = 0, len(message)
    last = body_kind = count = 0
    while at < end:
        begin = at
        code, at = _skip_section(message, at, end)
        if code > last:
            if code in _BODY:
                if body_kind:
                    raise UndecodableValue("a message with two bodies")
                body_kind, begins[DATA] = code, begin
            else:
                begins[code] = begin
            last = code
        elif code < last or code not in _REPEATED:
            raise UndecodableValue(f"section 0x{code:02x} behind section 0x{last:02x}")
        count += 1
        if count > SECTIONS_MAX:
            raise UndecodableValue(f"more than SECTIONS_MAX={SECTIONS_MAX} sections")
    if not body_kind:
        raise UndecodableValue("a message without a body")
    body = begins[DATA]
    if body > HEAD_BYTES_MAX:
        raise UndecodableValue(
            f"more than HEAD_BYTES_MAX={HEAD_BYTES_MAX} octets of sections before the body"
        )
    application_properties = begins.get(APPLICATION_PROPERTIES, body)
    properties = begins.get(PROPERTIES, application_properties)
    message_annotations = begins.get(MESSAGE_ANNOTATIONS, properties)
    return Sections(
        begins.get(DELIVERY_ANNOTATIONS, message_annotations),
        message_annotations,
        properties,
        application_properties,
        body,
        body_kind,
        begins.get(FOOTER, 0),
    )


def first_from(message: bytes, code: int, at: int = 0) -> int:
    """Return the position of the first section from `at` on with this code or a larger one, or the message's end.

    `code` is that of a section before the body, or DATA for any body; the octets behind the position may be cut off.
    Raises `UndecodableValue` if the octets before it are no sections.
    """
    end = len(message)
    while at < end and code_at(message, at) < code:
        _, at = _skip_section(message, at, end)
    return at


def code_at(message: bytes, at: int) -> int:
    """Return the code of the section at `at`."""
    usual = _USUAL_CODES.get(message[at : at + 3])
    return usual if usual is not None else _section_code(message, at, len(message))[0]


def _skip_section(message: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the code of the section at `at`, and the position behind it."""
    usual = _USUAL.get(message[at : at + 4])
    if usual is None or at + 8 > end:
        code, at = _section_code(message, at, end)
        if at < end and message[at] not in _CONSTRUCTORS[code]:
            raise UndecodableValue(f"section 0x{code:02x} with constructor 0x{message[at]:02x}")
        return code, skip(message, at, end)
    code, size_octets = usual
    if size_octets == 1:
        at += 5 + message[at + 4]
    elif size_octets:
        at += 8 + _U32.unpack_from(message, at + 4)[0]
    else:
        at += 4
    if at > end:
        raise UndecodableValue(f"section 0x{code:02x} that is longer than its message")
    return code, at


def _section_code(message: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the code of the section at `at`, and the position of its value."""
    if message[at] != DESCRIBED:
        raise UndecodableValue(f"constructor 0x{message[at]:02x} instead of a section")
    reader = ValueReader(message, at + 1, end)
    descriptor = reader.read()
    if type(descriptor) is Symbol:
        code = _BY_NAME.get(descriptor, 0)
    else:
        code = int(descriptor) if type(descriptor) is ULong else 0
    if code not in _CONSTRUCTORS:
        raise UndecodableValue("an unknown section of a message")
    return code, reader.at


def decode_section(octets: bytes) -> Any:
    """Decode a section: header and properties as named tuples, all other sections as their values."""
    described = decode(octets)
    if not isinstance(described, Described):
        raise UndecodableValue("no section")
    known = from_described(described)
    return described.value if known is described else known


def joined_data(octets: bytes, at: int = 0) -> bytes:
    """Return the contents of the successive data sections at `at`, which end before a footer or with the octets."""
    if octets.startswith(SHORT_DATA, at):  # a loop over ten thousand short sections takes six times as long
        _, *pieces = octets[at:].split(SHORT_DATA)
        if all(map(_is_short_data, pieces)):
            return b"".join([piece[1:] for piece in pieces])
    parts: list[bytes] = []
    end = len(octets)
    while at < end:
        code, stop = _skip_section(octets, at, end)
        if code != DATA:
            break
        if octets.startswith(SHORT_DATA, at):
            at += 5
        elif octets.startswith(LONG_DATA, at):
            at += 8
        else:
            _, at = _section_code(octets, at, end)
            at += 2 if octets[at] == _BINARY8 else 5
        parts.append(octets[at:stop])
        at = stop
    return b"".join(parts)


def _is_short_data(piece: bytes) -> bool:
    """Return whether these octets are a length of one octet and as many octets."""
    return bool(piece) and len(piece) == 1 + piece[0]


def split_annotations(octets: bytes) -> list[tuple[Value, bytes]]:
    """Return the keys of a section of annotations with their values, which stay encoded."""
    _, at = _section_code(octets, 0, len(octets))
    width = 1 if octets[at] == MAP8 else 4
    items: list[tuple[Value, bytes]] = []
    reader = ValueReader(octets, at + 1 + 2 * width, len(octets))
    while reader.at < reader.end:
        key = reader.read()
        value_at = reader.at
        reader.at = skip(octets, value_at, reader.end)
        items.append((key, octets[value_at : reader.at]))
    return items


def section_items(message: bytes, begin: int, end: int) -> list[Item]:
    """Return the places of the values in a valid section: of a map, keys and values in turn.

    The result is empty for an absent section, an unusual encoding of its descriptor, or properties that are a map.
    """
    if begin == end or message[begin : begin + 2] != _USUAL_DESCRIPTOR:
        return []
    if message[begin + 2] == PROPERTIES and message[begin + 3] in _MAPS:
        return []
    return items(message, begin + 3, end)


def encode_section(code: int, value: Value) -> bytes:
    """Return the section with this value."""
    return bytes((DESCRIBED, SMALL_ULONG, code)) + encode(value)


def encode_annotations(code: int, items: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the section of annotations with these encoded keys and values."""
    return bytes((DESCRIBED, SMALL_ULONG, code)) + encode_map(items)
