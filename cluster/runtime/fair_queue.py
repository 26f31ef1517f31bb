"""Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) among members that wait to be served.

The virtual time of a member advances by the cost of each service, and the member with the lowest time is served next.
Members with equal times are served in order of arrival. A member that was idle for a while returns with nearly the time
of the members served meanwhile, so it cannot save up its share.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, Protocol, TypeVar


class QueueMember(Protocol):
    """A member of a fair queue."""

    is_waiting: bool
    """Whether the member is in the queue, or is being served."""
    time: float
    """The virtual time, which the user of the queue advances by the cost of each service."""


T = TypeVar("T", bound=QueueMember)


class FairQueue(Generic[T]):
    """The waiting members, in the order of service."""

    __slots__ = ("_ahead", "_arrivals", "_time", "_waiting")

    def __init__(self, ahead: float = 0) -> None:
        """Create a queue. A formerly idle member is put `ahead` of the members served meanwhile, in virtual time."""
        self._ahead = ahead
        self._waiting: list[tuple[float, int, T]] = []
        self._time: float = 0
        """The highest virtual time that a member had when it was taken out to be served."""
        self._arrivals = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def enter(self, member: T) -> bool:
        """Add a member that did not wait until now. Return whether it was served little compared with the rest."""
        first = self._time - self._ahead
        is_light = member.time <= first
        member.is_waiting = True
        if is_light:
            member.time = first
        self._arrivals += 1
        heappush(self._waiting, (member.time, self._arrivals, member))
        return is_light

    def peek(self) -> T:
        """Return the next member, which remains in the queue."""
        return self._waiting[0][2]

    def next(self) -> T:
        """Take out the next member. It is outside the queue until it is pushed again."""
        time, _, member = heappop(self._waiting)
        self._time = max(self._time, time)
        return member

    def push(self, member: T) -> None:
        """Return a member to the queue that was taken out, and has more to be served."""
        self._arrivals += 1
        heappush(self._waiting, (member.time, self._arrivals, member))

    def charge_unqueued(self, member: T, cost: float) -> None:
        """Charge a member that was served at once, because no member waited."""
        time, first = member.time, self._time - self._ahead
        if time > self._time:
            self._time = time
        elif time < first:
            time = first
        member.time = time + cost

    def clear(self) -> list[T]:
        """Take out and return all members."""
        left = [member for _, _, member in self._waiting]
        for member in left:
            member.is_waiting = False
        self._waiting.clear()
        return left
