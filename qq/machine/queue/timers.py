"""Timers: a due time for each key, in a sorted structure.

Invariant: timers are not dumped; the loader of a state sets them again. Keys that are due at the same time come in the
order of their ranks. All calls cost alike: a changed or removed timer is deleted at once, and leaves no stale entry to
be skipped later.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

K = TypeVar("K", bound="Hashable")

NEVER_MS = 2**63
"""A time (ms) later than all due times."""
NOW_MS = 0
"""A due time that has come, whatever the current time is."""
BLOCK_KEYS = 512
"""Maximum keys in a block, which bounds the keys moved by a change."""

_last = itemgetter(-1)


class Timers(Generic[K]):
    """A due time for each key, in milliseconds of cluster time."""

    __slots__ = ("_blocks", "_entries", "_rank", "next_ms")

    def __init__(self, rank: Callable[[K], Any]) -> None:
        """`rank` orders keys that are due at the same time; the ranks of different keys must differ."""
        self._entries: dict[K, tuple[int, Any, K]] = {}
        """Key -> (due time, rank, key)."""
        self._blocks: list[list[tuple[int, Any, K]]] = []
        """The entries in their order; no block is empty."""
        self._rank = rank
        self.next_ms = NEVER_MS
        """The earliest due time; NEVER_MS without keys. It is read with every entry."""

    def set(self, key: K, due_ms: int | None) -> None:
        """Set the due time of a key, in place of its former time, or remove it with None."""
        known = self._entries.get(key)
        if (None if known is None else known[0]) == due_ms:
            return
        if known is not None:
            self._remove(known)
        if due_ms is None:
            del self._entries[key]
        else:
            entry = self._entries[key] = (due_ms, self._rank(key), key)
            self._add(entry)
        self._update_next()

    def pop(self) -> K:
        """Remove and return the key that is due first, which must exist."""
        block = self._blocks[0]
        *_, key = block.pop(0)
        if not block:
            del self._blocks[0]
        del self._entries[key]
        self._update_next()
        return key

    def keep(self, wanted: Callable[[K], bool]) -> None:
        """Remove all keys except those for which `wanted` is true."""
        kept = [[entry for entry in block if wanted(entry[2])] for block in self._blocks]
        self._blocks = [block for block in kept if block]
        self._entries = {entry[2]: entry for block in self._blocks for entry in block}
        self._update_next()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def _add(self, entry: tuple[int, Any, K]) -> None:
        blocks = self._blocks
        if not blocks:
            blocks.append([entry])
            return
        at = min(bisect_left(blocks, entry, key=_last), len(blocks) - 1)
        block = blocks[at]
        insort(block, entry)
        if len(block) > BLOCK_KEYS:
            half = BLOCK_KEYS // 2
            blocks.insert(at + 1, block[half:])
            del block[half:]

    def _remove(self, entry: tuple[int, Any, K]) -> None:
        at = bisect_left(self._blocks, entry, key=_last)
        block = self._blocks[at]
        del block[bisect_left(block, entry)]
        if not block:
            del self._blocks[at]

    def _update_next(self) -> None:
        self.next_ms = self._blocks[0][0][0] if self._blocks else NEVER_MS
