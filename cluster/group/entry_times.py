"""Approximate times of the entries of the log, for the ages of waiting messages.

A message names its entry, and queues do not keep the times of entries. So a node keeps the leader's times of some
entries: of those that it applies, and after a start of those that its log still has.

Invariant: bounded memory: the older the times, the fewer of them are kept. Nodes that applied the same entries keep the
same times. A reported age is a lower bound, and nearly exact.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

STEP_MS = 1000
"""Of the entries of this many milliseconds, the last entry's time counts for all."""
LEVEL_RECORDS = 256
"""Records in a level. Each level has steps twice as long as the level before. When a level is full, its oldest record
moves to the next level if it is the last of a step there. Ages are exact to about a hundredth.
"""
LEVELS_MAX = 28
"""Levels at most; more would need records of a thousand years."""
_index = itemgetter(0)

Record = tuple[int, int]
"""Index and time of an entry: all entries up to that index are at least as old."""


class EntryTimes:
    """The times of some entries."""

    def __init__(self, index: int, time_ms: int) -> None:
        """Begin with the entry up to which the state was loaded, and the time of that state; 0 for a new state."""
        newest = [(index, time_ms)] if time_ms else []
        self._levels: list[list[Record]] = [newest, *([] for _ in range(LEVELS_MAX - 1))]
        """The first level has the newest records. Each level is in order of time."""
        self._stored: list[Record] = []
        """Records of older entries, from the log, in order."""

    def record(self, index: int, time_ms: int) -> None:
        """Record that the entry with the leader's time has been applied."""
        newest = self._levels[0]
        if newest and newest[-1][1] // STEP_MS == time_ms // STEP_MS:
            newest[-1] = index, time_ms
            return
        newest.append((index, time_ms))
        step_ms = STEP_MS
        for level, following in zip(self._levels, self._levels[1:], strict=False):
            if len(level) <= LEVEL_RECORDS:
                return
            step_ms *= 2
            oldest = level.pop(0)
            if oldest[1] // step_ms == level[0][1] // step_ms:
                return
            following.append(oldest)

    def add_stored(self, records: Iterable[Record]) -> None:
        """Add times of entries that are in the log and were applied before the state was loaded."""
        self._stored = sorted(records)

    def age_ms(self, index: int, now_ms: int) -> int:
        """Return the minimum age of an entry in milliseconds."""
        first: Record | None = None
        """The earliest record of a log that contains the entry."""
        for level in self._levels:
            if not level:
                break
            place = bisect_left(level, index, key=_index)
            if place < len(level):
                first = level[place]
            if place:
                break  # older records are of a shorter log
        place = bisect_left(self._stored, index, key=_index)
        if place < len(self._stored) and (first is None or self._stored[place] < first):
            first = self._stored[place]
        return 0 if first is None else max(0, now_ms - first[1])
