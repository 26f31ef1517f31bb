"""Field tables as octets, in AMQP's encoding, with every value that the log can hold.

Invariant: `read_table` of a table that `encode_table` has written returns an equal table with values of the same types.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from struct import Struct
from struct import error as StructError  # noqa: N812  # the name says nothing without its module
from typing import TYPE_CHECKING, Any

from qq.stored.editing import LONGS, field_value, short_string, sized
from qq.stored.fields import SECONDS_MAX, decode_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qq.tables import Table

_LENGTH = Struct(">I")
_DECIMAL = Struct(">cBi")
_TIMESTAMP = Struct(">cQ")


def encode_table(table: Mapping[str, Any]) -> bytes:
    """Encode a table that `qq.tables.check_table` accepts, with its length in front."""
    fields = _fields(table)
    return _LENGTH.pack(len(fields)) + fields


def read_table(octets: bytes) -> Table:
    """Return the table that fills the octets. Raises ValueError if they are no table."""
    try:
        table, end = decode_table(octets, 0, len(octets))
    except (IndexError, StructError) as error:
        raise ValueError(str(error)) from None
    if end != len(octets):
        raise ValueError("there are octets behind the table")
    return dict(table)


def _fields(table: Mapping[str, Any]) -> bytes:
    return b"".join(short_string(name) + _value(value) for name, value in table.items())


def _value(value: Any) -> bytes:
    match value:
        case bytes():
            return sized(b"x", value)
        case Decimal():
            return _decimal(value)
        case datetime():
            return _timestamp(value)
        case int() if value not in LONGS:
            return _TIMESTAMP.pack(b"T", value)  # it was a timestamp beyond any calendar
        case list():
            return sized(b"A", b"".join(map(_value, value)))
        case dict():
            return sized(b"F", _fields(value))
        case _:
            return field_value(value)


def _decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)  # the log holds finite numbers only
    number = int("".join(map(str, digits)))
    return _DECIMAL.pack(b"D", -exponent, -number if sign else number)


def _timestamp(value: datetime) -> bytes:
    """Encode a time in seconds, or in milliseconds if these are needed: readers tell them apart by their size.

    The log may hold a time before 1970, from an earlier program. As in RabbitMQ its sign is lost.
    """
    seconds = value.timestamp()
    has_milliseconds = value.microsecond or seconds > SECONDS_MAX
    return _TIMESTAMP.pack(b"T", (round(seconds * 1000) if has_milliseconds else int(seconds)) % 2**64)
