"""How much of everything there may be: the named limits, their defaults, and what a table of arguments counts as.

Invariant: a limit follows from the replicated state and from this version's code, never from a node's file, so that all
replicas refuse the same. What is there already above a limit stays and works; only what is new is refused.

RabbitMQ has max-connections, max-queues and max-channels, and no default for them. A default here is more than an
installation has, times what one object takes in a node's memory (measured; `tests/machine/test_limits.py`).
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
"""Limits of how much is published: what is above them waits, at the nodes of the publishers (sessions/throttle.py)."""

NONE = -1
"""The value that means no limit, as every negative value does."""

VHOST_LIMITS: Mapping[str, int] = {
    MAX_CONNECTIONS: NONE,
    MAX_QUEUES: 100_000,  # 5.1 kB: 510 MB
    MAX_EXCHANGES: 50_000,  # 0.6 kB: 30 MB
    MAX_BINDINGS: 200_000,  # 1.1 kB: 220 MB
    MAX_BINDINGS_PER_QUEUE: 1_000,  # all go when it is deleted, in one step
    MAX_BINDINGS_PER_EXCHANGE: 50_000,  # a message may go to the queues of all of them, in one step
    MAX_POLICIES: 1_000,  # 4.8 kB: 5 MB; those of operators count, too
    MAX_CONSUMERS: 200_000,  # 0.8 kB: 170 MB; what one command got and is not acknowledged counts as one
    MAX_CONSUMERS_PER_QUEUE: 10_000,
    MAX_CONSUMERS_PER_CHANNEL: 5_000,  # all go with the channel, in one step
    MAX_ARGUMENT_BYTES: 128 * 1024 * 1024,  # of all queues, exchanges and bindings, as `table_bytes` counts
    MAX_PUBLISHES: NONE,
    MAX_PUBLISH_BYTES: NONE,
}
"""The limits of each virtual host, which hold where its own limits (`SetVhostLimits`) say nothing else."""

USER_LIMITS: Mapping[str, int] = {
    MAX_CONNECTIONS: NONE,
    MAX_CHANNELS: 100_000,  # 0.4 kB: 40 MB
    MAX_PUBLISHES: NONE,
    MAX_PUBLISH_BYTES: NONE,
}
"""The limits of each user, which hold where the user's own limits (`SetUserLimits`) say nothing else."""

VHOSTS_MAX = 10_000  # 5.3 kB: 53 MB
USERS_MAX = 100_000  # 0.4 kB: 41 MB
PERMISSIONS_MAX = 100_000  # 0.4 kB: 40 MB
TOPIC_PERMISSIONS_MAX = 100_000
"""The limits of the whole cluster. They cannot be changed, nor can those below."""
PARAMETERS_MAX = 1_000
"""How many parameters a virtual host may have, and how many the cluster, with `PARAMETER_BYTES_MAX` each: 16 MB."""
PARAMETER_BYTES_MAX = 16 * 1024
"""The most bytes of a parameter's value, as JSON."""
TAGS_MAX = 32
"""The most tags of a user (RabbitMQ's bound), and of a virtual host."""
DESCRIPTION_BYTES_MAX = 1024
"""The most bytes of a virtual host's description."""
ARGUMENTS_BYTES_MAX = 16 * 1024
"""How much the arguments of a declaration, binding or consumer, or a policy's definition, may take (`table_bytes`)."""
TRANSACTION_MESSAGES_MAX = 100_000
"""The most messages of one commit: with queues that count what they take, 15 ms of every node's time."""
TRANSACTION_COMMANDS_MAX = 1_500
"""The most commands of one commit; the dearest take 30 us of every node's time, so that none takes more than 50 ms.

Consecutive messages that are published alike are one, with one more for each further routing key (CC, BCC). Each
message is one where routing looks into messages. Consecutive messages that are settled alike are one.
"""
VALUE_BYTES = 64
"""How many bytes each value of a table counts as, beside its own octets and those of its name."""

_DEFAULTS = {**VHOST_LIMITS, **USER_LIMITS}


def limit_of(limits: Mapping[str, object], name: str) -> int | None:
    """The limit of this name, from `limits` or else the default; None if that is negative, which means no limit."""
    limit = limits.get(name)
    if type(limit) is not int:
        limit = _DEFAULTS[name]
    return limit if limit >= 0 else None


def in_force(limits: Mapping[str, object]) -> dict[str, int]:
    """All limits of a virtual host, as operators are shown them."""
    found = {name: limit_of(limits, name) for name in VHOST_LIMITS}
    return {name: NONE if limit is None else limit for name, limit in found.items()}


def reached(doing: str, name: str, limit: int, where: str) -> Refused:
    """The refusal of something for which there is no room."""
    return precondition_failed(f"cannot {doing}: limit {name} ({limit}) of {where} is reached")


def table_bytes(table: Table) -> int:
    """The size of a field table: its octets and `VALUE_BYTES` for each value, also for those within others."""
    size = VALUE_BYTES * len(table)
    for name, value in table.items():  # most are short texts, and none of them is worth a call
        size += len(name) if name.isascii() else _octets(name)
        if type(value) is str:
            size += len(value) if value.isascii() else _octets(value)
        elif type(value) is not int:
            size += _value_bytes(value) - VALUE_BYTES
    return size


def check_table_size(doing: str, table: Table) -> int:
    """Return the size of arguments; raise Refused for those that are too large to be kept."""
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
