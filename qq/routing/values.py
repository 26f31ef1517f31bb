"""Values of AMQP field tables: their equality in a headers exchange, and RabbitMQ's way to name and print them."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

_TYPE_NAMES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "bool"),
    (str, "longstr"),
    ((bytes, bytearray), "binary"),
    (float, "double"),
    (Decimal, "decimal"),
    (datetime, "timestamp"),
    (dict, "table"),
    (list, "array"),
)
_SIGNED_INT = range(-(2**31), 2**31)


def comparable(value: object) -> Hashable:
    """Return a hashable form of the value; two forms are equal in Python exactly if the two values match in RabbitMQ.

    Numbers of different widths are equal if their values are, and strings if their octets are. Values of different
    classes (1, 1.0, true) are unequal. rabbit_exchange_type_headers.erl, match/2, compares with `=:=`.
    """
    match value:
        case str():
            return value
        case bool():
            return ("bool", value)
        case int():
            return value
        case float():
            return ("double", value.hex())
        case Decimal():
            return ("decimal", value.as_tuple())
        case bytes() | bytearray():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return bytes(value)
        case list():
            return ("array", *map(comparable, value))
        case dict():
            return ("table", *sorted((key, comparable(entry)) for key, entry in value.items()))
        case _:
            return value


def values_inside(values: Iterable[object]) -> int:
    """Return the number of values nested in the tables and arrays among `values`, at all depths.

    Each table and array counts as an additional value.
    """
    count = 0
    pending = [value for value in values if isinstance(value, dict | list)]
    while pending:
        container = pending.pop()
        count += 1 + len(container)
        inner = container.values() if isinstance(container, dict) else container
        pending.extend(value for value in inner if isinstance(value, dict | list))
    return count


def type_name(value: object) -> str:
    """Return AMQP's name of a value's type; for an integer the smallest usual type, because its width is unknown."""
    if value is None:
        return "void"
    for kind, name in _TYPE_NAMES:
        if isinstance(value, kind):
            return name
    return "signedint" if value in _SIGNED_INT else "long"


def erlang_term(value: object) -> str:
    """Return a value in the notation of RabbitMQ's texts."""
    match value:
        case None:
            return "undefined"
        case bool():
            return str(value).lower()
        case str():
            return f'<<"{value}">>' if value else "<<>>"
        case bytes() | bytearray():
            return f"<<{','.join(map(str, value))}>>"
        case Decimal():
            _, digits, exponent = value.as_tuple()
            return f"{{{-int(exponent)},{'-' * value.is_signed()}{''.join(map(str, digits))}}}"
        case datetime():
            return str(int(value.timestamp()))
        case list():
            return f"[{','.join(f'{{{_typed(entry)}}}' for entry in value)}]"
        case dict():
            pairs = (f"{{{erlang_term(key)},{_typed(entry)}}}" for key, entry in value.items())
            return f"[{','.join(pairs)}]"
        case _:
            return str(value)


def _typed(value: object) -> str:
    return f"{type_name(value)},{erlang_term(value)}"
