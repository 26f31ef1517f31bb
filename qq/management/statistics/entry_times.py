"""Approximate times at which entries of the log were applied, for the ages of waiting messages.

A message names its entry, but queues do not keep the times of entries. So a node records the end of the log with each
sample.

Invariant: bounded memory: the older the records, the fewer of them are kept. A reported age is a lower bound, and
nearly exact.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import itemgetter

LEVEL_RECORDS = 256
"""Records in a level. When a level is full, every second record moves to the next level, the rest is dropped. Ages are
exact to about a hundredth.
"""
LEVELS_MAX = 24
"""Levels at most; more would need records of a hundred years."""
_index = itemgetter(0)


class EntryTimes:
    """The last log index at several moments since this node started."""

    def __init__(self) -> None:
        self._levels: list[list[tuple[int, int]]] = [[] for _ in range(LEVELS_MAX)]
        """(log index, time in ms) in levels; the first level has the newest records. Each level is in order of time."""
        self._passes_on = [False] * LEVELS_MAX

    def record(self, last_index: int, now_ms: int) -> None:
        """Record that the log ends with this entry now."""
        newest = self._levels[0]
        if newest and last_index <= newest[-1][0]:
            return
        record = last_index, now_ms
        for number, level in enumerate(self._levels):
            level.append(record)
            if len(level) <= LEVEL_RECORDS:
                return
            record = level.pop(0)
            self._passes_on[number] = not self._passes_on[number]
            if not self._passes_on[number]:
                return

    def age_ms(self, index: int, now_ms: int) -> int:
        """Return the minimum age of an entry in milliseconds; an entry from before the start counts from the start."""
        first: tuple[int, int] | None = None
        """The earliest record of a log that contains the entry."""
        for level in self._levels:
            if not level:
                break
            place = bisect_left(level, index, key=_index)
            if place < len(level):
                first = level[place]
            if place:
                break  # older records are of a shorter log
        return 0 if first is None else max(0, now_ms - first[1])
