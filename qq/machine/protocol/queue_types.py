"""The types of queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qq.tables import Table

CLASSIC = "classic"
QUORUM = "quorum"

MODULES = {CLASSIC: "rabbit_classic_queue", QUORUM: "rabbit_quorum_queue"}
"""The name of each queue type in RabbitMQ's texts."""
UNDEFINED = "undefined"
"""The type of queues in some definitions of RabbitMQ 3.11 and 3.12. RabbitMQ 4.0 declares them as classic queues."""


def with_known_type(arguments: Table) -> Table:
    """Return the arguments of a queue with `CLASSIC` in place of `UNDEFINED`."""
    is_undefined = arguments.get("x-queue-type") == UNDEFINED
    return {**arguments, "x-queue-type": CLASSIC} if is_undefined else arguments
