"""Values of AMQP 1.0 for tests: drawn at random, written in any encoding, compared with their types."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from qq.amqp10.values import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
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
    encode,
)

if TYPE_CHECKING:
    from random import Random

INTEGERS = {
    UByte: (0, 2**8 - 1),
    UShort: (0, 2**16 - 1),
    UInt: (0, 2**32 - 1),
    ULong: (0, 2**64 - 1),
    Byte: (-(2**7), 2**7 - 1),
    Short: (-(2**15), 2**15 - 1),
    Int: (-(2**31), 2**31 - 1),
    Long: (-(2**63), 2**63 - 1),
    Timestamp: (-(2**63), 2**63 - 1),
    Char: (0, 0x10FFFF),
}
OPAQUE = {Uuid: 16, Decimal32: 4, Decimal64: 8, Decimal128: 16}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
symbols = st.text(st.characters(max_codepoint=127), max_size=300).map(Symbol)
integers = st.one_of(
    *(
        (st.integers(low, high) | st.integers(max(low, -130), min(high, 300))).map(kind)
        for kind, (low, high) in INTEGERS.items()
    )
)
primitives = st.one_of(
    st.none(),
    st.booleans(),
    integers,
    st.floats(allow_nan=False),
    st.floats(allow_nan=False, width=32).map(Float),
    texts,
    symbols,
    st.binary(max_size=300),
    *(st.binary(min_size=size, max_size=size).map(kind) for kind, size in OPAQUE.items()),
)
descriptors = st.integers(0, 2**64 - 1).map(ULong) | symbols


keys = st.one_of(texts, symbols, st.binary(max_size=9), integers, st.none(), st.booleans())


def _built(kind: Any, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(*arguments).map(lambda drawn: kind(*drawn))


def _arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Array]:
    return st.one_of(
        _built(Array, st.just(0xA3), st.lists(st.text("ab", max_size=9).map(Symbol), max_size=5)),
        _built(Array, st.just(0xB1), st.lists(texts, max_size=5)),
        _built(Array, st.just(0x70), st.lists(st.integers(0, 9).map(UInt), max_size=5), descriptors),
        _built(Array, st.just(0x41), st.lists(st.just(value=True), max_size=5)),
        _built(Array, st.just(0x56), st.lists(st.booleans(), max_size=5)),
        _built(Array, st.just(0x55), st.lists(st.integers(-128, 127).map(Long), max_size=5)),
        _built(Array, st.just(0xD0), st.lists(st.lists(inner, max_size=3), max_size=3)),
        _built(Array, st.just(0xF0), st.just([Array(0x43, [UInt(0)] * 3), Array(0xA0, [b"x", b""])])),
    )


values = st.recursive(
    primitives,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | _arrays(inner)
        | _built(Described, descriptors, inner)
    ),
    max_leaves=12,
)


def typed(value: Any) -> Any:
    """Return the value in a form that is equal only to values of the same types."""
    match value:
        case Array(code, elements, descriptor):
            return "array", code, typed(elements), typed(descriptor)
        case Described(descriptor, inner):
            return "described", typed(descriptor), typed(inner)
        case list():
            return [typed(item) for item in value]
        case dict():
            return [(typed(key), typed(item)) for key, item in value.items()]
        case float():
            return type(value), struct.pack(">d", value)
        case _:
            return type(value), value


def encode_anyhow(value: Any, rnd: Random) -> bytes:
    """Encode a value in an encoding of its type that a legal peer may choose."""
    wide = rnd.random() < 0.5
    match value:
        case Described(descriptor, inner):
            return b"\x00" + encode_anyhow(descriptor, rnd) + encode_anyhow(inner, rnd)
        case list() | dict():
            items = value if isinstance(value, list) else [one for pair in value.items() for one in pair]
            contents = b"".join(encode_anyhow(item, rnd) for item in items)
            code = 0xC0 if isinstance(value, list) else 0xC1
            if wide or len(contents) > 254:
                return struct.pack(">BII", code + 16, len(contents) + 4, len(items)) + contents
            return bytes((code, len(contents) + 1, len(items))) + contents
        case bool() if wide:
            return bytes((0x56, value))
        case bytes() | str() if wide and type(value) in WIDE_TEXT:
            octets = value if isinstance(value, bytes) else value.encode()
            return struct.pack(">BI", WIDE_TEXT[type(value)], len(octets)) + octets
        case int() if wide and type(value) in WIDE_INTEGERS:
            code, layout = WIDE_INTEGERS[type(value)]
            return bytes((code,)) + struct.pack(layout, value)
        case _:
            return encode(value)


WIDE_TEXT: dict[type, int] = {bytes: 0xB0, str: 0xB1, Symbol: 0xB3}
WIDE_INTEGERS: dict[type, tuple[int, str]] = {
    UInt: (0x70, ">I"),
    ULong: (0x80, ">Q"),
    Int: (0x71, ">i"),
    Long: (0x81, ">q"),
}
