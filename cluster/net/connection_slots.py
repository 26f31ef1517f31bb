"""Slots that limit unauthenticated connections, and the rule for evicting them when the slots are full.

Invariant: a connection without a login keeps its slot for a fair time after its arrival and after each step of a
correct handshake. Only after that time may a new connection take the slot, and the connection with the least progress
is evicted first. An address holds at most three quarters of these slots. So an attack, however large, takes no slot
from a client that continues its handshake. A connection that gets no such slot gets a quick slot, in which the newest
connections replace the oldest. A connection with a login is never evicted.
"""

from __future__ import annotations

import ipaddress
import time
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.net.log_throttle import Complaints

FAIR_S = 4.0
"""Seconds that a client has for each step while new connections want its slot. TCP sends a lost segment again after 1
s, and a second time after 2 s more. A further second is left for the round trip of a slow link. A shorter time would
evict clients that make progress. With a longer time, silent connections would hold more slots in a flood."""
SHARE = 3
"""An address may hold this many times as many slots as are free: three quarters of all slots, if it is alone. Many
clients behind a NAT or a load balancer share an address, and the free slots are for clients of different addresses."""
QUICK_SHARE = 8
"""A port has a quick slot for so many other slots (`Places`)."""
_IPV6_NETWORK_BITS = 64
"""IPv6 addresses that share this many bits count as a single source, because a customer has at least all of those."""


class Stage(IntEnum):
    """Progress of an unauthenticated connection in its handshake."""

    ARRIVAL = 0
    TLS_BEGUN = 1
    """The node has begun to answer the TLS handshake."""
    TLS = 2
    """The TLS handshake is complete."""
    HEADER = 3
    """The protocol header of AMQP, or the header of an HTTP request, is complete."""
    CREDENTIALS = 4
    """The client has sent its name and password."""


_SINCE = {
    Stage.ARRIVAL: "its arrival",
    Stage.TLS_BEGUN: "the begin of its TLS handshake",
    Stage.TLS: "its TLS handshake",
    Stage.HEADER: "its header",
    Stage.CREDENTIALS: "its credentials",
}


class Places:
    """Counts and limits the connections of a kind, such as the connections of clients."""

    def __init__(
        self,
        strangers_max: int,
        total_max: int | None = None,
        *,
        quick_max: int = 0,
        fair_s: float = FAIR_S,
        clock: Callable[[], float] = time.monotonic,
        complaints: Complaints | None = None,
        what: str = "connection",
    ) -> None:
        """Allow `strangers_max` connections without a login, and `total_max` connections in all.

        Without a `total_max`, any number may have a login. Beside the `strangers_max`
        slots there are `quick_max` quick slots: a connection that finds no other slot takes one, and keeps it until
        newer connections need it. So a client on a fast link, which logs in within milliseconds, gets in beside any
        flood. `what` names the connections in log lines about refusals and evictions, which `complaints` limits in
        rate.
        """
        self.strangers_max = strangers_max
        self.total_max = total_max
        self._quick_max = quick_max
        self.known = 0
        """Number of connections with a login."""
        self.clock = clock
        self.fair_s = fair_s
        """Seconds that a connection keeps its slot after each step, however many connections arrive."""
        self._complaints = complaints
        self._what = what
        self._all = _Strangers()
        self._by_source: dict[str, _Strangers] = {}
        """Unauthenticated connections by their source (`source_of`), those in quick slots excepted."""
        self._quick: dict[Place, None] = {}
        """Unauthenticated connections in quick slots, in the order of their last steps."""

    @property
    def strangers(self) -> int:
        return self._all.count + len(self._quick)

    @property
    def free(self) -> int:
        """Number of free slots for unauthenticated connections; quick slots make room for them."""
        fair = self._all.count
        free = self.strangers_max - fair
        return free if self.total_max is None else min(free, self.total_max - self.known - fair)

    def take(self, host: str) -> Place | None:
        """Give an unauthenticated connection from `host` a slot, or None if it must be refused."""
        source = source_of(host)
        place = Place(self, source)
        if self._has_room(source):
            self.enter(place)
            return place
        if self._has_quick_room:
            self._enter_quick(place)
            return place
        self._complain_of_refusal(source)
        return None

    def take_known(self, host: str) -> Place | None:
        """Give a slot to a connection of the node itself, which needs no login, or None if `total_max` is reached."""
        if self.total_max is not None and self.strangers + self.known >= self.total_max:
            return None
        place = Place(self, source_of(host))
        self.enter(place)
        place.make_known()
        return place

    def _has_room(self, source: str) -> bool:
        """Return whether a connection of the source may get a slot, after an eviction if necessary."""
        free = self.free
        of_source = self._by_source.get(source)
        if (of_source.count if of_source is not None else 0) < SHARE * free:
            return True
        # While slots are free, a source that has its share evicts its own connections only.
        candidates = self._all if free <= 0 else of_source
        stale = candidates.stale(self.clock() - self.fair_s) if candidates is not None else None
        if stale is None:
            return False
        self._push_out(stale)
        return self.free > 0

    @property
    def _has_quick_room(self) -> bool:
        """Whether a connection may get a quick slot, if necessary that of the oldest."""
        fair = self._all.count
        return self._quick_max > 0 and (self.total_max is None or self.known + fair < self.total_max)

    def _enter_quick(self, place: Place) -> None:
        place.since_s = self.clock()
        self._quick[place] = None
        self._trim_quick()

    def _trim_quick(self) -> None:
        """Evict connections from quick slots that the newer ones, or the other slots, need."""
        while self._quick and (
            len(self._quick) > self._quick_max
            or (self.total_max is not None and self.known + self.strangers > self.total_max)
        ):
            place = next(iter(self._quick))
            push_out = place.push_out
            place.leave()
            self._complain_of_refusal(place.source)
            push_out()

    def _push_out(self, place: Place) -> None:
        push_out = place.push_out
        place.leave()
        if self._complaints is not None:
            idle_s = self.clock() - place.since_s
            text = f"no progress for {idle_s:.1f} s since {_SINCE[place.stage]}, and another connection needs its place"
            self._complaints.about(
                "pushed out", f"{self._what} from {place.source} dropped before its login: {text}"
            )
        push_out()

    def _complain_of_refusal(self, source: str) -> None:
        if self._complaints is None:
            return
        of_source = self._by_source.get(source)
        if not self.strangers:
            text = f"{self.known} with a login are there, and there may be no more"
        elif self.free > 0 and of_source is not None:
            left = f"{self.free} more may come from other addresses"
            text = f"its address has {of_source.count} without a login, and {left}"
        else:
            text = f"{self.strangers} without a login are there, and there may be no more"
        self._complaints.about("refused", f"{self._what} from {source} refused: {text}")

    # Calls from slots

    def enter(self, place: Place) -> None:
        """Count the slot as unauthenticated, at the stage of arrival."""
        place.stage, place.since_s = Stage.ARRIVAL, self.clock()
        self._all.add(place)
        self._by_source.setdefault(place.source, _Strangers()).add(place)
        self._trim_quick()

    def step(self, place: Place, stage: Stage) -> None:
        """Record that the connection has reached a later stage, which may move it out of a quick slot."""
        if place in self._quick:
            del self._quick[place]
            if not self._has_room(place.source):
                place.stage = stage
                self._enter_quick(place)
                return
            self.enter(place)
        lines = self._all, self._by_source[place.source]
        for strangers in lines:
            strangers.remove(place)
        place.stage, place.since_s = stage, self.clock()
        for strangers in lines:
            strangers.add(place)

    def exit(self, place: Place) -> None:
        """Remove the slot from the unauthenticated connections."""
        if place in self._quick:
            del self._quick[place]
            return
        self._all.remove(place)
        of_source = self._by_source[place.source]
        of_source.remove(place)
        if not of_source.count:
            del self._by_source[place.source]

    def move(self, place: Place, source: str) -> bool:
        """Count the connection for a new source, as if it arrived there now.

        Return False if that source has no slot left.
        """
        self.exit(place)
        has_room = self._has_room(source)
        place.source = source
        if not has_room and self._has_quick_room:
            self._enter_quick(place)
            return True
        if not has_room:
            self._complain_of_refusal(source)
        self.enter(place)
        return has_room


class _Strangers:
    """Unauthenticated connections by stage, and within a stage in the order of their last steps."""

    __slots__ = ("_stages", "count")

    def __init__(self) -> None:
        self.count = 0
        self._stages: list[dict[Place, None]] = [{} for _ in Stage]

    def add(self, place: Place) -> None:
        self._stages[place.stage][place] = None
        self.count += 1

    def remove(self, place: Place) -> None:
        del self._stages[place.stage][place]
        self.count -= 1

    def stale(self, before_s: float) -> Place | None:
        """Return the connection with the least progress whose last step was made by `before_s`, or None."""
        for places in self._stages:
            place = next(iter(places), None)
            if place is not None and place.since_s <= before_s:
                return place
        return None


class Place:
    """The slot of a single connection, counted by `Places`."""

    __slots__ = ("_is_known", "_is_taken", "_places", "push_out", "since_s", "source", "stage")

    def __init__(self, places: Places, source: str) -> None:
        self.push_out: Callable[[], object] = _do_nothing
        """Called when the connection is evicted."""
        self.source = source
        self.stage = Stage.ARRIVAL
        self.since_s = 0.0
        """Time of the connection's last step, by `Places.clock`."""
        self._places = places
        self._is_taken = True
        self._is_known = False

    @property
    def is_taken(self) -> bool:
        """Whether the connection still has this slot: it has neither left nor been evicted."""
        return self._is_taken

    def comes_from(self, host: str) -> bool:
        """Count the connection for `host`, because a proxy has sent this address.

        Returns False if `host` has no slot left, so that the connection must be refused.
        """
        if not self._is_taken or self._is_known:
            return self._is_taken
        return self._places.move(self, source_of(host))

    def step(self, stage: Stage) -> None:
        """Record that the handshake has reached this stage. Has no effect for a stage that it has reached before."""
        if stage > self.stage and self._is_taken and not self._is_known:
            self._places.step(self, stage)

    def make_known(self) -> None:
        """Count the connection as authenticated."""
        if self._is_taken and not self._is_known:
            self._is_known = True
            self._places.exit(self)
            self._places.known += 1

    def make_stranger(self) -> None:
        """Count the connection as unauthenticated and just arrived, because its next request needs a new login."""
        if self._is_taken and self._is_known:
            self._is_known = False
            self._places.known -= 1
            self._places.enter(self)

    def leave(self) -> None:
        """Release the slot of a closed connection. Has no effect the second time."""
        if not self._is_taken:
            return
        self._is_taken = False
        self.push_out = _do_nothing  # avoids a reference cycle: the owner refers to its slot
        if self._is_known:
            self._places.known -= 1
        else:
            self._places.exit(self)


def _do_nothing() -> None:
    pass


def source_of(host: str) -> str:
    """Return the source of a connection: its IPv4 address, or its IPv6 network."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a socket without an address
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), _IPV6_NETWORK_BITS), strict=False))
