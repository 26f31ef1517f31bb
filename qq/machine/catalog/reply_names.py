"""Direct reply-to: names that lead to a channel and not to a queue (https://www.rabbitmq.com/docs/direct-reply-to).

A client consumes from a pseudo-queue, and the requests that it publishes then carry a name of its own. Who answers
publishes to that name by the default exchange.

Invariant: nothing waits. A reply is an effect of the entry that brings it, and no part of the state: at most once.
"""

from __future__ import annotations

from typing import NamedTuple

REPLY_TO = "amq.rabbitmq.reply-to"
"""The pseudo-queue, and what a client writes into the property `reply-to` of its requests."""
REPLY_PREFIX = f"{REPLY_TO}."
"""The beginning of each name that a node draws for a requester; behind it come 16 random octets in base64."""
_NAME_LENGTH = len(REPLY_PREFIX) + 22


class Requester(NamedTuple):
    """A channel's consumer of direct replies."""

    node: str
    session: int
    consumer: int
    name: str


def is_reply_name(name: str) -> bool:
    """Whether a node may have drawn this name for a requester, who may be gone."""
    return len(name) == _NAME_LENGTH and name.startswith(REPLY_PREFIX)
