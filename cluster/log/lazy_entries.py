"""Entries and runs of entries as pysyncobj is given them: they load payloads from the disk when asked to.

Invariant: to make a view costs no read and no copy, however long the log is. A view is for use at once: it does not
survive a deletion.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol, overload

from cluster.log.segment import Record


class EntrySource(Protocol):
    """What a view takes its entries and their payloads from: the journal."""

    def entry(self, index: int) -> Entry: ...

    def read(self, index: int) -> bytes:
        """Return the payload of an entry, from the disk if need be."""
        ...


class LazyEntry:
    """An entry whose payload is read from the disk when it is asked for."""

    __slots__ = ("_index", "_payload", "_source", "_term")

    def __init__(self, source: EntrySource, index: int, term: int) -> None:
        self._source = source
        self._index = index
        self._term = term
        self._payload: bytes | None = None

    @overload
    def __getitem__(self, item: Literal[0]) -> bytes: ...
    @overload
    def __getitem__(self, item: Literal[1, 2]) -> int: ...
    def __getitem__(self, item: int) -> bytes | int:
        if item == 2:
            return self._term
        if item == 1:
            return self._index
        if item != 0:
            raise IndexError(item)
        if self._payload is None:
            self._payload = self._source.read(self._index)
        return self._payload

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[bytes | int]:
        return iter((self[0], self._index, self._term))

    def __eq__(self, other: object) -> bool:
        # The numbers are compared first: an entry that differs in them need not be read.
        if not isinstance(other, (tuple, list, LazyEntry)) or len(other) != 3:
            return NotImplemented
        return (self._index, self._term) == (other[1], other[2]) and self[0] == other[0]

    __hash__ = None  # pyright: ignore[reportAssignmentType]


Entry = Record | LazyEntry


class EntrySlice(Sequence[Entry]):
    """A view of consecutive entries."""

    __slots__ = ("_source", "_start", "_stop")

    def __init__(self, source: EntrySource, start: int, stop: int) -> None:
        self._source = source
        self._start = start
        self._stop = stop

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, item: int) -> Entry: ...
    @overload
    def __getitem__(self, item: slice) -> EntrySlice: ...
    def __getitem__(self, item: int | slice) -> Entry | EntrySlice:
        if isinstance(item, slice):
            start, stop, step = item.indices(len(self))
            if step != 1:
                raise ValueError("a slice of the log has no step")
            return EntrySlice(self._source, self._start + start, self._start + max(start, stop))
        index = (self._start if item >= 0 else self._stop) + item
        if not self._start <= index < self._stop:
            raise IndexError(item)
        return self._source.entry(index)
