"""Damages frames of AMQP 1.0: octets behind the header, values of any depth, encodings, the header.

Invariant: a change is a function of its random numbers.
"""

from __future__ import annotations

import struct
from math import inf, nan
from typing import TYPE_CHECKING

from chaos.fuzz.conversations import QUEUE, SOURCE
from chaos.fuzz.conversations10 import ADDRESS, MANAGED
from chaos.fuzz.mutations import Change, changed_octets
from qq.amqp10.conditions import ConditionError
from qq.amqp10.values import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal128,
    Described,
    Float,
    Int,
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
    ValueReader,
    encode,
)

if TYPE_CHECKING:
    from random import Random

_RUBBISH_BYTES_MAX = 300
_HEADER = struct.Struct(">IBBH")
_HEADER_OCTETS = 8
_LIST8 = 0xC0
_DEPTH = 40
_TEXTS = (
    "",
    ADDRESS,
    f"/queues/{MANAGED}",
    "/queues/",
    "/queues/none",
    "/queues/%",
    "/queues/%ff",
    f"/exchanges/{SOURCE}",
    "/exchanges/amq.topic/a.b",
    "/exchanges//k",
    "/exchanges/amq.default/" + QUEUE,
    "/management",
    "/queues/amq.rabbitmq.reply-to.none",
    QUEUE,
    "nobody",
    "x" * 256,
    "/queues/" + "x" * 400,
    "/queues/" + "x" * 400,
    "/queues/" + "x" * 70_000,
    "\0\r\n",
    "\U0001f600",
    "GET",
    "DELETE",
    "$me",
)
_SYMBOLS = (
    "",
    "temporary-queue",
    "rabbitmq:volatile-queue",
    "link-detach",
    "never",
    "amqp:accepted:list",
    "amqp:error:list",
    "paired",
    "x-cc",
    "x-delay",
    "x-publisher-id",
    "x-publish-seq",
    "x-opt-deaths",
    "x-basic-type",
    "x-exchange",
    "rabbitmq:consumer-timeout",
    "x-\udcff",
    "y" * 300,
)
_INTEGERS = (
    0,
    1,
    2,
    3,
    127,
    128,
    255,
    256,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**64 - 1,
)
_UNSIGNED: dict[type, int] = {UByte: 8, UShort: 16, UInt: 32, ULong: 64}
_SIGNED: dict[type, int] = {Byte: 8, Short: 16, Int: 32, Long: 64, Timestamp: 64}
_CODES = (
    *range(0x10, 0x19),
    0x1D,
    *range(0x23, 0x2F),
    *range(0x30, 0x35),
    *range(0x40, 0x45),
    *range(0x70, 0x79),
)
"""Descriptors of the standard."""


def _any_value(random: Random) -> Value:
    """Draw a value of any type."""
    kind: type = random.choice((*_UNSIGNED, *_SIGNED))
    nested: Value = []
    for _ in range(random.choice((1, 31, 32, _DEPTH))):
        nested = [nested]
    return random.choice(
        (
            None,
            True,
            False,
            _integer(random, kind),
            _integer(random, kind),
            random.choice(_TEXTS),
            random.choice(_TEXTS),
            Symbol(random.choice(_SYMBOLS)),
            random.choice((nan, inf, -0.0, 1e300)),
            Float(random.choice((nan, -inf, 0.5))),
            Char(random.choice((0, 0xD800, 0x110000, 2**32 - 1))),
            Decimal32(bytes(4)),
            Decimal128(b"\xff" * 16),
            Uuid(bytes(16)),
            b"",
            b"\xff" * random.choice((1, 33, 300)),
            nested,
            {Symbol(random.choice(_SYMBOLS)): 1.5, "k": {True: None, UInt(7): []}},
            Array(random.choice((0x40, 0x44, 0x45)), [None] * random.choice((0, 1, 9000))),
            Array(0xA3, [Symbol(each) for each in random.choices(_SYMBOLS[:12], k=3)]),
            Array(0xD0, [[None], []], Symbol("d")),
            Described(ULong(random.choice(_CODES)), []),
            Described(ULong(random.choice(_CODES)), [True, UInt(1), random.choice(_TEXTS)]),
            Described(Symbol("unknown"), {}),
        )
    )


def _integer(random: Random, kind: type) -> Value:
    """Draw an integer of this type."""
    if kind in _UNSIGNED:
        return kind(random.choice(_INTEGERS) & 2 ** _UNSIGNED[kind] - 1)
    half = 2 ** (_SIGNED[kind] - 1)
    return kind((random.choice(_INTEGERS) + half) % (2 * half) - half)


def _other(random: Random, value: Value) -> Value:
    """Return a value with a change at some depth; usually the types stay."""
    match value:
        case Described(descriptor, inner) if random.random() < 0.9:
            return Described(descriptor, _other(random, inner))
        case list() if value and random.random() < 0.9:
            at = random.randrange(len(value))
            return [*value[:at], _other(random, value[at]), *value[at + 1 :]]
        case list():
            return random.choice(([], value * 2, [*value, _any_value(random)], value[:-1]))
        case dict() if value and random.random() < 0.8:
            key = random.choice(list(value))
            return {name: _other(random, each) if name == key else each for name, each in value.items()}
        case dict():
            return value | {Symbol(random.choice(_SYMBOLS)): _any_value(random)}
        case Array() | Described():
            return _any_value(random)
        case _ if random.random() < 0.3:
            return _any_value(random)
        case bool():
            return not value
        case str():
            return Symbol(random.choice(_SYMBOLS)) if isinstance(value, Symbol) else random.choice(_TEXTS)
        case int() if type(value) in _UNSIGNED or type(value) in _SIGNED:
            return _integer(random, type(value))
        case _:
            return _any_value(random)


def _change_payload(random: Random, frames: list[bytes], first: int) -> None:
    """Change octets behind the header: the result is again a complete frame."""
    at = random.randrange(first, len(frames))
    if len(frames[at]) > _HEADER_OCTETS:
        frames[at] = _with_body(frames[at], changed_octets(random, frames[at][_HEADER_OCTETS:]))


def _change_value(random: Random, frames: list[bytes], first: int) -> None:
    """Change a value of a performative or of a message; usually the frame stays readable, with a new meaning."""
    at = random.randrange(first, len(frames))
    frame = frames[at]
    if len(frame) <= _HEADER_OCTETS or frame.startswith(b"AMQP"):
        return
    reader = ValueReader(frame, _HEADER_OCTETS, len(frame))
    values: list[Value] = []
    begin = reader.at
    try:
        while reader.at < reader.end:
            begin = reader.at
            values.append(reader.read())
            begin = reader.at
    except ConditionError:
        pass  # the rest is a part of a message, or was damaged before
    if values:
        place = random.randrange(len(values))
        values[place] = _other(random, values[place])
        try:
            frames[at] = _with_body(frame, b"".join(map(encode, values)) + frame[begin:])
        except (KeyError, IndexError, AttributeError, TypeError):
            return  # the elements of an array have no longer the same type


def _widen(random: Random, frames: list[bytes], first: int) -> None:
    """Write a performative as a list with long sizes, perhaps behind an extended header: a legal encoding."""
    at = random.randrange(first, len(frames))
    frame = frames[at]
    if len(frame) < 14 or frame[8:10] != b"\0\x53" or frame[11] != _LIST8 or frame[4] != 2:
        return
    size, count = frame[12], frame[13]
    wide = frame[8:11] + struct.pack(">BII", _LIST8 + 16, size + 3, count) + frame[14:]
    extended = random.choice((0, 0, 1, 200))
    head = _HEADER.pack(8 + 4 * extended + len(wide), 2 + extended, frame[5], int.from_bytes(frame[6:8]))
    frames[at] = head + bytes(4 * extended) + wide


def _name_descriptor(random: Random, frames: list[bytes], first: int) -> None:
    """Replace the number of a descriptor with a name, known or unknown."""
    at = random.randrange(first, len(frames))
    frame = frames[at]
    if frame[8:10] == b"\0\x53":
        name = random.choice(("amqp:flow:list", "amqp:transfer:list", "amqp:begin:list", "amqp:none:list"))
        frames[at] = _with_body(frame, b"\0" + encode(Symbol(name)) + frame[11:])


def _change_envelope(random: Random, frames: list[bytes], first: int) -> None:
    """Change the size, the data offset, the type or the channel of a frame."""
    at = random.randrange(first, len(frames))
    if len(frames[at]) < _HEADER_OCTETS:
        return
    size, doff, kind, channel = _HEADER.unpack_from(frames[at])
    match random.randrange(4):
        case 0:
            size = random.choice((0, 7, 8, size - 1, size + 1, 131_072, 131_073, 2**32 - 1))
        case 1:
            doff = random.choice((0, 1, 3, 255))
        case 2:
            kind = random.choice((0, 1, 2, 255))
        case _:
            channel = random.choice((0, 1, 2, 63, 64, 65_535))
    frames[at] = _HEADER.pack(size % 2**32, doff, kind, channel) + frames[at][_HEADER_OCTETS:]


def _rubbish(random: Random, frames: list[bytes], first: int) -> None:
    rubbish = random.randbytes(random.randint(1, _RUBBISH_BYTES_MAX))
    if random.random() < 1 / 2:
        rubbish = _HEADER.pack(8 + len(rubbish), 2, 0, random.choice((0, 1))) + rubbish
    frames.insert(random.randrange(first, len(frames) + 1), rubbish)


def _deep(random: Random, frames: list[bytes], first: int) -> None:
    """Insert a flow with properties of many or deep values."""
    constructors = (b"\x40", b"\x45", b"\0\x53\0", b"\xc0\1\0", b"\xe0\2\1\x40")
    inner = random.choice(constructors) * random.choice((1, 50, 9_000, 20_000))
    values = struct.pack(">BII", 0xD0, len(inner) + 4, random.choice((1, 9_000, 2**32 - 1))) + inner
    properties = b"\xd1" + struct.pack(">II", 4 + 3 + len(values), 2) + b"\xa3\1x" + values
    fields = b"\x43\x43\x43\x43" + b"\x40" * 6 + properties
    body = b"\0\x53\x13\xd0" + struct.pack(">II", len(fields) + 4, 11) + fields
    frames.insert(random.randrange(first, len(frames) + 1), _HEADER.pack(8 + len(body), 2, 0, 0) + body)


def _with_body(frame: bytes, body: bytes) -> bytes:
    return (8 + len(body)).to_bytes(4) + frame[4:_HEADER_OCTETS] + body


CHANGES10: tuple[Change, ...] = (
    _change_payload,
    _change_payload,
    *[_change_value] * 8,
    _widen,
    _name_descriptor,
    _change_envelope,
    _rubbish,
    _deep,
)
"""The changes of frames of AMQP 1.0."""
