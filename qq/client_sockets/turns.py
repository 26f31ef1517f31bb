"""Shares the node's processor between the clients' connections: each has a turn, the cheapest tenant first.

A connection does the work that its client causes in turns: it parses received octets, carries out requests, writes
answers, and cleans up when the client is gone. The cost of a turn is the processor time that it takes, so frames that
leave no entry in the log (heartbeats, passive declares, refused methods) cost their sender as much as any other.

Three orders of start-time fair queueing decide which connection is next (`cluster.runtime.fair_queue`): among virtual
hosts, among the users of a virtual host, and among the connections of a user. Connections before their login belong to
a tenant of their own, divided by the clients' addresses.

The ports of a node's client protocols and its HTTP port have turns of their own; those of HTTP rest between passes.

Invariant: in a pass of the event loop, turns take PASS_S and at most a turn more. Then timers and other sockets are
served. While no connection waits, a connection has its turn at once. A turn that fails ends no other connection's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from cluster.runtime.fair_queue import FairQueue
from qq.sessions.lanes import AHEAD

if TYPE_CHECKING:
    from collections.abc import Callable

PASS_S = 0.001
"""Seconds of processor time for turns in a pass of the event loop.

An answer that needs the log takes some passes. Beside a flood of heartbeats, such an answer took 14 ms of the processor
with 2 ms, and takes 8 ms with 1 ms. The processor time of a message is the same."""
TURN_S = 0.0005
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

    __slots__ = ("__weakref__", "is_clean_up", "is_waiting", "members", "owner", "time", "worker")

    def __init__(self, owner: Place | None, worker: Worker | None = None) -> None:
        self.owner = owner
        """The place in whose order this place is; None at the root."""
        self.worker = worker
        """The connection, if this is a connection's place."""
        self.members: FairQueue[Place] = FairQueue(AHEAD) if worker is None else _NO_MEMBERS
        self.is_waiting = False
        self.is_clean_up = False
        """Whether its members are the connections whose clients are gone. They are not charged to it."""
        self.time: float = 0


_NO_MEMBERS: FairQueue[Place] = FairQueue()
"""The members of every connection's place."""


class ProcessorTurns:
    """The connections with work, and the turns of a node."""

    def __init__(
        self, call_after_rest: Callable[[Callable[[], None], float], object], clock: Callable[[], float]
    ) -> None:
        """Create turns.

        `call_after_rest` calls a function in a later pass of the event loop. It gets the seconds of processor time that
        turns have taken, for which they may rest. `clock` returns the processor time that the thread has taken, in
        seconds.
        """
        self._call_after_rest = call_after_rest
        self.clock = clock
        self._root = Place(None)
        self._vhosts: WeakValueDictionary[str, Place] = WeakValueDictionary()
        self._users: WeakValueDictionary[tuple[str, str], Place] = WeakValueDictionary()
        self._clean_ups: WeakValueDictionary[Place, Place] = WeakValueDictionary()
        """The places of connections whose clients are gone, by their users."""
        self._unauthenticated = Place(self._root)
        """The place of all connections before their login."""
        self._waiting = 0
        """The number of connections that wait for their turn."""
        self._served: Place | None = None
        """The connection that has its turn now."""
        self._spent_s = 0.0
        """Processor time that turns have taken since the last pass began."""
        self._cost = 0
        """Cost of the last turn in steps."""
        self._is_scheduled = False

    def new_place(self, worker: Worker, host: str) -> Place:
        """Return a place for a connection from this address. It has not logged in yet."""
        return Place(self._user("", host, self._unauthenticated), worker)

    def log_in(self, place: Place, vhost: str, user: str) -> None:
        """Let a connection belong to a user and a virtual host from its next turn on."""
        owner = self._vhosts.get(vhost)
        if owner is None:
            owner = self._vhosts[vhost] = Place(self._root)
        place.owner = self._user(vhost, user, owner)
        place.time = 0  # times of different owners cannot be compared

    def begin_leaving(self, place: Place) -> Place:
        """Return a new place for a connection whose client is gone. Its old place gets no more turns.

        All such connections of a user together are served as often as a new connection. Otherwise new connections,
        which go before busy ones, could delay their clean-up for as long as they come.
        """
        user, worker = place.owner, place.worker
        assert user is not None
        clean_up = self._clean_ups.get(user)
        if clean_up is None:
            clean_up = self._clean_ups[user] = Place(user)
            clean_up.is_clean_up = True
        place.worker = None
        return Place(clean_up, worker)

    def leave(self, place: Place) -> None:
        """Give no more turns to a connection that is closed and has no work left."""
        place.worker = None

    def _user(self, vhost: str, name: str, owner: Place) -> Place:
        user = self._users.get((vhost, name))
        if user is None:
            user = self._users[vhost, name] = Place(owner)
        return user

    def request(self, place: Place) -> None:
        """Give a connection its turn: now if no connection waits, else as soon as it is next."""
        if place is self._served or place.is_waiting:
            return
        if self._waiting or self._served is not None or self._spent_s >= PASS_S:
            self._enter(place)
            return
        left = False
        try:
            left = self._serve(place)
        finally:
            member = place
            while (owner := member.owner) is not None:
                owner.members.charge_unqueued(member, self._cost)
                member = owner
            if left:
                self._enter(place)
            elif self._spent_s > PASS_S / 2 and not self._is_scheduled:
                self._schedule()

    def charge(self, seconds: float) -> None:
        """Add processor time that other tasks will take because of the present turn."""
        self._spent_s += seconds

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
        self._call_after_rest(self._begin_pass, self._spent_s)

    def _begin_pass(self) -> None:
        self._is_scheduled = False
        self._spent_s = 0.0
        try:
            while self._waiting and self._spent_s < PASS_S:
                self._serve_next()
        finally:
            if (self._waiting or self._spent_s > PASS_S / 2) and not self._is_scheduled:
                self._schedule()

    def _serve_next(self) -> None:
        place, taken = self._root, list[Place]()
        while place.members:
            place = place.members.next()
            taken.append(place)
        self._waiting -= 1
        left = False
        try:
            left = self._serve(place)
        finally:
            for member in reversed(taken):
                member.time = 0 if member.is_clean_up else member.time + self._cost
                member.is_waiting = bool(member.members)
                if member.is_waiting and member.owner is not None:
                    member.owner.members.enter(member)
            if left:
                self._enter(place)

    def _serve(self, place: Place) -> bool:
        """Give a connection its turn, and put the cost into `_cost`. Return whether it has work left."""
        clock, spent_s = self.clock, self._spent_s
        began_s = clock()
        self._served = place
        try:
            return place.worker is not None and place.worker.take_turn(began_s + TURN_S)
        finally:
            self._served = None
            self._spent_s += clock() - began_s
            self._cost = 1 + int((self._spent_s - spent_s) * STEPS_PER_S)
