"""Views of log entries for pysyncobj: each entry loads its payload from the disk on first access.

Invariant: making a view reads and copies no payload, however long the log is. A view must be used at once, because a
deletion invalidates it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol, overload

from cluster.log.segment import Record


class EntrySource(Protocol):
    """Source of the entries and payloads of a view: the journal."""

    def entry(self, index: int) -> Entry: ...

    def read(self, index: int) -> bytes:
        """Return the payload of the entry at `index`, from memory or from the disk."""
        ...


class LazyEntry:
    """An entry (payload, index, term) whose payload is read from the disk on first access."""

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
        # Index and term are compared first, because comparing payloads may need a read from the disk.
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
