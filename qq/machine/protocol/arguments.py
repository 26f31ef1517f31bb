"""Optional arguments of queues, exchanges and consumers: the known names, their valid values, and their equivalence.

Invariant: an accepted argument is stored as it came. An unknown argument is accepted and ignored, as AMQP requires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from qq.machine.protocol.commands import Table
from qq.machine.protocol.refusals import precondition_failed
from qq.routing.values import type_name

CLASSIC = "classic"
QUORUM = "quorum"

MODULES = {CLASSIC: "rabbit_classic_queue", QUORUM: "rabbit_quorum_queue"}
"""The name of each queue type in RabbitMQ's texts."""

Check = Callable[[Any, Table], str | None]
"""A check of a value in its table. Returns RabbitMQ's description of the fault (an Erlang term), or None."""

_INTEGERS = ("signedint", "long")
_PRIORITY_MAX = 255
ROUTING_KEY_BYTES_MAX = 255
EXPIRY_MAX_MS = 315_360_000_000
"""Longest time that an argument may set, in milliseconds: ten years, as in RabbitMQ."""


def check_exchange_argument(thing: str, key: str, arguments: Table) -> None:
    """Raise Refused if an argument that names an exchange is not a string. RabbitMQ checks these arguments first."""
    value = arguments.get(key, "")
    if not isinstance(value, str):
        raise precondition_failed(f"invalid type '{type_name(value)}' for arg '{key}' in {thing}")


def queue_kind(queue: str, arguments: Table) -> str:
    """Return the queue type that the arguments give, or classic without the argument.

    Raises Refused for an unknown type. Here and below, `queue` is the queue's name in error texts.
    """
    if "x-queue-type" not in arguments:
        return CLASSIC
    wrong = _queue_type(arguments["x-queue-type"], arguments)
    if wrong is not None:
        raise _invalid("x-queue-type", queue, wrong)
    return arguments["x-queue-type"]


def check_queue_arguments(queue: str, kind: str, arguments: Table) -> None:
    """Raise Refused for an argument with an invalid value, or an argument that this queue type does not support."""
    _check(queue, kind, arguments, _QUEUE_ARGUMENTS, _KNOWN[kind])


def check_consumer_arguments(queue: str, kind: str, arguments: Table, version: int) -> None:
    """Raise Refused for an argument with an invalid value, or an argument of streams.

    `version` is the version of the state: before 9, fewer arguments are checked.
    """
    checks = _CONSUMER_ARGUMENTS if version >= 9 else _CONSUMER_ARGUMENTS_8
    _check(queue, kind, arguments, checks, _CONSUMER_KNOWN)


def check_equivalent_queue_arguments(queue: str, kind: str, current: Table, received: Table) -> None:
    """Raise Refused unless a declaration repeats the arguments that matter to a queue of this type."""
    known = [key for key in _QUEUE_ARGUMENTS if key in _KNOWN[kind]]
    check_equivalent_arguments(queue, known, current, received)


def check_equivalent_arguments(thing: str, keys: Iterable[str], current: Table, received: Table) -> None:
    for key in keys:
        if key in current and key in received:
            if not _same(current[key], received[key]):
                raise _inequivalent(key, thing, _quoted(received[key]), _quoted(current[key]))
        elif key in current or key in received:
            raise _inequivalent(key, thing, _described(received, key), _described(current, key))


def check_equivalent_field(thing: str, field: str, current: bool | str, received: bool | str) -> None:
    if received != current:
        raise _inequivalent(field, thing, _quoted(received), _quoted(current))


def _check(queue: str, kind: str, arguments: Table, checks: dict[str, Check], known: frozenset[str]) -> None:
    given = [key for key in arguments if key in checks]
    if len(given) > 1:
        given = [key for key in checks if key in arguments]
    for key in given:
        if key in known:
            wrong = checks[key](arguments[key], arguments)
            if wrong is not None:
                raise _invalid(key, queue, wrong)
    for key in arguments:
        if key in checks and key not in known:
            raise precondition_failed(f"invalid arg '{key}' for {queue} of queue type {MODULES[kind]}")


def _invalid(key: str, queue: str, wrong: str) -> Exception:
    return precondition_failed(f"invalid arg '{key}' for {queue}: {wrong}")


def _inequivalent(key: str, thing: str, received: str, current: str) -> Exception:
    return precondition_failed(
        f"inequivalent arg '{key}' for {thing}: received {received} but current is {current}"
    )


def _same(one: object, other: object) -> bool:
    """Return whether two values have the same type and are equal; integers of all widths are a single type here."""
    return type(one) is type(other) and one == other


def _described(table: Table, key: str) -> str:
    if key not in table:
        return "none"
    return f"the value {_quoted(table[key])} of type '{type_name(table[key])}'"


def _quoted(value: object) -> str:
    return f"'{str(value).lower() if isinstance(value, bool) else value}'"


def _text(value: object, _: Table) -> str | None:
    return None if isinstance(value, str) else f"{{unacceptable_type,{type_name(value)}}}"


def _boolean(value: object, _: Table) -> str | None:
    return None if isinstance(value, bool) else f"{{unacceptable_type,{type_name(value)}}}"


def _integer(value: object, _: Table) -> str | None:
    return None if type_name(value) in _INTEGERS else f'"expected integer, got {type_name(value)}"'


def _not_negative(value: Any, table: Table) -> str | None:
    wrong = _integer(value, table)
    if wrong is None and value < 0:
        wrong = f"{{value_negative,{value}}}"
    return wrong


def _positive(value: Any, table: Table) -> str | None:
    wrong = _not_negative(value, table)
    if wrong is None and value == 0:
        wrong = "{value_zero,0}"
    return wrong


def _time_to_live(value: Any, table: Table) -> str | None:
    wrong = _not_negative(value, table)
    if wrong is None and value > EXPIRY_MAX_MS:
        wrong = f"{{value_too_large,{value}}}"
    return wrong


def _expiry(value: Any, table: Table) -> str | None:
    return _time_to_live(value, table) or _positive(value, table)


def _priorities(value: Any, table: Table) -> str | None:
    wrong = _not_negative(value, table)
    if wrong is None and value > _PRIORITY_MAX:
        wrong = f"{{max_value_exceeded,{value}}}"
    return wrong


def _one_of(choices: tuple[str, ...], complaint: str) -> Check:
    def check(value: object, table: Table) -> str | None:
        wrong = _text(value, table)
        if wrong is None and value not in choices:
            wrong = complaint.format(value)
        return wrong

    return check


def is_routing_key(value: object) -> bool:
    """Return whether the value is text that fits into AMQP's field for routing keys, a short string."""
    try:
        return isinstance(value, str) and len(value.encode()) <= ROUTING_KEY_BYTES_MAX
    except UnicodeEncodeError:
        return False


def _dead_letter_key(value: object, table: Table) -> str | None:
    wrong = _text(value, table)
    if wrong is None and not is_routing_key(value):
        wrong = "routing_key_too_long"
    if wrong is None and "x-dead-letter-exchange" not in table:
        wrong = "routing_key_but_no_dlx_defined"
    return wrong


def _queue_version(value: Any, table: Table) -> str | None:
    wrong = _not_negative(value, table)
    if wrong is None and value not in (1, 2):
        wrong = f"\"unsupported queue version '{value}'\""
    return wrong


def _anything(_value: object, _table: Table) -> str | None:
    return None


_queue_type = _one_of((CLASSIC, QUORUM), "\"unsupported queue type '{}'\"")
_overflow = _one_of(("drop-head", "reject-publish", "reject-publish-dlx"), "invalid_overflow")
_strategy = _one_of(("at-most-once", "at-least-once"), "invalid_dlx_strategy")
_locator = _one_of(
    ("client-local", "balanced", "random", "least-leaders", "min-masters"), "invalid_queue_locator_arg"
)
_queue_mode = _one_of(("default", "lazy"), "\"unsupported queue mode '{}'\"")
_retry_type = _one_of(("disabled", "all", "failed", "returned"), "invalid_delayed_retry_type")

_QUEUE_ARGUMENTS: dict[str, Check] = {
    "x-expires": _expiry,
    "x-message-ttl": _time_to_live,
    "x-dead-letter-exchange": _anything,  # checked earlier, in `check_exchange_argument`
    "x-dead-letter-routing-key": _dead_letter_key,
    "x-dead-letter-strategy": _strategy,
    "x-max-length": _not_negative,
    "x-max-length-bytes": _not_negative,
    "x-max-in-memory-length": _not_negative,
    "x-max-in-memory-bytes": _not_negative,
    "x-max-priority": _priorities,
    "x-overflow": _overflow,
    "x-queue-mode": _queue_mode,
    "x-queue-version": _queue_version,
    "x-single-active-consumer": _boolean,
    "x-queue-type": _queue_type,
    "x-quorum-initial-group-size": _positive,
    "x-quorum-target-group-size": _positive,
    "x-delivery-limit": _anything,
    "x-queue-leader-locator": _locator,
    "x-consumer-timeout": _not_negative,
    "x-consumer-disconnected-timeout": _not_negative,
    "x-delayed-retry-type": _retry_type,
    "x-delayed-retry-min": _positive,
    "x-delayed-retry-max": _positive,
    "x-max-age": _anything,
    "x-stream-max-segment-size-bytes": _not_negative,
    "x-stream-filter-size-bytes": _not_negative,
    "x-initial-cluster-size": _positive,
    "x-queue-master-locator": _anything,
    "x-priority-mode": _one_of(("ratio", "strict"), "invalid_priority_mode"),
    "x-return-position": _one_of(("returns", "original"), "invalid_return_position"),
    "x-delivery-count-mode": _one_of(("4.0", "4.3"), "invalid_delivery_count_mode"),
    "x-consumer-timeout-action": _one_of(
        ("close-channel", "cancel-consumer"), "invalid_consumer_timeout_action"
    ),
}
"""The check of every queue argument that any queue type of RabbitMQ supports; qq's own arguments are at the end."""

_BOTH = frozenset(
    {
        "x-expires",
        "x-message-ttl",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-max-length",
        "x-max-length-bytes",
        "x-overflow",
        "x-single-active-consumer",
        "x-queue-type",
        "x-queue-leader-locator",
        "x-consumer-timeout",
        "x-consumer-timeout-action",
        "x-return-position",
    }
)
_KNOWN: dict[str, frozenset[str]] = {
    CLASSIC: _BOTH | {"x-max-priority", "x-queue-mode", "x-queue-version", "x-queue-master-locator"},
    QUORUM: _BOTH
    | {
        "x-dead-letter-strategy",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-quorum-initial-group-size",
        "x-quorum-target-group-size",
        "x-delivery-limit",
        "x-delivery-count-mode",
        "x-priority-mode",
        "x-consumer-disconnected-timeout",
        "x-delayed-retry-type",
        "x-delayed-retry-min",
        "x-delayed-retry-max",
    },
}

_CONSUMER_ARGUMENTS_8: dict[str, Check] = {
    "x-priority": _integer,
    "x-cancel-on-ha-failover": _boolean,
    "x-consumer-timeout": _not_negative,
    "x-live-prefetch": _boolean,
    "x-stream-offset": _anything,
}
"""The checks of consumer arguments up to version 8 of the state."""
_OF_STREAMS = ("x-stream-offset", "x-stream-filter", "x-stream-match-unfiltered")
_CONSUMER_KNOWN = frozenset(_CONSUMER_ARGUMENTS_8) - {*_OF_STREAMS}
# RabbitMQ reads any other value of x-cancel-on-ha-failover as false.
_CONSUMER_ARGUMENTS = _CONSUMER_ARGUMENTS_8 | dict.fromkeys(
    (*_OF_STREAMS, "x-cancel-on-ha-failover"), _anything
)
"""The checks of consumer arguments. Arguments of streams are refused, because they are not in `_CONSUMER_KNOWN`."""
