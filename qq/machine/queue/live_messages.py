"""Live messages: the messages of a range of entries that the state still refers to.

Invariant: there may be a million of them, each in an entry of its own. They are stored as plain numbers, and turned
into mappings a few entries at a time, when they are read. So the interpreter never creates, sorts or frees many objects
at once, and different threads can run in between.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

from qq.ranges import MESSAGE_BITS, MESSAGE_MASK

CELL_BITS = 10
"""Number of low bits of an index that share a cell. The entries of a cell become mappings together."""

Batches = Mapping[int, Sequence[tuple[int, int]]]
"""Batch ordinal -> ranges of messages, as (ordinal of the first message, count)."""


class LiveMessages(Mapping[int, Batches]):
    """Log index -> live messages, ascending.

    Read the indexes in ascending order, because only a single cell is cached.
    """

    def __init__(self) -> None:
        self._cells: dict[int, array[int]] = {}
        """Upper bits of the index -> index, slot and count of each range, in a flat array."""
        self._cell = -1
        self._entries: dict[int, Batches] = {}
        """The entries of the cell `_cell`."""

    def add(self, index: int, slot: int, count: int) -> None:
        """Add messages; they may have been added before."""
        cell = index >> CELL_BITS
        if cell not in self._cells:
            self._cells[cell] = array("Q")
        self._cells[cell].extend((index, slot, count))

    def __getitem__(self, index: int) -> Batches:
        return self._entries_of(index >> CELL_BITS)[index]

    def __iter__(self) -> Iterator[int]:
        for cell in sorted(self._cells):
            yield from self._entries_of(cell)

    def __len__(self) -> int:
        return sum(len(set(words[::3])) for words in self._cells.values())

    def _entries_of(self, cell: int) -> dict[int, Batches]:
        if cell != self._cell:
            places: dict[int, list[tuple[int, int]]] = {}
            words = iter(self._cells.get(cell, ()))
            for index, slot, count in zip(words, words, words, strict=True):
                places.setdefault(index, []).append((slot, count))
            self._entries = {index: _merged(places[index]) for index in sorted(places)}
            self._cell = cell
        return self._entries


def _merged(places: Iterable[tuple[int, int]]) -> dict[int, list[tuple[int, int]]]:
    """Return the messages of an entry as batch ordinal -> ranges, from slots and counts."""
    batches: dict[int, list[tuple[int, int]]] = {}
    for slot, count in sorted(places):
        first = slot & MESSAGE_MASK
        ranges = batches.setdefault(slot >> MESSAGE_BITS, [])
        if ranges and first <= ranges[-1][0] + ranges[-1][1]:
            start, known = ranges[-1]
            ranges[-1] = (start, max(known, first + count - start))
        else:
            ranges.append((first, count))
    return batches
