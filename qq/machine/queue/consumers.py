"""Consumers of a queue: their credit, the messages they hold, and the order of service.

Invariant: a consumer never holds more than its credit, and a channel never more than its limit. `Rotation` holds a
consumer only while it may be given messages. `Budget.waiting` holds exactly the consumers that have credit and wait
only for their channel's limit. So the consumer that is served when the channel releases messages follows from the
state.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from qq.ranges import Range, RangeMap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qq.machine.policy.settings import ConsumerSettings
    from qq.machine.protocol.commands import Table

CREDIT_MAX = 2**31 - 1
"""Maximum credit of a consumer: no consumer needs more, and the number stays small in dumps."""

MARK_MS = 1000
"""Precision of delivery times, in ms: a timeout may come so much later."""


class Rank(NamedTuple):
    """The place of a waiting consumer among the consumers of its channel."""

    queue: int
    """The number of its queue."""
    minus_priority: int
    consumer: int


@dataclass(slots=True, eq=False)
class Budget:
    """The messages that the consumers of a channel together hold and may hold (basic.qos with `global`)."""

    limit: int = 0
    """Maximum messages that all consumers together may hold; 0 is no limit."""
    held: int = 0
    waiting: list[int] = field(default_factory=list)
    """Ids of consumers that wait for room in the channel, ascending; not dumped."""
    ranks: list[Rank] = field(default_factory=list)
    """The ranks of these consumers, ascending; not dumped."""

    @property
    def room(self) -> int:
        """Number of further messages that all consumers of the channel together may be given."""
        return max(self.limit - self.held, 0) if self.limit else CREDIT_MAX

    def wait(self, rank: Rank) -> None:
        """Add the consumer of this rank to those that wait for room in the channel."""
        at = bisect_left(self.ranks, rank)
        if at == len(self.ranks) or self.ranks[at] != rank:
            self.ranks.insert(at, rank)
            insort(self.waiting, rank.consumer)

    def stop_waiting(self, rank: Rank) -> None:
        at = bisect_left(self.ranks, rank)
        if at < len(self.ranks) and self.ranks[at] == rank:
            del self.ranks[at]
            del self.waiting[bisect_left(self.waiting, rank.consumer)]

    def next_after(self, last: int) -> int:
        """Return the next waiting id after `last`; the least id comes after the greatest."""
        waiting = self.waiting
        at = bisect_right(waiting, last)
        return waiting[at if at < len(waiting) else 0]

    def first_of_queue(self, rank: Rank) -> int:
        """Return the consumer with the highest priority among those that wait for messages of the queue in `rank`.

        Of several such consumers, return the next one from the consumer in `rank` on.
        """
        ranks = self.ranks
        best = ranks[bisect_left(ranks, (rank.queue,))]
        at = bisect_left(ranks, best._replace(consumer=rank.consumer))
        is_best = at < len(ranks) and ranks[at][:2] == best[:2]
        return ranks[at].consumer if is_best else best.consumer


@dataclass(slots=True, eq=False)
class ClientCredit:
    """The part of a consumer's state that it has only if its client sets the credit (`commands.SetCredit`)."""

    wants_activity: bool
    """Whether the client wants to know when the consumer becomes, or is no longer, the single active consumer."""
    number: int = 0
    """The number of the last `SetCredit` that was carried out."""
    is_draining: bool = False
    """Whether the credit that is left is to be taken away when the queue has delivered its messages."""
    wants_state: bool = False
    """Whether the state is to be reported when the queue has been served."""
    was_active: bool = True
    """Whether the consumer was active when that was last reported."""

    def is_report_due(self, *, is_active: bool) -> bool:
        """Return whether the consumer's state must be reported, now or when a drain ends."""
        return self.is_draining or self.wants_state or self.has_activity_changed(is_active=is_active)

    def has_activity_changed(self, *, is_active: bool) -> bool:
        """Return whether the client must be told that the consumer became active or inactive."""
        return self.wants_activity and self.was_active != is_active


@dataclass(slots=True, eq=False, kw_only=True)
class Holder:
    """A consumer, or a cancelled consumer (`live` is false) that still holds messages.

    It has no reference to its queue; the subclass `queue.Consumer` has, and is what the other modules use.
    """

    node: str
    session: int
    channel: int
    """The AMQP channel number, for error and log texts."""
    id: int
    tag: str
    credit: int
    """Number of further messages that the consumer may hold; negative after its prefetch limit was lowered."""
    prefetch: int
    """The credit of the consumer while it holds no message, if settling gives credit back."""
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
    client_credit: ClientCredit | None = None
    """None unless the client sets the credit (AMQP 1.0)."""
    live: bool = True
    next_id: int = 0
    unacked: RangeMap[Range] = field(default_factory=RangeMap)
    marks: list[list[int]] = field(default_factory=list)
    """[message id, time (without outages, ms) of its delivery], while deliveries can time out. The messages from it to
    the next mark were delivered less than MARK_MS later."""

    @property
    def room(self) -> int:
        """Number of further messages that the consumer may be given now."""
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

    def hold(self, count: int) -> None:
        """Record that the consumer is given `count` messages, which reduces its credit."""
        self.credit -= count
        if self.budget is not None:
            self.budget.held += count

    def mark(self, available_ms: int) -> None:
        """Record the delivery time of the messages from `next_id` on."""
        marks = self.marks
        first = self.unacked.first()
        if first is None:
            marks.clear()
        else:
            del marks[: self._mark_of(first)]
        if not marks or marks[-1][1] + MARK_MS <= available_ms:
            marks.append([self.next_id, available_ms])

    def out_since_ms(self) -> int | None:
        """Return an upper bound of the time (without outages) at which its oldest message was delivered.

        None if it holds no message or no delivery can time out.
        """
        first = self.unacked.first()
        marks = self.marks
        if first is None or not marks:
            return None
        mark = self._mark_of(first)
        latest_ms = marks[mark][1] + MARK_MS
        # The messages before the next mark were also delivered before that mark's time.
        return min(latest_ms, marks[mark + 1][1]) if mark + 1 < len(marks) else latest_ms

    def last_out_since(self, time_ms: int) -> int | None:
        """Return the id of the last message that was certainly delivered at this time (without outages) or before.

        None if there is no such message that may still be held.
        """
        marks, last = self.marks, None
        for number, (_, marked_ms) in enumerate(marks, 1):
            next_id, next_ms = marks[number] if number < len(marks) else (self.next_id, marked_ms + MARK_MS)
            if min(marked_ms + MARK_MS, next_ms) > time_ms:
                break
            last = next_id - 1
        return last

    def _mark_of(self, message_id: int) -> int:
        """Return the place of the last mark at or before this message."""
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
        """Yield all consumers, the highest priority first, and in each priority in the order of service."""
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
        """Return the consumers of the highest priority, which must exist, in the order of service."""
        return self._rings[self._levels[-1]]
