"""Checking and decoding the property lists and field tables of stored messages.

Invariant: the input is hostile. Every length is checked, nesting is bounded, and the work is linear in the length of
the input. (pamqp copies the rest of a table for each field, and accepts truncated strings as whole strings.) Every
decoded table is a table that the log can hold (qq/tables.py).
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from struct import Struct
from struct import error as StructError  # noqa: N812  # the name says nothing without its module
from typing import TYPE_CHECKING, Any

from pamqp import commands

from qq.octets import text_of
from qq.tables import TABLE_BYTES_MAX, TABLE_DEPTH_MAX, too_deep, too_large

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pamqp import common

SECONDS_MAX = 0xFFFFFFFF
"""Largest timestamp in seconds, of the year 2106; a larger timestamp is read in milliseconds."""
VALID_PROPERTIES_MAX = 4096
"""Largest number of property lists remembered as valid, for all connections of the process."""
VALID_PROPERTIES_BYTES_MAX = 512
"""Size in octets of the longest remembered property list, which bounds the memory; longer lists are checked anew."""

_U16 = Struct(">H")
_U32 = Struct(">I")
_U64 = Struct(">Q")
_DECIMAL = Struct(">Bi")

_SHORTSTR = 0
_TABLE = -1
_PROPERTIES = (
    ("content_type", _SHORTSTR),
    ("content_encoding", _SHORTSTR),
    ("headers", _TABLE),
    ("delivery_mode", 1),
    ("priority", 1),
    ("correlation_id", _SHORTSTR),
    ("reply_to", _SHORTSTR),
    ("expiration", _SHORTSTR),
    ("message_id", _SHORTSTR),
    ("timestamp", 8),
    ("message_type", _SHORTSTR),
    ("user_id", _SHORTSTR),
    ("app_id", _SHORTSTR),
    ("cluster_id", _SHORTSTR),
)
"""Properties with their sizes in octets, in the order of their flags, from bit 15 down to bit 2."""
_SIZES = dict(_PROPERTIES)


class FieldError(ValueError):
    """The bytes break the rules of the protocol."""


class TableLimitExceeded(FieldError):
    """The bytes are a valid table, but larger than the log can hold."""


def long_string(data: bytes, at: int, end: int) -> tuple[str | bytes, int]:
    """Return the long string at `at` and its end; a string that is not UTF-8 is returned as bytes."""
    raw, stop = _octets(data, at, end)
    try:
        return raw.decode(), stop
    except UnicodeDecodeError:
        return raw, stop


def _octets(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    stop = at + 4 + _U32.unpack_from(data, at)[0]
    if stop > end:
        raise FieldError("a long string runs over the end")
    return data[at + 4 : stop], stop


def decode_table(data: bytes, at: int, end: int) -> tuple[common.FieldTable, int]:
    """Return the table at `at` and its end, which must not be behind `end`.

    Octets of a field's name that are not UTF-8 are kept (qq/octets.py).
    Raises FieldError, IndexError or StructError.
    """
    size = _U32.unpack_from(data, at)[0]
    if TABLE_BYTES_MAX < size <= end - at - 4:
        raise TableLimitExceeded(too_large(size))
    return _table(data, at, end, 0)


def _table(data: bytes, at: int, end: int, depth: int) -> tuple[common.FieldTable, int]:
    """Return a table of any size."""
    table: common.FieldTable = {}
    at, stop = _container(data, at, end, depth)
    while at < stop:
        value_at = at + 1 + data[at]
        name = text_of(data[at + 1 : value_at])
        table[name], at = _value(data, value_at, stop, depth)
    if at != stop:
        raise FieldError("a field runs over the end of its table")
    return table, stop


def _array(data: bytes, at: int, end: int, depth: int) -> tuple[common.FieldArray, int]:
    array: common.FieldArray = []
    at, stop = _container(data, at, end, depth)
    while at < stop:
        value, at = _value(data, at, stop, depth)
        array.append(value)
    if at != stop:
        raise FieldError("a value runs over the end of its array")
    return array, stop


def _container(data: bytes, at: int, end: int, depth: int) -> tuple[int, int]:
    stop = at + 4 + _U32.unpack_from(data, at)[0]
    if stop > end:
        raise FieldError("a table or array runs over the end")
    if depth >= TABLE_DEPTH_MAX:
        raise TableLimitExceeded(too_deep())
    return at + 4, stop


def _value(data: bytes, at: int, end: int, depth: int) -> tuple[common.FieldValue, int]:
    kind = data[at]
    fixed = FIXED.get(kind)
    if fixed is not None:
        return fixed.unpack_from(data, at + 1)[0], at + 1 + fixed.size
    if kind == 0x53:  # S
        return long_string(data, at + 1, end)
    if kind == 0x46:  # F
        return _table(data, at + 1, end, depth + 1)
    if kind == 0x41:  # A
        return _array(data, at + 1, end, depth + 1)
    if kind == 0x56:  # V
        return None, at + 1
    if kind == 0x54:  # T
        return _timestamp(_U64.unpack_from(data, at + 1)[0]), at + 9
    if kind == 0x78:  # x
        return _octets(data, at + 1, end)
    if kind == 0x44:  # D
        scale, digits = _DECIMAL.unpack_from(data, at + 1)
        return Decimal(digits) * (Decimal(10) ** -scale), at + 6
    raise FieldError(f"unknown field type {kind}")


def _timestamp(seconds: int) -> datetime | int:
    """Read a timestamp as pamqp does: a value beyond 2106 is in milliseconds.

    A value outside of the calendar stays a number.
    """
    try:
        return datetime.fromtimestamp(seconds / 1000 if seconds > SECONDS_MAX else seconds, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return seconds


FIXED = {
    ord(kind): Struct(layout)
    for kind, layout in {
        "t": ">?",
        "b": ">b",
        "B": ">B",
        "s": ">h",
        "u": ">H",
        "I": ">i",
        "i": ">I",
        "l": ">q",
        "L": ">q",
        "f": ">f",
        "d": ">d",
    }.items()
}
"""Field types of a fixed size that `struct` can read, by the octet of the type."""


def properties_valid(properties: bytes) -> bool:
    """Return whether `check_properties` accepts the properties."""
    try:
        check_properties(properties)
    except FieldError:
        return False
    return True


def check_properties(properties: bytes) -> None:
    """Raise FieldError unless these are the flags and values of a basic content header.

    Short strings need not be UTF-8, because RabbitMQ passes on binary correlation ids and so do we.
    """
    if properties in valid_properties:
        return
    try:
        at = 2
        for size in _present(_U16.unpack_from(properties)[0]):
            if size > 0:
                at += size
            elif size == _SHORTSTR:
                at += 1 + properties[at]
            else:
                at = decode_table(properties, at, len(properties))[1]
    except (IndexError, StructError) as error:
        raise FieldError(str(error)) from None
    if at != len(properties):
        raise FieldError("the properties do not fill the frame")
    _remember(properties)


def split_properties(properties: bytes) -> dict[str, bytes]:
    """Return the encoded values of valid properties (see `properties_valid`), by their names."""
    values: dict[str, bytes] = {}
    flags, at = _U16.unpack_from(properties)[0], 2
    for bit, (name, size) in enumerate(_PROPERTIES):
        if flags & 0x8000 >> bit:
            if size == _SHORTSTR:
                stop = at + 1 + properties[at]
            else:
                stop = at + (size if size > 0 else 4 + _U32.unpack_from(properties, at)[0])
            values[name], at = properties[at:stop], stop
    return values


def join_properties(values: Mapping[str, bytes]) -> bytes:
    """Encode properties from encoded values, such as the results of `split_properties`."""
    flags, parts = 0, list[bytes]()
    for bit, (name, _) in enumerate(_PROPERTIES):
        if name in values:
            flags |= 0x8000 >> bit
            parts.append(values[name])
    return _U16.pack(flags) + b"".join(parts)


def property_of(name: str, value: str | int) -> bytes:
    """Encode the value of a property. Raises KeyError, ValueError or OverflowError for an impossible value."""
    size = _SIZES[name]
    if isinstance(value, int):
        return value.to_bytes(size, "big")
    encoded = value.encode()
    return bytes([len(encoded)]) + encoded


def decode_properties(properties: bytes) -> commands.Basic.Properties:
    """Decode valid properties (see `properties_valid`); octets that are not UTF-8 are replaced.

    The table of headers may be larger than the log can hold, because the broker adds headers to a delivery.
    """
    values: dict[str, Any] = {}
    flags, at = _U16.unpack_from(properties)[0], 2
    for bit, (name, size) in enumerate(_PROPERTIES):
        if not flags & 0x8000 >> bit:
            continue
        if size == _SHORTSTR:
            stop = at + 1 + properties[at]
            values[name], at = properties[at + 1 : stop].decode("utf-8", "replace"), stop
        elif size == _TABLE:
            values[name], at = _table(properties, at, len(properties), 0)
        elif size == 8:
            # The number stays as it was sent, because many clients send milliseconds, and a reader cannot know the
            # unit.
            values[name], at = _U64.unpack_from(properties, at)[0], at + 8
        else:
            values[name], at = properties[at], at + 1
    decoded = commands.Basic.Properties()
    for name, value in values.items():
        setattr(decoded, name, value)
    return decoded


valid_properties: set[bytes] = set()
"""Property lists known to be valid: a cache of a pure function, so its content changes no result."""
_present_by_flags: dict[int, tuple[int, ...]] = {}


def _present(flags: int) -> tuple[int, ...]:
    """Return the sizes of the properties that the flags announce, in order."""
    present = _present_by_flags.get(flags)
    if present is None:
        if flags & 3:  # 14 properties: bit 1 is unused, and bit 0 would announce a second word of flags
            raise FieldError("unknown property flags")
        present = tuple(size for bit, (_, size) in enumerate(_PROPERTIES) if flags & 0x8000 >> bit)
        _present_by_flags[flags] = present
    return present


def _remember(properties: bytes) -> None:
    if len(properties) <= VALID_PROPERTIES_BYTES_MAX:
        if len(valid_properties) >= VALID_PROPERTIES_MAX:
            valid_properties.clear()
        valid_properties.add(properties)
