"""Which connections without a login keep their places when more come than there is room for.

Invariant: a stranger keeps its place for a fair time after its arrival and after each step of a correct handshake; only
then may another connection take the place, and strangers that have come least far make room first. A connection for
which there is no place is refused, and one address holds at most three quarters of the places: an attack, however
large, takes no place from a client that goes on with its handshake. A connection with a login is never pushed out.
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
"""How long a client has for each step while others wait for its place. TCP sends a lost segment again after 1 s, and a
second time after 2 s more; another second is left for the round trip of a slow link. A shorter time would push out
clients that go on; a longer time would let silent connections hold more places in a flood."""
SHARE = 3
"""An address may hold so many times as many places as are free: three quarters of all places, if it is alone. A herd of
clients behind a NAT or a load balancer has one address, and the free places are for clients of other addresses."""
_IPV6_NETWORK_BITS = 64
"""IPv6 addresses that share this many bits count as one source: one customer has at least all of those."""


class Stage(IntEnum):
    """How far a stranger has come in its handshake."""

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
    """Counts and bounds the connections of one kind, such as those of clients."""

    def __init__(
        self,
        strangers_max: int,
        total_max: int | None = None,
        *,
        fair_s: float = FAIR_S,
        clock: Callable[[], float] = time.monotonic,
        complaints: Complaints | None = None,
        what: str = "connection",
    ) -> None:
        """Allow `strangers_max` strangers, and `total_max` connections in all, those with a login included.

        Without a `total_max`, any number may have a login. Complaints about strangers that are refused or pushed out
        call them `what`.
        """
        self.strangers_max = strangers_max
        self.total_max = total_max
        self.known = 0
        """Connections with a login."""
        self.clock = clock
        self.fair_s = fair_s
        """How long a stranger keeps its place after each step, however many come."""
        self._complaints = complaints
        self._what = what
        self._all = _Strangers()
        self._by_source: dict[str, _Strangers] = {}
        """The strangers of each source (`source_of`)."""

    @property
    def strangers(self) -> int:
        return self._all.count

    @property
    def free(self) -> int:
        """How many more strangers may come."""
        free = self.strangers_max - self.strangers
        return free if self.total_max is None else min(free, self.total_max - self.known - self.strangers)

    def take(self, host: str) -> Place | None:
        """Give a stranger from `host` a place; None if there is none, and the connection has to be refused."""
        source = source_of(host)
        if not self._has_room(source):
            self._complain_of_refusal(source)
            return None
        place = Place(self, source)
        self.enter(place)
        return place

    def take_known(self, host: str) -> Place | None:
        """Give a place to a connection that needs no login, because the node itself makes it; None if there is none."""
        if self.total_max is not None and self.strangers + self.known >= self.total_max:
            return None
        place = Place(self, source_of(host))
        self.enter(place)
        place.make_known()
        return place

    def _has_room(self, source: str) -> bool:
        """Whether a stranger of the source may come, perhaps because another one was pushed out."""
        free = self.free
        of_source = self._by_source.get(source)
        if (of_source.count if of_source is not None else 0) < SHARE * free:
            return True
        # While free places are left, a source that has its share replaces its own strangers only.
        candidates = self._all if free <= 0 else of_source
        stale = candidates.stale(self.clock() - self.fair_s) if candidates is not None else None
        if stale is None:
            return False
        self._push_out(stale)
        return self.free > 0

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

    # What places tell

    def enter(self, place: Place) -> None:
        """Count the place as a stranger's that has just come."""
        place.stage, place.since_s = Stage.ARRIVAL, self.clock()
        self._all.add(place)
        self._by_source.setdefault(place.source, _Strangers()).add(place)

    def step(self, place: Place, stage: Stage) -> None:
        """Note that the stranger has come further."""
        lines = self._all, self._by_source[place.source]
        for strangers in lines:
            strangers.remove(place)
        place.stage, place.since_s = stage, self.clock()
        for strangers in lines:
            strangers.add(place)

    def exit(self, place: Place) -> None:
        """Count the place as a stranger's no more."""
        self._all.remove(place)
        of_source = self._by_source[place.source]
        of_source.remove(place)
        if not of_source.count:
            del self._by_source[place.source]

    def move(self, place: Place, source: str) -> bool:
        """Count the stranger for another source, as if it came from there now; False if that finds no room."""
        self.exit(place)
        has_room = self._has_room(source)
        if not has_room:
            self._complain_of_refusal(source)
        place.source = source
        self.enter(place)
        return has_room


class _Strangers:
    """Strangers by their stages, and within a stage in the order of their last steps."""

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
        """The stranger that has come least far, among those whose last step was made by then."""
        for places in self._stages:
            place = next(iter(places), None)
            if place is not None and place.since_s <= before_s:
                return place
        return None


class Place:
    """The place of one connection among `Places`."""

    __slots__ = ("_is_known", "_is_taken", "_places", "push_out", "since_s", "source", "stage")

    def __init__(self, places: Places, source: str) -> None:
        self.push_out: Callable[[], object] = _do_nothing
        """Called when the stranger has to make room for another one."""
        self.source = source
        self.stage = Stage.ARRIVAL
        self.since_s = 0.0
        """When the stranger made its last step."""
        self._places = places
        self._is_taken = True
        self._is_known = False

    @property
    def is_taken(self) -> bool:
        """Whether the connection still has this place: it has not left, and was not pushed out."""
        return self._is_taken

    def comes_from(self, host: str) -> bool:
        """Count the stranger as one from `host`, because a proxy says that it is from there.

        Returns False if there is no place for a connection from there, so that this one has to be refused.
        """
        if not self._is_taken or self._is_known:
            return self._is_taken
        return self._places.move(self, source_of(host))

    def step(self, stage: Stage) -> None:
        """Note that the handshake has come to this stage; harmless if it had come so far before."""
        if stage > self.stage and self._is_taken and not self._is_known:
            self._places.step(self, stage)

    def make_known(self) -> None:
        """Count the connection as one with a login."""
        if self._is_taken and not self._is_known:
            self._is_known = True
            self._places.exit(self)
            self._places.known += 1

    def make_stranger(self) -> None:
        """Count the connection as a stranger that has just come, because its next request needs another login."""
        if self._is_taken and self._is_known:
            self._is_known = False
            self._places.known -= 1
            self._places.enter(self)

    def leave(self) -> None:
        """Give the place back, because the connection is gone; harmless if that was done before."""
        if not self._is_taken:
            return
        self._is_taken = False
        self.push_out = _do_nothing  # no reference cycle stays: the owner of the place refers to it as well
        if self._is_known:
            self._places.known -= 1
        else:
            self._places.exit(self)


def _do_nothing() -> None:
    pass


def source_of(host: str) -> str:
    """What counts as one source of strangers: an IPv4 address, or a network of IPv6 addresses."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a socket that has no address
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address), _IPV6_NETWORK_BITS), strict=False))
