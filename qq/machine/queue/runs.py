"""The never-delivered messages of a priority level, in order, packed as runs.

A level is consumed at its head and filled at its tail. Both are plain arrays of words, six for each run: index, slot
and count together, position, size, expiry and history. Full arrays between head and tail are packed as chunks, which
are immutable.

Messages may also be cut out of the middle, by their positions. Then their chunks are packed again.

Invariant: a run in a chunk costs about a byte and no object. The bounds of chunks follow only from the messages
appended, taken and cut, and survive `dump` and `load`. So replicas dump equal backlogs, whenever each replica was
loaded. Looking changes no state.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from itertools import islice
from operator import add, attrgetter, le, sub
from struct import Struct
from sys import maxsize
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.machine.queue import packed_columns
from qq.ranges import MESSAGE_BITS, MESSAGE_MASK, NORMAL, Range

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CHUNK_RUNS = 2048
"""Runs in a chunk: packing them takes a quarter of a millisecond, and unpacked they take 96 KiB."""

_INDEX, _PLACE, _POSITION, _SIZE, _EXPIRES, _HISTORY = range(6)
"""Word numbers of a run, in order. The word `place` is slot and count together."""
_WORDS = 6
_CHUNK_WORDS = _WORDS * CHUNK_RUNS
_BASES_BYTES = 8 * 3
"""Bytes before the packed columns: index, position and expiry of the first run."""
_CODES = "qQqQqQ"
"""The type codes of packed columns; the columns of index, position and expiry hold differences."""
_NOTHING: array[int] = array("Q")
"""The value of the head when it is exhausted."""
_words_at = Struct(f"{_WORDS}Q").unpack_from
"""Reads all words of a run at once, in half the time of separate reads."""
_make = tuple.__new__
"""Makes a range in half the time of a call of `Range`."""
_first_position = attrgetter("position")

Cut = tuple[int, int]
"""Messages to be cut out: the position of the first, and the number of positions."""


class PackedRuns(NamedTuple):
    """Consecutive runs, packed."""

    first: int
    """The lowest index."""
    last: int
    """The greatest index."""
    messages: int
    position: int
    """The position of the first run."""
    expires_ms: int
    """The time at which the first run expires; 0 is never."""
    data: bytes


class Runs:
    """A FIFO of runs."""

    __slots__ = (
        "_at",
        "_chunks",
        "_head",
        "_tail",
        "_taken",
        "_taken_size",
        "exact_sizes",
        "level",
    )

    def __init__(self, level: int = NORMAL, *, exact_sizes: bool = False) -> None:
        self.level = level
        self.exact_sizes = exact_sizes
        """Whether only messages of equal size share a run, so that each message's share of the run's size is its own
        size."""
        self._head = _NOTHING
        """The first runs. The array is immutable: taken messages are counted below, and an exhausted array is
        replaced."""
        self._at = 0
        """Offset of the first run's words in the head."""
        self._taken = 0
        """Number of messages already taken from the first run."""
        self._taken_size = 0
        self._chunks: deque[PackedRuns] = deque()
        self._tail = array("Q")
        """The last runs. Apart from appending, only place and size of the very last run change."""

    def __bool__(self) -> bool:
        return bool(self._head or self._chunks or self._tail)

    def append(
        self,
        index: int,
        slot: int,
        count: int,
        position: int,
        size: int,
        expires_ms: int = 0,
        history: int = 0,
    ) -> None:
        """Add `count` messages at the end. A slot has at most 40 bits, an index and a time at most 63.

        Positions must ascend, and the caller must keep expiries ascending. Messages join the last run if they follow
        immediately on it in the same batch, with the same properties.
        """
        tail = self._tail
        if tail and tail[-_WORDS] == index:
            _, place, first, whole, expires, befell = tail[-_WORDS:]
            number = place & MESSAGE_MASK
            if (
                (place >> MESSAGE_BITS) + number == slot
                and first + number == position
                and expires == expires_ms
                and befell == history
                and (not self.exact_sizes or whole * count == size * number)
            ):
                tail[_PLACE - _WORDS] = place + count
                tail[_SIZE - _WORDS] = whole + size
                return
        tail.fromlist([index, slot << MESSAGE_BITS | count, position, size, expires_ms, history])
        if len(tail) == _CHUNK_WORDS:
            self._chunks.append(_chunk(tail))
            self._tail = array("Q")

    def take(self, count: int, most: int = maxsize) -> list[Range]:
        """Remove and return the first `count` messages, or all if fewer, in at most `most` ranges."""
        ranges: list[Range] = []
        level, words_at, make = self.level, _words_at, _make
        head, at, taken, taken_size = self._head, self._at, self._taken, self._taken_size
        while count and len(ranges) < most:
            if at == len(head):
                head, at = self._next_head(), 0
                if not head:
                    break
            index, place, position, size, expires_ms, history = words_at(head, 8 * at)
            whole = place & MESSAGE_MASK
            part, share = whole - taken, size - taken_size
            if part > count:
                # The share is that of the remaining messages, as if they were a run of their own.
                part, share = count, share * count // part
            slot = (place >> MESSAGE_BITS) + taken
            position += taken
            ranges.append(make(Range, (index, slot, part, 0, share, position, expires_ms, level, history, 0)))
            count -= part
            taken += part
            if taken == place & MESSAGE_MASK:
                taken = taken_size = 0
                at += _WORDS
            else:
                taken_size += share
        if at == len(head):
            head, at = _NOTHING, 0
        self._head, self._at, self._taken, self._taken_size = head, at, taken, taken_size
        return ranges

    def take_run(self, count: int) -> Range:
        """Remove and return up to `count` messages of the first run, which must exist."""
        if not self._head:
            self._head = self._next_head()
        return self.take(min(count, (self._head[self._at + _PLACE] & MESSAGE_MASK) - self._taken), 1)[0]

    def take_expired(self) -> Range:
        """Remove and return the first run, which expires before all later runs and must exist."""
        return self.take_run(MESSAGE_MASK)

    @property
    def ranges_at_most(self) -> int:
        """An upper bound of the number of runs."""
        return len(self._head) // _WORDS + CHUNK_RUNS * len(self._chunks) + len(self._tail) // _WORDS

    @property
    def head_position(self) -> int:
        """The position of the first message, which must exist."""
        if self._head:
            return self._head[self._at + _POSITION] + self._taken
        return self._chunks[0].position if self._chunks else self._tail[_POSITION]

    @property
    def head_index(self) -> int:
        """The index of the first message, which must exist; in a chunk, the lowest index of the chunk."""
        if self._head:
            return self._head[self._at + _INDEX]
        return self._chunks[0].first if self._chunks else self._tail[_INDEX]

    @property
    def expires_ms(self) -> int:
        """The time at which the first message expires, before all later messages; 0 for never or without messages."""
        if self._head:
            return self._head[self._at + _EXPIRES]
        if self._chunks:
            return self._chunks[0].expires_ms
        return self._tail[_EXPIRES] if self._tail else 0

    def peek(self, first: int, end: int, count: int) -> list[Range]:
        """Return at most `count` messages with positions from `first` to before `end`, in order; they stay."""
        found: list[Range] = []
        for words in self._from(first):
            start = max(bisect_right(words[_POSITION::_WORDS], first) - 1, 0)
            for at in range(start * _WORDS, len(words), _WORDS):
                run = self._range(words, at)
                if run.position >= end or count <= 0:
                    return found
                low, high = max(first, run.position), min(end, run.position + run.count)
                if low < high:
                    found.append(run.part(low - run.position, min(high - low, count)))
                    count -= found[-1].count
        return found

    def cut(self, pieces: Sequence[Cut]) -> None:
        """Remove the messages of these pieces, as far as they are here. Pieces must ascend without overlap."""
        if self._head:
            head = self._plain_head()
            kept = self._without(head, pieces)
            if kept is not head:
                self._head, self._at, self._taken, self._taken_size = kept or _NOTHING, 0, 0, 0
        if self._chunks:
            self._cut_chunks(pieces)
        kept = self._without(self._tail, pieces)
        if kept is not self._tail:
            # A new array, because a frozen copy shares the old array.
            while len(kept) >= _CHUNK_WORDS:
                self._chunks.append(_chunk(kept[:_CHUNK_WORDS]))
                kept = kept[_CHUNK_WORDS:]
            self._tail = kept

    def _cut_chunks(self, pieces: Sequence[Cut]) -> None:
        touched: dict[int, list[Cut]] = {}
        for first, count in pieces:
            for number in range(self._chunk_of(first), self._chunk_of(first + count - 1) + 1):
                touched.setdefault(number, []).append((first, count))
        # From the end, so that the numbers of earlier chunks stay valid.
        for number in reversed(touched):
            words = _unpacked(self._chunks[number].data)
            kept = self._without(words, touched[number])
            if kept is words:
                continue
            del self._chunks[number]
            # Cutting inside of runs makes more runs.
            half = len(kept) if len(kept) <= 2 * _CHUNK_WORDS else len(kept) // _WORDS // 2 * _WORDS
            for part in (kept[half:], kept[:half]):
                if part:
                    self._chunks.insert(number, _chunk(part))

    def _chunk_of(self, position: int) -> int:
        """Return the number of the chunk that may hold a message of this position."""
        return max(bisect_right(self._chunks, position, key=_first_position) - 1, 0)

    def _from(self, first: int) -> Iterator[array[int]]:
        """Yield the words of all runs that may hold messages from this position on."""
        if self._head:
            yield self._plain_head()
        if self._chunks:
            for chunk in islice(self._chunks, self._chunk_of(first), None):
                yield _unpacked(chunk.data)
        yield self._tail

    def _plain_head(self) -> array[int]:
        """Return the words of the head's runs, without the messages already taken."""
        return _rest_of(self._head, self._at, self._taken, self._taken_size)

    def _without(self, words: array[int], pieces: Sequence[Cut]) -> array[int]:
        """Return the runs without the messages of the pieces; the same array if it has no such message."""
        positions, cuts = words[_POSITION::_WORDS], dict[int, list[tuple[int, int]]]()
        for first, count in pieces:
            for number in range(max(bisect_right(positions, first) - 1, 0), len(positions)):
                start = positions[number]
                if start >= first + count:
                    break
                low = max(first - start, 0)
                high = min(first + count - start, words[number * _WORDS + _PLACE] & MESSAGE_MASK)
                if low < high:
                    cuts.setdefault(number, []).append((low, high))
        if not cuts:
            return words
        kept, copied = array("Q"), 0
        for number, gaps in cuts.items():
            kept += words[copied : number * _WORDS]
            copied = (number + 1) * _WORDS
            run, at = self._range(words, number * _WORDS), 0
            for low, high in (*gaps, (run.count, run.count)):
                if at < low:
                    kept.extend(_words_of(run.part(at, low - at)))
                at = high
        return kept + words[copied:]

    def _range(self, words: array[int], at: int) -> Range:
        index, place, position, size, expires_ms, history = words[at : at + _WORDS]
        slot, count = place >> MESSAGE_BITS, place & MESSAGE_MASK
        return Range(index, slot, count, 0, size, position, expires_ms, self.level, history)

    def clear(self) -> None:
        self._head, self._at, self._taken, self._taken_size = _NOTHING, 0, 0, 0
        self._chunks.clear()
        self._tail = array("Q")

    def _next_head(self) -> array[int]:
        if self._chunks:
            return _unpacked(self._chunks.popleft().data)
        tail, self._tail = self._tail, array("Q")
        return tail

    # The state, dumped and loaded

    def freeze(self) -> FrozenRuns:
        if not self:
            return _EMPTY  # the usual case, and there may be very many queues
        tail = self._tail
        return FrozenRuns(
            self._head,
            self._at,
            self._taken,
            self._taken_size,
            tuple(self._chunks),
            tail,
            len(tail),
            (tail[_PLACE - _WORDS], tail[_SIZE - _WORDS]) if tail else (0, 0),
        )

    def load(self, dumped: Sequence[Any]) -> None:
        """Replace everything by the runs of a dumped `RunsRow`."""
        row = RunsRow(*dumped)
        if self:
            self.clear()
        if row.head:
            self._head = _unpacked(row.head)
        self._chunks.extend(PackedRuns(*chunk) for chunk in row.chunks)
        if row.tail:
            self._tail = _unpacked(row.tail)


class RunsRow(NamedTuple):
    """Runs in a dump, written by `FrozenRuns.dump` and read by `Runs.load`."""

    head: bytes
    """The runs of the head, packed like a chunk; empty without runs."""
    chunks: Sequence[PackedRuns]
    tail: bytes
    """The runs of the tail, packed like a chunk."""


class FrozenRuns(NamedTuple):
    """Runs at a moment. `Runs` shares the arrays, and never changes the words that count here."""

    head: array[int]
    at: int
    taken: int
    taken_size: int
    chunks: tuple[PackedRuns, ...]
    tail: array[int]
    tail_words: int
    """Number of words of the tail that count; later words were appended after the freeze."""
    last: tuple[int, int]
    """Place and size of the tail's last run at the freeze, without messages that joined it later."""

    def dump(self) -> RunsRow:
        """Return the row of these runs in a dump; equal runs have equal rows if zlib is the same."""
        if self is _EMPTY:
            return _EMPTY_ROW
        head, tail = self._plain()
        return RunsRow(_dumped(head), self.chunks, _dumped(tail))

    def add_counts(self, bounds: Sequence[int], counts: list[int]) -> None:
        """Add the number of messages with bounds[i] <= index < bounds[i + 1] to counts[i], for each i."""
        for chunk in self.chunks:
            cell = bisect_right(bounds, chunk.first) - 1
            if bisect_right(bounds, chunk.last) - 1 != cell:
                _count(_unpacked(chunk.data), bounds, counts)
            elif 0 <= cell < len(counts):
                counts[cell] += chunk.messages
        for words in self._plain():
            _count(words, bounds, counts)

    def ranges(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield index, slot and count of the runs with first <= index < end, in order."""
        head, tail = self._plain()
        yield from _ranges(head, first, end)
        for chunk in self.chunks:
            if chunk.first < end and first <= chunk.last:
                yield from _ranges(_unpacked(chunk.data), first, end)
        yield from _ranges(tail, first, end)

    def browse(self, level: int, skip: int) -> Iterator[Range]:
        """Yield all runs in order, without the first `skip` messages."""
        head, tail = self._plain()
        for words in (head, *self.chunks, tail):
            if isinstance(words, PackedRuns):
                if words.messages <= skip:
                    skip -= words.messages
                    continue
                words = _unpacked(words.data)
            for at in range(0, len(words), _WORDS):
                index, place, position, size, expires_ms, history = words[at : at + _WORDS]
                slot, count = place >> MESSAGE_BITS, place & MESSAGE_MASK
                if count > skip:
                    messages = Range(index, slot, count, 0, size, position, expires_ms, level, history)
                    yield messages.part(skip, count - skip)
                skip = max(skip - count, 0)

    def _plain(self) -> tuple[array[int], array[int]]:
        """Return the words of the runs that head and tail had at that moment."""
        head = _rest_of(self.head, self.at, self.taken, self.taken_size)
        tail = self.tail[: self.tail_words]
        if tail:
            tail[_PLACE - _WORDS], tail[_SIZE - _WORDS] = self.last
        return head, tail


_EMPTY = FrozenRuns(_NOTHING, 0, 0, 0, (), _NOTHING, 0, (0, 0))
_EMPTY_ROW = RunsRow(b"", (), b"")


def _chunk(words: array[int]) -> PackedRuns:
    messages = _messages(words[_PLACE::_WORDS])
    indexes = words[_INDEX::_WORDS]
    steps = packed_columns.differences(indexes)
    bounds = (indexes[0], indexes[-1]) if packed_columns.never_falls(steps) else (min(indexes), max(indexes))
    return PackedRuns(*bounds, messages, words[_POSITION], words[_EXPIRES], _packed(words, steps, messages))


def _words_of(messages: Range) -> tuple[int, ...]:
    """Return the words of a run, in order."""
    index, slot, count, _, size, position, expires_ms, _, history, _ = messages
    return index, slot << MESSAGE_BITS | count, position, size, expires_ms, history


def _rest_of(words: array[int], at: int, taken: int, taken_size: int) -> array[int]:
    """Return a copy of the runs from offset `at` on, without the messages taken from the first run."""
    rest = words[at:]
    if taken:
        # Slot and count share a word: the slot grows by `taken`, the count shrinks by it.
        rest[_PLACE] += (taken << MESSAGE_BITS) - taken
        rest[_POSITION] += taken
        rest[_SIZE] -= taken_size
    return rest


def _dumped(words: array[int]) -> bytes:
    if not words:
        return b""
    return _packed(words, packed_columns.differences(words[_INDEX::_WORDS]), _messages(words[_PLACE::_WORDS]))


def _messages(places: array[int]) -> int:
    # A count is the lowest three bytes of a word, and whole columns of bytes are summed without a loop.
    raw = packed_columns.little_endian(places)
    return sum(raw[0::8]) + (sum(raw[1::8]) << 8) + (sum(raw[2::8]) << 16)


def _packed(words: array[int], steps: array[int], messages: int) -> bytes:
    """Return these runs packed; `messages` is their number of messages, `steps` the differences of their indexes."""
    places, positions = words[_PLACE::_WORDS], words[_POSITION::_WORDS]
    gaps = array("q", bytes(8 * len(places)))
    if positions[-1] + (places[-1] & MESSAGE_MASK) - positions[0] != messages:
        ends = map(add, positions, map(MESSAGE_MASK.__and__, places))
        gaps = array("q", [0, *map(sub, positions[1:], ends)])
    bases = array("Q", (words[_INDEX], words[_POSITION], words[_EXPIRES]))
    return packed_columns.little_endian(bases) + packed_columns.pack(
        [
            steps,
            places,
            gaps,
            words[_SIZE::_WORDS],
            packed_columns.differences(words[_EXPIRES::_WORDS]),
            words[_HISTORY::_WORDS],
        ]
    )


def _unpacked(data: bytes) -> array[int]:
    index, position, expires_ms = packed_columns.from_little_endian("Q", data[:_BASES_BYTES])
    steps, places, gaps, sizes, expiries, histories = packed_columns.unpack(data[_BASES_BYTES:], _CODES)
    words = array("Q", bytes(8 * _WORDS * len(places)))
    words[_INDEX::_WORDS] = packed_columns.sums(index, steps)
    words[_PLACE::_WORDS] = places
    words[_POSITION::_WORDS] = packed_columns.sums(position, _position_steps(places, gaps))
    words[_SIZE::_WORDS] = sizes
    words[_EXPIRES::_WORDS] = packed_columns.sums(expires_ms, expiries)
    words[_HISTORY::_WORDS] = histories
    return words


def _position_steps(places: array[int], gaps: array[int]) -> array[int]:
    """Return the position of each run minus that of the previous run: its number of messages plus the gap."""
    raw = packed_columns.little_endian(places)
    if all(raw[byte::8] == raw[byte : byte + 1] * len(places) for byte in range(MESSAGE_BITS // 8)):
        steps = array("q", [places[0] & MESSAGE_MASK]) * len(places)
    else:
        steps = array("q", [0, *map(MESSAGE_MASK.__and__, places[:-1])])
    return array("q", map(add, steps, gaps)) if packed_columns.any_of(gaps) else steps


def _ascends(indexes: array[int]) -> bool:
    return all(map(le, indexes, indexes[1:]))


def _count(words: array[int], bounds: Sequence[int], counts: list[int]) -> None:
    if not words:
        return
    indexes, places = words[_INDEX::_WORDS], words[_PLACE::_WORDS]
    if not _ascends(indexes):
        pairs = sorted(zip(indexes, places, strict=True))
        indexes, places = (array("Q", column) for column in zip(*pairs, strict=True))
    start = bisect_left(indexes, bounds[0])
    # Only the bounds among the indexes: the remaining cells stay unchanged.
    for cell in range(max(bisect_right(bounds, indexes[0]) - 1, 0), len(counts)):
        if start == len(indexes):
            return
        end = bisect_left(indexes, bounds[cell + 1], lo=start)
        counts[cell] += sum(map(MESSAGE_MASK.__and__, places[start:end]))
        start = end


def _ranges(words: array[int], first: int, end: int) -> Iterator[tuple[int, int, int]]:
    indexes, places = words[_INDEX::_WORDS], words[_PLACE::_WORDS]
    run = range(len(indexes))
    if _ascends(indexes):
        run = range(bisect_left(indexes, first), bisect_left(indexes, end))
    for at in run:
        index, place = indexes[at], places[at]
        if first <= index < end:
            yield index, place >> MESSAGE_BITS, place & MESSAGE_MASK
