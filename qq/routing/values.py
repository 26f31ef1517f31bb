"""Values of AMQP field tables: when two are equal, and how RabbitMQ names and prints them."""

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
    """Return a form of the value that equals, in Python, another value's form exactly if headers with them match.

    As in RabbitMQ, numbers of different widths are equal if their values are, and strings if their octets are; values
    of different classes (1, 1.0, true) are not. rabbit_exchange_type_headers.erl, match/2, compares with `=:=`.
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
    """How many values there are in the tables and arrays among these, those within others too; an empty one counts."""
    count = 0
    pending = [value for value in values if isinstance(value, dict | list)]
    while pending:
        container = pending.pop()
        count += 1 + len(container)
        inner = container.values() if isinstance(container, dict) else container
        pending.extend(value for value in inner if isinstance(value, dict | list))
    return count


def type_name(value: object) -> str:
    """AMQP's name of a value's type. A number has no width of its own here, so the smallest usual one is named."""
    if value is None:
        return "void"
    for kind, name in _TYPE_NAMES:
        if isinstance(value, kind):
            return name
    return "signedint" if value in _SIGNED_INT else "long"


def erlang_term(value: object) -> str:
    """Print a value as RabbitMQ's texts do."""
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
