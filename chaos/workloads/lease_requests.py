"""The port between a reader of leases and the cluster; a world supplies it beside the transports for AMQP.

Invariant: as in transport.py, a request ends with its answer; with RefusedError if it was certainly not carried out; or
with LostError if the outcome is unknown. A request is sent once, so the history has each attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chaos.workloads.messages import Delivery


class GroupState(NamedTuple):
    """A group as a node shows it."""

    fence: int
    last_lease: int
    """The highest lease that was ever taken; -1 without any."""
    leases: Sequence[int]
    """The open leases."""


class LeasedMessage(NamedTuple):
    """A message of a lease."""

    position: int
    """Number of the message in the queue."""
    delivery: Delivery
    """Its delivery tag is 0."""
    deliveries: int
    """How often it came back."""


class LeaseRequests(Protocol):
    """The requests of a reader. Every request raises RefusedError or LostError."""

    async def group(self, queue: str, group: str) -> GroupState | None: ...

    async def open(self, queue: str, group: str, fence: int, owner: str) -> GroupState:
        """Open a group, or take it over with a higher fence."""
        ...

    async def close(self, queue: str, group: str, fence: int) -> None:
        """End a group; its open leases return."""

    async def take(self, queue: str, group: str, fence: int, lease: int, messages: int) -> int:
        """Take a lease, and return the number of its messages; 0 if no message is ready."""
        ...

    async def read(self, queue: str, group: str, lease: int, parts: int) -> Sequence[LeasedMessage]:
        """Read a lease in so many parts, one after another."""
        ...

    async def commit(self, queue: str, group: str, fence: int, up_to: int) -> None: ...

    async def release(self, queue: str, group: str, fence: int, lease: int) -> None: ...

    async def disconnect(self) -> None:
        """Close the connections after the last request."""


LeaseConnector = Callable[[], LeaseRequests]
"""Makes the requests of a further reader possible."""


def digest_of(messages: Iterable[LeasedMessage]) -> str:
    """Return a hash of messages in their order."""
    made = sha256()
    for position, delivery, deliveries in messages:
        made.update(repr((position, delivery.message_id, delivery.body, deliveries)).encode())
    return made.hexdigest()[:16]
