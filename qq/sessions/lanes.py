"""Whose turn it is, when many ask for more than the log takes in at once.

Lives here: the lanes, each with what one connection (or one part of the node itself) has asked for and the log has not
got yet, and the order in which lanes are served. Not here: what is asked for (parts.py), what a batch has room for
(batch.py, submissions.py).

Law: who has asked for little is served before who has asked for much, however many of those there are; within a lane
the order is that of asking. This is start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): a lane's time goes
on by the cost of what it is served, and of what is looked for to know that; the lane that is least far is next. One
that has asked for nothing for a while is put `AHEAD` of those that have been served meanwhile, so that its first
command waits for none of them.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from qq.machine.commands import Settlement
    from qq.machine.costs import Costs
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


class Lane:
    """What one connection, or one part of the node itself, has asked for, in the order of asking."""

    __slots__ = ("is_waiting", "parts", "payer", "settlements", "time")

    def __init__(self, payer: Payer | None = None) -> None:
        self.payer = payer
        self.parts: deque[Part] = deque()
        self.settlements: dict[tuple[type[Settlement], int], Growing] = {}
        """The settlements, keyed by kind and consumer, to which the message ids that follow may still be added."""
        self.is_waiting = False
        """Whether the lane has its place in the order of service, or is being served."""
        self.time = 0

    def count_uncommitted(self, size: int) -> None:
        """Tell the payer, if there is one, of octets that the log has yet to take in or, if negative, has taken in."""
        if self.payer is not None:
            self.payer.count_uncommitted(size)


class Lanes:
    """The lanes that have something to be served, in the order of service."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, Lane]] = []
        self._time = 0
        """The time of the lane that had got farthest when its turn came."""
        self._arrivals = count()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def enter(self, lane: Lane) -> bool:
        """Have a lane served that had nothing to serve until now; returns whether it asks for little beside others."""
        first = self._time - AHEAD
        asks_little = lane.time <= first
        lane.is_waiting = True
        lane.time = max(lane.time, first)
        self._push(lane)
        return asks_little

    def next(self) -> Lane:
        """The lane that is next; it is in the order no more until it is given back."""
        lane = heappop(self._waiting)[2]
        self._time = max(self._time, lane.time)
        return lane

    def give_back(self, lane: Lane, cost: int) -> None:
        """Put a lane back into the order, if it has more to be served, after service that cost so many steps."""
        lane.time += cost
        if lane.parts:
            self._push(lane)
        else:
            lane.is_waiting = False

    def clear(self) -> list[Lane]:
        """Forget what was asked for; returns the lanes that had something, with what they had."""
        lanes = [lane for _, _, lane in self._waiting]
        for lane in lanes:
            lane.is_waiting = False
        self._waiting.clear()
        return lanes

    def _push(self, lane: Lane) -> None:
        heappush(self._waiting, (lane.time, next(self._arrivals), lane))
