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
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.net.log_throttle import ThrottledLog

FAIR_S = 4.0
"""Seconds that a client has for each step while new connections want its slot. TCP sends a lost segment again after 1
s, and a second time after 2 s more. A further second is left for the round trip of a slow link. A shorter time would
evict clients that make progress. With a longer time, silent connections would hold more slots in a flood."""
SHARE = 3
"""An address may hold this many times as many slots as are free: three quarters of all slots, if it is alone. Many
clients behind a NAT or a load balancer share an address, and the free slots are for clients of different addresses."""
QUICK_SHARE = 8
"""A port has a quick slot for so many other slots (`SlotLimits.quick_max`)."""
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


@dataclass(frozen=True)
class SlotLimits:
    """Limits of the connections of a kind."""

    unauthenticated_max: int
    """Connections without a login that hold slots."""
    total_max: int | None = None
    """Connections in all. If it is None, any number may have a login."""
    quick_max: int = 0
    """Quick slots beside the `unauthenticated_max` slots. A connection that finds no other slot takes a quick slot, and
    keeps it until newer connections need it. So a client on a fast link, which logs in within milliseconds, gets in
    beside any flood."""
    fair_s: float = FAIR_S
    """Seconds that a connection keeps its slot after each step, however many connections arrive."""


class ConnectionSlots:
    """Counts and limits the connections of a kind, such as the connections of clients."""

    def __init__(
        self,
        limits: SlotLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
        throttled_log: ThrottledLog | None = None,
        label: str = "connection",
    ) -> None:
        """`label` names the connections in log lines about refusals and evictions.

        `throttled_log` limits these lines in rate. Without it, no line is written.
        """
        self.limits = limits
        self.authenticated = 0
        """Number of connections with a login."""
        self.clock = clock
        self._throttled_log = throttled_log
        self._label = label
        self._all = _Unauthenticated()
        self._by_source: dict[str, _Unauthenticated] = {}
        """Unauthenticated connections by their source (`source_of`), those in quick slots excepted."""
        self._quick: dict[Slot, None] = {}
        """Unauthenticated connections in quick slots, in the order of their last steps."""

    @property
    def unauthenticated(self) -> int:
        """Number of connections without a login."""
        return self._all.count + len(self._quick)

    @property
    def free(self) -> int:
        """Number of free slots for unauthenticated connections; quick slots make room for them."""
        fair = self._all.count
        free = self.limits.unauthenticated_max - fair
        return (
            free
            if self.limits.total_max is None
            else min(free, self.limits.total_max - self.authenticated - fair)
        )

    def take(self, host: str) -> Slot | None:
        """Give an unauthenticated connection from `host` a slot, or None if it must be refused."""
        source = source_of(host)
        slot = Slot(self, source)
        if self._has_room(source):
            self.enter(slot)
            return slot
        if self._has_quick_room:
            self._enter_quick(slot)
            return slot
        self._log_refusal(source)
        return None

    def take_authenticated(self, host: str) -> Slot | None:
        """Give a slot to a connection of the node itself, which needs no login, or None if `total_max` is reached."""
        if (
            self.limits.total_max is not None
            and self.unauthenticated + self.authenticated >= self.limits.total_max
        ):
            return None
        slot = Slot(self, source_of(host))
        self.enter(slot)
        slot.mark_authenticated()
        return slot

    def _has_room(self, source: str) -> bool:
        """Return whether a connection of the source may get a slot, after an eviction if necessary."""
        free = self.free
        of_source = self._by_source.get(source)
        if (of_source.count if of_source is not None else 0) < SHARE * free:
            return True
        # While slots are free, a source that has its share evicts its own connections only.
        candidates = self._all if free <= 0 else of_source
        stale = candidates.stale(self.clock() - self.limits.fair_s) if candidates is not None else None
        if stale is None:
            return False
        self._evict(stale)
        return self.free > 0

    @property
    def _has_quick_room(self) -> bool:
        """Whether a connection may get a quick slot, if necessary that of the oldest."""
        fair = self._all.count
        return self.limits.quick_max > 0 and (
            self.limits.total_max is None or self.authenticated + fair < self.limits.total_max
        )

    def _enter_quick(self, slot: Slot) -> None:
        slot.since_s = self.clock()
        self._quick[slot] = None
        self._trim_quick()

    def _trim_quick(self) -> None:
        """Evict connections from quick slots that the newer ones, or the other slots, need."""
        while self._quick and (
            len(self._quick) > self.limits.quick_max
            or (
                self.limits.total_max is not None
                and self.authenticated + self.unauthenticated > self.limits.total_max
            )
        ):
            slot = next(iter(self._quick))
            evict = slot.evict
            slot.release()
            self._log_refusal(slot.source)
            evict()

    def _evict(self, slot: Slot) -> None:
        evict = slot.evict
        slot.release()
        if self._throttled_log is not None:
            idle_s = self.clock() - slot.since_s
            text = f"no progress for {idle_s:.1f} s since {_SINCE[slot.stage]}, and another connection needs its place"
            port = "" if slot.port is None else f", port {slot.port},"
            self._throttled_log.warning(
                "evicted", f"{self._label} from {slot.source}{port} dropped before its login: {text}"
            )
        evict()

    def _log_refusal(self, source: str) -> None:
        if self._throttled_log is None:
            return
        of_source = self._by_source.get(source)
        if not self.unauthenticated:
            text = f"{self.authenticated} with a login are there, and there may be no more"
        elif self.free > 0 and of_source is not None:
            left = f"{self.free} more may come from other addresses"
            text = f"its address has {of_source.count} without a login, and {left}"
        else:
            text = f"{self.unauthenticated} without a login are there, and there may be no more"
        self._throttled_log.warning("refused", f"{self._label} from {source} refused: {text}")

    # Calls from slots

    def enter(self, slot: Slot) -> None:
        """Count the slot as unauthenticated, at the stage of arrival."""
        slot.stage, slot.since_s = Stage.ARRIVAL, self.clock()
        self._all.add(slot)
        self._by_source.setdefault(slot.source, _Unauthenticated()).add(slot)
        self._trim_quick()

    def step(self, slot: Slot, stage: Stage) -> None:
        """Record that the connection has reached a later stage, which may move it out of a quick slot."""
        if slot in self._quick:
            del self._quick[slot]
            if not self._has_room(slot.source):
                slot.stage = stage
                self._enter_quick(slot)
                return
            self.enter(slot)
        groups = self._all, self._by_source[slot.source]
        for connections in groups:
            connections.remove(slot)
        slot.stage, slot.since_s = stage, self.clock()
        for connections in groups:
            connections.add(slot)

    def exit(self, slot: Slot) -> None:
        """Remove the slot from the unauthenticated connections."""
        if slot in self._quick:
            del self._quick[slot]
            return
        self._all.remove(slot)
        of_source = self._by_source[slot.source]
        of_source.remove(slot)
        if not of_source.count:
            del self._by_source[slot.source]

    def reassign(self, slot: Slot, source: str) -> bool:
        """Count the connection for a new source, as if it arrived there now.

        Return False if that source has no slot left.
        """
        self.exit(slot)
        has_room = self._has_room(source)
        slot.source = source
        if not has_room and self._has_quick_room:
            self._enter_quick(slot)
            return True
        if not has_room:
            self._log_refusal(source)
        self.enter(slot)
        return has_room


class _Unauthenticated:
    """Unauthenticated connections by stage, and within a stage in the order of their last steps."""

    __slots__ = ("_stages", "count")

    def __init__(self) -> None:
        self.count = 0
        self._stages: list[dict[Slot, None]] = [{} for _ in Stage]

    def add(self, slot: Slot) -> None:
        self._stages[slot.stage][slot] = None
        self.count += 1

    def remove(self, slot: Slot) -> None:
        del self._stages[slot.stage][slot]
        self.count -= 1

    def stale(self, before_s: float) -> Slot | None:
        """Return the connection with the least progress whose last step was made by `before_s`, or None."""
        for slots in self._stages:
            slot = next(iter(slots), None)
            if slot is not None and slot.since_s <= before_s:
                return slot
        return None


class Slot:
    """The slot of a single connection, counted by `ConnectionSlots`."""

    __slots__ = ("_is_authenticated", "_is_taken", "_slots", "evict", "port", "since_s", "source", "stage")

    def __init__(self, slots: ConnectionSlots, source: str) -> None:
        self.evict: Callable[[], object] = _do_nothing
        """Called when the connection is evicted."""
        self.source = source
        self.port: int | None = None
        """The client's port for log lines, as far as it is known."""
        self.stage = Stage.ARRIVAL
        self.since_s = 0.0
        """Time of the connection's last step, by `ConnectionSlots.clock`."""
        self._slots = slots
        self._is_taken = True
        self._is_authenticated = False

    @property
    def is_taken(self) -> bool:
        """Whether the connection still has this slot: it has neither left nor been evicted."""
        return self._is_taken

    def reassign(self, host: str) -> bool:
        """Count the connection for `host`, because a proxy has sent this address.

        Returns False if `host` has no slot left, so that the connection must be refused.
        """
        if not self._is_taken or self._is_authenticated:
            return self._is_taken
        return self._slots.reassign(self, source_of(host))

    def step(self, stage: Stage) -> None:
        """Record that the handshake has reached this stage. Has no effect for a stage that it has reached before."""
        if stage > self.stage and self._is_taken and not self._is_authenticated:
            self._slots.step(self, stage)

    def mark_authenticated(self) -> None:
        """Count the connection as authenticated."""
        if self._is_taken and not self._is_authenticated:
            self._is_authenticated = True
            self._slots.exit(self)
            self._slots.authenticated += 1

    def mark_unauthenticated(self) -> None:
        """Count the connection as unauthenticated and just arrived, because its next request needs a new login."""
        if self._is_taken and self._is_authenticated:
            self._is_authenticated = False
            self._slots.authenticated -= 1
            self._slots.enter(self)

    def release(self) -> None:
        """Release the slot of a closed connection. Has no effect the second time."""
        if not self._is_taken:
            return
        self._is_taken = False
        self.evict = _do_nothing  # avoids a reference cycle: the owner refers to its slot
        if self._is_authenticated:
            self._slots.authenticated -= 1
        else:
            self._slots.exit(self)


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
