"""A queue of items on their way to a client, whose messages come from the log, for every client protocol.

Items are written while the socket takes them (`has_room`), and in portions, so that other connections are served in
between. The rest stays in the log. Messages that are not in memory are read from the disk, together with those of the
items behind them.

Invariant: all items leave in the order in which they were added. A waiting item is small: it refers to messages, and
holds none. Answers that the client requested and does not read are counted; too many stop the reading of its requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from qq.sessions.entries import ReadAhead

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qq.client_sockets.flow_control import Pumped
    from qq.ranges import Range
    from qq.sessions.entries import Entries, Messages

ANSWERS_WAITING_MAX = 1000
"""Answers and returned messages that may wait behind deliveries. Above it, the node stops reading from the
connection."""
CONVERTED_MAX = 256
CONVERTED_BYTES_MAX = 64 * 1024
"""Messages of a step of a conversion to another protocol, and their stored octets, about. A step takes some 20 ms."""
READ_AHEAD_RANGES = 64
"""Waiting ranges that are searched for entries to read ahead."""


class OutputSocket(Protocol):
    """A connection, as its queues of items see it."""

    @property
    def has_room(self) -> bool:
        """Whether the socket takes more bytes in this pass of the event loop."""
        ...

    def pump_later(self, waiting: Pumped, /) -> None:
        """Call `Pumped.pump` when the socket has room."""
        ...

    def timed(self, work: Callable[[], T], /) -> T:
        """Do work on output, and count its time as octets of this pass of the event loop."""
        ...

    def pause_for(self, reason: object, /) -> None:
        """Stop reading from the client for this reason. Several reasons may hold at a time."""
        ...

    def resume_for(self, reason: object, /) -> None: ...


T = TypeVar("T")
ItemT = TypeVar("ItemT")
SocketT = TypeVar("SocketT", bound=OutputSocket)


class MessageOutput(ABC, Generic[ItemT, SocketT]):
    """The items on their way out of a session, in order."""

    ANSWERS: ClassVar[frozenset[type]]
    """The types of items that a client has requested, or that return its messages."""

    def __init__(self, entries: Entries, connection: SocketT) -> None:
        self._entries = entries
        self._connection = connection
        self._waiting: deque[ItemT] = deque()
        """The items to write. If the first waits for room or a read, that eventually calls `pump`."""
        self._answers_waiting = 0
        self._reading = False
        self._read_ahead = ReadAhead()
        self._is_held = False
        """Whether writing waits for an event of the session, which then calls `pump`."""
        self._closed = False

    def pump(self) -> None:
        """Write the waiting items, as far as the socket takes them and their messages are in memory."""
        waiting, connection = self._waiting, self._connection
        while waiting and not (self._reading or self._is_held or self._closed):
            if not connection.has_room:
                connection.pump_later(self)
                return
            item = waiting[0]
            if not self._write(item):
                return
            waiting.popleft()
            if type(item) in self.ANSWERS:
                self._answer_written()

    def _put(self, item: ItemT) -> None:
        self._waiting.append(item)
        if len(self._waiting) == 1:
            self.pump()

    @property
    def has_waiting(self) -> bool:
        """Whether items wait for the socket, for the log, or for the window of the client."""
        return bool(self._waiting)

    def _put_answer(self, item: ItemT) -> None:
        self._answers_waiting += 1
        if self._answers_waiting > ANSWERS_WAITING_MAX:
            self._connection.pause_for(self)
        self._put(item)

    def _answer_written(self) -> None:
        self._answers_waiting -= 1
        if self._answers_waiting == ANSWERS_WAITING_MAX // 2:
            self._connection.resume_for(self)

    @abstractmethod
    def _write(self, item: ItemT) -> bool:
        """Write an item. Return False if its messages must be read first, or the socket is full half-way.

        An item that has been written in part must be left as the rest.
        """

    def _next_portion(self, ranges: deque[Range]) -> Range:
        """Return the first range, after splitting off the messages that are too large to be taken with it."""
        part = ranges[0]
        count = self._entries.portion(part)
        if count < part.count:
            self._split(ranges, count)
        return ranges[0]

    @staticmethod
    def _split(ranges: deque[Range], count: int) -> None:
        """Split the first range behind this many messages."""
        part = ranges[0]
        ranges[0] = part.part(count, part.count - count)
        ranges.appendleft(part.part(0, count))

    @staticmethod
    def _divide(ranges: deque[Range], messages_max: int, bytes_max: int | None = None) -> bool:
        """Split the first range into steps of at most so many messages and stored octets, about.

        Return whether it was longer than a step.
        """
        part = ranges[0]
        step = messages_max
        if bytes_max is not None:
            step = min(step, max(1, bytes_max * part.count // (part.size or 1)))
        if part.count <= step:
            return False
        ranges.popleft()
        steps = [part.part(at, min(step, part.count - at)) for at in range(0, part.count, step)]
        ranges.extendleft(reversed(steps))
        return True

    @classmethod
    def _divide_conversion(cls, ranges: deque[Range], stored: Sequence[Messages]) -> bool:
        """Split the first range, with its messages, into steps of a conversion.

        Return whether it was longer than a step.
        """
        part = ranges[0]
        if not part.size:  # the log does not tell the size of direct replies
            ranges[0] = part._replace(size=sum(sum(map(len, each.messages)) for each in stored))
        return cls._divide(ranges, CONVERTED_MAX, CONVERTED_BYTES_MAX)

    def _stored(self, part: Range, ahead: Sequence[Range]) -> list[Messages] | None:
        """Return the messages of `part`; None while they are being read, together with those of `ahead`.

        Raises MessagesGone.
        """
        entries = self._entries
        stored = entries.messages(part)
        if stored is None:
            self._reading = True
            near = zip(ahead, range(READ_AHEAD_RANGES), strict=False)
            entries.load(
                list(dict.fromkeys(following.index for following, _ in near)), self._read, self._read_ahead
            )
        elif self._read_ahead.is_due(part.index):
            entries.load_more(self._read_ahead)
        return stored

    def _read(self) -> None:
        self._reading = False
        self.pump()
