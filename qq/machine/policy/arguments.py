"""Optional arguments of queues, exchanges and consumers: the known names, their valid values, and their equivalence.

Invariant: an accepted argument is stored as it came. An unknown argument is accepted and ignored, as AMQP requires.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from qq.machine.policy import value_checks as v
from qq.machine.policy.queue_options import CHANGED_ARGUMENTS, QUEUE_OPTIONS, Argument
from qq.machine.protocol.queue_types import CLASSIC, MODULES
from qq.machine.protocol.refusals import precondition_failed
from qq.machine.protocol.versions import VERSIONS
from qq.routing.values import type_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qq.tables import Table


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
    fault = _queue_arguments(VERSIONS[0])["x-queue-type"].check(arguments["x-queue-type"], arguments)
    if fault is not None:
        raise _invalid("x-queue-type", queue, fault)
    return arguments["x-queue-type"]


def check_queue_arguments(queue: str, kind: str, arguments: Table, version: int) -> None:
    """Raise Refused for an argument with an invalid value, or an argument that this queue type does not support.

    `version` is the version of the state: a later argument is unknown.
    """
    _check(queue, kind, arguments, _queue_arguments(version))


def check_consumer_arguments(queue: str, kind: str, arguments: Table, version: int) -> None:
    """Raise Refused for an argument with an invalid value, or an argument of streams.

    `version` is the version of the state: before 9, fewer arguments are checked.
    """
    _check(queue, kind, arguments, _consumer_arguments(version))


def check_equivalent_queue_arguments(
    queue: str, kind: str, current: Table, received: Table, version: int
) -> None:
    """Raise Refused unless a declaration repeats the arguments that matter to a queue of this type."""
    known = [
        key
        for key, argument in _queue_arguments(version).items()
        if kind in argument.types and argument.is_compared
    ]
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


def _check(queue: str, kind: str, arguments: Table, known: dict[str, Argument]) -> None:
    given = [key for key in arguments if key in known]
    if len(given) > 1:
        given = [key for key in known if key in arguments]
    for key in given:
        if kind in known[key].types:
            fault = known[key].check(arguments[key], arguments)
            if fault is not None:
                raise _invalid(key, queue, fault)
    for key in arguments:
        if key in known and kind not in known[key].types:
            raise precondition_failed(f"invalid arg '{key}' for {queue} of queue type {MODULES[kind]}")


def _invalid(key: str, queue: str, fault: str) -> Exception:
    return precondition_failed(f"invalid arg '{key}' for {queue}: {fault}")


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


_QUEUE_ARGUMENTS = (
    *((option.argument_name, option.argument) for option in QUEUE_OPTIONS if option.argument is not None),
    *CHANGED_ARGUMENTS,
)
"""Arguments of queue.declare; a later line replaces an earlier line of the same name."""
CONSUMER_ARGUMENTS = (
    ("x-priority", Argument(v.integer)),
    ("x-cancel-on-ha-failover", Argument(v.boolean)),
    ("x-consumer-timeout", Argument(v.not_negative)),
    ("x-live-prefetch", Argument(v.boolean)),
    ("x-stream-offset", Argument(v.anything, types=())),
    # RabbitMQ reads any other value as false.
    ("x-cancel-on-ha-failover", Argument(v.anything, since=9)),
    ("x-stream-filter", Argument(v.anything, types=(), since=9)),
    ("x-stream-match-unfiltered", Argument(v.anything, types=(), since=9)),
    # RabbitMQ 4.0 ignores it, with any value.
    ("x-consumer-timeout", Argument(v.anything, since=11)),
)
"""Arguments of basic.consume; a later line replaces an earlier line of the same name."""


@cache
def _queue_arguments(version: int) -> dict[str, Argument]:
    """Return the arguments of queue.declare that this version of the state knows."""
    return {name: argument for name, argument in _QUEUE_ARGUMENTS if argument.since <= version}


@cache
def _consumer_arguments(version: int) -> dict[str, Argument]:
    """Return the arguments of basic.consume that this version of the state knows."""
    return {name: argument for name, argument in CONSUMER_ARGUMENTS if argument.since <= version}
