"""A backlog: messages that were never delivered, in order, as runs.

Lives here: `Runs`, and `FrozenRuns`, what it was at one moment. Not here: messages that were returned (queue.py).

A backlog is consumed at its head and filled at its tail. Both are plain arrays of words, two for each run: the index,
then slot and count together. Full arrays between them are chunks: packed, and never changed.

Law: a run that waits in a chunk costs about a byte and no object. Where chunks begin and end follows from what was
appended and taken alone, and survives `dump` and `load`: replicas dump equal backlogs whenever each was loaded.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from itertools import accumulate
from operator import sub
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.ranges import MESSAGE_BITS, MESSAGE_MASK, Range

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CHUNK_RUNS = 2048
"""To pack so many takes a fifth of a millisecond, and plain they are 32 KiB."""

_CHUNK_WORDS = 2 * CHUNK_RUNS
_WORD_BYTES = 8
_NOTHING: array[int] = array("Q")
"""Every exhausted head."""


class Chunk(NamedTuple):
    """Consecutive runs, packed."""

    first: int
    """Index of the first run."""
    last: int
    """Index of the last run."""
    messages: int
    data: bytes


class Runs:
    """A FIFO of runs."""

    __slots__ = ("_chunks", "_head", "_position", "_tail", "_taken")

    def __init__(self) -> None:
        self._head = _NOTHING
        """Never changed: what was taken of it is counted below."""
        self._position = 0
        """Position of the first run's words in the head."""
        self._taken = 0
        """Messages of the first run that are gone already."""
        self._chunks: deque[Chunk] = deque()
        self._tail = array("Q")
        """Only appended to."""

    def append(self, index: int, slot: int, count: int) -> None:
        """Add `count` messages at the end; a slot has at most 40 bits, and indexes never decrease.

        What follows at once on the last run of the same batch joins it. A frozen backlog never sees that: it was frozen
        between two entries.
        """
        tail = self._tail
        if tail and tail[-2] == index:
            word = tail[-1]
            if (word >> MESSAGE_BITS) + (word & MESSAGE_MASK) == slot:
                tail[-1] = word + count
                return
        tail.append(index)
        tail.append(slot << MESSAGE_BITS | count)
        if len(tail) == _CHUNK_WORDS:
            self._chunks.append(_chunk(tail))
            self._tail = array("Q")

    def take(self, count: int) -> list[Range]:
        """Remove the first `count` messages, which are there."""
        ranges: list[Range] = []
        head, position, taken = self._head, self._position, self._taken
        while count:
            if position == len(head):
                head, position = self._next_head(), 0
            word = head[position + 1]
            part = (word & MESSAGE_MASK) - taken
            if part > count:
                ranges.append(Range(head[position], (word >> MESSAGE_BITS) + taken, count, 0))
                taken += count
                break
            ranges.append(Range(head[position], (word >> MESSAGE_BITS) + taken, part, 0))
            count -= part
            taken = 0
            position += 2
        if position == len(head):
            head, position = _NOTHING, 0
        self._head, self._position, self._taken = head, position, taken
        return ranges

    def clear(self) -> None:
        self._head, self._position, self._taken = _NOTHING, 0, 0
        self._chunks.clear()
        self._tail = array("Q")

    def freeze(self) -> FrozenRuns:
        return FrozenRuns(
            self._head, self._position, self._taken, tuple(self._chunks), self._tail, len(self._tail)
        )

    def load(self, dumped: Sequence[Any]) -> None:
        """Replace the backlog by what `FrozenRuns.dump` gave."""
        head, chunks, tail = dumped
        self.clear()
        if head:
            self._head = _unpacked(head)
        self._chunks.extend(Chunk(*chunk) for chunk in chunks)
        if tail:
            self._tail = _unpacked(tail)

    def _next_head(self) -> array[int]:
        if self._chunks:
            return _unpacked(self._chunks.popleft().data)
        tail, self._tail = self._tail, array("Q")
        return tail


class FrozenRuns(NamedTuple):
    """A backlog at one moment. It shares the arrays with `Runs`, which changes nothing of what is meant here."""

    head: array[int]
    position: int
    taken: int
    chunks: tuple[Chunk, ...]
    tail: array[int]
    tail_words: int
    """What was appended to the tail later does not count."""

    def dump(self) -> list[Any]:
        """What `Runs.load` wants. Equal backlogs give equal dumps where zlib is the same."""
        head, tail = self._plain()
        return [_packed(head) if head else b"", self.chunks, _packed(tail) if tail else b""]

    def add_counts(self, bounds: Sequence[int], counts: list[int]) -> None:
        """Add the messages with bounds[i] <= index < bounds[i + 1] to counts[i], for each i."""
        for chunk in self.chunks:
            cell = bisect_right(bounds, chunk.first) - 1
            if bisect_right(bounds, chunk.last) - 1 != cell:
                _count(_unpacked(chunk.data), bounds, counts)
            elif 0 <= cell < len(counts):
                counts[cell] += chunk.messages
        for words in self._plain():
            _count(words, bounds, counts)

    def ranges(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Index, slot and count of the runs with first <= index < end, in order."""
        head, tail = self._plain()
        yield from _ranges(head, first, end)
        for chunk in self.chunks:
            if chunk.first < end and first <= chunk.last:
                yield from _ranges(_unpacked(chunk.data), first, end)
        yield from _ranges(tail, first, end)

    def _plain(self) -> tuple[array[int], array[int]]:
        """The words of the head and of the tail."""
        head = self.head[self.position :]
        if self.taken:
            # Slot and count are one word: as many messages as the slot moves on, the count loses.
            head[1] += (self.taken << MESSAGE_BITS) - self.taken
        return head, self.tail[: self.tail_words]


def _chunk(words: array[int]) -> Chunk:
    # A count is the lowest three bytes of a word, and whole columns of bytes are summed without a loop.
    raw = _little_endian(words[1::2])
    messages = sum(raw[0::8]) + (sum(raw[1::8]) << 8) + (sum(raw[2::8]) << 16)
    return Chunk(words[0], words[-2], messages, _packed(words))


def _packed(words: array[int]) -> bytes:
    """Compress runs. Sorted into first, second ... bytes of the words, they are mostly repetitions."""
    indexes = words[0::2]
    columns = array("Q", map(sub, indexes[1:], indexes))
    columns.insert(0, indexes[0])
    columns.extend(words[1::2])
    raw = _little_endian(columns)
    # A small window: zlib's usual one takes longer to set up than all the rest.
    packer = zlib.compressobj(1, zlib.DEFLATED, 13, 6)
    packed = packer.compress(b"".join([raw[byte::_WORD_BYTES] for byte in range(_WORD_BYTES)]))
    return packed + packer.flush()


def _unpacked(data: bytes) -> array[int]:
    sorted_bytes = zlib.decompress(data)
    length = len(sorted_bytes) // _WORD_BYTES
    raw = bytearray(len(sorted_bytes))
    for byte in range(_WORD_BYTES):
        raw[byte::_WORD_BYTES] = sorted_bytes[byte * length : (byte + 1) * length]
    columns = array("Q")
    columns.frombytes(raw)
    if sys.byteorder == "big":
        columns.byteswap()
    words = array("Q", bytes(len(raw)))
    words[0::2] = array("Q", accumulate(columns[: length // 2]))
    words[1::2] = columns[length // 2 :]
    return words


def _little_endian(words: array[int]) -> bytes:
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def _count(words: array[int], bounds: Sequence[int], counts: list[int]) -> None:
    if not words:
        return
    indexes = words[0::2]
    start = bisect_left(indexes, bounds[0])
    # Only the bounds that lie among the indexes: the rest of the cells stay as they are.
    for cell in range(max(bisect_right(bounds, indexes[0]) - 1, 0), len(counts)):
        if start == len(indexes):
            return
        end = bisect_left(indexes, bounds[cell + 1], lo=start)
        counts[cell] += sum(map(MESSAGE_MASK.__and__, words[2 * start + 1 : 2 * end : 2]))
        start = end


def _ranges(words: array[int], first: int, end: int) -> Iterator[tuple[int, int, int]]:
    indexes = words[0::2]
    for position in range(bisect_left(indexes, first), bisect_left(indexes, end)):
        word = words[2 * position + 1]
        yield indexes[position], word >> MESSAGE_BITS, word & MESSAGE_MASK
