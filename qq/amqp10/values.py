"""The type system of AMQP 1.0 (part 1 of the standard): values to octets and back.

A Python type stands for each AMQP type, so a value is encoded with the type that it was decoded from. Decimals and
UUIDs are octets, because the server computes with neither.

Invariant: decoding takes at most `VALUES_MAX` steps and `DEPTH_MAX` levels, whatever the octets claim; sizes and counts
must fit into the octets that follow.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from qq.amqp10.conditions import UndecodableValue
from qq.octets import octets_of, readable, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

DEPTH_MAX = 32
"""Levels of lists, maps, arrays and described values inside of each other."""
VALUES_MAX = 10_000
"""Values that a call decodes, with those inside of them. It bounds arrays of elements without octets, whose count may
be 2^32, and maps with a hundred thousand keys."""

DESCRIBED = 0x00
NULL = 0x40
EMPTY_LIST = 0x45
SMALL_ULONG = 0x53
SYMBOL8, SYMBOL32 = 0xA3, 0xB3
UUID = 0x98
ULONG = 0x80
TIMESTAMP = 0x83
LIST8, LIST32 = 0xC0, 0xD0
MAP8, MAP32 = 0xC1, 0xD1
ARRAY8, ARRAY32 = 0xE0, 0xF0

_U32 = Struct(">I")
_SIZE_AND_COUNT = Struct(">II")
_SMALL_MAX = 0xFF


class UByte(int):
    """0 to 255."""


class UShort(int):
    """0 to 2^16 - 1."""


class UInt(int):
    """0 to 2^32 - 1."""


class ULong(int):
    """0 to 2^64 - 1."""


class Byte(int):
    """-128 to 127."""


class Short(int):
    """16 bits with a sign."""


class Int(int):
    """32 bits with a sign."""


class Long(int):
    """64 bits with a sign."""


class Float(float):
    """An IEEE 754 binary32; a plain `float` is a binary64."""


class Timestamp(int):
    """Milliseconds since the epoch, with a sign."""


class Char(int):
    """A Unicode code point."""


class Symbol(str):
    """A text of a limited domain. Octets outside of ASCII are kept (qq/octets.py), as RabbitMQ keeps them."""

    __slots__ = ()


class Uuid(bytes):
    """The 16 octets of a UUID."""


class Decimal32(bytes):
    """The 4 octets of an IEEE 754 decimal32."""


class Decimal64(bytes):
    """The 8 octets of an IEEE 754 decimal64."""


class Decimal128(bytes):
    """The 16 octets of an IEEE 754 decimal128."""


class Described(NamedTuple):
    """A value with a descriptor that says what it means."""

    descriptor: Value
    value: Value


class Array(NamedTuple):
    """Values of the same type, which a single constructor precedes."""

    code: int
    """The constructor of the elements."""
    elements: list[Value]
    descriptor: Value = None
    """The descriptor of each element, if they are described values."""


Value: TypeAlias = (
    "bool | int | float | str | bytes | list[Value] | dict[Value, Value] | Array | Described | None"
)


class _Fixed(NamedTuple):
    """An encoding of a fixed number of octets."""

    layout: Struct
    type: Callable[..., Value]


_FIXED = {
    0x50: _Fixed(Struct(">B"), UByte),
    0x51: _Fixed(Struct(">b"), Byte),
    0x52: _Fixed(Struct(">B"), UInt),
    0x53: _Fixed(Struct(">B"), ULong),
    0x54: _Fixed(Struct(">b"), Int),
    0x55: _Fixed(Struct(">b"), Long),
    0x60: _Fixed(Struct(">H"), UShort),
    0x61: _Fixed(Struct(">h"), Short),
    0x70: _Fixed(Struct(">I"), UInt),
    0x71: _Fixed(Struct(">i"), Int),
    0x72: _Fixed(Struct(">f"), Float),
    0x73: _Fixed(Struct(">I"), Char),
    0x74: _Fixed(Struct(">4s"), Decimal32),
    ULONG: _Fixed(Struct(">Q"), ULong),
    0x81: _Fixed(Struct(">q"), Long),
    0x82: _Fixed(Struct(">d"), float),
    TIMESTAMP: _Fixed(Struct(">q"), Timestamp),
    0x84: _Fixed(Struct(">8s"), Decimal64),
    0x94: _Fixed(Struct(">16s"), Decimal128),
    UUID: _Fixed(Struct(">16s"), Uuid),
}
FREE = frozenset(_FIXED)
"""Constructors of a fixed size with which any octets are a value."""
WITHOUT_OCTETS = frozenset(range(0x40, 0x46))
"""Constructors of values without octets: an array with a few octets may have very many."""
_BOOLEAN = 0x56
STRINGS = frozenset((0xA1, 0xB1))
VARIABLE = frozenset((0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3))
"""Constructors of strings, and of binaries, strings and symbols."""
_LISTS_AND_MAPS = frozenset((LIST8, LIST32, MAP8, MAP32))
_INTEGERS = {
    **dict.fromkeys((0x50, 0x52, 0x53, 0x60, 0x70, 0x80), False),
    **dict.fromkeys((0x51, 0x54, 0x55, 0x61, 0x71, 0x81), True),
}
"""Constructors of integers with octets, and whether these have a sign."""
_COMPOUND = frozenset((LIST8, LIST32, MAP8, MAP32, ARRAY8, ARRAY32))
_SHORT_CODES = frozenset((0xA0, 0xA1, 0xA3, LIST8, MAP8, ARRAY8))
_LONG_CODES = frozenset(code + 0x10 for code in _SHORT_CODES)
_WIDTHS = {
    **dict.fromkeys(WITHOUT_OCTETS, 0),
    _BOOLEAN: 1,
    **{code: fixed.layout.size for code, fixed in _FIXED.items()},
}
"""Octets of each value of a fixed size, without its constructor."""


def skip(data: bytes, at: int, end: int) -> int:
    """Return the position behind the value at `at`, which must end at or before `end`. Its contents are not read."""
    expected = 1
    """Values still to come: a described value is its descriptor and a value."""
    for _ in range(2 * DEPTH_MAX):
        if at >= end:
            raise _truncated()
        code = data[at]
        at += 1
        width = _WIDTHS.get(code)
        if width is not None:
            at += width
        elif code == DESCRIBED:
            expected += 2
        else:
            length_octets = _length_octets(code)
            if at + length_octets > end:
                raise _truncated()
            at += length_octets + (data[at] if length_octets == 1 else _U32.unpack_from(data, at)[0])
        expected -= 1
        if not expected:
            break
    else:
        raise _too_deep()
    if at > end:
        raise _truncated()
    return at


class Item(NamedTuple):
    """The place of a value in a list or map, without its constructor and length."""

    code: int
    """Its constructor."""
    at: int
    end: int

    def number_in(self, data: bytes) -> int | None:
        """Return the integer at this place in `data`, or `None` if its constructor is none of an integer."""
        if self.code in _INTEGERS:
            return int.from_bytes(data[self.at : self.end], signed=_INTEGERS[self.code])
        return None


def items(data: bytes, at: int, end: int) -> list[Item]:
    """Return the places of the values in the list or map at `at`, which is valid: of a map, keys and values in turn.

    The result is empty for another value.
    """
    code = data[at]
    if code not in _LISTS_AND_MAPS:
        return []
    found: list[Item] = []
    at += 3 if code in _SHORT_CODES else 9
    while at < end:
        code, stop = data[at], skip(data, at, end)
        found.append(Item(code, at + 1 + (_length_octets(code) if code in VARIABLE else 0), stop))
        at = stop
    return found


def _length_octets(code: int) -> int:
    """Return the octets of the length, or of the size, that follows this constructor."""
    if code in _SHORT_CODES:
        return 1
    if code in _LONG_CODES:
        return 4
    raise _unknown(code)


def decode(data: bytes, at: int = 0, end: int | None = None) -> Value:
    """Decode the value that takes all octets of `data` from `at` to `end`."""
    reader = ValueReader(data, at, len(data) if end is None else end)
    value = reader.read()
    if reader.at != reader.end:
        raise UndecodableValue("octets behind a value")
    return value


class ValueReader:
    """Decodes successive values of an octet string."""

    __slots__ = ("_data", "_values_left", "at", "end")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.at = at
        """Position of the next value."""
        self.end = end
        self._data = data
        self._values_left = VALUES_MAX

    def read(self, depth: int = 0) -> Value:
        """Decode the next value."""
        code = self._octet()
        if code != DESCRIBED:
            return self._primitive(code, depth)
        if depth >= DEPTH_MAX:
            raise _too_deep()
        descriptor = self.read(depth + 1)
        return Described(descriptor, self.read(depth + 1))

    def _primitive(self, code: int, depth: int) -> Value:
        """Decode the value that follows its constructor."""
        self._count(1)
        fixed = _FIXED.get(code)
        if fixed is not None:
            return fixed.type(fixed.layout.unpack_from(self._data, self._take(fixed.layout.size))[0])
        if code in WITHOUT_OCTETS:
            return _value_without_octets(code)
        if code in VARIABLE:
            return self._text(code)
        if code in _COMPOUND:
            return self._compound(code, depth)
        if code == _BOOLEAN:
            return self._boolean()
        raise _unknown(code)

    def _count(self, values: int) -> None:
        self._values_left -= values
        if self._values_left < 0:
            raise UndecodableValue(f"more than VALUES_MAX={VALUES_MAX} values")

    def _boolean(self) -> bool:
        octet = self._octet()
        if octet > 1:
            raise UndecodableValue(f"boolean {octet}")
        return octet == 1

    def _text(self, code: int) -> bytes | str:
        """Decode binary, string or symbol."""
        length = self._length(_length_octets(code))
        at = self._take(length)
        octets = bytes(self._data[at : at + length])
        match code & 0x0F:
            case 0:
                return octets
            case 1:
                try:
                    return octets.decode()
                except UnicodeDecodeError:
                    raise UndecodableValue("a string that is not UTF-8") from None
            case _:
                return Symbol(text_of(octets))

    def _compound(self, code: int, depth: int) -> Value:
        if depth >= DEPTH_MAX:
            raise _too_deep()
        length_octets = _length_octets(code)
        size = self._length(length_octets)
        end = self.at + size
        if end > self.end:
            raise _truncated()
        outer_end, self.end = self.end, end
        count = self._length(length_octets)
        value = self._contents(code, count, depth + 1)
        if self.at != end:
            raise UndecodableValue(f"size {size} of a value with {count} elements")
        self.end = outer_end
        return value

    def _contents(self, code: int, count: int, depth: int) -> Value:
        if code in (LIST8, LIST32):
            return [self.read(depth) for _ in range(count)]
        if code in (MAP8, MAP32):
            return self._map(count, depth)
        return self._array(count, depth)

    def _map(self, count: int, depth: int) -> dict[Value, Value]:
        if count % 2:
            raise UndecodableValue("a map with an odd count")
        pairs: dict[Value, Value] = {}
        for _ in range(count // 2):
            key = self.read(depth)
            if isinstance(key, (list, dict, Array, Described)):
                raise UndecodableValue("a key of a map that is no primitive value")
            if key in pairs:
                raise UndecodableValue("a map with the same key twice")
            pairs[key] = self.read(depth)
        return pairs

    def _array(self, count: int, depth: int) -> Array:
        descriptor: Value = None
        code = self._octet()
        if code == DESCRIBED:
            descriptor = self.read(depth)
            code = self._octet()
        if code in WITHOUT_OCTETS:
            self._count(count)
            return Array(code, [_value_without_octets(code)] * count, descriptor)
        if code not in _WIDTHS:
            _length_octets(code)  # raises for an unknown constructor
        return Array(code, [self._primitive(code, depth) for _ in range(count)], descriptor)

    def _octet(self) -> int:
        return self._data[self._take(1)]

    def _length(self, octets: int) -> int:
        return self._octet() if octets == 1 else _U32.unpack_from(self._data, self._take(4))[0]

    def _take(self, count: int) -> int:
        """Move behind the next octets, and return their position."""
        at = self.at
        if at + count > self.end:
            raise _truncated()
        self.at = at + count
        return at


def _value_without_octets(code: int) -> Value:
    match code:
        case 0x40:
            return None
        case 0x41:
            return True
        case 0x42:
            return False
        case 0x43:
            return UInt(0)
        case 0x44:
            return ULong(0)
        case _:
            return []


def _truncated() -> UndecodableValue:
    return UndecodableValue("a value that is longer than the octets that hold it")


def _too_deep() -> UndecodableValue:
    return UndecodableValue(f"values nested deeper than DEPTH_MAX={DEPTH_MAX}")


def _unknown(code: int) -> UndecodableValue:
    return UndecodableValue(f"unknown constructor 0x{code:02x}")


# --- encoding


def encode(value: Value) -> bytes:
    """Encode a value in the shortest encoding of its type."""
    return _ENCODERS[type(value)](value)


def encode_list(encoded: Iterable[bytes]) -> bytes:
    """Return the list of values that are already encoded."""
    items = list(encoded)
    return _compound(LIST8, len(items), b"".join(items)) if items else b"\x45"


def encode_map(encoded: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the map of keys and values that are already encoded."""
    pairs = [b"".join(pair) for pair in encoded]
    return _compound(MAP8, 2 * len(pairs), b"".join(pairs))


def encode_symbols(symbols: Sequence[str]) -> bytes:
    """Return the array of these symbols."""
    elements: list[Value] = [Symbol(symbol) for symbol in symbols]
    is_small = all(len(octets_of(symbol)) <= _SMALL_MAX for symbol in symbols)
    return encode(Array(SYMBOL8 if is_small else SYMBOL32, elements))


def _compound(short_code: int, count: int, contents: bytes) -> bytes:
    """Return a list, map or array: the code of 1-octet sizes is given; that of 4 octets is 16 more."""
    if len(contents) < _SMALL_MAX and count <= _SMALL_MAX:
        return bytes((short_code, len(contents) + 1, count)) + contents
    return bytes((short_code + 0x10,)) + _SIZE_AND_COUNT.pack(len(contents) + 4, count) + contents


def _octets(short_code: int, octets: bytes) -> bytes:
    """Return binary, string or symbol: the code of a length of 1 octet is given; that of 4 octets is 16 more."""
    if len(octets) <= _SMALL_MAX:
        return bytes((short_code, len(octets))) + octets
    return bytes((short_code + 0x10,)) + _U32.pack(len(octets)) + octets


def _fixed(code: int) -> Callable[[Value], bytes]:
    head, pack = bytes((code,)), _FIXED[code].layout.pack
    return lambda value: head + pack(value)


def _unsigned(zero: int, small: int, large: int) -> Callable[[int], bytes]:
    """Return the encoder of an unsigned type with encodings of no, a single, and all octets."""
    encode_large = _fixed(large)

    def encode_unsigned(value: int) -> bytes:
        if 0 < value <= _SMALL_MAX:
            return bytes((small, value))
        return encode_large(value) if value else bytes((zero,))

    return encode_unsigned


def _signed(small: int, large: int) -> Callable[[int], bytes]:
    encode_small, encode_large = _fixed(small), _fixed(large)
    return lambda value: encode_small(value) if -128 <= value <= 127 else encode_large(value)


def _encode_array(array: Array) -> bytes:
    constructor = bytes((array.code,))
    if array.descriptor is not None:
        constructor = bytes((DESCRIBED,)) + encode(array.descriptor) + constructor
    contents = b""
    if array.code not in WITHOUT_OCTETS:
        contents = b"".join(_element(array.code, element) for element in array.elements)
    return _compound(ARRAY8, len(array.elements), constructor + contents)


def _element(code: int, value: Value) -> bytes:
    """Return an element of an array with this constructor, which the element itself leaves out."""
    encoded = encode(value)
    if encoded[0] == code:
        return encoded[1:]
    return _WIDENED[code](value)


def _wide_octets(octets: bytes) -> bytes:
    return _U32.pack(len(octets)) + octets


def _wide_compound(value: Value) -> bytes:
    """Return a list, map or array with sizes of 4 octets, without its constructor."""
    encoded = encode(value)
    if encoded[0] == EMPTY_LIST:
        return _SIZE_AND_COUNT.pack(4, 0)
    return _SIZE_AND_COUNT.pack(encoded[1] + 3, encoded[2]) + encoded[3:]


def _narrow_compound(_empty_list: Value) -> bytes:
    return b"\x01\x00"


def _encode_constant(value: bool | None) -> bytes:
    return b"\x40" if value is None else b"\x41" if value else b"\x42"


def _encode_binary(octets: bytes) -> bytes:
    return _octets(0xA0, octets)


def _encode_string(text: str) -> bytes:
    return _octets(0xA1, _utf8(text))


def _utf8(text: str) -> bytes:
    """Return the octets of a string. The text of an error may quote octets of a client that are not UTF-8."""
    return readable(text).encode()


def _encode_symbol(symbol: str) -> bytes:
    return _octets(SYMBOL8, octets_of(symbol))


def _encode_values(values: list[Value]) -> bytes:
    return encode_list(map(encode, values))


def _encode_pairs(pairs: dict[Value, Value]) -> bytes:
    return encode_map((encode(key), encode(value)) for key, value in pairs.items())


def _encode_described(value: Described) -> bytes:
    return bytes((DESCRIBED,)) + encode(value.descriptor) + encode(value.value)


def _wide_boolean(value: bool) -> bytes:
    return b"\x01" if value else b"\x00"


def _wide_string(text: str) -> bytes:
    return _wide_octets(_utf8(text))


def _wide_symbol(symbol: str) -> bytes:
    return _wide_octets(octets_of(symbol))


_ENCODERS: dict[type, Callable[..., bytes]] = {
    type(None): _encode_constant,
    bool: _encode_constant,
    UByte: _fixed(0x50),
    UShort: _fixed(0x60),
    UInt: _unsigned(0x43, 0x52, 0x70),
    ULong: _unsigned(0x44, 0x53, 0x80),
    Byte: _fixed(0x51),
    Short: _fixed(0x61),
    Int: _signed(0x54, 0x71),
    Long: _signed(0x55, 0x81),
    Float: _fixed(0x72),
    float: _fixed(0x82),
    Timestamp: _fixed(TIMESTAMP),
    Char: _fixed(0x73),
    Decimal32: _fixed(0x74),
    Decimal64: _fixed(0x84),
    Decimal128: _fixed(0x94),
    Uuid: _fixed(UUID),
    bytes: _encode_binary,
    str: _encode_string,
    Symbol: _encode_symbol,
    list: _encode_values,
    dict: _encode_pairs,
    Array: _encode_array,
    Described: _encode_described,
}
_WIDENED: dict[int, Callable[..., bytes]] = {
    **{code: fixed.layout.pack for code, fixed in _FIXED.items()},
    _BOOLEAN: _wide_boolean,
    0xB0: _wide_octets,
    0xB1: _wide_string,
    0xB3: _wide_symbol,
    LIST8: _narrow_compound,
    LIST32: _wide_compound,
    MAP32: _wide_compound,
    ARRAY32: _wide_compound,
}
"""Encoders of array elements, for constructors other than the shortest of a value. Constructors of values without
octets are absent, because each of their elements has that encoding."""
