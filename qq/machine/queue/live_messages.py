"""Which messages of some entries something refers to.

Invariant: there may be a million of them, each in an entry of its own. They are noted as plain numbers, and made into
mappings for few entries at a time, those that are asked for: the interpreter makes, sorts and lets go of few at once,
so that other threads can go on in between.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

from qq.ranges import MESSAGE_BITS, MESSAGE_MASK

CELL_BITS = 10
"""How many bits of an index do not tell which entries are made into mappings together."""

Batches = Mapping[int, Sequence[tuple[int, int]]]
"""Ranges of messages, as (ordinal of the first one, count), by the ordinal of their batch."""


class LiveMessages(Mapping[int, Batches]):
    """Messages by the index of their entry, ascending. Whoever goes through them goes by ascending index, too."""

    def __init__(self) -> None:
        self._cells: dict[int, array[int]] = {}
        """Index, slot and count of each range, one behind the other, by the upper bits of the index."""
        self._cell = -1
        self._entries: dict[int, Batches] = {}
        """The entries of that cell."""

    def add(self, index: int, slot: int, count: int) -> None:
        """Note messages; they may be known already."""
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
    """Turn slots and counts of one entry into ranges of messages, by the ordinals of its batches."""
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
