"""Put-off settlements: messages that consumers have released, and whose fate is carried out in portions.

Very many ranges would make an entry too expensive.

Invariant: each consumer's messages leave in the order of their delivery. Of several consumers' messages, the older
leave first. The order follows only from the dumped state.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, NamedTuple

from qq.ranges import FrozenPieces, Piece, Range, RangeMap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.machine.protocol.death_history import Annotation

ANNOTATED_RANGE = 8
"""Ranges without annotations that take as long to return as a range with them, at most 35 us."""

SETTLED, DISCARDED, RETURNED, FAILED, ENDED = range(5)
"""The fate of released messages: settled, rejected for good, returned, returned by a rejection, or returned because the
channel ended or the client said that the delivery failed. The last two are failed deliveries. Before version 11 of the
state, FAILED takes the place of ENDED."""


class Modification(NamedTuple):
    """The change of messages that a consumer returns or rejects (`commands.Modify`)."""

    annotations: tuple[Annotation, ...] = ()
    """The annotations that the messages get."""
    ready_ms: int = 0
    """Cluster time (ms) at which returned messages become ready again in a queue with delayed retries; 0 without."""

    @property
    def range_cost(self) -> int:
        """Return as how many ranges a range with this modification counts, because of the work with it."""
        return ANNOTATED_RANGE if self.annotations else 1


UNMODIFIED = Modification()


class Leaving:
    """Messages that consumers of a queue have released, and their common fate."""

    __slots__ = ("_heads", "_held", "count", "fate", "modification")

    def __init__(
        self, fate: int, held: Sequence[RangeMap[Range]], modification: Modification = UNMODIFIED
    ) -> None:
        self.fate = fate
        self.modification = modification
        self.count = sum(map(len, held))
        """The number of messages."""
        self._held = [each for each in held if each]
        self._heads = [(_position(each), number) for number, each in enumerate(self._held)]
        """A heap of (position of the first message, place in `_held`), for each element of `_held`."""
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
        held = [self._held[number].freeze() for _, number in sorted(self._heads)]
        return FrozenLeaving(self.fate, held, self.modification)

    def pieces(self) -> list[Piece[Range]]:
        """Return a copy of all pieces."""
        return [piece for _, number in self._heads for piece in self._held[number].pieces()]


class FrozenLeaving(NamedTuple):
    """A `Leaving` at a moment."""

    fate: int
    held: list[FrozenPieces[Range]]
    modification: Modification


def ranges_of(pieces: list[Piece[Range]]) -> list[Range]:
    return [messages.part(offset, count) for _, count, messages, offset in pieces]


def _position(held: RangeMap[Range]) -> int:
    piece = held.head
    return piece.value.position + piece.offset
