"""Start-time fair queueing of requests when clients request more than the log takes in at once.

Two orders decide which lane is served next. The first is among tenants: a tenant is a virtual host, or the node itself.
The second is among the tenant's lanes, so a client gains no larger share by opening many connections. Both use
start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): the time of a lane, and of its tenant, advances by the
cost of its served requests and of finding out that cost. The lane with the lowest time is next. A lane that was idle
for a while is put `AHEAD` of the lanes served meanwhile, so its first command waits for none of their commands.

The cost of a transaction larger than a batch is added to the time of its lane before the transaction is served.
Otherwise any number of new connections, each with a single transaction, would stay ahead of a lane that regularly makes
small requests.

Invariant: lanes with small requests are served before lanes with large ones, however many of the latter there are.
Within a lane, requests keep their order.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

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


class Turned(Protocol):
    """A member of an order: a tenant or a lane."""

    is_waiting: bool
    """Whether it has its place in the order of service, or is being served."""
    time: int


T = TypeVar("T", bound=Turned)


class Order(Generic[T]):
    """The members with requests, in the order of service."""

    __slots__ = ("_arrivals", "_time", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, T]] = []
        self._time = 0
        """The highest time that a member had when it was taken out to be served."""
        self._arrivals = count()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def enter(self, one: T) -> bool:
        """Add a member that had no requests until now. Return whether it asks for little compared with the rest."""
        first = self._time - AHEAD
        asks_little = one.time <= first
        one.is_waiting = True
        one.time = max(one.time, first)
        self.push(one)
        return asks_little

    def next(self) -> T:
        """Take out the next member. It is outside the order until it is pushed again."""
        one = heappop(self._waiting)[2]
        self._time = max(self._time, one.time)
        return one

    def push(self, one: T) -> None:
        heappush(self._waiting, (one.time, next(self._arrivals), one))

    def pass_by(self, one: T, cost: int) -> None:
        """Charge a member that was served at once, because no member waited."""
        time = one.time
        if time > self._time:
            self._time = time
        elif time < self._time - AHEAD:
            time = self._time - AHEAD
        one.time = time + cost

    def clear(self) -> list[T]:
        """Take out and return all members."""
        left = [one for _, _, one in self._waiting]
        for one in left:
            one.is_waiting = False
        self._waiting.clear()
        return left


class Tenant:
    """Lanes that share a place in the order of tenants: those of a virtual host's connections, or the node's own."""

    __slots__ = ("__weakref__", "is_waiting", "lanes", "time")

    def __init__(self) -> None:
        self.lanes: Order[Lane] = Order()
        self.is_waiting = False
        self.time = 0


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
        self.time = 0
        self.charged = 0
        """Cost of the first part, in steps, if it is already included in the lane's time before it is served; else
        0."""

    def count_uncommitted(self, size: int) -> None:
        """Report `size` octets to the payer, if there is one, that the log has yet to take in; negative if it has."""
        if self.payer is not None:
            self.payer.count_uncommitted(size)


class Lanes:
    """The lanes with requests, in the order of service."""

    def __init__(self) -> None:
        self._order: Order[Tenant] = Order()
        self._node = Tenant()
        self._tenants: WeakValueDictionary[str, Tenant] = WeakValueDictionary()
        """The tenants that have a lane, by virtual host."""

    def __bool__(self) -> bool:
        return bool(self._order)

    def tenant(self, vhost: str) -> Tenant:
        """Return the tenant of a virtual host's connections. It is made if it does not exist."""
        tenant = self._tenants.get(vhost)
        if tenant is None:
            tenant = self._tenants[vhost] = Tenant()
        return tenant

    def enter(self, lane: Lane) -> bool:
        """Add a lane that had no requests until now. Return whether it asks for little compared with the rest."""
        tenant = self._tenant_of(lane)
        asks_little = tenant.lanes.enter(lane)
        if tenant.is_waiting:
            return asks_little
        return self._order.enter(tenant) or asks_little

    def next(self) -> Lane:
        """Take out the next lane. It and its tenant are outside the order until `served` or `put_off` is called."""
        return self._order.next().lanes.next()

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
            self._order.push(tenant)

    def clear(self) -> list[Lane]:
        """Discard all orders. Return the lanes that had requests, with their requests."""
        return [lane for tenant in self._order.clear() for lane in tenant.lanes.clear()]

    def _tenant_of(self, lane: Lane) -> Tenant:
        return lane.tenant or self._node

    def _charge(self, lane: Lane, cost: int) -> None:
        tenant = self._tenant_of(lane)
        tenant.time += cost
        if tenant.lanes:
            self._order.push(tenant)
        else:
            tenant.is_waiting = False
