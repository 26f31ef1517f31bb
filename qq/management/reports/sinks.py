"""Sinks, as operators and writers see them, and the messages that a writer stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class SinkStatus(NamedTuple):
    """A sink of a virtual host."""

    name: str
    vhost: str
    user: str
    expires_ms: int
    committed: int | None
    """The highest committed epoch."""
    attempts: int
    """Attempts that are not committed."""
    messages_staged: int
    bytes_staged: int
    age_ms: int
    """Age of the oldest message that is not committed; 0 without any."""
    idle_ms: int
    """Milliseconds since the last command of the sink's user, without outages."""


class RoutedMessages(NamedTuple):
    """Messages for an exchange, with their routing key, in their stored form."""

    exchange: str
    routing_key: str
    flags: int
    """The union of the flags of their properties."""
    messages: Sequence[bytes]


class PublishedKeys(NamedTuple):
    """Publishing to an exchange with these routing keys, as an argument of permission checks."""

    exchange: str
    routing_keys: Sequence[str]


class AttemptPath(NamedTuple):
    """The place of an attempt."""

    vhost: str
    sink: str
    user: str
    epoch: int
    attempt: str
