"""Messages that differ from an earlier message in some values only, and their conversion by replacing those values.

Invariant: a replacement gives the octets that the whole conversion would give.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

VALUES_MAX = 32
"""Values that may differ; if a message has more of them, only messages with equal octets are similar to it."""

T = TypeVar("T")

RECENT_MAX = 4
"""Replacements that are remembered: so many kinds of messages may come in turn."""


class Skeleton(NamedTuple):
    """The octets at the beginning of a message that must be equal in similar messages."""

    layout: Struct
    fixed: tuple[bytes, ...]

    def fits(self, message: bytes) -> bool:
        """Return whether a message is similar."""
        layout = self.layout
        return len(message) >= layout.size and layout.unpack_from(message) == self.fixed


def skeleton_of(message: bytes, end: int, spans: Iterable[tuple[int, int]]) -> Skeleton:
    """Return the skeleton of the octets before `end`, in which the octets of the spans, in order, may differ."""
    layout, at = ">", 0
    for begin, stop in spans:
        layout += f"{begin - at}s{stop - begin}x"
        at = stop
    struct = Struct(f"{layout}{end - at}s")
    return Skeleton(struct, struct.unpack_from(message))


class Replaced(NamedTuple):
    """A value of a message, and its place in the result of the conversion."""

    at: int
    end: int
    begin: int
    stop: int
    """Begin and end in the result."""
    convert: Callable[[bytes], bytes | None] | None = None
    """Returns the converted octets, or None if the value needs the whole conversion. None keeps the octets."""


class Replacement(NamedTuple):
    """Converts messages that are similar to a converted message."""

    skeleton: Skeleton
    values: tuple[Replaced, ...]
    pieces: tuple[bytes, ...]
    """The result before, between and behind the values."""

    def convert(self, message: bytes) -> bytes | None:
        """Return the result for a message, or `None` if the message is not similar."""
        if not self.skeleton.fits(message):
            return None
        parts = [self.pieces[0]]
        for (at, end, _, _, convert), piece in zip(self.values, self.pieces[1:], strict=True):
            octets: bytes | None = message[at:end]
            if convert is not None:
                octets = convert(message[at:end])
                if octets is None:
                    return None
            parts += (octets, piece)
        return b"".join(parts)


def replacement(
    message: bytes,
    end: int,
    result: bytes,
    values: Sequence[Replaced],
) -> Replacement | None:
    """Return the replacement for messages that differ in these values before `end`.

    Returns None if there are no values, or too many.
    """
    if not 0 < len(values) <= VALUES_MAX:
        return None
    spans = sorted((value.at, value.end) for value in values)
    ordered = tuple(sorted(values, key=lambda value: value.begin))
    edges = [0, *(edge for value in ordered for edge in (value.begin, value.stop)), len(result)]
    pieces = tuple(result[begin:stop] for begin, stop in zip(edges[::2], edges[1::2], strict=True))
    return Replacement(skeleton_of(message, end, spans), ordered, pieces)


class RecentReplacements(Generic[T]):
    """The replacements of the last conversions, each with a value of its own.

    It is a cache of a pure function, so its content changes no result.
    """

    __slots__ = ("_recent",)

    def __init__(self) -> None:
        self._recent: deque[tuple[Replacement, T]] = deque(maxlen=RECENT_MAX)

    def convert(self, message: bytes) -> tuple[bytes, T] | None:
        """Return the result for a message and the value of its replacement, or `None` if no replacement fits."""
        for recent, value in self._recent:
            result = recent.convert(message)
            if result is not None:
                return result, value
        return None

    def add(self, new: Replacement | None, value: T) -> None:
        if new is not None:
            self._recent.appendleft((new, value))

    def clear(self) -> None:
        self._recent.clear()
