"""The lanes in which requests wait when clients request more than the log takes in at once.

Two fair queues (`cluster.runtime.fair_queue`) decide which lane is served next. The first is among tenants: a tenant is
a virtual host, or the node itself. The second is among the tenant's lanes, so a client gains no larger share by opening
many connections. The cost of a service is the cost of the requests and of finding out that cost. A lane that was idle
for a while is put `AHEAD` of the lanes served meanwhile, so its first command waits for none of their commands.

The cost of a transaction larger than a batch is added to the time of its lane before the transaction is served.
Otherwise any number of new connections, each with a single transaction, would stay ahead of a lane that regularly makes
small requests.

Invariant: lanes with small requests are served before lanes with large ones, however many of the latter there are.
Within a lane, requests keep their order.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from cluster.runtime.fair_queue import FairQueue

if TYPE_CHECKING:
    from qq.machine.handlers.cost_estimate import Costs
    from qq.machine.protocol.commands import Settlement
    from qq.sessions.batch import Batch, PartOutcome, Payer

QUANTUM = 500
"""Cost in steps served from a lane before the order is consulted again: a tenth of a batch."""
AHEAD = 5_000
"""Cost in steps by which a formerly idle lane is put ahead of those served meanwhile: the cost of a batch."""


class Part(Protocol):
    """A command or a run of messages that waits in a lane until a batch takes it."""

    def take(self, batch: Batch, lane: Lane, costs: Costs, /) -> PartOutcome:
        """Add this part to the batch, or as much of the part as the batch has room for."""
        ...


class Growing(Part, Protocol):
    """Consecutive message ids of a consumer that are settled alike."""

    def extend(self, first: int, last: int) -> bool:
        """Add these message ids if they follow directly. Return whether they do."""
        ...


class Tenant:
    """Lanes that share a place in the order of tenants: those of a virtual host's connections, or the node's own."""

    __slots__ = ("__weakref__", "is_waiting", "lanes", "pending_bytes", "time")

    def __init__(self) -> None:
        self.lanes: FairQueue[Lane] = FairQueue(AHEAD)
        self.is_waiting = False
        self.time: float = 0
        self.pending_bytes = 0
        """Octets that the connections have requested and the log has not taken in, ended connections included."""


class Lane:
    """The requests of a connection, or of an internal part of the node, in order of arrival."""

    __slots__ = ("charged", "is_waiting", "parts", "payer", "settlements", "tenant", "time")

    def __init__(self, payer: Payer | None = None) -> None:
        self.payer = payer
        self.tenant: Tenant | None = None
        """The tenant that this lane belongs to, set before the first request; None means the node itself."""
        self.parts: deque[Part] = deque()
        self.settlements: dict[tuple[type[Settlement], int], Growing] = {}
        """The settlements, keyed by kind and consumer, that may still be extended by message ids that follow
        directly."""
        self.is_waiting = False
        self.time: float = 0
        self.charged = 0
        """Cost of the first part, in steps, if it is already included in the lane's time before it is served; else
        0."""

    def count_uncommitted(self, size: int) -> None:
        """Report `size` octets to tenant and payer that the log has yet to take in; negative if it has."""
        if self.tenant is not None:
            self.tenant.pending_bytes += size
        if self.payer is not None:
            self.payer.count_uncommitted(size)


class Lanes:
    """The lanes with requests, in the order of service."""

    def __init__(self) -> None:
        self._queue: FairQueue[Tenant] = FairQueue(AHEAD)
        self._node = Tenant()
        self._tenants: WeakValueDictionary[str, Tenant] = WeakValueDictionary()
        """The tenants that have a lane, by virtual host."""

    def __bool__(self) -> bool:
        return bool(self._queue)

    def tenant(self, vhost: str) -> Tenant:
        """Return the tenant of a virtual host's connections. It is made if it does not exist."""
        tenant = self._tenants.get(vhost)
        if tenant is None:
            tenant = self._tenants[vhost] = Tenant()
        return tenant

    @property
    def tenants(self) -> int:
        """The number of tenants that have a lane, without the node itself."""
        return len(self._tenants)

    def enter(self, lane: Lane) -> bool:
        """Add a lane that had no requests until now. Return whether it was served little compared with the rest."""
        tenant = self._tenant_of(lane)
        is_light = tenant.lanes.enter(lane)
        if tenant.is_waiting:
            return is_light
        return self._queue.enter(tenant) or is_light

    def next(self) -> Lane:
        """Take out the next lane. It and its tenant are outside the order until `served` or `put_off` is called."""
        return self._queue.next().lanes.next()

    def served(self, lane: Lane, cost: int) -> None:
        """Put a lane back into the order, if it has more requests, after a service that cost `cost` steps."""
        lane.time += cost
        if lane.parts:
            self._tenant_of(lane).lanes.push(lane)
        else:
            lane.is_waiting = False
        self._charge(lane, cost)

    def put_off(self, lane: Lane, cost: int) -> None:
        """Keep a lane out of the order until `go_on`, after a service that cost `cost` steps."""
        lane.time += cost
        self._charge(lane, cost)

    def go_on(self, lane: Lane) -> None:
        """Return a lane that was put off to the order."""
        tenant = self._tenant_of(lane)
        tenant.lanes.push(lane)
        if not tenant.is_waiting:
            tenant.is_waiting = True
            self._queue.push(tenant)

    def clear(self) -> list[Lane]:
        """Discard all orders. Return the lanes that had requests, with their requests."""
        for tenant in self._tenants.values():
            tenant.pending_bytes = 0
        return [lane for tenant in self._queue.clear() for lane in tenant.lanes.clear()]

    def _tenant_of(self, lane: Lane) -> Tenant:
        return lane.tenant or self._node

    def _charge(self, lane: Lane, cost: int) -> None:
        tenant = self._tenant_of(lane)
        tenant.time += cost
        if tenant.lanes:
            self._queue.push(tenant)
        else:
            tenant.is_waiting = False
