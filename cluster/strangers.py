"""Who is connected and has not said who it is: how many there may be, and who of them has to go.

Lives here: the counts of strangers and of those who are known, and the choice of who goes. Not here: how somebody says
who it is, and what happens to a socket (the callers).

Law: strangers are bounded, however many come; one that comes when there is no room pushes out the one that has been
there for longest of the address that has most. So one address never takes the room of the others, and whoever says
who it is as soon as it is connected is let in, also in a flood. Who is known is counted and never pushed out.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_IPV6_NETWORK_BITS = 64
"""IPv6 addresses that share this many bits count as one source: one customer has at least all of those."""


class Places:
    """Counts and bounds the connections of one kind, such as those of clients."""

    def __init__(self, strangers_max: int, total_max: int | None = None) -> None:
        """Allow `strangers_max` strangers, and `total_max` connections in all, those that are known included.

        Without a `total_max`, any number may be known.
        """
        self.strangers_max = strangers_max
        self.total_max = total_max
        self.strangers = 0
        self.known = 0
        self._by_source: dict[str, dict[Place, None]] = {}
        """The places of strangers, oldest first, by the source they come from (`source_of`)."""

    def take(self, host: str) -> Place | None:
        """Give a stranger from `host` a place, pushing others out if need be; None if all places are of known ones."""
        while self._is_full():
            if not self.strangers:
                return None
            self.push_one_out()
        place = Place(self, source_of(host))
        self.stranger_came(place)
        return place

    def _is_full(self) -> bool:
        total_max = self.total_max
        return self.strangers >= self.strangers_max or (
            total_max is not None and self.strangers + self.known >= total_max
        )

    def push_one_out(self) -> None:
        """Push out the oldest stranger of the source that has most of them."""
        most = max(self._by_source.values(), key=len)
        place = next(iter(most))
        push_out = place.push_out
        place.leave()
        push_out()

    def stranger_came(self, place: Place) -> None:
        """Count the place as a stranger's."""
        self.strangers += 1
        self._by_source.setdefault(place.source, {})[place] = None

    def stranger_left(self, place: Place) -> None:
        """Count the place as a stranger's no more."""
        self.strangers -= 1
        of_source = self._by_source[place.source]
        del of_source[place]
        if not of_source:
            del self._by_source[place.source]


class Place:
    """The place of one connection among `Places`."""

    __slots__ = ("_is_known", "_is_taken", "_places", "push_out", "source")

    def __init__(self, places: Places, source: str) -> None:
        self.push_out: Callable[[], object] = _do_nothing
        """Called when the stranger has to make room for another one."""
        self.source = source
        self._places = places
        self._is_taken = True
        self._is_known = False

    @property
    def is_taken(self) -> bool:
        """Whether the connection still has this place: it has not left, and was not pushed out."""
        return self._is_taken

    def comes_from(self, host: str) -> None:
        """Count the stranger as one from `host`, because a proxy says that it is from there."""
        if self._is_taken and not self._is_known:
            self._places.stranger_left(self)
            self.source = source_of(host)
            self._places.stranger_came(self)

    def make_known(self) -> None:
        """Count the connection as known, because it has said who it is."""
        if self._is_taken and not self._is_known:
            self._is_known = True
            self._places.stranger_left(self)
            self._places.known += 1

    def make_stranger(self) -> None:
        """Count the connection as the youngest stranger, because it has to say again who it is."""
        if self._is_taken and self._is_known:
            self._is_known = False
            self._places.known -= 1
            self._places.stranger_came(self)
            if self._places.strangers > self._places.strangers_max:
                self._places.push_one_out()

    def leave(self) -> None:
        """Give the place back, because the connection is gone; harmless if that was done before."""
        if not self._is_taken:
            return
        self._is_taken = False
        self.push_out = _do_nothing  # no reference cycle stays: the owner of the place refers to it as well
        if self._is_known:
            self._places.known -= 1
        else:
            self._places.stranger_left(self)


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
