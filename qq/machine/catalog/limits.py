"""Limits of the number and size of objects: their names, their defaults, and the size of a table of arguments.

Invariant: a limit follows from the replicated state and from this version's code, never from a node's file, so that all
replicas refuse the same commands. Existing objects above a limit stay and work; only new objects are refused.

RabbitMQ has max-connections, max-queues and max-channels, without defaults. A default here is more than an installation
needs. Its comment has an object's measured size in a node's memory, and the size of all objects at the limit
(`tests/machine/catalog/test_limits.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qq.machine.protocol.refusals import precondition_failed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qq.machine.protocol.commands import Table
    from qq.machine.protocol.refusals import Refused

MAX_CONNECTIONS, MAX_CHANNELS = "max-connections", "max-channels"
MAX_QUEUES, MAX_EXCHANGES, MAX_POLICIES = "max-queues", "max-exchanges", "max-policies"
MAX_BINDINGS = "max-bindings"
MAX_BINDINGS_PER_QUEUE = "max-bindings-per-queue"
MAX_BINDINGS_PER_EXCHANGE = "max-bindings-per-exchange"
MAX_CONSUMERS = "max-consumers"
MAX_CONSUMERS_PER_QUEUE = "max-consumers-per-queue"
MAX_CONSUMERS_PER_CHANNEL = "max-consumers-per-channel"
MAX_ARGUMENT_BYTES = "max-argument-bytes"
MAX_PUBLISHES = "max-publishes-per-second"
MAX_PUBLISH_BYTES = "max-publish-bytes-per-second"

RATES = (MAX_PUBLISHES, MAX_PUBLISH_BYTES)
"""Limits of publishing: messages above them wait at the nodes of their publishers (sessions/throttle.py)."""

NONE = -1
"""The value that means unlimited, as every negative value does."""

VHOST_LIMITS: Mapping[str, int] = {
    MAX_CONNECTIONS: NONE,
    MAX_QUEUES: 100_000,  # 5.1 kB: 510 MB
    MAX_EXCHANGES: 50_000,  # 0.6 kB: 30 MB
    MAX_BINDINGS: 200_000,  # 1.1 kB: 220 MB
    MAX_BINDINGS_PER_QUEUE: 1_000,  # all are removed with the queue, in one step
    MAX_BINDINGS_PER_EXCHANGE: 50_000,  # a message may reach the queues of all of them, in one step
    MAX_POLICIES: 1_000,  # 4.8 kB: 5 MB; operator policies count, too
    MAX_CONSUMERS: 200_000,  # 0.8 kB: 170 MB; the unacknowledged messages of a get count as a consumer
    MAX_CONSUMERS_PER_QUEUE: 10_000,
    MAX_CONSUMERS_PER_CHANNEL: 5_000,  # all are removed with the channel, in one step
    MAX_ARGUMENT_BYTES: 128 * 1024 * 1024,  # of all queues, exchanges and bindings, as `table_bytes` counts
    MAX_PUBLISHES: NONE,
    MAX_PUBLISH_BYTES: NONE,
}
"""The default limits of a virtual host; `SetVhostLimits` overrides them."""

USER_LIMITS: Mapping[str, int] = {
    MAX_CONNECTIONS: NONE,
    MAX_CHANNELS: 100_000,  # 0.4 kB: 40 MB
    MAX_PUBLISHES: NONE,
    MAX_PUBLISH_BYTES: NONE,
}
"""The default limits of a user; `SetUserLimits` overrides them."""

VHOSTS_MAX = 10_000  # 5.3 kB: 53 MB
USERS_MAX = 100_000  # 0.4 kB: 41 MB
PERMISSIONS_MAX = 100_000  # 0.4 kB: 40 MB
TOPIC_PERMISSIONS_MAX = 100_000
"""The limits of the whole cluster. Like the limits below, they are fixed."""
PARAMETERS_MAX = 1_000
"""Parameters of a virtual host, and of the cluster, at most; with `PARAMETER_BYTES_MAX` each, they take 16 MB."""
PARAMETER_BYTES_MAX = 16 * 1024
"""Maximum bytes of a parameter's value, as JSON."""
TAGS_MAX = 32
"""Maximum tags of a user (RabbitMQ's bound), and of a virtual host."""
DESCRIPTION_BYTES_MAX = 1024
"""Maximum bytes of a virtual host's description."""
ARGUMENTS_BYTES_MAX = 16 * 1024
"""Maximum bytes (`table_bytes`) of a policy's definition, or of the arguments of a declaration, binding or consumer."""
TRANSACTION_MESSAGES_MAX = 100_000
"""Maximum messages of a transaction: with queues that count their messages' octets, 15 ms of every node's time."""
TRANSACTION_COMMANDS_MAX = 1_500
"""Maximum commands of a transaction. The most expensive command takes 30 us of every node's time, so 50 ms in all.

Consecutive messages that are published alike are a single command, plus a command for each further routing key (CC,
BCC). If routing looks into messages, each message is a command. Consecutive messages that are settled alike are a
single command."""
VALUE_BYTES = 64
"""Bytes that each value of a table counts as, on top of its own octets and those of its name."""

_DEFAULTS = {**VHOST_LIMITS, **USER_LIMITS}


def limit_of(limits: Mapping[str, object], name: str) -> int | None:
    """Return the limit of this name, from `limits` or the defaults; None if it is negative (unlimited)."""
    limit = limits.get(name)
    if type(limit) is not int:
        limit = _DEFAULTS[name]
    return limit if limit >= 0 else None


def in_force(limits: Mapping[str, object]) -> dict[str, int]:
    """Return all limits of a virtual host, in the form shown to operators."""
    found = {name: limit_of(limits, name) for name in VHOST_LIMITS}
    return {name: NONE if limit is None else limit for name, limit in found.items()}


def reached(doing: str, name: str, limit: int, where: str) -> Refused:
    """Return the refusal of an action at a limit."""
    return precondition_failed(f"cannot {doing}: limit {name} ({limit}) of {where} is reached")


def table_bytes(table: Table) -> int:
    """Return the size of a field table: its octets, and `VALUE_BYTES` for each value, including nested values."""
    size = VALUE_BYTES * len(table)
    for name, value in table.items():  # most values are short texts, and a call would cost more
        size += len(name) if name.isascii() else _octets(name)
        if type(value) is str:
            size += len(value) if value.isascii() else _octets(value)
        elif type(value) is not int:
            size += _value_bytes(value) - VALUE_BYTES
    return size


def check_table_size(doing: str, table: Table) -> int:
    """Return the size of arguments in bytes. Raise Refused if they are too large."""
    size = table_bytes(table) if table else 0
    if size > ARGUMENTS_BYTES_MAX:
        raise precondition_failed(
            f"cannot {doing}: the arguments take {size} bytes ({VALUE_BYTES} for each value and its octets), "
            f"the limit is {ARGUMENTS_BYTES_MAX}"
        )
    return size


def _value_bytes(value: Any) -> int:
    match value:
        case dict():
            return VALUE_BYTES + table_bytes(value)
        case list():
            return VALUE_BYTES + sum(map(_value_bytes, value))
        case str():
            return VALUE_BYTES + _octets(value)
        case bytes():
            return VALUE_BYTES + len(value)
        case _:
            return VALUE_BYTES


def _octets(text: str) -> int:
    return len(text.encode(errors="surrogateescape"))
