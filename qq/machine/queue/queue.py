"""A queue: its messages, its consumers, and the effect of its settings on both.

Invariant: only methods of a queue change it, its backlog, its histories, its tally and its consumers; other modules
only read them. Each enqueued message is in exactly one place until it is settled or dropped: ready or delayed (in the
backlog), checked out to a consumer, in a lease, or waiting to be dead-lettered (`dead`). Counts are updated with each
change, and never recomputed. The cost depends on the number of ranges. Only messages out of order cost by the message.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.machine.policy.settings import settings_of
from qq.machine.policy.value_checks import EXPIRY_MAX_MS
from qq.machine.protocol.death_history import DELIVERY_LIMIT, EXPIRED, MAXLEN, REJECTED, Histories
from qq.machine.protocol.effects import ConsumerState, Deliver
from qq.machine.protocol.queue_types import CLASSIC
from qq.machine.protocol.work_meter import RANGES_AT_ONCE
from qq.machine.queue.backlog import Backlog
from qq.machine.queue.consumers import CREDIT_MAX, Holder, Rank, Rotation
from qq.machine.queue.leases import (
    ARRIVAL,
    CHUNK_COST,
    CHUNKS_AT_ONCE,
    LEASE_MESSAGES_MAX,
    LEASE_RANGES_MAX,
    EndedChunk,
    FrozenGroup,
    LeaseHolder,
    chunks_of,
    make_lease,
    the_group,
    with_histories,
)
from qq.machine.queue.leaving import (
    DISCARDED,
    ENDED,
    FAILED,
    RETURNED,
    SETTLED,
    UNMODIFIED,
    Leaving,
    Modification,
    ranges_of,
)
from qq.machine.queue.timers import NOW_MS
from qq.ranges import NORMAL, Range, RangeMap
from qq.stored.properties import NO_TTL

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from qq.machine.policy.policies import Applied
    from qq.machine.policy.queue_options import QueueSettings
    from qq.machine.protocol.commands import Table
    from qq.machine.protocol.death_history import FrozenHistories, History
    from qq.machine.protocol.effects import CountContract
    from qq.machine.queue.backlog import FrozenBacklog
    from qq.machine.queue.consumers import Budget, ClientCredit
    from qq.machine.queue.leases import GroupSettings, LeaseChunk
    from qq.machine.queue.leaving import FrozenLeaving
    from qq.ranges import FrozenPieces

SHARES = 8
"""Shares into which each consumer's part of a backlog is divided: more are fairer, fewer make longer ranges."""
DUE_MAX = 512
"""Messages of a queue that may expire, or become ready after a delay, in an entry."""
DUE_MIN = 16
"""Messages of a queue that may do so even in an entry whose work other queues have used up."""
DYING_MAX = 10_000
"""Number of messages awaiting dead-lettering from which on no more messages expire or are dropped over a limit. A
million of them at once would be a million objects."""
_COME_BACK = (RETURNED, FAILED, ENDED)
TRIM_MAX = 1024
"""Ranges that may be dropped over a limit in an entry, or as many as arrived if those are more. Without this bound, a
new limit might drop millions at once."""
DEAD_LETTER_RETRY_MS = 5_000
"""Milliseconds until dead letters that no queue took are tried again (at-least-once)."""


QueueOwner = tuple[str, int]
"""The connection that owns an exclusive queue: its node and its id."""
NOBODY: QueueOwner = ("", 0)
"""The owner of queues that will soon be removed, such as those of closed connections. No connection can use them."""


UNROUTED = ""
"""In place of a target's name: the dead-letter exchange routes the messages to no queue. No queue has this name."""


class DeadMessages(NamedTuple):
    """A range of messages that wait to be moved to the dead-letter exchange."""

    range: Range
    reason: str
    time_ms: int

    def part(self, offset: int, count: int) -> DeadMessages:
        """Return `count` messages from the `offset`-th on."""
        messages, reason, time_ms = self
        return (
            self if count == messages.count else DeadMessages(messages.part(offset, count), reason, time_ms)
        )


@dataclass(slots=True)
class Tally:
    """Counts of a queue's events since this process began; not part of the state."""

    published: int = 0
    delivered: int = 0
    """Messages delivered to acknowledging consumers; `delivered_no_ack` counts the rest."""
    delivered_no_ack: int = 0
    redelivered: int = 0
    got: int = 0
    got_no_ack: int = 0
    get_empty: int = 0
    """Number of gets that found no message."""
    acknowledged: int = 0
    died: dict[str, int] = field(default_factory=dict)
    """Reason of death -> number of messages."""
    dead_lettered: int = 0
    rejected_publishes: int = 0
    waited_ms: int = 0
    """Milliseconds in which messages were ready while all consumers were busy."""


@dataclass(slots=True, eq=False, kw_only=True)
class Consumer(Holder):
    """A `Holder` that knows its queue."""

    queue: Queue

    @property
    def rank(self) -> Rank:
        return Rank(self.queue.number, -self.settings.priority, self.id)

    def wait_for_room(self) -> None:
        """Let the consumer wait for room in its channel, if it has credit; without credit it does not wait."""
        if self.credit < 1:
            self.stop_waiting()
        elif self.budget is not None:
            self.budget.wait(self.rank)

    def stop_waiting(self) -> None:
        """Stop waiting for room in the channel, because the consumer is in the rotation or may not be served."""
        if self.budget is not None and self.budget.ranks:
            self.budget.stop_waiting(self.rank)

    def leave_channel(self) -> None:
        """Record that the consumer's queue is gone: messages that it holds no longer count for its channel's limit."""
        if self.budget is not None:
            self.budget.held -= len(self.unacked)
            self.stop_waiting()

    def freeze(self) -> FrozenConsumer:
        marks = [(first_id, time_ms) for first_id, time_ms in self.marks]
        held = self.unacked.freeze()
        credit = self.client_credit and replace(self.client_credit)
        return FrozenConsumer(self, self.credit, self.prefetch, self.live, self.next_id, marks, held, credit)


@dataclass(slots=True, eq=False, kw_only=True)
class LeaseGroup(LeaseHolder):
    """A `LeaseHolder` that knows its queue."""

    queue: Queue

    def freeze(self) -> FrozenGroup:
        return FrozenGroup(
            self.queue.number,
            self.name,
            self.fence,
            self.owner,
            self.user,
            self.settings,
            self.generation,
            self.used_ms,
            self.first_free,
            self.last,
            tuple(self.leases.values()),
        )


class FrozenConsumer(NamedTuple):
    """A consumer at a moment."""

    consumer: Consumer
    credit: int
    prefetch: int
    live: bool
    next_id: int
    marks: list[tuple[int, int]]
    unacked: FrozenPieces[Range]
    client_credit: ClientCredit | None


Served = tuple[Consumer, Deliver]
"""A consumer, and the effect that delivers its messages."""


@dataclass(slots=True, eq=False)
class Queue:
    """A queue: its declared properties, and state that only its methods change."""

    vhost: str
    name: str
    kind: str
    durable: bool
    owner: QueueOwner | None
    """The connection that owns an exclusive queue; None for shared queues, NOBODY for a queue that will soon be
    removed."""
    auto_delete: bool
    arguments: Table
    number: int
    """The queue's number, unique for ever in all virtual hosts, even if a later queue has the same name."""
    settings: QueueSettings
    policies: Applied = (None, None)
    """The policy and the operator policy that apply to the queue."""
    had_consumer: bool = False
    unacked: int = 0
    unacked_size: int = 0
    consumers: int = 0
    used_ms: int = 0
    """Time (without outages, ms) of its last declaration, get, or end of a consumer."""
    holders: dict[Consumer, None] = field(default_factory=dict)
    """Live consumers, and cancelled consumers that still hold messages, in order of arrival."""
    rotation: Rotation[Consumer] = field(default_factory=Rotation)
    active: Consumer | None = None
    """The single active consumer, or None."""
    candidates: Rotation[Consumer] = field(default_factory=Rotation)
    """All live consumers of a queue with a single active consumer. The first of the highest priority should be active,
    unless the active consumer has that priority, too."""
    to_report: dict[Consumer, None] = field(default_factory=dict)
    """The live consumers whose `ConsumerState` must be reported: when the queue is served, or when a drain ends."""
    backlog: Backlog = field(default_factory=Backlog)
    histories: Histories = field(default_factory=Histories)
    dead: deque[DeadMessages] = field(default_factory=deque)
    first_dead: int = 0
    """The number of the first of `dead`. Each dead message keeps the number that it gets at its death."""
    stuck: dict[str, RangeMap[DeadMessages]] = field(default_factory=dict)
    """Dead messages that their targets could not take, by number, outside of `dead`: a line for each full target, and
    one for `UNROUTED`. No line is empty. It is always empty before version 11."""
    dead_count: int = 0
    """Number of messages in `dead` and in `stuck`."""
    dead_size: int = 0
    retry_ms: int = 0
    """Cluster time (ms) of the next attempt at dead-lettering; 0 is at once, and always so since version 11."""
    leaving: list[Leaving] = field(default_factory=list)
    """Messages that consumers have settled or rejected, as put-off work; they still count as unacked."""
    returning: list[Leaving] = field(default_factory=list)
    """Messages that consumers have returned, as put-off work; they still count as unacked."""
    coming_back: int = 0
    """The number of messages in `returning`."""
    came_back: int = 0
    """Number of ready messages that have come back since `returning` became non-empty. The queue delivers at most so
    many, so that the messages in `returning` keep their order."""
    groups: dict[str, LeaseGroup] = field(default_factory=dict)
    """The groups that lease messages, by name, in the order in which they were opened."""
    leased: int = 0
    """Number of messages in open leases, and in `ended`."""
    leased_size: int = 0
    ended: deque[EndedChunk] = field(default_factory=deque)
    """Messages of leases that ended, as put-off work."""
    tally: Tally = field(default_factory=Tally)
    waiting_since_ms: int = 0
    revision: int = 0
    """Changes whenever a count of the queue may have changed, because serving the queue follows each change. It starts
    from zero with each process."""
    changed_ms: int = 0
    """Cluster time (ms) of the last change of the revision; 0 if there was none since this process began, or since the
    queue was read from a dump."""
    # Derived from the settings, because every batch reads them:
    is_plain: bool = True
    """Whether messages without properties simply go to the tail."""
    counts_failures: bool = False
    """Whether failed deliveries are counted apart from other returns (RabbitMQ 4.3)."""
    count_contract: CountContract | None = None
    """The rules by which headers count deliveries of a message; None at a classic queue, which adds no such header."""
    _drops: bool = False
    """Whether the queue drops messages over a limit."""
    _frozen: FrozenQueue | None = None
    """The result of the last `freeze`, or None if the queue was served since. It saves time, because a freeze stops the
    node for all queues at once, and few of very many queues change between two freezes."""

    def __post_init__(self) -> None:
        self.configure(self.settings)

    # Properties of the whole queue

    def use(self, available_ms: int) -> None:
        """Record that the queue is declared or asked for a message, which postpones its expiry (x-expires)."""
        self.used_ms = available_ms

    def disown(self) -> None:
        """Take the queue from its owner before its removal, so that no connection can use it meanwhile."""
        self._frozen = None
        self.owner = NOBODY

    # Settings

    def apply_policies(self, policies: Applied) -> bool:
        """Apply these policies from now on. Return whether they differ from the previous policies."""
        self._frozen = None
        before, self.policies = self.policies, policies
        if policies == before:
            return False
        self.configure(settings_of(self.kind, self.arguments, *policies))
        return True

    def configure(self, settings: QueueSettings) -> None:
        """Apply new settings from now on."""
        self.settings = settings
        has_limit = settings.max_length is not None and settings.overflow == "reject-publish"
        self.is_plain = (
            settings.message_ttl_ms is None
            and settings.max_length_bytes is None
            and settings.level_absent == NORMAL
            and not has_limit
        )
        self.counts_failures = settings.count_contract == "4.3"
        self.count_contract = None if self.kind == CLASSIC else settings.count_contract
        self._drops = settings.overflow == "drop-head" and not (
            settings.max_length is None and settings.max_length_bytes is None
        )
        self.backlog.strict = settings.strict_priorities
        self.backlog.exact_sizes = settings.max_length_bytes is not None

    @property
    def ready(self) -> int:
        return self.backlog.count

    @property
    def messages(self) -> int:
        """The number of messages that are not checked out: ready, delayed, coming back, or awaiting dead-lettering."""
        backlog = self.backlog
        return backlog.count + backlog.delayed + self.coming_back + self.dead_count

    @property
    def available(self) -> int:
        """Number of messages that may be delivered now."""
        return min(self.backlog.count, self.came_back) if self.returning else self.backlog.count

    def timeout_ms(self, consumer: Consumer) -> int:
        """Return how many milliseconds the consumer may hold a message; 0 for ever."""
        own = consumer.settings.timeout_ms
        if own is not None:
            return own
        mine = self.settings.consumer_timeout_ms
        return consumer.default_timeout_ms if mine is None else mine

    def is_active(self, consumer: Consumer) -> bool:
        """Return RabbitMQ's flag `active`: false for a consumer that waits to become the single active consumer."""
        return not self.settings.single_active_consumer or consumer is self.active

    # Messages arrive

    def room(self, sizes: Sequence[int]) -> int:
        """Return how many of the next messages, of these sizes, the queue accepts.

        Only a queue with the overflow policy reject-publish accepts fewer than all.
        """
        settings = self.settings
        room = len(sizes)
        if settings.overflow != "reject-publish":
            return room
        if settings.max_length is not None:
            room = min(room, max(settings.max_length - self.messages, 0))
        if settings.max_length_bytes is not None:
            left = settings.max_length_bytes - self.backlog.size - self.backlog.delayed_size
            room = min(room, bisect_right(list(accumulate(sizes)), left))
        return room

    def room_left(self, most: int) -> tuple[int, int | None]:
        """Return how many more messages the queue accepts, at most `most`, and how many bytes; None is no limit."""
        settings = self.settings
        if settings.overflow != "reject-publish":
            return most, None
        count, size = settings.max_length, settings.max_length_bytes
        return (
            most if count is None else min(max(count - self.messages, 0), most),
            None if size is None else size - self.backlog.size - self.backlog.delayed_size,
        )

    @property
    def is_overfull(self) -> bool:
        """Whether a queue that refuses messages over its limits holds more than they allow."""
        settings, backlog = self.settings, self.backlog
        if settings.overflow != "reject-publish":
            return False
        most, most_bytes = settings.max_length, settings.max_length_bytes
        return (most is not None and self.messages > most) or (
            most_bytes is not None and backlog.size + backlog.delayed_size > most_bytes
        )

    def wanted(self, count: int, now_ms: int, promised: dict[Budget, int], lost: Container[str]) -> int:
        """Return how many of the next `count` messages consumers would take at once, if they are ready on arrival.

        `promised` is how much of each channel's limit other queues will use; this queue's use is added to it. Consumers
        of `lost` nodes take no messages.
        """
        backlog = self.backlog
        if backlog.count or self.returning:
            return 0
        due_ms = backlog.due_ms()
        if due_ms is not None and due_ms <= now_ms:
            return 0  # due messages come first
        wanted = 0
        shared: dict[Budget, int] = {}
        idle: list[Consumer] = []
        for consumer in self.rotation:
            budget = consumer.budget
            if consumer.node in lost:
                idle.append(consumer)
            elif budget is None or not budget.limit:
                wanted += consumer.credit
            elif budget.room:
                shared[budget] = shared.get(budget, 0) + consumer.credit
            else:
                idle.append(consumer)
        if idle:
            self._frozen = None  # because the queue may not be served afterwards
        for consumer in idle:
            self.make_way(consumer)  # so that it is not tried again before its channel has room
        for budget, credit in shared.items():
            part = min(credit, budget.limit - budget.held - promised.get(budget, 0), count)
            if part > 0:
                promised[budget] = promised.get(budget, 0) + part
                wanted += part
        return min(wanted, count)

    def expiry_ms(self, ttl_ms: int | None, from_ms: int) -> int:
        """Return the time at which a message that is ready from `from_ms` on expires; 0 is never.

        `ttl_ms` is the message's own time to live, or None.
        """
        mine = self.settings.message_ttl_ms
        if mine is not None and (ttl_ms is None or mine < ttl_ms):
            ttl_ms = mine
        return 0 if ttl_ms is None else from_ms + ttl_ms

    def enqueue(
        self, index: int, slot: int, count: int, size: int, level: int = NORMAL, expires_ms: int = 0
    ) -> None:
        """Add messages that arrive with an entry; `size` is their total in octets."""
        self.backlog.add(index, slot, count, size, level, expires_ms)
        self.tally.published += count

    def publish(self, messages: Range, priority: int, ttl_ms: int, delay_ms: int, now_ms: int) -> None:
        """Add messages with their publisher's properties, now or after their delay; NO_TTL is no time to live."""
        # Clients cannot ask for more, but sums of numbers that a node submits must fit in 63 bits.
        ready_ms = now_ms + min(delay_ms, EXPIRY_MAX_MS)
        expires_ms = self.expiry_ms(None if ttl_ms == NO_TTL else min(ttl_ms, EXPIRY_MAX_MS), ready_ms)
        level = self.settings.level(priority)
        if delay_ms:
            self.backlog.delay(
                messages._replace(expires_ms=expires_ms, level=level), ready_ms, returned=False
            )
            self.tally.published += messages.count
        else:
            self.enqueue(*messages[:3], messages.size, level, expires_ms)

    def enqueue_again(
        self, messages: Range, history: History | None, priority: int, ttl_ms: int | None, now_ms: int
    ) -> None:
        """Add messages from a different queue, where they died or from which they were moved, with their history.

        `ttl_ms` is their own time to live, which starts again. Their earlier deliveries do not count here.
        """
        history_id = 0 if history is None else self.histories.intern(history, messages.count)
        level, expires_ms = self.settings.level(priority), self.expiry_ms(ttl_ms, now_ms)
        self.backlog.add(*messages[:3], messages.size, level, expires_ms, history_id)
        self.tally.published += messages.count

    def refuse(self, count: int) -> None:
        """Count messages that were refused for lack of room here, or in a different queue that they were routed to."""
        self.tally.rejected_publishes += count
        self.revision += 1

    # Messages leave

    def peek(self, place: int, first: int, end: int, count: int) -> list[tuple[int, Range]]:
        """Return ready messages with their keys, as `Backlog.peek` does; they stay in the queue."""
        return self.backlog.peek(place, first, end, count)

    def move_out(self, place: int, found: Sequence[tuple[int, Range]]) -> None:
        """Remove ready messages found by `peek`, or parts of them, because they are now in a different queue."""
        self.backlog.cut(place, found)
        if self.returning:
            self.came_back = max(self.came_back - sum(messages.count for _, messages in found), 0)
        self.forget(messages for _, messages in found)

    def serve(
        self, now_ms: int, available_ms: int, most: int, lost: Container[str] = ()
    ) -> tuple[list[Served], int]:
        """Release due messages, drop expired and excess messages, and deliver: about `most` ranges.

        The consumers' time to settle the delivered messages starts at `available_ms`. Consumers of `lost` nodes receive
        no messages. Returns the deliveries, and the number of ranges moved elsewhere, which may exceed 0 even if `most`
        is 0.
        """
        self._frozen = None
        self.revision += 1
        self.changed_ms = now_ms
        backlog = self.backlog
        due_max = min(DUE_MAX, max(most, DUE_MIN))
        moved = 0
        if self.retry_ms <= now_ms:
            self.retry_ms = 0
        due_ms = backlog.due_ms()
        served: list[Served] = []
        if due_ms is None or due_ms > now_ms:
            served = self._give(now_ms, available_ms, most, lost)
        else:
            moved += backlog.release(now_ms, due_max)
            # A message that expires at this very moment may still be delivered, because a TTL of 0 means that.
            moved += self._expire(now_ms - 1, now_ms, due_max)
            if not 0 < backlog.expires_ms() < now_ms:
                # Delayed messages that are due and not yet released come behind these.
                served = self._give(now_ms, available_ms, most, lost)
                moved += self._expire(now_ms, now_ms, due_max)
        if self._drops:
            moved += self._trim(now_ms)
        backlog.trimmed_position = backlog.next_position
        return served, moved

    def activity_reports(self) -> list[ConsumerState]:
        """Return the states of consumers that became active or inactive, for clients that want to know.

        They come before the deliveries that follow.
        """
        reports: list[ConsumerState] = []
        for consumer in sorted(self.to_report, key=_consumer_key):
            credit, is_active = consumer.client_credit, self.is_active(consumer)
            if credit is not None and credit.has_activity_changed(is_active=is_active):
                credit.was_active = is_active
                reports.append(self.state_of(consumer))
                self._keep_reporting(consumer)
        return reports

    def credit_reports(self, now_ms: int) -> list[ConsumerState]:
        """Return the states of consumers that have drained the queue, or whose clients want the state.

        It is called behind each `serve`, so they come behind the deliveries. A consumer has drained the queue if it may
        not be given messages, or if there are none; messages that are coming back or due are still to be delivered.
        """
        due_ms = self.backlog.due_ms()
        is_empty = not (self.available or self.returning) and (due_ms is None or due_ms > now_ms)
        reports: list[ConsumerState] = []
        for consumer in sorted(self.to_report, key=_consumer_key):
            credit = consumer.client_credit
            if credit is None:
                continue
            has_drained = credit.is_draining and (is_empty or consumer not in self.rotation)
            if has_drained:
                credit.is_draining = False
                self.give_credit(consumer, -consumer.credit)
            if has_drained or credit.wants_state:
                credit.wants_state = False
                reports.append(self.state_of(consumer))
                self._keep_reporting(consumer)
        return reports

    def state_of(self, consumer: Consumer) -> ConsumerState:
        """Return the state of a consumer whose client sets the credit."""
        credit = consumer.client_credit
        assert credit is not None
        return ConsumerState(
            consumer.node,
            consumer.session,
            consumer.id,
            credit.number,
            consumer.next_id,
            consumer.credit,
            self.ready if self._may_get(consumer) else 0,
            credit.is_draining,
            self.is_active(consumer),
        )

    def _keep_reporting(self, consumer: Consumer | None) -> None:
        """Add a consumer to `to_report` if its state must be reported, or remove it."""
        if consumer is None or consumer.client_credit is None:
            return
        is_active = self.is_active(consumer)
        if consumer.live and consumer.client_credit.is_report_due(is_active=is_active):
            self.to_report[consumer] = None
        else:
            self.to_report.pop(consumer, None)

    def _expire(self, until_ms: int, now_ms: int, most: int) -> int:
        if not self._has_room_to_die:
            return 0
        expired = self.backlog.expire(until_ms, most)
        self.die(expired, EXPIRED, now_ms)
        return len(expired)

    @property
    def _has_room_to_die(self) -> bool:
        """Whether messages may expire or be dropped: not while too many await dead-lettering.

        With at-least-once they always may, because dead letters may have to stay for ever and must not block the
        others.
        """
        is_kept = self.settings.dead_letter_strategy == "at-least-once"
        return is_kept or self.dead_count < DYING_MAX

    def due_ms(self) -> int | None:
        """Return the time at which messages of the queue next need work, or None for never."""
        if not (self._drops or self.dead):
            return self.backlog.due_ms()
        due_ms = None
        if self._has_room_to_die:
            due_ms = NOW_MS if self._is_to_be_trimmed() else self.backlog.due_ms()
        if self.dead and self.retry_ms:
            due_ms = self.retry_ms if due_ms is None else min(due_ms, self.retry_ms)
        return due_ms

    def abandoned_ms(self) -> int | None:
        """Return the time (without outages) at which the queue expires from disuse (x-expires).

        None while the queue has a consumer or a group, and for queues that never expire.
        """
        expires_ms = self.settings.expires_ms
        return None if expires_ms is None or self.consumers or self.groups else self.used_ms + expires_ms

    @property
    def has_dead(self) -> bool:
        """Whether messages await dead-lettering, or put-off settlements and returns may add to them."""
        return bool(self.dead or self.stuck or self.leaving or self.returning)

    def loses_dead(self, now_ms: int) -> bool:
        """Return whether deleting the queue now would lose messages that die at `now_ms` or before."""
        due_ms = self.due_ms()
        return self.settings.dead_letter_exchange is not None and due_ms is not None and due_ms <= now_ms

    @property
    def is_unserved(self) -> bool:
        """Whether the queue has messages, and consumers that may take them."""
        return bool(self.rotation) and self.available > 0

    def _give(self, now_ms: int, available_ms: int, most: int, lost: Container[str]) -> list[Served]:
        """Deliver ready messages to consumers with room, round robin. Return an effect for each consumer served."""
        backlog, rotation = self.backlog, self.rotation
        served: dict[Consumer, list[Range]] = {}
        while most > 0 and rotation and (left := self.available):
            ring = rotation.next_ring()
            share = max(1, left // (SHARES * len(ring)))
            while most > 0 and left and ring:
                consumer = next(iter(ring))
                room = consumer.room
                if room < 1 or consumer.node in lost:
                    rotation.discard(consumer)
                    consumer.wait_for_room()
                    continue
                limit = left if len(ring) == 1 else min(share, left)
                before = backlog.count
                ranges = self._take(min(limit, room), most)
                count = before - backlog.count
                most -= len(ranges)
                left -= count
                consumer.hold(count)
                if consumer in served:
                    served[consumer] += ranges
                else:
                    served[consumer] = ranges
                if room > count:
                    ring.move_to_end(consumer)
                else:
                    rotation.discard(consumer)
                    consumer.wait_for_room()
        if backlog.count or self.waiting_since_ms:
            self._add_waiting_time(now_ms)
        if not served:
            return []
        return [
            (consumer, self._check_out(consumer, ranges, available_ms)) for consumer, ranges in served.items()
        ]

    def _take(self, count: int, most: int) -> list[Range]:
        """Remove and return the first `count` ready messages, in at most `most` ranges. They must exist."""
        before = self.backlog.count
        ranges = self.backlog.take(count, most)
        if self.returning:
            self.came_back = max(self.came_back - before + self.backlog.count, 0)
        return ranges

    def _add_waiting_time(self, now_ms: int) -> None:
        """Add to the time in which messages were ready and no consumer had room (for RabbitMQ's consumer capacity)."""
        if self.waiting_since_ms:
            self.tally.waited_ms += max(now_ms - self.waiting_since_ms, 0)
        self.waiting_since_ms = now_ms if self.backlog.count and self.consumers else 0

    def _trim(self, now_ms: int) -> int:
        """Drop messages over the limits from the head, and return the number of ranges dropped.

        In an entry, at least as many ranges may be dropped as messages have arrived since the last trim, so that
        publishing cannot make a queue grow over its limit. The rest is dropped with the next entries; until then it may
        be delivered.
        """
        backlog = self.backlog
        limit = max(TRIM_MAX, backlog.next_position - backlog.trimmed_position)
        if not (self._is_to_be_trimmed() and self._has_room_to_die):
            return 0
        dropped: list[Range] = []
        while len(dropped) < limit and (surplus := self._surplus()) > 0:
            dropped += self._take(min(surplus, limit - len(dropped)), limit)
        # Drop them one at a time, because each has its own size, and the order must not depend on the messages that
        # stay.
        while len(dropped) < limit and self._is_too_large():
            dropped += self._take(1, 1)
        self.die(dropped, MAXLEN, now_ms)
        return len(dropped)

    def _is_to_be_trimmed(self) -> bool:
        return self._drops and (self._surplus() > 0 or self._is_too_large())

    def _surplus(self) -> int:
        """Return how many ready messages exceed the limit on their number; 0 or less within the limit."""
        limit, backlog = self.settings.max_length, self.backlog
        return 0 if limit is None else min(backlog.count + backlog.delayed - limit, backlog.count)

    def _is_too_large(self) -> bool:
        """Return whether all messages together exceed the limit of octets, and some of them are ready."""
        limit, backlog = self.settings.max_length_bytes, self.backlog
        return limit is not None and backlog.count > 0 and backlog.size + backlog.delayed_size > limit

    def die(self, ranges: list[Range], reason: str, now_ms: int) -> None:
        """Drop messages that have left all other places, or queue them for the dead-letter exchange."""
        if not ranges:
            return
        count, size = _totals(ranges)
        self.tally.died[reason] = self.tally.died.get(reason, 0) + count
        if self.settings.dead_letter_exchange is None:
            self.forget(ranges)
            return
        self.dead.extend(DeadMessages(messages, reason, now_ms) for messages in ranges)
        self.dead_count += count
        self.dead_size += size

    def take_dead(self, first: int, count: int) -> list[DeadMessages]:
        """Remove and return the first messages that await dead-lettering.

        Returns an empty list if `first` is not the number of the first such message.
        """
        taken: list[DeadMessages] = []
        if first != self.first_dead:
            return taken
        while count and self.dead:
            dead = self.dead.popleft()
            if dead.range.count > count:
                self.dead.appendleft(dead.part(count, dead.range.count - count))
                dead = dead.part(0, count)
            taken.append(dead)
            self.first_dead += dead.range.count
            self.dead_count -= dead.range.count
            self.dead_size -= dead.range.size
            count -= dead.range.count
        return taken

    def keep_dead(self, kept: list[DeadMessages], now_ms: int, *, is_stuck: bool) -> None:
        """Put back dead letters that no queue took, for a later attempt.

        With `is_stuck`, because no message was taken, the attempt waits for DEAD_LETTER_RETRY_MS.
        """
        for dead in reversed(kept):
            self.dead.appendleft(dead)
            self.first_dead -= dead.range.count
            self.dead_count += dead.range.count
            self.dead_size += dead.range.size
        # A target that this attempt filled may have room again as soon as its consumers are served.
        self.retry_ms = now_ms + DEAD_LETTER_RETRY_MS if is_stuck else 0

    def take_stuck(self, first: int, count: int) -> tuple[str, list[tuple[int, DeadMessages]]]:
        """Remove the dead messages with these numbers from the line that has `first`.

        Returns the target of the line, and the messages with their numbers; there are none if no line has `first`.
        """
        for target, line in self.stuck.items():
            if first in line:
                taken = [
                    (piece.first, piece.value.part(piece.offset, piece.count))
                    for piece in line.take(first, first + count - 1)
                ]
                if not line:
                    del self.stuck[target]
                for _, dead in taken:
                    self.dead_count -= dead.range.count
                    self.dead_size -= dead.range.size
                return target, taken
        return UNROUTED, []

    def hold_back(self, number: int, dead: DeadMessages, target: str) -> None:
        """Put dead messages that `target` cannot take into its line; the first of them has this number."""
        if target not in self.stuck:
            self.stuck[target] = RangeMap()
        self.stuck[target].insert(number, dead.range.count, dead)
        self.dead_count += dead.range.count
        self.dead_size += dead.range.size

    def is_behind_others(self, number: int, target: str) -> bool:
        """Return whether messages that died before the message with this number wait for the target."""
        line = self.stuck.get(target)
        return line is not None and line.head.first < number

    def stuck_messages(self, target: str, first: int, most: int) -> list[tuple[int, DeadMessages]]:
        """Return the messages in the line of a target with their numbers, from the number `first` on.

        They are `most` ranges at most.
        """
        line = self.stuck.get(target)
        found: list[tuple[int, DeadMessages]] = []
        for piece in () if line is None else line.pieces_from(first, most):
            skipped = max(first - piece.first, 0)
            dead = piece.value.part(piece.offset + skipped, piece.count - skipped)
            found.append((piece.first + skipped, dead))
        return found

    def dead_lettered(self, messages: Range) -> None:
        """Record that the dead-letter exchange has moved these messages to its targets."""
        self.tally.dead_lettered += messages.count
        self.forget((messages,))

    def forget(self, ranges: Iterable[Range]) -> None:
        """Release the histories of messages that have left the queue."""
        for messages in ranges:
            if messages.history:
                self.histories.release(messages.history, messages.count)

    def history_octets_of_dead(self, number: int) -> int:
        """Return the history size in bytes of the dead message with this number; 0 without a history or message."""
        first = self.first_dead
        if not self.histories:
            return 0
        if number < first:
            stuck = self.stuck_message(number)
            return 0 if stuck is None else self.histories.octets(stuck.range.history)
        for dead in self.dead:
            first += dead.range.count
            if number < first:
                return self.histories.octets(dead.range.history)
        return 0

    def stuck_message(self, number: int) -> DeadMessages | None:
        """Return the stuck dead message with this number, or None."""
        for target, line in self.stuck.items():
            if number in line:
                return self.stuck_messages(target, number, 1)[0][1].part(0, 1)
        return None

    def histories_of(self, ranges: Iterable[Range]) -> dict[int, History]:
        get = self.histories.get
        return {
            messages.history: history for messages in ranges if (history := get(messages.history)) is not None
        }

    # Consumers

    def add_consumer(self, consumer: Consumer) -> None:
        self._enter(consumer)
        self.had_consumer = True
        if self.settings.single_active_consumer:
            self._review_active()
        self.give_credit(consumer, 0)
        if consumer.client_credit is not None:
            consumer.client_credit.was_active = self.is_active(consumer)  # the answer reports it
            self._keep_reporting(consumer)

    def _enter(self, consumer: Consumer) -> None:
        """Add a consumer without serving it."""
        self.holders[consumer] = None
        if consumer.live:
            self.consumers += 1
            if self.settings.single_active_consumer:
                self.candidates.add(consumer)

    def set_prefetch(self, consumer: Consumer, prefetch: int) -> None:
        """Set the prefetch limit of a consumer, and change its credit by the difference."""
        change = min(prefetch, CREDIT_MAX) - consumer.prefetch
        consumer.prefetch += change
        self.give_credit(consumer, change)

    def give_credit(self, consumer: Consumer, count: int) -> None:
        """Give a consumer `count` more (or fewer) messages of credit; 0 only checks again whether to serve it."""
        consumer.credit = min(consumer.credit + count, CREDIT_MAX)
        if consumer.live and consumer.room > 0 and self._may_get(consumer):
            self.rotation.add(consumer)
            consumer.stop_waiting()
        else:
            self.make_way(consumer)

    def set_credit(
        self, consumer: Consumer, number: int, limit: int, *, is_drain: bool, wants_state: bool
    ) -> None:
        """Let a consumer whose client sets the credit have messages with ids below `limit`, as in `SetCredit`."""
        credit = consumer.client_credit
        if credit is None or number <= credit.number:
            return
        credit.number, credit.is_draining = number, is_drain
        credit.wants_state = credit.wants_state or wants_state
        self.give_credit(consumer, max(limit - consumer.next_id, 0) - consumer.credit)
        self._keep_reporting(consumer)

    def make_way(self, consumer: Consumer) -> None:
        """Take a consumer out of the rotation; it may wait for room in its channel."""
        self.rotation.discard(consumer)
        if consumer.live and self._may_get(consumer):
            consumer.wait_for_room()

    def _withdraw(self, consumer: Consumer) -> None:
        """Deliver no more messages to a consumer, even if its channel has room."""
        self.rotation.discard(consumer)
        consumer.stop_waiting()

    def _may_get(self, consumer: Consumer) -> bool:
        if not self.settings.single_active_consumer:
            return True
        return consumer is self.active and self._successor() is consumer

    def waits_for_settlement(self, consumer: Consumer) -> bool:
        """Return whether settling the consumer's messages may let the queue deliver to it or to its successor."""
        if consumer.is_mostly_used:
            return True
        return self.settings.single_active_consumer and self._successor() is not consumer

    def delivers_when_settled(self, consumer: Consumer) -> bool:
        """Return whether a message may be delivered as soon as the consumer's messages are settled.

        The message is in this queue, or in a second queue from which the consumer's channel consumes.
        """
        shares_limit = consumer.budget is not None and bool(consumer.budget.limit)
        return bool(self.backlog.count) or shares_limit or self.settings.single_active_consumer

    def _successor(self) -> Consumer | None:
        """Return the consumer that should be active: the first of the highest priority, or the active one if equal."""
        active = self.active if self.active is not None and self.active.live else None
        if not self.candidates:
            return active
        best = next(iter(self.candidates.next_ring()))
        is_first = active is not None and active.settings.priority >= best.settings.priority
        return active if is_first else best

    def _review_active(self) -> None:
        """Activate the successor if the active consumer is gone, or has settled everything and is outranked."""
        active, successor = self.active, self._successor()
        if successor is active:
            if active is not None:
                self.give_credit(active, 0)  # the successor that it had to make way for may be gone
            return
        if active is not None:
            self._withdraw(active)
            if active.live and active.unacked:
                return
        self.active = successor
        self._keep_reporting(active)
        if successor is not None:
            self.give_credit(successor, 0)
            self._keep_reporting(successor)

    def cancel(self, consumer: Consumer, available_ms: int) -> None:
        """Cancel a live consumer; it stays while it holds messages."""
        consumer.live = False
        self.consumers -= 1
        self.used_ms = available_ms
        self._withdraw(consumer)
        self.candidates.discard(consumer)
        self.to_report.pop(consumer, None)
        if not consumer.unacked:
            del self.holders[consumer]
        if self.settings.single_active_consumer:
            self._review_active()

    def settle(
        self,
        consumer: Consumer,
        first: int,
        last: int,
        now_ms: int,
        fate: int = SETTLED,
        modification: Modification = UNMODIFIED,
    ) -> int:
        """Carry out the fate of a consumer's messages, and give their credit back. Return their number.

        `first` and `last` are message ids. With very many ranges, `go_on` carries the fate out later. In both cases the
        consumer stops holding them now.
        """
        before = len(consumer.unacked)
        pieces = consumer.unacked.take(first, last)
        count = before - len(consumer.unacked)
        self._check_in(consumer, count)
        if fate == SETTLED and not consumer.no_ack:
            self.tally.acknowledged += count
        is_put_off = self.returning if fate in _COME_BACK else self.leaving
        if is_put_off or len(pieces) * modification.range_cost > RANGES_AT_ONCE:
            self._put_off(Leaving(fate, [RangeMap.from_pieces(pieces, count)], modification))
        else:
            self._let_go(ranges_of(pieces), fate, now_ms, modification)
        return count

    def give_back_all(self, consumers: list[Consumer], fate: int, now_ms: int, most: int) -> int:
        """Return all messages of these consumers to the queue, the oldest first. Return the number of ranges.

        If they are more than `most`, `go_on` does it later. In both cases the consumers stop holding them now.
        """
        held: list[RangeMap[Range]] = []
        for consumer in consumers:
            count = len(consumer.unacked)
            held.append(RangeMap.from_pieces(consumer.unacked.take_all(), count))
            self._check_in(consumer, count)
        if self.returning or sum(each.count_pieces for each in held) > most:
            self._put_off(Leaving(fate, held))
            return 0
        ranges = [messages for each in held for messages in ranges_of(each.take_all())]
        ranges.sort(key=_position)
        self._let_go(ranges, fate, now_ms)
        return len(ranges)

    def _put_off(self, leaving: Leaving) -> None:
        if not leaving.count:
            return
        if leaving.fate in _COME_BACK:
            self.returning.append(leaving)
            self.coming_back += leaving.count
        else:
            self.leaving.append(leaving)

    @property
    def is_behind(self) -> bool:
        """Whether `go_on` has work to do."""
        return bool(self.leaving or self.returning or self.ended)

    def go_on(self, most: int, now_ms: int) -> int:
        """Do put-off work for at most `most` ranges, and return their number."""
        done = 0
        while self.leaving and done < most:
            leaving = self.leaving[0]
            cost = leaving.modification.range_cost
            ranges = leaving.take(max((most - done) // cost, 1))
            self._let_go(ranges, leaving.fate, now_ms, leaving.modification)
            done += len(ranges) * cost
            if not leaving.count:
                del self.leaving[0]
        done += self.bring_back(most - done, now_ms)
        return done + self._end_chunks(most - done)

    def bring_back(self, most: int, now_ms: int) -> int:
        """Bring back about `most` ranges whose return was put off, and return their number.

        Ranges with annotations count as several, so there may be fewer, but at least one.
        """
        done = 0
        while self.returning and done < most:
            leaving, before = self.returning[0], self.backlog.count
            cost = leaving.modification.range_cost
            ranges = leaving.take(max((most - done) // cost, 1))
            self._let_go(ranges, leaving.fate, now_ms, leaving.modification)
            done += len(ranges) * cost
            self.coming_back -= _totals(ranges)[0]
            self.came_back += self.backlog.count - before
            if not leaving.count:
                del self.returning[0]
        if not self.returning:
            self.came_back = 0
        return done

    def _let_go(
        self, ranges: list[Range], fate: int, now_ms: int, modification: Modification = UNMODIFIED
    ) -> None:
        """Carry out the fate of messages that no consumer holds: settle them, let them die, or return them."""
        if not ranges:
            return
        if modification.annotations and fate != SETTLED:
            ranges = self._annotated(ranges, modification)
        count, size = _totals(ranges)
        self.unacked -= count
        self.unacked_size -= size
        if fate == SETTLED:
            if self.histories:
                self.forget(ranges)
        elif fate == DISCARDED:
            self.die(ranges, REJECTED, now_ms)
        else:
            self._return(ranges, now_ms, fate, modification.ready_ms)

    def _annotated(self, ranges: list[Range], modification: Modification) -> list[Range]:
        """Return messages with the annotations of their modification."""
        annotate, annotations = self.histories.annotate, modification.annotations
        return [
            messages._replace(history=annotate(messages.history, messages.count, annotations))
            for messages in ranges
        ]

    def _return(self, ranges: list[Range], now_ms: int, fate: int, ready_ms: int) -> None:
        """Return messages after an unsuccessful delivery, now or after a delay; above the delivery limit they die.

        `ready_ms` is the end of the delay, or 0 if the queue's settings determine it.
        """
        settings, backlog = self.settings, self.backlog
        failed = fate != RETURNED
        # RabbitMQ 4.0 counts the failures of ended channels, too, but shows them only after the death of a message.
        failures = (failed and self.counts_failures) or (fate == ENDED and self.kind != CLASSIC)
        is_delayed = settings.retry_type in ("all", "failed" if failed else "returned")
        is_ordered = self.kind == CLASSIC or settings.return_position == "original"
        limit = settings.delivery_limit
        dead: list[Range] = []
        for messages in ranges:
            again = messages.returned(failed=failures)
            failures_now = again.failures if self.counts_failures else again.deliveries
            if 0 <= limit < failures_now:
                dead.append(again)
            elif is_delayed:
                delay_ms = min(settings.retry_min_ms * max(1, failures_now), settings.retry_max_ms)
                if ready_ms:
                    delay_ms = min(max(ready_ms - now_ms, 0), EXPIRY_MAX_MS)
                backlog.delay(again, now_ms + delay_ms, returned=True)
            elif is_ordered:
                backlog.put_back(again)
            else:
                backlog.give_back(again)
        self.die(dead, DELIVERY_LIMIT, now_ms)

    def count_empty_gets(self, count: int) -> None:
        """Count gets that found no message."""
        self.tally.get_empty += count
        self.revision += count

    def get(self, consumer: Consumer, count: int, available_ms: int) -> list[Range]:
        """Check out the first `count` messages, which must exist, to the consumer of a get.

        The consumer's time to settle them starts at `available_ms`. If it is `no_ack`, it does not hold the messages,
        and the caller must call `forget`.
        """
        ranges = self._take(count, count)
        if consumer.no_ack:
            self.tally.got_no_ack += count
        else:
            self.tally.got += count
            self.holders[consumer] = None
            consumer.hold(count)
            self._check_out(consumer, ranges, available_ms)
            consumer.next_id = 0  # they are sent in the answer, not as a delivery
            self.tally.delivered -= count  # and counted as got
        return ranges

    def purge(self) -> int:
        """Drop all messages that no consumer holds, and return their number."""
        returning = sum(each.chunk.messages for each in self.ended if each.is_released)
        purged = self.backlog.clear() + self.dead_count + self.coming_back + returning
        self.first_dead += self.dead_count
        self.dead_count = self.dead_size = 0
        self.dead.clear()
        self.stuck.clear()
        self.retry_ms = 0
        self._settle_what_leaves()
        if self.histories:
            kept: dict[int, int] = {}
            for held in (*(consumer.unacked for consumer in self.holders), *self.leaving):
                for piece in held.pieces():
                    if piece.value.history:
                        kept[piece.value.history] = kept.get(piece.value.history, 0) + piece.count
            for messages in with_histories(self._leased_chunks()):
                kept[messages.history] = kept.get(messages.history, 0) + messages.count
            self.histories.keep_only(kept)
        return purged

    def _settle_what_leaves(self) -> None:
        """Turn all put-off work into settlements, so that a purge covers returned and rejected messages, too."""
        self.leaving += self.returning
        self.returning.clear()
        self.coming_back = self.came_back = 0
        for leaving in self.leaving:
            leaving.fate = SETTLED
        self.ended = deque(EndedChunk(False, each.chunk) for each in self.ended)

    # Groups

    @property
    def exclusive_group(self) -> LeaseGroup | None:
        """The group that keeps consumers from the queue, or None."""
        for group in self.groups.values():
            if group.settings.is_exclusive:
                return group
        return None

    def open_group(
        self, name: str, fence: int, owner: str, user: str, settings: GroupSettings, index: int
    ) -> LeaseGroup:
        """Open a group at this log index, or pass it on to an owner with this fence. Its open leases stay."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = LeaseGroup(
                queue=self,
                name=name,
                label=the_group(name, self.name, self.vhost),
                fence=fence,
                owner=owner,
                user=user,
                settings=settings,
                generation=index,
            )
        elif fence > group.fence:
            group.fence, group.owner, group.user, group.settings = fence, owner, user, settings
        return group

    def use_group(self, group: LeaseGroup, available_ms: int) -> None:
        """Record a command of a group's owner."""
        self._frozen = None
        group.used_ms = self.used_ms = available_ms

    def lease(self, group: LeaseGroup, number: int, count: int, size: int, now_ms: int) -> None:
        """Move the next ready messages into a new lease, at most `count` with `size` octets, but at least a message.

        No lease is made if no message is ready, or while messages that have expired are in the backlog.
        """
        available = self.available
        if not available or 0 < self.backlog.expires_ms() < now_ms:
            return
        before = self.backlog.count
        by_arrival = group.settings.order == ARRIVAL
        count = min(max(count, 1), LEASE_MESSAGES_MAX, available)
        ranges = self.backlog.take_within(count, size, LEASE_RANGES_MAX, by_arrival=by_arrival)
        if self.returning:
            self.came_back = max(self.came_back - before + self.backlog.count, 0)
        lease = group.leases[number] = make_lease(number, now_ms, ranges)
        group.last = max(group.last, number)
        self._count_leased(lease.messages, lease.size, group)

    def commit_leases(self, group: LeaseGroup, up_to: int) -> None:
        """Settle the open leases with numbers up to `up_to`."""
        self._end_leases(group, [number for number in group.leases if number <= up_to], is_released=False)
        group.first_free = max(group.first_free, up_to + 1)

    def release_lease(self, group: LeaseGroup, number: int) -> None:
        """Return the messages of an open lease to their places, now or in portions."""
        self._end_leases(group, [number], is_released=True)

    def close_group(self, group: LeaseGroup) -> None:
        """Remove a group, and return the messages of its open leases to their places, in portions."""
        self._end_leases(group, list(group.leases), is_released=True)
        del self.groups[group.name]

    def _end_leases(self, group: LeaseGroup, numbers: Iterable[int], *, is_released: bool) -> None:
        """Remove open leases. If their messages are in many ranges, the work with single ranges is put off."""
        for number in numbers:
            lease = group.leases.pop(number)
            group.leased -= lease.messages
            group.leased_size -= lease.size
            for chunk in lease.chunks:
                if is_released or chunk.has_histories:
                    self.ended.append(EndedChunk(is_released, chunk))
                else:
                    self._count_leased(-chunk.messages, -chunk.size)
        if (
            len(self.ended) <= CHUNKS_AT_ONCE
            and sum(each.chunk.ranges for each in self.ended) <= RANGES_AT_ONCE
        ):
            self._end_chunks(RANGES_AT_ONCE)

    def _count_leased(self, messages: int, size: int, group: LeaseGroup | None = None) -> None:
        self.leased += messages
        self.leased_size += size
        if group is not None:
            group.leased += messages
            group.leased_size += size

    def _end_chunks(self, most: int) -> int:
        """Settle or return messages of ended leases, at most `most` ranges, and return their number."""
        done = 0
        while self.ended and done < most:
            is_released, chunk = self.ended[0]
            if done and done + chunk.ranges > most:
                break
            self.ended.popleft()
            ranges = chunk.unpack()
            if is_released:
                for messages in ranges:
                    self.backlog.put_back(messages)
            else:
                self.forget(ranges)
            self._count_leased(-chunk.messages, -chunk.size)
            done += max(chunk.ranges, CHUNK_COST)
        return done

    def _leased_chunks(self) -> Iterator[LeaseChunk]:
        return chunks_of((group.leases.values() for group in self.groups.values()), self.ended)

    @property
    def exclusively_consumed(self) -> bool:
        return self.consumers == 1 and any(consumer.exclusive and consumer.live for consumer in self.holders)

    def take_apart(self) -> list[list[Any]]:
        """Detach the consumers of a removed queue, and return its other large containers, to be freed in portions."""
        self._frozen = None
        held = [consumer.unacked.take_all() for consumer in self.holders]
        leaving = [each.pieces() for each in (*self.leaving, *self.returning)]
        self.leaving, self.returning = [], []
        self.holders.clear()
        self.to_report.clear()
        self.rotation = self.candidates = Rotation()
        self.active = None
        stuck = [line.take_all() for line in self.stuck.values()]
        self.stuck = {}
        self.groups, self.ended = {}, deque()
        return [*held, *leaving, *stuck, list(self.dead)]

    def _check_out(self, consumer: Consumer, ranges: list[Range], available_ms: int) -> Deliver:
        """Record that the consumer holds these messages, too. Return the effect that delivers them."""
        if self.timeout_ms(consumer):
            consumer.mark(available_ms)
        elif consumer.marks:
            consumer.marks.clear()  # old marks would count for these messages if a timeout were set again
        tally = self.tally
        first = next_id = consumer.next_id
        size = 0
        for messages in ranges:
            consumer.unacked.append(next_id, messages.count, messages)
            next_id += messages.count
            size += messages.size
            if messages.deliveries:
                tally.redelivered += messages.count
        consumer.next_id = next_id
        self.unacked += next_id - first
        self.unacked_size += size
        if consumer.no_ack:
            tally.delivered_no_ack += next_id - first
        else:
            tally.delivered += next_id - first
        return self.delivery(consumer, first, ranges)

    def delivery(self, consumer: Consumer, first: int, ranges: list[Range]) -> Deliver:
        """Return the effect that delivers messages to the consumer; the first of them has the message id `first`."""
        histories = self.histories_of(ranges) if self.histories else {}
        place = consumer.node, consumer.session, consumer.id
        return Deliver(*place, first, ranges, histories, self.count_contract)

    def _check_in(self, consumer: Consumer, count: int) -> None:
        """Record that the consumer holds `count` messages fewer."""
        if not count:
            return
        if consumer.budget is not None:
            consumer.budget.held -= count
        if consumer.live:
            self.give_credit(consumer, count if consumer.auto_credit else 0)
        elif not consumer.unacked:
            del self.holders[consumer]
        if consumer is self.active and not consumer.unacked:
            self._review_active()

    # The state, dumped and loaded

    def freeze(self, *, is_served: bool) -> FrozenQueue:
        """Return the queue as it is now, or the cached copy if that is still valid.

        `is_served` says that the queue was served after its last change, so that the cached copy is valid.
        """
        if self._frozen is None or not is_served:
            self._frozen = self._freeze()
        return self._frozen

    def _freeze(self) -> FrozenQueue:
        return FrozenQueue(
            self,
            self.owner,
            self.policies,
            self.had_consumer,
            self.used_ms,
            self.backlog.freeze(),
            self.histories.freeze(),
            tuple(self.dead),
            self.first_dead,
            self.dead_count,
            self.retry_ms,
            tuple(self.rotation) if self.rotation else (),
            self.active,
            tuple([FrozenLine(self.number, target, line.freeze()) for target, line in self.stuck.items()]),
            tuple([group.freeze() for group in self.groups.values()]),
            tuple(self.ended),
        )

    def freeze_behind(self) -> FrozenBehind:
        leaving = [each.freeze() for each in (*self.leaving, *self.returning)]
        return FrozenBehind(self.number, self.came_back, leaving)

    def restore_messages(
        self, backlog: Sequence[Any], histories: Sequence[Any], dead: Iterable[DeadMessages]
    ) -> None:
        """Restore the backlog, the histories, and the messages that await dead-lettering from a dump."""
        self.backlog.load(backlog)
        self.histories.load(histories)
        self.dead.extend(dead)
        self.dead_size = sum(dead.range.size for dead in self.dead)

    def restore_stuck(self, target: str, messages: Iterable[tuple[int, DeadMessages]]) -> None:
        """Restore the line of a target from a dump; `dead_count` includes it already."""
        line = self.stuck[target] = RangeMap()
        for number, dead in messages:
            line.append(number, dead.range.count, dead)
            self.dead_size += dead.range.size

    def restore_group(self, group: LeaseGroup) -> None:
        """Restore a group with its open leases from a dump."""
        self.groups[group.name] = group
        self._count_leased(group.leased, group.leased_size)

    def restore_ended(self, ended: Iterable[EndedChunk]) -> None:
        """Restore the put-off work of ended leases from a dump."""
        for each in ended:
            self.ended.append(each)
            self._count_leased(each.chunk.messages, each.chunk.size)

    def restore_consumer(self, consumer: Consumer) -> None:
        """Restore a consumer with its held messages, without serving it."""
        self._enter(consumer)
        count = len(consumer.unacked)
        self.unacked += count
        self.unacked_size += sum(piece.value.size for piece in consumer.unacked.pieces())
        if consumer.budget is not None:
            consumer.budget.held += count

    def restore_rotation(self, rotation: Iterable[Consumer], active: Consumer | None) -> None:
        """Put restored consumers back into the rotation, in this order."""
        for consumer in rotation:
            self.rotation.add(consumer)
        self.active = active
        for consumer in self.holders:
            self._keep_reporting(consumer)

    def restore_waiting(self, consumer: Consumer) -> None:
        """Let a consumer wait for room in its channel if it has credit and is not in the rotation."""
        is_waiting = (
            consumer.budget is not None
            and consumer.live
            and consumer.credit > 0
            and consumer not in self.rotation
            and self._may_get(consumer)
        )
        if is_waiting:
            consumer.wait_for_room()

    def restore_behind(self, came_back: int, leaving: Iterable[Leaving]) -> None:
        """Restore the put-off returns and settlements of the dump."""
        self.came_back = came_back
        for each in leaving:
            self._put_off(each)
            count, size = _totals(ranges_of(each.pieces()))
            self.unacked += count
            self.unacked_size += size


class FrozenBehind(NamedTuple):
    """The put-off work of a queue at a moment."""

    queue: int
    """The number of the queue."""
    came_back: int
    leaving: list[FrozenLeaving]


class FrozenQueue(NamedTuple):
    """A queue at a moment, without the messages that its consumers hold."""

    queue: Queue
    owner: tuple[str, int] | None
    policies: Applied
    had_consumer: bool
    used_ms: int
    backlog: FrozenBacklog
    histories: FrozenHistories
    dead: tuple[DeadMessages, ...]
    first_dead: int
    dead_count: int
    retry_ms: int
    rotation: tuple[Consumer, ...]
    active: Consumer | None
    stuck: tuple[FrozenLine, ...]
    groups: tuple[FrozenGroup, ...]
    ended: tuple[EndedChunk, ...]

    def leased_chunks(self) -> Iterator[LeaseChunk]:
        """Yield the messages of all open and ended leases."""
        return chunks_of((group.leases for group in self.groups), self.ended)


class FrozenLine(NamedTuple):
    """The dead messages that a target cannot take, at a moment."""

    queue: int
    """The number of the queue in which they died."""
    target: str
    messages: FrozenPieces[DeadMessages]


def _totals(ranges: Iterable[Range]) -> tuple[int, int]:
    """Return the number of messages in these ranges, and their octets."""
    count = size = 0
    for messages in ranges:
        count += messages.count
        size += messages.size
    return count, size


def _position(messages: Range) -> int:
    return messages.position


def _consumer_key(consumer: Consumer) -> tuple[str, int]:
    return consumer.node, consumer.id


def held(consumer: Consumer) -> list[tuple[int, Any]]:
    """Return the held messages of a consumer in order: ranges, each with the message id of its first message."""
    pieces = consumer.unacked.pieces()
    return [(piece.first, messages) for piece, messages in zip(pieces, ranges_of(pieces), strict=True)]
