"""Direct reply-to: names that lead to a channel and not to a queue (https://www.rabbitmq.com/docs/direct-reply-to).

A client consumes from a pseudo-queue, and the requests that it publishes then carry a name of its own. The responder
publishes to that name through the default exchange.

Invariant: a reply is an effect of the entry that publishes it, and never part of the state: it is delivered at most
once.
"""

from __future__ import annotations

from typing import NamedTuple

REPLY_TO = "amq.rabbitmq.reply-to"
"""The pseudo-queue, and the value of the property `reply-to` in a client's requests."""
REPLY_PREFIX = f"{REPLY_TO}."
"""The prefix of each name that a node draws for a requester; 16 random octets in base64 follow."""
_NAME_LENGTH = len(REPLY_PREFIX) + 22


class Requester(NamedTuple):
    """A channel's consumer of direct replies."""

    node: str
    session: int
    consumer: int
    name: str


def is_reply_name(name: str) -> bool:
    """Return whether a node may have drawn this name for a requester, even a former requester."""
    return len(name) == _NAME_LENGTH and name.startswith(REPLY_PREFIX)
