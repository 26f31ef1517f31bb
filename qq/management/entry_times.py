"""When entries of the log were applied, about: how old messages are that wait.

A message names its entry, and no queue keeps when that came. So a node notes with each sample how far the log was.

Invariant: bounded memory: the older notes are, the fewer of them are kept. What is told of an age is what it has at
least, and nearly all of it.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import itemgetter

LEVEL_NOTES = 256
"""How many notes a level keeps. Of those that it has no room for every other one goes on to the next: ages are exact to
a hundredth or so."""
LEVELS_MAX = 24
"""More levels would need a hundred years of notes."""
_index = itemgetter(0)


class EntryTimes:
    """How far the log was at some times of this node's life."""

    def __init__(self) -> None:
        self._levels: list[list[tuple[int, int]]] = [[] for _ in range(LEVELS_MAX)]
        """Notes of an index and a time, the newest in the first level; each level in the order of time."""
        self._passes_on = [False] * LEVELS_MAX

    def note(self, last_index: int, now_ms: int) -> None:
        """Note that the log ends with this entry now."""
        newest = self._levels[0]
        if newest and last_index <= newest[-1][0]:
            return
        note = last_index, now_ms
        for number, level in enumerate(self._levels):
            level.append(note)
            if len(level) <= LEVEL_NOTES:
                return
            note = level.pop(0)
            self._passes_on[number] = not self._passes_on[number]
            if not self._passes_on[number]:
                return

    def age_ms(self, index: int, now_ms: int) -> int:
        """How old an entry is at least; of one that was there when this node began, since then."""
        first: tuple[int, int] | None = None
        """The first note of those that have the entry."""
        for level in self._levels:
            if not level:
                break
            place = bisect_left(level, index, key=_index)
            if place < len(level):
                first = level[place]
            if place:
                break  # all older notes are of a shorter log
        return 0 if first is None else max(0, now_ms - first[1])
