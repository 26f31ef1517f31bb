"""Consumers of a queue: what each may have, what it holds, and who is served next.

Invariant: a consumer never holds more than its credit, and all of a channel never more than its limit. `Rotation` has a
consumer only while it may be given something. Who has credit and waits for nothing but its channel's limit is in
`Budget.waiting`, and nobody else is: who is asked when the channel holds less follows from the state.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Generic, TypeVar

from qq.ranges import Range, RangeMap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qq.machine.policy.settings import ConsumerSettings
    from qq.machine.protocol.commands import Table

CREDIT_MAX = 2**31 - 1
"""The most credit of a consumer: none is ever that far ahead, and the number stays small in every dump."""

MARK_MS = 1000
"""How exactly the times of deliveries are known, in ms: a timeout comes at most so much later."""


@dataclass(slots=True, eq=False)
class Budget:
    """What the consumers of one channel hold, and may hold, together (basic.qos with `global`)."""

    limit: int = 0
    """The most messages that all may hold together; 0 is no limit."""
    held: int = 0
    waiting: list[int] = field(default_factory=list)
    """Ids of consumers that could have more if there were room, ascending; no part of what is dumped."""

    @property
    def room(self) -> int:
        """How many more messages the channel's consumers may be given, all together."""
        return max(self.limit - self.held, 0) if self.limit else CREDIT_MAX

    def wait(self, consumer: int) -> None:
        """Put the consumer among those that wait for room in the channel."""
        waiting = self.waiting
        at = bisect_left(waiting, consumer)
        if at == len(waiting) or waiting[at] != consumer:
            waiting.insert(at, consumer)

    def stop_waiting(self, consumer: int) -> None:
        waiting = self.waiting
        at = bisect_left(waiting, consumer)
        if at < len(waiting) and waiting[at] == consumer:
            del waiting[at]

    def pop_after(self, last: int) -> int:
        """Remove and return the next id behind `last` of those who wait; the least comes behind the greatest."""
        waiting = self.waiting
        at = bisect_right(waiting, last)
        return waiting.pop(at if at < len(waiting) else 0)


@dataclass(slots=True, eq=False, kw_only=True)
class Holder:
    """Somebody who takes messages of a queue, or who has stopped (`live` is false) and still holds some.

    It does not know its queue; `queue.Consumer`, which others see, does.
    """

    node: str
    session: int
    channel: int
    """The AMQP channel number, for texts."""
    id: int
    tag: str
    credit: int
    """How many more messages the consumer may hold; less than 0 after its prefetch was lowered."""
    prefetch: int
    """The credit that the consumer has when it holds nothing, if settling gives credit back."""
    no_ack: bool
    exclusive: bool
    auto_credit: bool
    cancel_on_failover: bool
    can_be_cancelled: bool
    default_timeout_ms: int
    arguments: Table
    settings: ConsumerSettings
    budget: Budget | None
    """The budget of the consumer's channel; None if its messages need no acknowledgement, and for `Get`."""
    live: bool = True
    next_id: int = 0
    unacked: RangeMap[Range] = field(default_factory=RangeMap)
    marks: list[list[int]] = field(default_factory=list)
    """[message id, available time of its delivery], while deliveries can time out. The messages behind it, up to the
    next mark, were delivered less than MARK_MS later."""

    @property
    def room(self) -> int:
        """How many more messages the consumer may be given now."""
        budget = self.budget
        if budget is None or not budget.limit:
            return self.credit
        return min(self.credit, budget.limit - budget.held)

    @property
    def is_mostly_used(self) -> bool:
        """Whether the consumer, or its channel, holds more than half of the messages that its prefetch limit allows.

        Below that it has room for more, so no delivery waits for its next acknowledgement.
        """
        if self.auto_credit and 2 * self.credit < self.prefetch:
            return True
        budget = self.budget
        return budget is not None and bool(budget.limit) and 2 * budget.held > budget.limit

    def wait_for_room(self) -> None:
        """Let the consumer wait for room in its channel, if it has credit; without credit it does not wait."""
        if self.credit < 1:
            self.stop_waiting()
        elif self.budget is not None:
            self.budget.wait(self.id)

    def stop_waiting(self) -> None:
        """Let it not wait for room in its channel: it is in the rotation, or gets nothing whatever room there is."""
        if self.budget is not None:
            self.budget.stop_waiting(self.id)

    def hold(self, count: int) -> None:
        """Note that the consumer is given `count` messages, so it may have so many fewer."""
        self.credit -= count
        if self.budget is not None:
            self.budget.held += count

    def leave_channel(self) -> None:
        """Note that the consumer's queue is gone: messages that it holds no longer count for its channel's limit."""
        if self.budget is not None:
            self.budget.held -= len(self.unacked)
            self.budget.stop_waiting(self.id)

    def mark(self, available_ms: int) -> None:
        """Note when the messages from `next_id` on are delivered."""
        marks = self.marks
        first = self.unacked.first()
        if first is None:
            marks.clear()
        else:
            del marks[: self._mark_of(first)]
        if not marks or marks[-1][1] + MARK_MS <= available_ms:
            marks.append([self.next_id, available_ms])

    def out_since_ms(self) -> int | None:
        """The latest available time at which its oldest message was delivered.

        None if it holds none or nothing can time out.
        """
        first = self.unacked.first()
        marks = self.marks
        if first is None or not marks:
            return None
        mark = self._mark_of(first)
        latest_ms = marks[mark][1] + MARK_MS
        # The messages before the next mark were delivered before that mark's time, too.
        return min(latest_ms, marks[mark + 1][1]) if mark + 1 < len(marks) else latest_ms

    def _mark_of(self, message_id: int) -> int:
        """The place of the last mark that is not behind this message."""
        return max(bisect_right(self.marks, message_id, key=itemgetter(0)) - 1, 0)


H = TypeVar("H", bound=Holder)


class Rotation(Generic[H]):
    """Consumers that may be given messages: those of the highest priority round robin, then those below."""

    __slots__ = ("_levels", "_rings")

    def __init__(self) -> None:
        self._rings: dict[int, OrderedDict[H, None]] = {}
        self._levels: list[int] = []
        """The priorities of these consumers, ascending."""

    def __bool__(self) -> bool:
        return bool(self._levels)

    def __iter__(self) -> Iterator[H]:
        """All consumers, the highest priority first, each in the order in which they are served."""
        for level in reversed(self._levels):
            yield from self._rings[level]

    def __contains__(self, consumer: H) -> bool:
        return consumer in self._rings.get(consumer.settings.priority, ())

    def add(self, consumer: H) -> None:
        """Add a consumer as the last of its priority, unless it is there already."""
        priority = consumer.settings.priority
        ring = self._rings.get(priority)
        if ring is None:
            ring = self._rings[priority] = OrderedDict()
            insort(self._levels, priority)
        if consumer not in ring:
            ring[consumer] = None

    def discard(self, consumer: H) -> None:
        priority = consumer.settings.priority
        ring = self._rings.get(priority)
        if ring is not None and consumer in ring:
            del ring[consumer]
            if not ring:
                del self._rings[priority]
                self._levels.remove(priority)

    def next_ring(self) -> OrderedDict[H, None]:
        """The consumers of the highest priority, the one that is served next first; there has to be one."""
        return self._rings[self._levels[-1]]
