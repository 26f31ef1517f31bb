"""Moments at which something is to be done, one for each key.

Lives here: which key is due next. Not here: what is done then, and how an entry comes at that time (cluster).

Law: timers are no part of a state that is dumped; who loads one sets them again. In which order keys come that are due
at the same moment follows from the keys.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

K = TypeVar("K", bound="Hashable")

NEVER_MS = 2**63
"""Later than any moment."""
NOW_MS = 0
"""A moment that has come, whatever time it is."""
_STALE_MIN = 64
"""Below so many stale entries the heap is not made anew, however few are not."""


class Timers(Generic[K]):
    """A moment for each of some keys. The time is the cluster's, in milliseconds."""

    __slots__ = ("_entries", "_heap", "_rank", "_serial", "next_ms")

    def __init__(self, rank: Callable[[K], Any]) -> None:
        """Of keys that are due at the same moment, the one with the least `rank` comes first; no two have the same."""
        self._entries: dict[K, tuple[int, Any, int, K]] = {}
        """Moment, rank, a number that grows with each call, key."""
        self._heap: list[tuple[int, Any, int, K]] = []
        """The entries, and stale ones among them, never in front."""
        self._rank = rank
        self._serial = 0
        self.next_ms = NEVER_MS
        """The earliest moment at which a key is due; NEVER_MS if there is none. Asked for with every entry."""

    def set(self, key: K, due_ms: int | None) -> None:
        """Let `key` be due at that moment, or never; what it was before is forgotten."""
        known = self._entries.get(key)
        if (None if known is None else known[0]) == due_ms:
            return
        if due_ms is None:
            del self._entries[key]
        else:
            self._serial += 1
            entry = self._entries[key] = (due_ms, self._rank(key), self._serial, key)
            heappush(self._heap, entry)
        self._drop_stale()

    def pop(self) -> K:
        """Forget the key that is due first, and give it; there is one."""
        *_, key = heappop(self._heap)
        del self._entries[key]
        self._drop_stale()
        return key

    def keep(self, wanted: Callable[[K], bool]) -> None:
        """Forget all other keys."""
        self._entries = {key: entry for key, entry in self._entries.items() if wanted(key)}
        self._heap = list(self._entries.values())
        heapify(self._heap)
        self._drop_stale()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def _drop_stale(self) -> None:
        entries, heap = self._entries, self._heap
        if len(heap) > 2 * len(entries) + _STALE_MIN:
            heap[:] = entries.values()
            heapify(heap)
        while heap and entries.get(heap[0][3]) is not heap[0]:
            heappop(heap)
        self.next_ms = heap[0][0] if heap else NEVER_MS
