"""Groups of queues and their leases, as operators and readers see them."""

from __future__ import annotations

from typing import NamedTuple


class LeaseStatus(NamedTuple):
    """An open lease."""

    lease: int
    messages: int
    bytes: int
    taken_at: int
    """Time in ms since 1970."""


class Lag(NamedTuple):
    """Messages that a group has not committed: those ready in its queue, and those in its open leases."""

    messages: int
    bytes: int
    age_ms: int
    """Age of the oldest of these messages, where a leased message counts from its lease on; 0 without any."""


class GroupStatus(NamedTuple):
    """A group of a queue."""

    name: str
    vhost: str
    queue: str
    queue_number: int
    generation: int
    """Changes when the group is ended and opened again."""
    fence: int
    owner: str
    user: str
    order: str
    exclusive: bool
    expires_ms: int
    committed: int | None
    """The highest committed lease."""
    last_lease: int | None
    """The highest lease ever taken."""
    open_leases: int
    leases: list[LeaseStatus]
    """The open leases; none in a row of a list."""
    messages_leased: int
    bytes_leased: int
    lag: Lag
    idle_ms: int
    """Milliseconds since the last command of the group, without outages. Reading a lease is no command."""
