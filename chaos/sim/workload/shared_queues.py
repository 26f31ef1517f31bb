"""The queues that clients of both protocols publish to and consume from, and their settings for the judge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from chaos.judge.run import Queue

if TYPE_CHECKING:
    from collections.abc import Mapping

SMALL = "c3"
"""This queue refuses messages when it is full."""
ROOM = 12
"""Maximum length of the small queue, in messages."""
SINGLE_ACTIVE, MORTAL = "c4", "c5"
"""A queue with a single active consumer, and a queue with dead letters, which move to the first queue."""
TO_ALL = "to-all"
"""A fanout exchange to all queues."""


class SharedQueues(NamedTuple):
    """The queues of a run."""

    arguments: Mapping[str, Mapping[str, Any]]
    """Arguments of each queue, by its name."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.arguments)

    @property
    def judged(self) -> dict[str, Queue]:
        """The settings that the judge must know."""
        return {
            name: Queue(
                drained=True,
                single_active="x-single-active-consumer" in arguments,
                dead_letters_to=arguments.get("x-dead-letter-routing-key"),
            )
            for name, arguments in self.arguments.items()
        }


_QUORUM = {"x-queue-type": "quorum", "x-delivery-limit": -1}
_PLAIN = {
    "c1": _QUORUM,
    "c2": _QUORUM,
    SMALL: _QUORUM | {"x-max-length": ROOM, "x-overflow": "reject-publish"},
}
QUEUES = SharedQueues(_PLAIN)
"""The queues of a run without clients of AMQP 1.0."""
MORE_QUEUES = SharedQueues(
    _PLAIN
    | {
        SINGLE_ACTIVE: _QUORUM | {"x-single-active-consumer": True},
        MORTAL: _QUORUM | {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "c1"},
    }
)
"""The queues of a run with clients of AMQP 1.0."""
