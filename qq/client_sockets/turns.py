"""Shares the node's processor between the clients' connections: each has a turn, the cheapest tenant first.

A connection does the work that its client causes in turns: it parses received octets, carries out requests, writes
answers, and cleans up when the client is gone. The cost of a turn is the processor time that it takes, so frames that
leave no entry in the log (heartbeats, passive declares, refused methods) cost their sender as much as any other.

Three orders of start-time fair queueing decide which connection is next (`cluster.runtime.fair_queue`): among virtual
hosts, among the users of a virtual host, and among the connections of a user. Connections before their login belong to
a tenant of their own, divided by the clients' addresses.

Invariant: in a pass of the event loop, turns take PASS_S and at most a turn more. Then timers and other sockets are
served. While no connection waits, a connection has its turn at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from cluster.runtime.fair_queue import FairQueue
from qq.sessions.lanes import AHEAD

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.runtime.ports import Runtime

PASS_S = 0.002
"""Seconds of processor time for turns in a pass of the event loop."""
TURN_S = 0.001
"""Seconds of processor time after which a turn should end."""
STEPS_PER_S = 1_000_000
"""The orders count in steps of a microsecond."""


class Worker(Protocol):
    """A connection that has work at times."""

    def take_turn(self, until_s: float, /) -> bool:
        """Do some of the work, and end soon after `until_s` by the processor's clock. Return whether work is left."""
        ...


class Place:
    """A member of an order: a virtual host, a user in it, or a connection of that user."""

    __slots__ = ("__weakref__", "is_waiting", "members", "owner", "time", "worker")

    def __init__(self, owner: Place | None, worker: Worker | None = None) -> None:
        self.owner = owner
        """The place in whose order this place is; None at the root."""
        self.worker = worker
        """The connection, if this is a connection's place."""
        self.members: FairQueue[Place] = FairQueue(AHEAD) if worker is None else _NO_MEMBERS
        self.is_waiting = False
        self.time: float = 0


_NO_MEMBERS: FairQueue[Place] = FairQueue()
"""The members of every connection's place."""


class ProcessorTurns:
    """The connections with work, and the turns of a node."""

    def __init__(self, runtime: Runtime, clock: Callable[[], float]) -> None:
        """Create a node's turns. `clock` returns the processor time that the node's thread has taken, in seconds."""
        self._runtime = runtime
        self.clock = clock
        self._root = Place(None)
        self._vhosts: WeakValueDictionary[str, Place] = WeakValueDictionary()
        self._users: WeakValueDictionary[tuple[str, str], Place] = WeakValueDictionary()
        self._strangers = Place(self._root)
        """The place of all connections before their login."""
        self._waiting = 0
        """The number of connections that wait for their turn."""
        self._served: Place | None = None
        """The connection that has its turn now."""
        self._spent_s = 0.0
        """Processor time that turns have taken since the last pass began."""
        self._is_scheduled = False

    def stranger(self, worker: Worker, host: str) -> Place:
        """Return a place for a connection from this address before its login."""
        return Place(self._user("", host, self._strangers), worker)

    def move(self, place: Place, vhost: str, user: str) -> None:
        """Let a connection belong to a user and a virtual host from its next turn on."""
        owner = self._vhosts.get(vhost)
        if owner is None:
            owner = self._vhosts[vhost] = Place(self._root)
        place.owner = self._user(vhost, user, owner)
        place.time = 0  # times of different owners cannot be compared

    def leave(self, place: Place) -> None:
        """Give no more turns to a connection that is closed and has no work left."""
        place.worker = None

    def _user(self, vhost: str, name: str, owner: Place) -> Place:
        user = self._users.get((vhost, name))
        if user is None:
            user = self._users[vhost, name] = Place(owner)
        return user

    def ask(self, place: Place) -> None:
        """Give a connection its turn: now if no connection waits, else as soon as it is next."""
        if place is self._served or place.is_waiting:
            return
        if self._waiting or self._served is not None or self._spent_s >= PASS_S:
            self._enter(place)
            return
        left, cost = self._serve(place)
        member = place
        while (owner := member.owner) is not None:
            owner.members.charge_unqueued(member, cost)
            member = owner
        if left:
            self._enter(place)
        elif self._spent_s > PASS_S / 2 and not self._is_scheduled:
            self._schedule()

    def _enter(self, place: Place) -> None:
        self._waiting += 1
        member = place
        while (owner := member.owner) is not None and not member.is_waiting:
            owner.members.enter(member)
            member = owner
        if not self._is_scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._is_scheduled = True
        self._runtime.call_soon(self._begin_pass)

    def _begin_pass(self) -> None:
        self._is_scheduled = False
        self._spent_s = 0.0
        while self._waiting and self._spent_s < PASS_S:
            self._serve_next()
        if (self._waiting or self._spent_s > PASS_S / 2) and not self._is_scheduled:
            self._schedule()

    def _serve_next(self) -> None:
        place, taken = self._root, list[Place]()
        while place.members:
            place = place.members.next()
            taken.append(place)
        self._waiting -= 1
        left, cost = self._serve(place)
        for member in reversed(taken):
            member.time += cost
            member.is_waiting = bool(member.members)
            if member.is_waiting and member.owner is not None:
                member.owner.members.push(member)
        if left:
            self._enter(place)

    def _serve(self, place: Place) -> tuple[bool, int]:
        """Give a connection its turn. Return whether it has work left, and the cost in steps."""
        clock = self.clock
        began_s = clock()
        self._served = place
        left = place.worker is not None and place.worker.take_turn(began_s + TURN_S)
        self._served = None
        took_s = clock() - began_s
        self._spent_s += took_s
        return left, 1 + int(took_s * STEPS_PER_S)
