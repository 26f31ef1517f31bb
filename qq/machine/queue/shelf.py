"""A shelf: messages out of arrival order, because they are delayed, were returned, or expire early.

A shelf holds ranges in the order of their keys, in blocks of plain words; a full block is split in two. Each message
has a key: the first message of a range has the range's key, the following messages count up. Due times and expiries lie
in sorted blocks, too.

Invariant: a call costs the logarithm of the number of ranges, and moves at most a single block. A freeze copies
references to blocks; a frozen block is copied before it changes. The distribution of ranges over blocks is not dumped
and has no effect.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from operator import attrgetter
from sys import maxsize
from typing import TYPE_CHECKING, NamedTuple

from qq.machine.queue import packed_columns
from qq.ranges import LEVELS, MESSAGE_BITS, MESSAGE_MASK, Range

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BLOCK_ROWS = 256
"""Rows in a block, at most, of 80 octets each: moving half of them takes less than a microsecond."""
BLOCK_MOMENTS = 512
PACK_ROWS = 2048
"""Rows packed together, as in a chunk of runs."""

_INDEX, _PLACE, _POSITION, _SIZE, _EXPIRES, _DUE, _DELIVERIES, _FAILURES, _MARKS = range(9)
"""Word numbers of a row, in order. `place` is slot and count together; `marks` are history, level and the flag for a
returned message."""
_WORDS = 9
_MARK_BITS = 6
_CODES = "qqQqQqqQQQ"
"""The type codes of packed columns: the key, then a row's words. The columns in _RISING hold differences."""
_RISING = (0, 1, 3, 5, 6)
"""The columns packed as differences: key, index, position, expiry and due time."""
_first = attrgetter("first")


class _Block:
    """Consecutive ranges of a shelf: their keys, and a row of words for each."""

    __slots__ = ("age", "first", "keys", "rows")

    def __init__(self, first: int, age: int, keys: array[int], rows: array[int]) -> None:
        self.first = first
        """A lower bound of the keys in the block, unless this is the first block."""
        self.age = age
        """The shelf's number of freezes when the block was made. The block may be changed until the next freeze."""
        self.keys = keys
        self.rows = rows


class Shelf:
    """Ranges in the order of their keys."""

    __slots__ = ("_age", "_blocks", "_due", "_expiring")

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._age = 0
        self._due = self._expiring = _NO_MOMENTS

    def __bool__(self) -> bool:
        return bool(self._blocks)

    @property
    def ranges_at_most(self) -> int:
        """An upper bound of the number of ranges."""
        return BLOCK_ROWS * len(self._blocks)

    @property
    def head_position(self) -> int:
        """The key of the first message, which must exist."""
        return self._blocks[0].keys[0]

    @property
    def head_index(self) -> int:
        """The index of the first message, which must exist."""
        return self._blocks[0].rows[_INDEX]

    @property
    def due_ms(self) -> int:
        """The earliest due time of a range; 0 if no range has any."""
        return self._due.first_ms

    @property
    def expires_ms(self) -> int:
        """The earliest expiry of a range; 0 if no range expires."""
        return self._expiring.first_ms

    def insert(self, key: int, messages: Range, due_ms: int = 0, *, returned: bool = False) -> None:
        """Add messages; their keys from `key` on must be free.

        Messages with a due time that were not returned do not expire on the shelf.
        """
        index, slot, count, deliveries, size, position, expires_ms, level, history, failures = messages
        row = [
            index,
            slot << MESSAGE_BITS | count,
            position,
            size,
            expires_ms,
            due_ms,
            deliveries,
            failures,
            history << _MARK_BITS | level << 1 | returned,
        ]
        if due_ms:
            if self._due is _NO_MOMENTS:
                self._due = _Moments()
            self._due.add(due_ms, key)
        if expires_ms and (returned or not due_ms):
            if self._expiring is _NO_MOMENTS:
                self._expiring = _Moments()
            self._expiring.add(expires_ms, key)
        number = self._place(key)
        if number == len(self._blocks):
            self._blocks.append(_Block(key, self._age, array("Q", (key,)), array("Q", row)))
            return
        block = self._own(number)
        at = bisect_left(block.keys, key)
        block.keys.insert(at, key)
        block.rows[at * _WORDS : at * _WORDS] = array("Q", row)
        if len(block.keys) > BLOCK_ROWS:
            half = BLOCK_ROWS // 2
            upper = _Block(block.keys[half], self._age, block.keys[half:], block.rows[half * _WORDS :])
            del block.keys[half:], block.rows[half * _WORDS :]
            self._blocks.insert(number + 1, upper)

    def take(self, count: int, most: int = maxsize) -> list[Range]:
        """Remove and return the first `count` messages, or all if fewer, in at most `most` ranges."""
        ranges: list[Range] = []
        while count and self._blocks and len(ranges) < most:
            ranges.append(self.take_run(count))
            count -= ranges[-1].count
        return ranges

    def take_run(self, count: int) -> Range:
        """Remove and return up to `count` messages of the first range, which must exist."""
        block = self._own(0)
        key, row = block.keys[0], block.rows
        messages = _range(row)
        moments = [(self._due, row[_DUE]), (self._expiring, _expiry(row))]
        for times, time_ms in moments:
            if time_ms:
                times.remove(time_ms, key)
        if messages.count <= count:
            self._remove(0, 0)
            return messages
        rest = messages.part(count, messages.count - count)
        block.keys[0] = key + count
        row[_PLACE] = rest.slot << MESSAGE_BITS | rest.count
        row[_POSITION], row[_SIZE] = rest.position, rest.size
        for times, time_ms in moments:
            if time_ms:
                times.add(time_ms, key + count)
        return messages.part(0, count)

    def peek(self, first: int, end: int, count: int) -> list[tuple[int, Range]]:
        """Return at most `count` messages with keys from `first` to before `end`, without removing them.

        Each range comes with the key of its first message.
        """
        found: list[tuple[int, Range]] = []
        for key, messages in self._from(first):
            if key >= end or count <= 0:
                break
            low, high = max(first - key, 0), min(end - key, messages.count)
            if low < high:
                found.append((key + low, messages.part(low, min(high - low, count))))
                count -= found[-1][1].count
        return found

    def cut(self, first: int, count: int) -> None:
        """Remove the messages with the `count` keys from `first` on, as far as they are here."""
        for key, messages in self.peek(first, first + count, count):
            self._cut(key, messages.count)

    def _cut(self, first: int, count: int) -> None:
        """Remove messages of a single range."""
        number, at = self._covering(first)
        key = self._blocks[number].keys[at]
        row = self._remove(number, at)
        due_ms, expires_ms, messages = row[_DUE], _expiry(row), _range(row)
        for times, time_ms in ((self._due, due_ms), (self._expiring, expires_ms)):
            if time_ms:
                times.remove(time_ms, key)
        for low, high in ((0, first - key), (first - key + count, messages.count)):
            if low < high:
                self.insert(key + low, messages.part(low, high - low), due_ms, returned=bool(row[_MARKS] & 1))

    def _from(self, first: int) -> Iterator[tuple[int, Range]]:
        """Yield the ranges that begin at this key or later, and the range before them, each with its first key."""
        if not self._blocks:
            return
        number, at = self._covering(first)
        for block in self._blocks[number:]:
            for place in range(at, len(block.keys)):
                yield block.keys[place], _range(block.rows[place * _WORDS : (place + 1) * _WORDS])
            at = 0

    def _covering(self, key: int) -> tuple[int, int]:
        """Return block and place of the last range that begins at or before this key, or of the first range."""
        number = max(bisect_right(self._blocks, key, key=_first) - 1, 0)
        return number, max(bisect_right(self._blocks[number].keys, key) - 1, 0)

    def take_due(self) -> tuple[Range, bool]:
        """Remove and return the range with the earliest due time (then least key), and whether it was returned.

        It must exist.
        """
        key = self._due.pop()
        row = self._remove(*self._find(key))
        if expires_ms := _expiry(row):
            self._expiring.remove(expires_ms, key)
        return _range(row), bool(row[_MARKS] & 1)

    def take_expired(self) -> Range:
        """Remove and return the range with the earliest expiry (then least key), which must exist."""
        key = self._expiring.pop()
        row = self._remove(*self._find(key))
        if row[_DUE]:
            self._due.remove(row[_DUE], key)
        return _range(row)

    def clear(self) -> None:
        self._blocks.clear()
        self._due = self._expiring = _NO_MOMENTS

    def browse(self) -> Iterator[Range]:
        """Yield all ranges in order. The shelf must not change meanwhile."""
        return FrozenShelf(tuple(self._blocks)).browse()

    def freeze(self) -> FrozenShelf:
        if not self._blocks:
            return _EMPTY  # the usual case, and there may be very many queues
        self._age += 1
        return FrozenShelf(tuple(self._blocks))

    def load(self, dumped: Sequence[bytes]) -> None:
        """Replace the shelf by a dump of `FrozenShelf.dump`."""
        if self._blocks:
            self.clear()
        if not dumped:
            return  # the usual case
        for data in dumped:
            keys, rows = _unpacked(data)
            for at in range(0, len(keys), BLOCK_ROWS):
                part = keys[at : at + BLOCK_ROWS]
                words = rows[at * _WORDS : (at + BLOCK_ROWS) * _WORDS]
                self._blocks.append(_Block(part[0], self._age, part, words))
        due: list[tuple[int, int]] = []
        expiring: list[tuple[int, int]] = []
        for block in self._blocks:
            words = [block.rows[word::_WORDS] for word in (_DUE, _EXPIRES, _MARKS)]
            for key, due_ms, expires_ms, marks in zip(block.keys, *words, strict=True):
                if due_ms:
                    due.append((due_ms, key))
                if expires_ms and (not due_ms or marks & 1):
                    expiring.append((expires_ms, key))
        self._due, self._expiring = _moments(due), _moments(expiring)

    def _place(self, key: int) -> int:
        """Return the block number for a new key; one more than the last block's for a new block."""
        blocks = self._blocks
        if not blocks:
            return 0
        last = blocks[-1]
        if key < last.first:
            return max(bisect_right(blocks, key, key=_first) - 1, 0)
        # Keys that arrive in order fill blocks completely.
        return len(blocks) - (len(last.keys) < BLOCK_ROWS or key < last.keys[-1])

    def _find(self, key: int) -> tuple[int, int]:
        """Return the key's block number, and its place in the block."""
        number = max(bisect_right(self._blocks, key, key=_first) - 1, 0)
        return number, bisect_left(self._blocks[number].keys, key)

    def _own(self, number: int) -> _Block:
        """Return the block with this number, to be changed: a copy if a frozen shelf shares it."""
        block = self._blocks[number]
        if block.age != self._age:
            block = _Block(block.first, self._age, block.keys[:], block.rows[:])
            self._blocks[number] = block
        return block

    def _remove(self, number: int, at: int) -> array[int]:
        """Remove and return a row; the caller must remove its times."""
        block = self._own(number)
        row = block.rows[at * _WORDS : (at + 1) * _WORDS]
        del block.keys[at], block.rows[at * _WORDS : (at + 1) * _WORDS]
        if not block.keys:
            del self._blocks[number]
        return row


class FrozenShelf(NamedTuple):
    """A shelf at a moment. `Shelf` shares the blocks, and changes them no more."""

    blocks: tuple[_Block, ...]

    def dump(self) -> list[bytes]:
        """Return the dump that `Shelf.load` reads; equal shelves have equal dumps if zlib is the same."""
        if not self.blocks:
            return []  # the usual case
        return [_packed(keys, rows) for keys, rows in self._portions()]

    def add_counts(self, bounds: Sequence[int], counts: list[int]) -> None:
        """Add the number of messages with bounds[i] <= index < bounds[i + 1] to counts[i], for each i."""
        for block in self.blocks:
            for index, place in zip(block.rows[_INDEX::_WORDS], block.rows[_PLACE::_WORDS], strict=True):
                cell = bisect_right(bounds, index) - 1
                if 0 <= cell < len(counts):
                    counts[cell] += place & MESSAGE_MASK

    def ranges(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield index, slot and count of the ranges with first <= index < end, in order."""
        for block in self.blocks:
            for index, place in zip(block.rows[_INDEX::_WORDS], block.rows[_PLACE::_WORDS], strict=True):
                if first <= index < end:
                    yield index, place >> MESSAGE_BITS, place & MESSAGE_MASK

    def browse(self) -> Iterator[Range]:
        """Yield all ranges in order."""
        for block in self.blocks:
            for at in range(0, len(block.rows), _WORDS):
                yield _range(block.rows[at : at + _WORDS])

    def _portions(self) -> Iterator[tuple[array[int], array[int]]]:
        """Yield keys and rows, in portions of PACK_ROWS."""
        keys, rows = array("Q"), array("Q")
        for block in self.blocks:
            keys += block.keys
            rows += block.rows
            while len(keys) >= PACK_ROWS:
                yield keys[:PACK_ROWS], rows[: PACK_ROWS * _WORDS]
                del keys[:PACK_ROWS], rows[: PACK_ROWS * _WORDS]
        if keys:
            yield keys, rows


_EMPTY = FrozenShelf(())


class _Moments:
    """Pairs of a time and a key, sorted."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: list[_Times] = []

    @property
    def first_ms(self) -> int:
        """The earliest time; 0 without pairs."""
        return self._blocks[0].times[0] if self._blocks else 0

    def add(self, time_ms: int, key: int) -> None:
        blocks = self._blocks
        number = bisect_right(blocks, (time_ms, key), key=_first) - 1
        if number < 0:
            if not blocks:
                blocks.append(_Times((time_ms, key), array("Q", (time_ms,)), array("Q", (key,))))
                return
            number = 0
        block = blocks[number]
        at = block.find(time_ms, key)
        if at == len(block.times) >= BLOCK_MOMENTS and number == len(blocks) - 1:
            blocks.append(_Times((time_ms, key), array("Q", (time_ms,)), array("Q", (key,))))
            return
        block.times.insert(at, time_ms)
        block.keys.insert(at, key)
        if len(block.times) > BLOCK_MOMENTS:
            half = BLOCK_MOMENTS // 2
            upper = _Times((block.times[half], block.keys[half]), block.times[half:], block.keys[half:])
            del block.times[half:], block.keys[half:]
            blocks.insert(number + 1, upper)

    def pop(self) -> int:
        """Remove the earliest pair, which must exist, and return its key."""
        block = self._blocks[0]
        key = block.keys[0]
        del block.times[0], block.keys[0]
        if not block.times:
            del self._blocks[0]
        return key

    def remove(self, time_ms: int, key: int) -> None:
        """Remove a pair, which must exist."""
        number = max(bisect_right(self._blocks, (time_ms, key), key=_first) - 1, 0)
        block = self._blocks[number]
        at = block.find(time_ms, key)
        del block.times[at], block.keys[at]
        if not block.times:
            del self._blocks[number]

    def load(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Replace all pairs by these, which must be sorted."""
        self._blocks = []
        for at in range(0, len(pairs), BLOCK_MOMENTS):
            part = pairs[at : at + BLOCK_MOMENTS]
            times, keys = zip(*part, strict=True)
            self._blocks.append(_Times(part[0], array("Q", times), array("Q", keys)))


_NO_MOMENTS = _Moments()
"""An empty object that all shelves without times share, because there may be very many shelves. It must stay empty."""


def _moments(pairs: list[tuple[int, int]]) -> _Moments:
    if not pairs:
        return _NO_MOMENTS
    moments = _Moments()
    moments.load(sorted(pairs))
    return moments


class _Times:
    """Consecutive pairs of a time and a key, as two arrays."""

    __slots__ = ("first", "keys", "times")

    def __init__(self, first: tuple[int, int], times: array[int], keys: array[int]) -> None:
        self.first = first
        """A lower bound of the pairs in the block, unless this is the first block."""
        self.times = times
        self.keys = keys

    def find(self, time_ms: int, key: int) -> int:
        start = bisect_left(self.times, time_ms)
        return bisect_left(self.keys, key, start, bisect_right(self.times, time_ms, start))


def _expiry(row: array[int]) -> int:
    """Return the time at which a row expires on the shelf; 0 for never."""
    return row[_EXPIRES] if row[_MARKS] & 1 or not row[_DUE] else 0


def _range(row: array[int]) -> Range:
    index, place, position, size, expires_ms, _, deliveries, failures, marks = row[:_WORDS]
    return Range(
        index,
        place >> MESSAGE_BITS,
        place & MESSAGE_MASK,
        deliveries,
        size,
        position,
        expires_ms,
        (marks >> 1) % LEVELS,
        marks >> _MARK_BITS,
        failures,
    )


def _packed(keys: array[int], rows: array[int]) -> bytes:
    return packed_columns.pack_rising([keys, *(rows[word::_WORDS] for word in range(_WORDS))], _RISING)


def _unpacked(data: bytes) -> tuple[array[int], array[int]]:
    keys, *rest = packed_columns.unpack_rising(data, _CODES, _RISING)
    rows = array("Q", bytes(8 * _WORDS * len(keys)))
    for word, column in enumerate(rest):
        rows[word::_WORDS] = column
    return keys, rows
