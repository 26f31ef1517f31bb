"""The stream of octets of a peer, which a parser reads in steps of limited work.

Invariant: however the stream is cut into reads, the same octets are parsed. The octets held are those of the last step
that are not parsed yet, or the beginning of a single frame.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

EventT = TypeVar("EventT")


class SteppedReader(ABC, Generic[EventT]):
    """Parses a stream into events.

    `feed` takes a step of limited work, and keeps the rest of the octets for the next call.
    """

    __slots__ = ("_at", "_need", "_rest", "_unread")

    HEADER_OCTETS: ClassVar[int]
    """Octets at the beginning of a frame that show its length."""

    def __init__(self) -> None:
        self._unread = b""
        """The octets of the last step if it has left frames to read; else empty."""
        self._at = 0
        """Position in `_unread` at which the next step begins."""
        self._rest = bytearray()
        """The beginning of an incomplete frame or message."""
        self._need = 0
        """Octets needed, including those in `_rest`, before the next frame can be read; 0 if unknown."""

    @property
    def has_more(self) -> bool:
        """Whether the last step has left octets that `feed(b"")` can read."""
        return bool(self._unread)

    @property
    def held_bytes(self) -> int:
        """Octets of memory that this reader holds for its peer."""
        return len(self._rest) + len(self._unread) - self._at

    def feed(self, data: bytes) -> list[EventT]:
        """Parse the next bytes of the stream, and return the completed events. Never raises on bad input.

        If the work of a step is done before the octets are, `has_more` is true.
        """
        rest, at = self._rest, 0
        if self._unread:
            data, at = (b"".join((self._left(), data)), 0) if data else (self._unread, self._at)
            self._unread, self._at = b"", 0
        elif rest:
            if len(rest) + len(data) < self._need:
                rest += data
                return []
            data = b"".join((rest, data))
            rest.clear()
        self._need = 0
        events: list[EventT] = []
        at = self._read(data, at, events)
        if at < len(data):
            if self._need or len(data) - at < self.HEADER_OCTETS:
                rest += memoryview(data)[at:]
            else:
                self._unread, self._at = data, at
        return events

    def drop_unread(self) -> None:
        """Drop the octets that the last step has left."""
        self._unread, self._at = b"", 0

    def _left(self) -> memoryview:
        return memoryview(self._unread)[self._at :]

    @abstractmethod
    def _read(self, data: bytes, at: int, events: list[EventT]) -> int:
        """Parse `data` from `at` into events. Return the position of the first octet that is to be parsed again.

        That is the beginning of an incomplete frame, for which `_need` may be set, or of a frame for the next step. A
        broken stream is parsed to its end.
        """
