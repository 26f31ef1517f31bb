"""One queue: what is ready, who consumes, what each consumer holds.

Lives here: the order of messages and the turns of consumers. Not here: sessions, names and who may do what
(machine.py, catalog.py). A limit, a priority or a time-to-live of messages would come in `enqueue` and `_next`.

Law: each message that was enqueued is in exactly one place: ready (in `returns` or the backlog) or checked out to one
consumer, until it is settled. The counts are kept, never counted. A consumer never holds more than it has credit for.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qq.machine.effects import Deliver
from qq.machine.runs import Runs
from qq.ranges import Piece, Range, RangeMap

if TYPE_CHECKING:
    from qq.machine.commands import Table
    from qq.machine.state import QueueRow

CREDIT_MAX = 2**31 - 1
"""Credit is clamped here: no consumer is ever that far ahead, and the number stays small in every dump."""

TURNS = 8
"""Turns that each consumer gets out of a backlog: more are fairer, fewer make longer ranges."""


@dataclass(slots=True, eq=False)
class Consumer:
    """Somebody who takes messages, or who has stopped (`live` is false) and still holds some."""

    node: str
    session: int
    id: int
    queue: Queue
    tag: str
    credit: int
    no_ack: bool
    exclusive: bool
    auto_credit: bool
    cancel_on_failover: bool
    arguments: Table
    live: bool = True
    next_id: int = 0
    unacked: RangeMap[Range] = field(default_factory=RangeMap)


@dataclass(slots=True, eq=False)
class Queue:
    """Declared properties, and state that only the methods below change."""

    name: str
    kind: str
    durable: bool
    owner: tuple[str, int] | None
    """Node and connection of an exclusive queue."""
    auto_delete: bool
    arguments: Table
    had_consumer: bool = False
    ready: int = 0
    unacked: int = 0
    consumers: int = 0
    holders: dict[Consumer, None] = field(default_factory=dict)
    """Live consumers, and the others that hold messages, in the order they came."""
    ring: OrderedDict[Consumer, None] = field(default_factory=OrderedDict)
    """Live consumers with credit, in the order of their turns."""
    returns: deque[Range] = field(default_factory=deque)
    """Served before the backlog, in the order of return."""
    backlog: Runs = field(default_factory=Runs)

    def enqueue(self, index: int, slot: int, count: int) -> None:
        self.backlog.append(index, slot, count)
        self.ready += count

    def serve(self) -> list[Deliver]:
        """Give ready messages to the consumers with credit, by turns; one effect for each that gets any."""
        ring = self.ring
        if not self.ready or not ring:
            return []
        turn = max(1, self.ready // (TURNS * len(ring)))
        served: dict[Consumer, Deliver] = {}
        while self.ready and ring:
            consumer = next(iter(ring))
            limit = self.ready if len(ring) == 1 else min(turn, self.ready)
            ranges = self._next(min(limit, consumer.credit))
            if consumer in served:
                served[consumer].ranges.extend(ranges)
            else:
                served[consumer] = Deliver(
                    consumer.node, consumer.session, consumer.id, consumer.next_id, ranges
                )
            self._check_out(consumer, ranges)
        return list(served.values())

    def add_consumer(self, consumer: Consumer) -> None:
        self.holders[consumer] = None
        self.consumers += 1
        self.had_consumer = True
        self.give_credit(consumer, 0)

    def give_credit(self, consumer: Consumer, count: int) -> None:
        consumer.credit = min(consumer.credit + count, CREDIT_MAX)
        if consumer.live and consumer.credit and consumer not in self.ring:
            self.ring[consumer] = None

    def cancel(self, consumer: Consumer) -> None:
        """No more messages for a live consumer; it stays while it holds some."""
        consumer.live = False
        self.consumers -= 1
        self.ring.pop(consumer, None)
        if not consumer.unacked:
            del self.holders[consumer]

    def settle(self, consumer: Consumer, first: int, last: int) -> int:
        """Forget message ids, and give their credit back. Returns how many there were."""
        return self._checked_in(consumer, consumer.unacked.take(first, last))

    def give_back(self, consumer: Consumer, first: int, last: int) -> int:
        """Put message ids back in their order. Returns how many there were."""
        pieces = consumer.unacked.take(first, last)
        self._append_returns([_messages(piece) for piece in pieces])
        return self._checked_in(consumer, pieces)

    def give_back_all(self, consumers: list[Consumer]) -> None:
        """Put everything that these consumers hold back, oldest message first."""
        ranges: list[Range] = []
        for consumer in consumers:
            pieces = consumer.unacked.take_all()
            ranges.extend(_messages(piece) for piece in pieces)
            self._checked_in(consumer, pieces)
        ranges.sort()
        self._append_returns(ranges)

    def get(self, consumer: Consumer) -> Range:
        """Check out one message, which is there, to somebody who wants no more."""
        (message,) = self._next(1)
        if not consumer.no_ack:
            self.holders[consumer] = None
            consumer.unacked.append(0, 1, message)
            self.unacked += 1
        return message

    def purge(self) -> int:
        """Drop what is ready; what is checked out stays. Returns how many messages went."""
        purged, self.ready = self.ready, 0
        self.returns.clear()
        self.backlog.clear()
        return purged

    def freeze(self) -> QueueRow:
        return (
            self,
            self.had_consumer,
            self.ready,
            list(self.returns),
            self.backlog.freeze(),
            list(self.ring),
        )

    @property
    def exclusively_consumed(self) -> bool:
        return self.consumers == 1 and any(consumer.exclusive and consumer.live for consumer in self.holders)

    def _next(self, count: int) -> list[Range]:
        """Remove the first `count` ready messages, which are there."""
        self.ready -= count
        returns = self.returns
        if not returns:
            return self.backlog.take(count)
        ranges: list[Range] = []
        while count and returns:
            messages = returns.popleft()
            if messages.count > count:
                returns.appendleft(messages.part(count, messages.count - count))
                messages = messages.part(0, count)
            ranges.append(messages)
            count -= messages.count
        return ranges + self.backlog.take(count)

    def _check_out(self, consumer: Consumer, ranges: list[Range]) -> None:
        """Book the ranges on the consumer whose turn it is, and end its turn."""
        count = 0
        for messages in ranges:
            consumer.unacked.append(consumer.next_id + count, messages.count, messages)
            count += messages.count
        consumer.next_id += count
        self.unacked += count
        consumer.credit -= count
        if consumer.credit:
            self.ring.move_to_end(consumer)
        else:
            del self.ring[consumer]

    def _checked_in(self, consumer: Consumer, pieces: list[Piece[Range]]) -> int:
        """Book that the consumer does not hold the pieces any more."""
        if not pieces:
            return 0
        count = sum(piece.count for piece in pieces)
        self.unacked -= count
        if consumer.live:
            if consumer.auto_credit:
                self.give_credit(consumer, count)
        elif not consumer.unacked:
            del self.holders[consumer]
        return count

    def _append_returns(self, ranges: list[Range]) -> None:
        for messages in ranges:
            self.returns.append(messages.returned())
            self.ready += messages.count


def _messages(piece: Piece[Range]) -> Range:
    return piece.value.part(piece.offset, piece.count)


def held(consumer: Consumer) -> list[tuple[int, Any]]:
    """What the consumer holds: message id of the first, and the messages, in order."""
    return [(piece.first, _messages(piece)) for piece in consumer.unacked.pieces()]
