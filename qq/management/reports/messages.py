"""Messages that operators read, take and publish."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pamqp.commands import Basic


class AckMode(StrEnum):
    """Treatment of the messages that a get takes, in RabbitMQ's words."""

    ACK_REQUEUE_TRUE = "ack_requeue_true"
    ACK_REQUEUE_FALSE = "ack_requeue_false"
    REJECT_REQUEUE_TRUE = "reject_requeue_true"
    REJECT_REQUEUE_FALSE = "reject_requeue_false"


class Message(NamedTuple):
    """A message that was browsed in its queue or taken by a get."""

    offset: int
    """Number of ready messages before it in the queue; for a get, number of messages that the get took before."""
    exchange: str
    routing_key: str
    redelivered: bool
    properties: Basic.Properties
    body: bytes
    message_count: int | None = None
    """Number of ready messages left after a get; None for a browsed message."""


class NewMessage(NamedTuple):
    """A message to publish."""

    exchange: str
    routing_key: str
    properties: Basic.Properties
    body: bytes


class AllPublications(NamedTuple):
    """Publishing to an exchange with any routing key, as an argument of permission checks."""

    exchange: str
