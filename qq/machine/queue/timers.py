"""Moments at which something is to be done, one for each key.

Invariant: timers are no part of a state that is dumped; who loads one sets them again. In which order keys come that
are due at the same moment follows from the keys. No call costs more than its neighbours: what is put off or forgotten
is gone at once, and leaves nothing that somebody has to pass over later.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

K = TypeVar("K", bound="Hashable")

NEVER_MS = 2**63
"""Later than any moment."""
NOW_MS = 0
"""A moment that has come, whatever time it is."""
BLOCK_KEYS = 512
"""How many keys a block may have: at most so many are moved when one comes or goes."""

_last = itemgetter(-1)


class Timers(Generic[K]):
    """A moment for each of some keys. The time is the cluster's, in milliseconds."""

    __slots__ = ("_blocks", "_entries", "_rank", "next_ms")

    def __init__(self, rank: Callable[[K], Any]) -> None:
        """If several keys are due at once, the one with the least `rank` comes first; no two ranks are the same."""
        self._entries: dict[K, tuple[int, Any, K]] = {}
        """The moment, rank and key of each key."""
        self._blocks: list[list[tuple[int, Any, K]]] = []
        """The entries in their order; no block is empty."""
        self._rank = rank
        self.next_ms = NEVER_MS
        """The earliest moment at which a key is due; NEVER_MS if there is none. Asked for with every entry."""

    def set(self, key: K, due_ms: int | None) -> None:
        """Let `key` be due at that moment, or never; what it was before is forgotten."""
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
        self._note_next()

    def pop(self) -> K:
        """Forget the key that is due first, and return it; there has to be one."""
        block = self._blocks[0]
        *_, key = block.pop(0)
        if not block:
            del self._blocks[0]
        del self._entries[key]
        self._note_next()
        return key

    def keep(self, wanted: Callable[[K], bool]) -> None:
        """Forget all keys but those that are wanted."""
        kept = [[entry for entry in block if wanted(entry[2])] for block in self._blocks]
        self._blocks = [block for block in kept if block]
        self._entries = {entry[2]: entry for block in self._blocks for entry in block}
        self._note_next()

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

    def _note_next(self) -> None:
        self.next_ms = self._blocks[0][0][0] if self._blocks else NEVER_MS
