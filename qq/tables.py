"""Field tables: the values that the replicated log can hold.

Invariant: AMQP, HTTP and the log accept the same tables. All limits of tables are in this module.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from qq.octets import is_utf8, octets_of, readable

Table = dict[str, Any]
"""An AMQP field table; values are None, bool, int, float, str, bytes, Decimal, aware datetime, list and Table."""

TABLE_DEPTH_MAX = 32
"""Levels of nested tables and arrays, the outermost included. Headers of real messages have 3 or 4 levels."""
TABLE_BYTES_MAX = 128 * 1024
"""Bytes of the largest table as AMQP encodes it, without the length in front.

A larger table exceeds RabbitMQ's frame_max.
"""
NAME_BYTES_MAX = 255
"""Bytes of the longest field name: an AMQP short string."""
INTEGERS = range(-(2**63), 2**64)
"""Signed integers of 64 bits; above them, timestamps in seconds beyond any calendar."""
DECIMAL_SCALES = range(256)
DECIMAL_NUMBERS = range(-(2**31), 2**31)


class InvalidTable(ValueError):
    """The log cannot hold this table; the text names the limit."""


def too_deep() -> str:
    return f"a field table is nested deeper than {TABLE_DEPTH_MAX} levels"


def too_large(size: int) -> str:
    return f"a field table of {size} bytes is larger than {TABLE_BYTES_MAX} bytes"


def check_table(table: Any) -> None:
    """Raise InvalidTable unless this is a field table that the log can hold."""
    if type(table) is not dict:
        raise InvalidTable("a field table is not a map")
    size = _table_size(table, TABLE_DEPTH_MAX)
    if size > TABLE_BYTES_MAX:
        raise InvalidTable(too_large(size))


# Sizes are those of the shortest AMQP encoding of a value. So no value counts for more here than it did for the reader,
# who knows only the encoding that was received.


def _table_size(table: dict[Any, Any], depth: int) -> int:
    if not depth:
        raise InvalidTable(too_deep())
    size = 0
    for name, value in table.items():
        if type(name) is not str:
            raise InvalidTable("a field of a table has no name")
        octets = len(name) if name.isascii() else _octets(name)
        if octets > NAME_BYTES_MAX:
            raise InvalidTable(
                f"the name of a field has {octets} octets, which is more than {NAME_BYTES_MAX}"
            )
        size += 1 + octets + _size(value, depth - 1)
    return size


def _size(value: Any, depth: int) -> int:
    """Return the bytes of a value with its type byte. `depth` is the number of levels that it may contain."""
    kind = type(value)
    if kind is str:
        return 5 + (len(value) if value.isascii() else _octets(value))
    if kind is bytes:
        return 5 + len(value)
    if kind is int:
        if value not in INTEGERS:
            raise InvalidTable("a number in a field table is out of range: it has at most 64 bits")
        return 2
    if kind is dict:
        return 5 + _table_size(value, depth)
    if kind is list:
        if not depth:
            raise InvalidTable(too_deep())
        return 5 + sum(_size(item, depth - 1) for item in value)
    if kind is Decimal:
        _check_decimal(value)
        return 6
    if kind is dt.datetime and value.tzinfo is None:
        raise InvalidTable("a time in a field table has no time zone")
    size = _FIXED_SIZES.get(kind)
    if size is None:
        raise InvalidTable(f"a field table holds a {kind.__name__}")
    return size


_FIXED_SIZES: dict[type, int] = {type(None): 1, bool: 2, float: 5, dt.datetime: 9}


def _octets(text: str) -> int:
    try:
        return len(octets_of(text))
    except UnicodeEncodeError:
        raise InvalidTable("a text in a field table is not Unicode") from None


def _check_decimal(value: Decimal) -> None:
    sign, digits, exponent = value.as_tuple()
    if type(exponent) is int and -exponent in DECIMAL_SCALES:
        number = int("".join(map(str, digits)))
        if (-number if sign else number) in DECIMAL_NUMBERS:
            return
    raise InvalidTable(
        "a decimal in a field table is out of range: it has at most 32 bits and 255 decimal places"
    )


def has_utf8_names(value: Any) -> bool:
    """Return whether all names of fields in a value of an AMQP table are UTF-8."""
    match value:
        case dict():
            return all(is_utf8(name) and has_utf8_names(item) for name, item in value.items())
        case list():
            return all(map(has_utf8_names, value))
        case _:
            return True


def is_json(value: Any) -> bool:
    """Return whether `json_value` shows all of a value of an AMQP table, and nothing else."""
    match value:
        case None | bool() | int():
            return True
        case str():
            return is_utf8(value)
        case float():
            return math.isfinite(value)
        case dict():
            return all(is_utf8(name) and is_json(item) for name, item in value.items())
        case list():
            return all(map(is_json, value))
        case _:
            return False


def json_value(value: Any) -> Any:
    """Return a value of an AMQP table, or of AMQP 1.0, as a JSON value. Keys that are no texts become texts."""
    match value:
        case bool() | int() | str() | None:
            return value
        case Mapping():
            return {readable(str(name)): json_value(item) for name, item in value.items()}
        case list() | tuple():
            return [json_value(item) for item in value]
        case dt.datetime():
            return int(value.timestamp())
        case float() if math.isfinite(value):
            return value
        case float() | Decimal():
            return str(value)
        case _:  # octets
            return bytes(value).decode("utf-8", "replace")
