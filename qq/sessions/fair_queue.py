"""Whose turn it is, when many ask for more than the log takes in at once.

Invariant: who has asked for little is served before who has asked for much, however many of those there are; within a
lane the order is that of asking. First it is the turn of a tenant, which is a virtual host, or the node itself; then of
one of the tenant's lanes: so it is no use to open many connections. Both orders are start-time fair queueing (Goyal,
Vin and Cheng, SIGCOMM 1996): the time of a lane, and of its tenant, goes on by the cost of what it is served, and of
what is looked for to know that; whoever is least far is next. One that has asked for nothing for a while is put `AHEAD`
of those that have been served meanwhile, so that its first command waits for none of them. So the cost of a transaction
that is larger than a batch is in the time of its lane before it is served: else any number of new connections, with one
transaction each, would be ahead of who asks for little again and again.
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
"""Cost in steps that a lane is served before it is looked whether another one is next: a tenth of a batch."""
AHEAD = 5_000
"""Cost in steps, that of a batch, by which a lane that was idle is put ahead of those served meanwhile."""


class Part(Protocol):
    """A command or a run of messages that waits in a lane until a batch takes it in."""

    def take(self, batch: Batch, lane: Lane, costs: Costs, /) -> PartOutcome:
        """Have the batch take this part in, or as much of it as there is room for."""
        ...


class Growing(Part, Protocol):
    """Consecutive message ids of one consumer that are settled alike."""

    def goes_on(self, first: int, last: int) -> bool:
        """Add these message ids if they follow at once; returns whether they do."""
        ...


class Turned(Protocol):
    """Something that has turns."""

    is_waiting: bool
    """Whether it has its place in the order of service, or is being served."""
    time: int


T = TypeVar("T", bound=Turned)


class Order(Generic[T]):
    """Those that have something to be served, in the order of service."""

    __slots__ = ("_arrivals", "_time", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, T]] = []
        self._time = 0
        """The time of the one that had got farthest when its turn came."""
        self._arrivals = count()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def enter(self, one: T) -> bool:
        """Have one served that had nothing to serve until now; returns whether it asks for little beside others."""
        first = self._time - AHEAD
        asks_little = one.time <= first
        one.is_waiting = True
        one.time = max(one.time, first)
        self.push(one)
        return asks_little

    def next(self) -> T:
        """The one that is next; it is in the order no more until it is pushed again."""
        one = heappop(self._waiting)[2]
        self._time = max(self._time, one.time)
        return one

    def push(self, one: T) -> None:
        heappush(self._waiting, (one.time, next(self._arrivals), one))

    def clear(self) -> list[T]:
        """Take out all that wait."""
        left = [one for _, _, one in self._waiting]
        for one in left:
            one.is_waiting = False
        self._waiting.clear()
        return left


class Tenant:
    """Lanes that have one turn together: those of the connections to a virtual host, or those of the node itself."""

    __slots__ = ("__weakref__", "is_waiting", "lanes", "time")

    def __init__(self) -> None:
        self.lanes: Order[Lane] = Order()
        self.is_waiting = False
        self.time = 0


class Lane:
    """What one connection, or one part of the node itself, has asked for, in the order of asking."""

    __slots__ = ("charged", "is_waiting", "parts", "payer", "settlements", "tenant", "time")

    def __init__(self, payer: Payer | None = None) -> None:
        self.payer = payer
        self.tenant: Tenant | None = None
        """The tenant whose turn this lane's is, told before anything is asked for; None: the node itself."""
        self.parts: deque[Part] = deque()
        self.settlements: dict[tuple[type[Settlement], int], Growing] = {}
        """The settlements, keyed by kind and consumer, to which the message ids that follow may still be added."""
        self.is_waiting = False
        self.time = 0
        self.charged = 0
        """The cost of the first part, if that is in the lane's time already, before it is served."""

    def count_uncommitted(self, size: int) -> None:
        """Tell the payer, if there is one, of octets that the log has yet to take in or, if negative, has taken in."""
        if self.payer is not None:
            self.payer.count_uncommitted(size)


class Lanes:
    """The lanes that have something to be served, in the order of service."""

    def __init__(self) -> None:
        self._order: Order[Tenant] = Order()
        self._node = Tenant()
        self._tenants: WeakValueDictionary[str, Tenant] = WeakValueDictionary()
        """The tenants of which there is a lane, by virtual host."""

    def __bool__(self) -> bool:
        return bool(self._order)

    def tenant(self, vhost: str) -> Tenant:
        """The tenant that the lanes of a virtual host's connections belong to."""
        tenant = self._tenants.get(vhost)
        if tenant is None:
            tenant = self._tenants[vhost] = Tenant()
        return tenant

    def enter(self, lane: Lane) -> bool:
        """Have a lane served that had nothing to serve until now; returns whether it asks for little beside others."""
        tenant = self._tenant_of(lane)
        asks_little = tenant.lanes.enter(lane)
        if tenant.is_waiting:
            return asks_little
        return self._order.enter(tenant) or asks_little

    def next(self) -> Lane:
        """The lane that is next; neither it nor its tenant is in the order until it was `served` or `put_off`."""
        return self._order.next().lanes.next()

    def served(self, lane: Lane, cost: int) -> None:
        """Put a lane back into the order, if it has more to be served, after service that cost so many steps."""
        lane.time += cost
        if lane.parts:
            self._tenant_of(lane).lanes.push(lane)
        else:
            lane.is_waiting = False
        self._charge(lane, cost)

    def put_off(self, lane: Lane, cost: int) -> None:
        """Leave a lane out of the order until it is to `go_on`, after service that cost so many steps."""
        lane.time += cost
        self._charge(lane, cost)

    def go_on(self, lane: Lane) -> None:
        """Put a lane that was put off back into the order."""
        tenant = self._tenant_of(lane)
        tenant.lanes.push(lane)
        if not tenant.is_waiting:
            tenant.is_waiting = True
            self._order.push(tenant)

    def clear(self) -> list[Lane]:
        """Forget what was asked for; returns the lanes that had something, with what they had."""
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
