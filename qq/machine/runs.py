"""A backlog: messages that were never delivered, in order, as runs.

Law: 16 bytes per run, whatever its length, and no object per run: ten million messages published one by one are
160 MB, published in batches of 500 they are 320 kB.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque

from qq.ranges import MESSAGE_BITS, MESSAGE_MASK, Range

_CHUNK_WORDS = 8192
"""A chunk of 64 KiB: memory goes back in such pieces, and an exhausted chunk costs nothing to drop."""


class Runs:
    """A FIFO of runs; a run is two words: the index, then slot and count together."""

    __slots__ = ("_chunks", "_head", "_taken")

    def __init__(self) -> None:
        self._chunks: deque[array[int]] = deque((array("Q"),))
        self._head = 0
        """Position of the first run's words in the first chunk."""
        self._taken = 0
        """Messages of the first run that are gone already."""

    def append(self, index: int, slot: int, count: int) -> None:
        """Add `count` messages at the end; a slot has at most 40 bits."""
        chunk = self._chunks[-1]
        if len(chunk) >= _CHUNK_WORDS:
            chunk = array("Q")
            self._chunks.append(chunk)
        chunk.append(index)
        chunk.append(slot << MESSAGE_BITS | count)

    def take(self, count: int) -> list[Range]:
        """Remove the first `count` messages, which are there."""
        ranges: list[Range] = []
        while count:
            chunk, head, taken = self._chunks[0], self._head, self._taken
            word = chunk[head + 1]
            left = (word & MESSAGE_MASK) - taken
            part = min(left, count)
            ranges.append(Range(chunk[head], (word >> MESSAGE_BITS) + taken, part, 0))
            count -= part
            if part < left:
                self._taken = taken + part
            else:
                self._drop_first()
        return ranges

    def clear(self) -> None:
        self.load(b"")

    def dump(self) -> bytes:
        """The words of what is left, little endian."""
        words = array("Q")
        for chunk in self._chunks:
            words.extend(chunk)
        del words[: self._head]
        if self._taken:
            words[1] = (((words[1] >> MESSAGE_BITS) + self._taken) << MESSAGE_BITS) | (
                (words[1] & MESSAGE_MASK) - self._taken
            )
        if sys.byteorder == "big":
            words.byteswap()
        return words.tobytes()

    def load(self, data: bytes) -> None:
        words = array("Q")
        words.frombytes(data)
        if sys.byteorder == "big":
            words.byteswap()
        starts = range(0, max(len(words), 1), _CHUNK_WORDS)
        self._chunks = deque(words[start : start + _CHUNK_WORDS] for start in starts)
        self._head = self._taken = 0

    def _drop_first(self) -> None:
        self._taken = 0
        self._head += 2
        if self._head == len(self._chunks[0]):
            self._chunks.popleft()
            self._head = 0
            if not self._chunks:
                self._chunks.append(array("Q"))
