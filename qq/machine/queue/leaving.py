"""Messages that consumers do not hold any more and that are not yet where they go, because they are very many.

Invariant: each consumer's messages leave in the order in which it was given them; of several consumers', the older go
first. Everything follows from what is dumped.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, NamedTuple

from qq.ranges import FrozenPieces, Piece, Range, RangeMap

if TYPE_CHECKING:
    from collections.abc import Sequence

SETTLED, DISCARDED, RETURNED, FAILED = range(4)
"""What a consumer has said about messages: settled, rejected for good, returned, or returned as failed deliveries."""


class Leaving:
    """Messages that consumers of one queue held, and the fate that is to be carried out on all of them."""

    __slots__ = ("_heads", "_held", "count", "fate")

    def __init__(self, fate: int, held: Sequence[RangeMap[Range]]) -> None:
        self.fate = fate
        self.count = sum(map(len, held))
        """The number of messages."""
        self._held = [each for each in held if each]
        self._heads = [(_position(each), number) for number, each in enumerate(self._held)]
        """A heap of where each of `_held` begins in the queue's order of arrival, and its place in that list."""
        heapify(self._heads)

    def take(self, most: int) -> list[Range]:
        """Remove and return the first messages, in at most `most` ranges."""
        ranges: list[Range] = []
        heads = self._heads
        while heads and len(ranges) < most:
            _, number = heads[0]
            held = self._held[number]
            ranges += ranges_of(held.take_pieces(1 if len(heads) > 1 else most - len(ranges)))
            if held:
                heapreplace(heads, (_position(held), number))
            else:
                heappop(heads)
        self.count -= sum(messages.count for messages in ranges)
        return ranges

    def freeze(self) -> FrozenLeaving:
        return FrozenLeaving(self.fate, [self._held[number].freeze() for _, number in sorted(self._heads)])

    def pieces(self) -> list[Piece[Range]]:
        """A copy of all pieces."""
        return [piece for _, number in self._heads for piece in self._held[number].pieces()]


class FrozenLeaving(NamedTuple):
    """A `Leaving` at one moment."""

    fate: int
    held: list[FrozenPieces[Range]]


def ranges_of(pieces: list[Piece[Range]]) -> list[Range]:
    return [messages.part(offset, count) for _, count, messages, offset in pieces]


def _position(held: RangeMap[Range]) -> int:
    piece = held.head
    return piece.value.position + piece.offset
