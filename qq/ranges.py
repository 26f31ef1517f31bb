"""Ranges: consecutive messages and consecutive ids as single objects, without an object per message.

Invariant: the cost of every operation is counted in ranges touched, never in messages.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

V = TypeVar("V")

MESSAGE_BITS = 24
"""A slot is (batch ordinal in the entry) << MESSAGE_BITS | (message ordinal in the batch)."""
MESSAGE_MASK = (1 << MESSAGE_BITS) - 1
MESSAGES_MAX = MESSAGE_MASK
"""The most messages in a batch: a greater ordinal would run into the next batch's slots."""

LEVELS = 32
"""The number of priority levels of a queue; 0 is the lowest (RabbitMQ 4.3)."""
NORMAL = 4
"""The level of a message without a priority. In a queue with only two levels, the levels above it are high."""


class Range(NamedTuple):
    """`count` consecutive messages of a batch: same entry, consecutive slots."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here
    """The index of the entry that holds the messages."""
    slot: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    deliveries: int = 0
    """How often the messages were returned before; more than 0 means redelivered."""
    size: int = 0
    """The bytes of all these messages, as they are stored."""
    position: int = 0
    """The place of the first message in its queue's order of arrival; the others follow."""
    expires_ms: int = 0
    """The cluster time in milliseconds from which the messages are no longer delivered; 0: never."""
    level: int = NORMAL
    history: int = 0
    """The dead-letter history of the messages, by the number that their queue gave it (machine/history.py); 0: none."""
    failures: int = 0
    """How many of the returns count as failed deliveries, if a queue tells them apart (RabbitMQ 4.3)."""

    def part(self, offset: int, count: int) -> Range:
        """Return `count` messages from the `offset`-th on.

        A part of a part is as large as the same part of the whole.
        """
        if count == self.count:
            return self
        index, slot, whole, deliveries, size, position, expires_ms, level, history, failures = self
        # If the sizes cannot all be equal, the first messages are a byte larger.
        each, more = divmod(size, whole)
        size = each * count + min(max(more - offset, 0), count)
        position += offset
        return Range(
            index, slot + offset, count, deliveries, size, position, expires_ms, level, history, failures
        )

    def count_within(self, size: int) -> int:
        """Return how many of the first messages have at most `size` octets together."""
        each, more = divmod(self.size, self.count)
        larger = more * (each + 1)
        if size < larger:
            return max(size // (each + 1), 0)
        return min(more + (size - larger) // each, self.count) if each else self.count

    def returned(self, *, failed: bool = False) -> Range:
        """Return the same messages after a further unsuccessful delivery."""
        return self._replace(deliveries=self.deliveries + 1, failures=self.failures + failed)


class Piece(NamedTuple, Generic[V]):
    """Consecutive ids for `count` consecutive items of `value`, beginning with its `offset`-th item."""

    first: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.count has no use here
    value: V
    offset: int

    @property
    def last(self) -> int:
        return self.first + self.count - 1


FrozenPieces = tuple[list[Piece[V]], int, int]
"""A list of pieces that only grows, and the positions in it at which the frozen pieces begin and end."""


class RangeMap(Generic[V]):
    """An ordered map from ids to items; ids are appended at the end and taken from anywhere, mostly from the front.

    Taking from the front is O(1) amortised per piece. Taking from the middle costs a bisection and a move of the
    pointers behind it.
    """

    __slots__ = ("_head", "_len", "_pieces", "_shared")

    def __init__(self) -> None:
        self._pieces: list[Piece[V]] = []
        self._head = 0
        self._len = 0
        self._shared = False
        """Whether a reader has frozen the pieces: then the list may only be appended to."""

    @classmethod
    def from_pieces(cls, pieces: list[Piece[V]], count: int) -> RangeMap[V]:
        """Make a map of these pieces, in order, which have `count` ids together. The map owns the list from now on."""
        made = cls()
        made._pieces, made._len = pieces, count
        return made

    def append(self, first: int, count: int, value: V) -> None:
        """Let the ids `first`, `first` + 1 ... stand for the `count` items of `value`; ids only grow."""
        pieces = self._pieces
        if count < 1 or (len(pieces) > self._head and first <= pieces[-1].last):
            raise ValueError(f"ids {first}..{first + count - 1} do not follow the ids that are there")
        pieces.append(Piece(first, count, value, 0))
        self._len += count

    def insert(self, first: int, count: int, value: V) -> None:
        """Like `append`, with ids that may come before ids that are there. None of them may be there itself."""
        position = self._find(first)
        if position == len(self._pieces):
            self.append(first, count, value)
            return
        if self._pieces[position].first < first + count:
            raise ValueError(f"ids {first}..{first + count - 1} are there already, at least in part")
        if self._shared:
            position -= self._head
            self._unshare()
        self._pieces.insert(position, Piece(first, count, value, 0))
        self._len += count

    def take(self, first: int, last: int) -> list[Piece[V]]:
        """Remove the ids `first` to `last`, both included, and return them in order; unknown ids are ignored."""
        pieces, head = self._pieces, self._head
        if first > last or head == len(pieces):
            return []
        if first <= pieces[head].first and pieces[-1].last <= last:
            return self.take_all()
        if self._shared:
            self._unshare()
            pieces, head = self._pieces, self._head
        start = position = self._find(first)
        if position == len(pieces) or pieces[position].first > last:
            return []
        position += 1
        if position < len(pieces) and pieces[position].first <= last:
            position = bisect_right(pieces, last, lo=position, key=_first)
        taken = pieces[start:position]
        kept = _cut(taken, first, last)
        if start == head and (not kept or kept[0].first > last):
            # A prefix is removed. At most a single rest stays, in the place of the last piece that was touched.
            if kept:
                position -= 1
                pieces[position] = kept[0]
            self._leave_behind(position)
        else:
            pieces[start:position] = kept
        self._len -= sum(map(_count, taken))
        return taken

    def take_pieces(self, most: int) -> list[Piece[V]]:
        """Remove the first pieces, `most` at most, and return them."""
        if self._shared:
            self._unshare()
        taken = self._pieces[self._head : self._head + most]
        self._len -= sum(map(_count, taken))
        self._leave_behind(self._head + len(taken))
        return taken

    def take_through(self, last: int) -> list[Piece[V]]:
        """Remove every id up to and including `last`."""
        return self.take(0, last)

    def take_all(self) -> list[Piece[V]]:
        taken = self._pieces[self._head :] if self._head or self._shared else self._pieces
        self._pieces, self._head, self._len, self._shared = [], 0, 0, False
        return taken

    def pieces(self) -> list[Piece[V]]:
        """Return the pieces, in order, as a copy."""
        return self._pieces[self._head :]

    def pieces_from(self, first: int, most: int) -> list[Piece[V]]:
        """Return the pieces that end at the id `first` or behind it, `most` at most."""
        position = self._find(first)
        return self._pieces[position : position + most]

    def freeze(self) -> FrozenPieces[V]:
        """Return the present pieces, for any thread, without a copy; the next `take` copies them."""
        self._shared = True
        return self._pieces, self._head, len(self._pieces)

    @property
    def head(self) -> Piece[V]:
        """The first piece; the map must not be empty."""
        return self._pieces[self._head]

    @property
    def count_pieces(self) -> int:
        """The number of pieces, which is the cost of taking all."""
        return len(self._pieces) - self._head

    def first(self) -> int | None:
        """Return the smallest id, or None if the map is empty."""
        return self._pieces[self._head].first if self._len else None

    def __contains__(self, key: int) -> bool:
        position = self._find(key)
        return position < len(self._pieces) and self._pieces[position].first <= key

    def __len__(self) -> int:
        """Return the number of ids, not of pieces."""
        return self._len

    def _find(self, key: int) -> int:
        """Return the position of the first piece that ends at or after `key`."""
        pieces, head = self._pieces, self._head
        if head == len(pieces) or key <= pieces[head].first:
            return head
        position = bisect_right(pieces, key, lo=head, key=_first)
        return position - 1 if pieces[position - 1].last >= key else position

    def _unshare(self) -> None:
        self._pieces, self._head, self._shared = self._pieces[self._head :], 0, False

    def _leave_behind(self, head: int) -> None:
        """Let the map begin at the position `head` of the list.

        Positions before it are deleted when they are the greater half, so each piece is moved O(1) times.
        """
        # The removed pieces are freed now: freeing very many at once would take long.
        self._pieces[self._head : head] = [_NOTHING] * (head - self._head)
        self._head = head
        if self._head * 2 >= len(self._pieces):
            del self._pieces[: self._head]
            self._head = 0


def _first(piece: Piece[V]) -> int:
    return piece.first


_count = itemgetter(1)
_NOTHING: Piece[Any] = Piece(0, 0, None, 0)


def _cut(taken: list[Piece[V]], first: int, last: int) -> list[Piece[V]]:
    """Shorten the outer pieces of `taken` to `first`..`last`, in place; return the parts cut off, in order."""
    kept: list[Piece[V]] = []
    low = taken[0]
    if low.first < first:
        rest = first - low.first
        kept.append(Piece(low.first, rest, low.value, low.offset))
        taken[0] = Piece(first, low.count - rest, low.value, low.offset + rest)
    high = taken[-1]
    if high.first + high.count - 1 > last:
        part = last - high.first + 1
        kept.append(Piece(last + 1, high.count - part, high.value, high.offset + part))
        taken[-1] = Piece(high.first, part, high.value, high.offset)
    return kept
