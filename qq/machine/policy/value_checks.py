"""Checks and readers of values in field tables and in the definitions of policies.

A check of an argument describes the fault in RabbitMQ's words. A check of a policy's value only says whether the value
is valid. A reader returns the setting that a value stands for, or None for an invalid value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from qq.octets import is_utf8, octets_of, text_of
from qq.routing.values import type_name
from qq.tables import Table

T = TypeVar("T")

Check = Callable[[Any, Table], str | None]
"""A check of an argument in its table. Returns RabbitMQ's description of the fault (an Erlang term), or None."""
Valid = Callable[[Any], bool]
"""A check of a policy's value, which comes from JSON."""
Reader = Callable[[Any], Any]
"""Returns the setting that a value stands for, or None for an invalid or absent value."""

ROUTING_KEY_BYTES_MAX = 255
EXPIRY_MAX_MS = 315_360_000_000
"""Longest time that an argument may set, in milliseconds: ten years, as in RabbitMQ."""
INTEGERS = range(-(2**63), 2**63)
"""The integers that a policy may hold: JSON allows larger integers than the log."""
FILTER_BYTES = range(16, 256)

_INTEGER_TYPES = ("signedint", "long")
_PRIORITY_MAX = 255


def is_routing_key(value: object) -> bool:
    """Return whether the value is text that fits into AMQP's field for routing keys, a short string."""
    try:
        return isinstance(value, str) and len(octets_of(value)) <= ROUTING_KEY_BYTES_MAX
    except UnicodeEncodeError:
        return False


# --- checks of arguments


def anything(_value: object, _table: Table) -> str | None:
    return None


def text(value: object, _: Table) -> str | None:
    return None if isinstance(value, str) else f"{{unacceptable_type,{type_name(value)}}}"


def boolean(value: object, _: Table) -> str | None:
    return None if isinstance(value, bool) else f"{{unacceptable_type,{type_name(value)}}}"


def integer(value: object, _: Table) -> str | None:
    return None if type_name(value) in _INTEGER_TYPES else f'"expected integer, got {type_name(value)}"'


def not_negative(value: Any, table: Table) -> str | None:
    fault = integer(value, table)
    if fault is None and value < 0:
        fault = f"{{value_negative,{value}}}"
    return fault


def positive(value: Any, table: Table) -> str | None:
    fault = not_negative(value, table)
    if fault is None and value == 0:
        fault = "{value_zero,0}"
    return fault


def time_to_live(value: Any, table: Table) -> str | None:
    fault = not_negative(value, table)
    if fault is None and value > EXPIRY_MAX_MS:
        fault = f"{{value_too_large,{value}}}"
    return fault


def expiry(value: Any, table: Table) -> str | None:
    return time_to_live(value, table) or positive(value, table)


def priorities(value: Any, table: Table) -> str | None:
    fault = not_negative(value, table)
    if fault is None and value > _PRIORITY_MAX:
        fault = f"{{max_value_exceeded,{value}}}"
    return fault


def one_of(choices: tuple[str, ...], fault: str) -> Check:
    """Return a check for one of these texts; `{}` in `fault` becomes the invalid text."""

    def check(value: object, table: Table) -> str | None:
        found = text(value, table)
        if found is None and value not in choices:
            found = fault.format(value)
        return found

    return check


def dead_letter_key(value: object, table: Table) -> str | None:
    fault = text(value, table)
    if fault is None and not is_routing_key(value):
        fault = "routing_key_too_long"
    if fault is None and "x-dead-letter-exchange" not in table:
        fault = "routing_key_but_no_dlx_defined"
    return fault


def dead_letter_key_of_octets(value: object, table: Table) -> str | None:
    """Check a dead-letter routing key that may have octets which are not UTF-8."""
    return dead_letter_key(_text_of_octets(value), table)


def _text_of_octets(value: Any) -> Any:
    """Return a long string that is not UTF-8, which is decoded as bytes, as text; any other value is unchanged."""
    if isinstance(value, bytes) and not is_utf8(text_of(value)):
        return text_of(value)
    return value


def queue_version(value: Any, table: Table) -> str | None:
    fault = not_negative(value, table)
    if fault is None and value not in (1, 2):
        fault = f"\"unsupported queue version '{value}'\""
    return fault


# --- checks of values in policies


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_integer(value: Any) -> bool:
    return type(value) is int and value in INTEGERS


def is_at_least(lowest: int) -> Valid:
    return lambda value: is_integer(value) and value >= lowest


def is_one_of(choices: tuple[str, ...]) -> Valid:
    return lambda value: isinstance(value, str) and value in choices


def is_age(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9]+[YMDhms]", value) is not None


def is_queue_version(value: Any) -> bool:
    return type(value) is int and value in (1, 2)


def is_filter_size(value: Any) -> bool:
    return type(value) is int and value in FILTER_BYTES


# --- readers


def read_integer(value: Any, lowest: int | None = None) -> int | None:
    if type(value) is not int or (lowest is not None and value < lowest):
        return None
    return value


def read_amount(value: Any) -> int | None:
    return read_integer(value, 0)


def read_time(value: Any) -> int | None:
    """Return the milliseconds, at most EXPIRY_MAX_MS, because sums of times are kept in 64 bits."""
    time_ms = read_integer(value, 0)
    return None if time_ms is None else min(time_ms, EXPIRY_MAX_MS)


def read_positive_time(value: Any) -> int | None:
    return read_time(value) or None


def read_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def read_routing_key(value: Any) -> str | None:
    text = _text_of_octets(value)
    return text if is_routing_key(text) else None


def read_true(value: Any) -> bool | None:
    return True if value is True else None


def read_choice(choices: dict[str, T]) -> Callable[[Any], T | None]:
    """Return a reader of the texts that are keys here; each stands for its value."""
    return lambda value: next((setting for choice, setting in choices.items() if choice == value), None)
