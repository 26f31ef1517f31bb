"""A deliberately simple model of the queues: lists of single messages, without an order of consumers.

It carries out commands by their definition, follows the deliveries that the machine decides on, and checks that each
delivery is allowed. Of queues it knows the arguments; it knows the default exchange and amq.fanout.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.machine.protocol import commands as c
from qq.machine.protocol import death_history
from qq.machine.protocol import effects as e
from qq.machine.protocol.queue_types import QUORUM
from qq.machine.queue.consumers import CREDIT_MAX, MARK_MS
from qq.stored.properties import NO_PRIORITY, NO_TTL
from tests.machine.machine_driver import delayed_ranges, held_ranges, ready_ranges, stuck_dead

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from qq.machine.machine import QueueMachine
    from qq.machine.protocol.death_history import History
    from qq.machine.queue.queue import Queue
    from qq.ranges import Range

Key = tuple[str, int]
Deaths = tuple[tuple[str, str, int], ...]
"""Queue, reason and how often, the newest first."""


class Seen(NamedTuple):
    """The observable fields of a message."""

    index: int
    slot: int
    deliveries: int
    failures: int
    expires_ms: int
    level: int
    deaths: Deaths
    failed_before: int
    annotations: tuple[tuple[str, bytes], ...]


@dataclass(eq=False)
class Message:
    """A message in a queue."""

    index: int
    slot: int
    size: int
    expires_ms: int = 0
    level: int = 4
    deliveries: int = 0
    failures: int = 0
    position: int = 0
    deaths: Deaths = ()
    key: str | None = None
    """The routing key that replaced those of its publish."""
    failed_before: int = 0
    """Failed deliveries in the quorum queues in which it died."""
    annotations: tuple[tuple[str, bytes], ...] = ()

    def annotate(self, annotations: Mapping[str, bytes]) -> None:
        merged = dict(self.annotations) | annotations
        if sum(len(key) + len(value) for key, value in merged.items()) <= death_history.ANNOTATIONS_MAX:
            self.annotations = tuple(merged.items())

    def seen(self) -> Seen:
        return Seen(
            self.index,
            self.slot,
            self.deliveries,
            self.failures,
            self.expires_ms,
            self.level,
            self.deaths,
            self.failed_before,
            self.annotations,
        )


@dataclass(eq=False)
class Flow:
    """The state of a consumer whose client sets the credit."""

    no_ack: bool
    wants_activity: bool
    timeout_ms: int
    was_active: bool = True
    number: int = 0
    is_draining: bool = False
    wants_state: bool = False


@dataclass(eq=False)
class Consumer:
    node: str
    session: int
    queue: str
    credit: int
    prefetch: int
    auto_credit: bool
    budget: list[Consumer] | None
    """All consumers that share the limit of its channel."""
    priority: int = 0
    live: bool = True
    delivered: int = 0
    held: dict[int, Message] = field(default_factory=dict)
    delivered_ms: dict[int, int] = field(default_factory=dict)
    """The time of each delivery, by its message id."""
    flow: Flow | None = None


@dataclass(eq=False)
class Dead:
    """Messages that died together."""

    messages: list[Message]
    reason: str


class Stuck(NamedTuple):
    """Messages that died together and wait for a queue."""

    dead: Dead
    target: str
    """The name of the queue; "" while the exchange routes them to no queue."""


@dataclass(eq=False)
class OracleGroup:
    fence: int
    owner: str
    settings: tuple[str, bool, int]
    generation: int
    used_ms: int
    leases: dict[int, list[Message]] = field(default_factory=dict)
    committed: int = -1
    last: int = -1


class Staged(NamedTuple):
    """A message of an attempt."""

    index: int
    slot: int
    size: int
    command: c.StageMessages
    queues: tuple[tuple[str, int], ...]
    """The name and the number of each queue that it will enter."""


@dataclass(eq=False)
class OracleAttempt:
    epoch: int
    steps: int = 0
    is_refused: bool = False
    messages: list[Staged] = field(default_factory=list)


@dataclass(eq=False)
class OracleSink:
    user: str
    expires_ms: int = 0
    used_ms: int = 0
    first_free: int = 0
    attempts: dict[str, OracleAttempt] = field(default_factory=dict)


class OracleQueue:
    def __init__(self, name: str, number: int, arguments: Mapping[str, Any]) -> None:
        self.name = name
        self.number = number
        self.quorum = arguments.get("x-queue-type") == "quorum"
        self.get = arguments.get
        self.returns: list[Message] = []
        self.levels: list[Message] = []
        """In the order of arrival, which is that of their positions."""
        self.delayed: list[tuple[int, int, bool, Message]] = []
        """When it is due, which came to wait first, whether it was returned."""
        self.dead: list[Dead] = []
        self.first_dead = 0
        self.stuck: dict[int, Stuck] = {}
        """Messages that a target could not take, by the number of the first message."""
        self.arrived = 0
        self.delays = 0
        self.turn = 0
        self.active: Consumer | None = None
        self.groups: dict[str, OracleGroup] = {}

    # Order

    def ready(self) -> list[Message]:
        return self.returns + self.levels

    def size(self) -> int:
        return sum(message.size for message in self.ready() + [message for *_, message in self.delayed])

    def messages(self) -> int:
        return len(self.ready()) + len(self.delayed) + len(self.dying())

    def dying(self) -> list[Message]:
        groups = [*self.dead, *(stuck.dead for stuck in self.stuck.values())]
        return [message for dead in groups for message in dead.messages]

    def arrive(self, message: Message) -> None:
        message.position = self.arrived
        self.arrived += 1
        self.levels.append(message)

    def first(self) -> Message:
        """The message to deliver next."""
        if self.returns:
            return self.returns[0]
        high = [message for message in self.levels if message.level > 4]
        normal = [message for message in self.levels if message.level <= 4]
        if self.get("x-priority-mode") == "strict" or self.get("x-max-priority"):
            return max(self.levels, key=lambda message: (message.level, -message.position))
        if high and normal and self.turn % 3 == 2:
            return min(self.levels, key=lambda message: message.position)
        return min(high or normal, key=lambda message: message.position)

    def take(self) -> Message:
        message = self.first()
        if self.returns:
            self.returns.remove(message)
        else:
            self.turn += 1
            self.levels.remove(message)
        return message

    def in_order(self) -> list[Message]:
        """Everything that is ready, as it would be taken."""
        returns, levels, turn = list(self.returns), list(self.levels), self.turn
        order = [self.take() for _ in range(len(returns) + len(levels))]
        self.returns, self.levels, self.turn = returns, levels, turn
        return order

    def put_into_place(self, messages: Sequence[Message]) -> None:
        self.levels += messages
        self.levels.sort(key=lambda there: there.position)

    def lease(self, count: int, octets: int, *, by_arrival: bool) -> list[Message]:
        leased: list[Message] = []
        turn = self.turn
        while self.ready() and len(leased) < count:
            if by_arrival and not self.returns:
                message = min(self.levels, key=lambda there: there.position)
            else:
                message = self.first()
            if leased and message.size > octets:
                break
            octets -= message.size
            leased.append(message)
            if by_arrival:
                (self.returns or self.levels).remove(message)
            else:
                self.take()
        if by_arrival:
            self.turn = turn
            leased.sort(key=lambda there: there.position)
        return leased

    def release(self, group: OracleGroup, number: int) -> None:
        self.put_into_place(group.leases.pop(number))

    @property
    def is_held_by_group(self) -> bool:
        return any(group.settings[1] for group in self.groups.values())

    # Arguments

    def level(self, priority: int) -> int:
        highest = 31 if self.quorum else self.get("x-max-priority", 0)
        if not highest:
            return 4
        if priority == NO_PRIORITY:
            return 4 if self.quorum else 0
        return min(priority, highest)

    def expiry_ms(self, ttl_ms: int, from_ms: int) -> int:
        ttl_ms = min(ttl_ms, self.get("x-message-ttl", NO_TTL))
        return 0 if ttl_ms == NO_TTL else from_ms + ttl_ms

    @property
    def refuses(self) -> bool:
        return self.get("x-overflow") == "reject-publish"

    @property
    def at_least_once(self) -> bool:
        return self.refuses and self.get("x-dead-letter-strategy") == "at-least-once"

    def room(self, sizes: Sequence[int]) -> int:
        if not self.refuses:
            return len(sizes)
        room = 0
        count, octets = self.messages(), self.size()
        for size in sizes:
            count, octets = count + 1, octets + size
            if count > self.get("x-max-length", count) or octets > self.get("x-max-length-bytes", octets):
                break
            room += 1
        return room

    def is_too_long(self, *, messages: int | None = None) -> bool:
        """By the number of those that it may drop, if no other is given."""
        count = len(self.ready()) + len(self.delayed) if messages is None else messages
        octets = self.size()
        return count > self.get("x-max-length", count) or octets > self.get("x-max-length-bytes", octets)


class Oracle:
    def __init__(self, declared: Mapping[str, Mapping[str, Any]]) -> None:
        self.declared = declared
        """Arguments of the queues."""
        self.queues: dict[str, OracleQueue] = {}
        self.bound: dict[str, None] = {}
        self.consumers: dict[Key, Consumer] = {}
        self.sinks: dict[str, OracleSink] = {}
        self.limits: dict[Key, int] = {}
        self.failed: set[Key] = set()
        """Sessions that are over."""
        self.last_seq: dict[str, int] = {}
        self.made = 0
        self.now_ms = 0
        self.node = ""
        self.index = 0
        self.sizes: Sequence[int] = ()
        self.slot = 0
        self.ahead: deque[e.Effect] = deque()

    # Commands, by their definition

    def apply(
        self,
        node: str,
        index: int,
        now_ms: int,
        commands: Sequence[c.Command],
        sizes: Sequence[int],
        effects: Sequence[e.Effect],
    ) -> None:
        self.node, self.index, self.now_ms = node, index, now_ms
        self.sizes, self.slot = sizes, 0
        self.ahead = deque(effects)
        left = deque(commands)
        while left:
            command = left.popleft()
            if isinstance(command, c.Commit):
                self._commit(command, [left.popleft() for _ in range(command.count)])
            else:
                self._carry_out(command)
            self._settle_down()
        assert not self.ahead

    def _carry_out(self, command: c.Command) -> None:
        node = self.node
        match command:
            case c.Enqueue() | c.Publish():
                self._publish(command)
            case c.Settle(consumer, first, last):
                self._taken(node, consumer, first, last)
            case c.Discard(consumer, first, last):
                queue, taken = self._taken(node, consumer, first, last)
                self._die(queue, taken, "rejected")
            case c.Return(consumer, first, last) | c.Reject(consumer, first, last):
                queue, taken = self._taken(node, consumer, first, last)
                self._put_back(queue, taken, failed=isinstance(command, c.Reject))
            case c.SessionDown(session):
                self._down(
                    [k for k, v in self.consumers.items() if k[0] == node and v.session == session],
                    failed=True,
                )
                self.failed.discard((node, session))
                self.limits.pop((node, session), None)
            case c.Credit(consumer, count):
                known = self.consumers.get((node, consumer))
                if known is not None and known.live and known.flow is None:
                    known.credit += count
            case c.Modify(consumer, first, last):
                self._modify(command)
            case c.SetCredit(consumer, number, limit, is_drain, wants_state):
                known = self.consumers.get((node, consumer))
                flow = None if known is None or not known.live else known.flow
                if known is not None and flow is not None and number > flow.number:
                    flow.number, flow.is_draining = number, is_drain
                    flow.wants_state = flow.wants_state or wants_state
                    known.credit = min(max(limit - known.delivered, 0), CREDIT_MAX)
            case c.SetPrefetch(consumer, credit):
                known = self.consumers.get((node, consumer))
                if known is not None and known.live and known.auto_credit:
                    known.credit += credit - known.prefetch
                    known.prefetch = credit
            case c.DeadLetter():
                self._dead_letter(command)
            case c.OpenGroup() | c.LeaseMessages() | c.CommitLeases() | c.ReleaseLease() | c.CloseGroup():
                if command.queue in self.queues:
                    self._group(self.queues[command.queue], command)
            case c.OpenSink() | c.StageMessages() | c.CommitEpoch() | c.CloseSink():
                self._sink(command)
            case _:
                if (node, command.session) not in self.failed:
                    self._answered(command)

    def _answered(self, command: Any) -> None:
        node = self.node
        match command:
            case c.DeclareQueue(_, _, name):
                if name not in self.queues:
                    self.made += 1
                    self.queues[name] = OracleQueue(name, self.made, self.declared[name])
                queue = self.queues[name]
                self._serve(queue)
                consumers = sum(v.live for v in self.consumers.values() if v.queue == name)
                assert self._reply() == e.QueueDeclared(name, len(queue.ready()), consumers)
            case c.BindQueue(_, _, name):
                self.bound[name] = None
                assert self._reply() == e.Done()
            case c.DeleteQueue(_, _, name, _, if_empty):
                queue = self.queues[name]
                self._serve(queue)
                if if_empty and queue.messages():
                    self._fails(command.session)
                    return
                ended = {key for key, v in self.consumers.items() if v.queue == name and v.live}
                assert self._reply() == e.QueueDeleted(len(queue.ready()))
                released = [self.ahead.popleft() for _ in ended]
                assert {(effect.node, effect.consumer) for effect in released} == ended
                self._deleted(name)
            case c.PurgeQueue(_, _, name):
                queue = self.queues[name]
                self._serve(queue)
                assert self._reply() == e.QueuePurged(queue.messages())
                queue.first_dead += len(queue.dying())
                queue.returns, queue.levels, queue.delayed, queue.dead = [], [], [], []
                queue.stuck = {}
            case c.Checkout(session=session, queue=name) if self.queues[name].is_held_by_group:
                self._fails(session)
            case c.Checkout(session, _, _, consumer, name, _, credit, no_ack):
                budget = None if no_ack else self._on_channel(session)
                priority = command.arguments.get("x-priority", 0)
                new = Consumer(node, session, name, credit, credit, command.auto_credit, budget, priority)
                self.consumers[node, consumer] = new
                if budget is not None:
                    budget.append(new)
                assert self._reply() == e.Consuming(consumer)
            case c.AttachConsumer():
                self._attach(command)
            case c.Cancel(_, consumer):
                if (node, consumer) in self.consumers:
                    self.consumers[node, consumer].live = False
                assert self._reply() == e.ConsumerCancelled(consumer)
            case c.Get(session, _, _, consumer, name, no_ack):
                self._get(session, consumer, name, no_ack=no_ack)
            case c.GetMessages(session, _, _, consumer, name, no_ack, _, count):
                self._get_messages(session, consumer, name, count, no_ack=no_ack)
            case c.Recover(session):
                assert self._reply() == e.Recovered()
                mine = [k for k, v in self.consumers.items() if k[0] == node and v.session == session]
                self._return_all(mine, failed=False)
            case c.Limit(session, count):
                self.limits[node, session] = count
                assert self._reply() == e.Limited()
            case _:
                raise AssertionError(f"{command} is not known here")

    def _attach(self, command: c.AttachConsumer) -> None:
        queue, number = self.queues[command.queue], command.consumer
        if queue.is_held_by_group:
            reply = self._reply()
            assert isinstance(reply, e.AttachRefused)
            assert (reply.consumer, reply.code) == (number, 403)
            return
        budget = None if command.no_ack else self._on_channel(command.session)
        priority = command.arguments.get("x-priority", 0)
        flow = Flow(command.no_ack, command.wants_activity, command.timeout_ms)
        new = Consumer(
            self.node, command.session, queue.name, 0, 0, False, budget, priority=priority, flow=flow
        )
        self.consumers[self.node, number] = new
        if budget is not None:
            budget.append(new)
        self._settle_down()
        flow.was_active = self._is_active(queue, new)
        assert self._reply() == e.Attached(number, flow.was_active)

    def _modify(self, command: c.Modify) -> None:
        queue, taken = self._taken(self.node, command.consumer, command.first, command.last)
        annotations = dict(zip(command.annotation_keys, command.annotation_values, strict=False))
        for message in taken:
            message.annotate(annotations)
        if command.undeliverable_here:
            self._die(queue, taken, "rejected")
        else:
            failed, ready_ms = command.delivery_failed, command.ready_ms
            self._put_back(queue, taken, failed=failed, ended=failed, ready_ms=ready_ms)

    def _get(self, session: int, consumer: int, name: str, *, no_ack: bool) -> None:
        queue = self.queues[name]
        sac = queue.get("x-single-active-consumer") and queue.get("x-queue-type") == QUORUM
        if sac or queue.is_held_by_group:
            self._fails(session)
            return
        self._serve(queue)
        reply = self._reply()
        if not queue.ready():
            assert reply == e.GetEmpty()
            return
        assert isinstance(reply, e.GetOk)
        message = queue.take()
        assert [message.seen()] == seen_of([reply.range], {reply.range.history: reply.history})
        assert reply.remaining == len(queue.ready())
        if not no_ack:
            self._takes(session, consumer, name, [message])

    def _get_messages(self, session: int, consumer: int, name: str, count: int, *, no_ack: bool) -> None:
        queue = self.queues[name]
        sac = queue.get("x-single-active-consumer") and queue.get("x-queue-type") == QUORUM
        if sac or queue.is_held_by_group:
            self._fails(session)
            return
        self._serve(queue)
        reply = self._reply()
        assert isinstance(reply, e.Got)
        assert sum(part.count for part in reply.ranges) == min(len(queue.ready()), count)
        messages = [queue.take() for _ in range(min(len(queue.ready()), count))]
        assert [message.seen() for message in messages] == seen_of(reply.ranges, reply.histories)
        assert reply.remaining == len(queue.ready())
        if messages and not no_ack:
            self._takes(session, consumer, name, messages)

    # Groups

    def _group(self, queue: OracleQueue, command: Any) -> None:
        group = queue.groups.get(command.group)
        match command:
            case c.OpenGroup(_, _, name, fence, owner):
                self._open(queue, name, fence, owner, tuple(command)[6:])
                return
            case _ if group is None or group.fence != command.fence:
                return
            case _ if command.generation not in (0, group.generation):
                return
            case c.LeaseMessages(_, _, _, _, number, count, octets):
                if number not in group.leases:
                    if number <= max(group.committed, group.last):
                        return
                    self._serve(queue)
                    leased = queue.lease(max(count, 1), octets, by_arrival=group.settings[0] == "arrival")
                    if leased:
                        group.leases[number] = leased
                        group.last = max(group.last, number)
            case c.CommitLeases(up_to=up_to):
                if up_to > group.committed and up_to not in group.leases:
                    return
                for number in [number for number in group.leases if number <= up_to]:
                    del group.leases[number]
                group.committed = max(group.committed, up_to)
            case c.ReleaseLease(lease=number):
                if number in group.leases:
                    queue.release(group, number)
            case c.CloseGroup(releases=releases):
                if group.leases and not releases:
                    return
                self._end_group(queue, command.group)
        group.used_ms = self.now_ms

    def _open(self, queue: OracleQueue, name: str, fence: int, owner: str, settings: tuple[Any, ...]) -> None:
        group = queue.groups.get(name)
        if group is None or fence > group.fence:
            others = [each for each in queue.groups.values() if each is not group]
            live = [v for v in self.consumers.values() if v.queue == queue.name and v.live]
            if any(settings[1] or other.settings[1] for other in others) or (settings[1] and live):
                return
        if group is None:
            queue.groups[name] = OracleGroup(fence, owner, settings, self.index, self.now_ms)
        elif fence > group.fence:
            group.fence, group.owner, group.settings = fence, owner, settings
            group.used_ms = self.now_ms
        elif (fence, owner, settings) == (group.fence, group.owner, group.settings):
            group.used_ms = self.now_ms

    def _end_group(self, queue: OracleQueue, name: str) -> None:
        for number in list(queue.groups[name].leases):
            queue.release(queue.groups[name], number)
        del queue.groups[name]

    def _end_idle_groups(self) -> None:
        for queue in self.queues.values():
            for name, group in list(queue.groups.items()):
                idle_ms = group.settings[2]
                if idle_ms and group.used_ms + idle_ms <= self.now_ms:
                    self._end_group(queue, name)

    def _takes(self, session: int, consumer: int, name: str, messages: Sequence[Message]) -> None:
        taker = Consumer(
            self.node,
            session,
            name,
            0,
            0,
            auto_credit=False,
            budget=None,
            live=False,
            delivered=len(messages),
        )
        taker.held.update(enumerate(messages))
        self.consumers[self.node, consumer] = taker

    def _commit(self, command: c.Commit, content: Sequence[c.Command]) -> None:
        if (self.node, command.session) in self.failed:
            self.slot += sum(part.count for part in content if isinstance(part, c.Enqueue | c.Publish))
            return
        wanted: dict[str, list[int]] = {}
        slot = self.slot
        for part in content:
            if isinstance(part, c.Enqueue | c.Publish):
                sizes = self.sizes[slot + self._repeats(part) : slot + part.count]
                slot += part.count
                for name in self._routes(part):
                    wanted.setdefault(name, []).extend(sizes)
        if not all(self._can_commit(part) for part in content if isinstance(part, c.CommitLeases)):
            self.slot = slot
            self._fails(command.session)
            return
        for name, sizes in wanted.items():
            if self._rooms([self.queues[name]], sizes, at_once=False) != [len(sizes)]:
                self.slot = slot
                self._fails(command.session)
                return
        for part in content:
            if isinstance(part, c.Enqueue | c.Publish):
                self._carry_out(part)
        for part in content:
            if not isinstance(part, c.Enqueue | c.Publish):
                self._carry_out(part)
        assert self._reply() == e.Committed()

    def _can_commit(self, command: c.CommitLeases) -> bool:
        queue = self.queues.get(command.queue)
        group = None if queue is None else queue.groups.get(command.group)
        if group is None or group.fence != command.fence or command.generation not in (0, group.generation):
            return False
        return command.up_to <= group.committed or command.up_to in group.leases

    def _reply(self) -> e.Result:
        reply = self.ahead.popleft()
        assert isinstance(reply, e.Reply), f"{reply} is no reply"
        return reply.result

    def _fails(self, session: int) -> None:
        assert isinstance(self.ahead.popleft(), e.Failed)
        self.failed.add((self.node, session))

    def _on_channel(self, session: int) -> list[Consumer]:
        """The list that the consumers of a channel share."""
        for consumer in self.consumers.values():
            if (consumer.node, consumer.session) == (self.node, session) and consumer.budget is not None:
                return consumer.budget
        return []

    # Sinks

    def _sink(self, command: Any) -> None:
        if isinstance(command, c.StageMessages):
            slot, self.slot = self.slot, self.slot + command.count
        if isinstance(command, c.OpenSink):
            self.sinks.setdefault(command.sink, OracleSink(command.user))
        sink = self.sinks.get(command.sink)
        if sink is None or sink.user != command.user:
            return
        sink.used_ms = self.now_ms
        match command:
            case c.OpenSink():
                sink.expires_ms = command.expires_ms
            case c.StageMessages():
                self._stage(sink, command, slot)
            case c.CommitEpoch(epoch=epoch) if epoch >= sink.first_free:
                self._commit_epoch(sink, command)
            case c.CloseSink():
                del self.sinks[command.sink]

    def _stage(self, sink: OracleSink, command: c.StageMessages, slot: int) -> None:
        attempt = sink.attempts.get(command.attempt) or OracleAttempt(command.epoch)
        is_next = (attempt.epoch, attempt.steps) == (command.epoch, command.step)
        if command.epoch < sink.first_free or attempt.is_refused or not is_next:
            return
        sink.attempts[command.attempt] = attempt
        names = sorted(self._routes(command))
        if not names:
            attempt.is_refused, attempt.messages = True, []
            return
        queues = tuple((name, self.queues[name].number) for name in names)
        attempt.steps += 1
        for at in range(slot, slot + command.count):
            attempt.messages.append(Staged(self.index, at, self.sizes[at], command, queues))

    def _commit_epoch(self, sink: OracleSink, command: c.CommitEpoch) -> None:
        attempts = [sink.attempts.get(name) for name in command.attempts]
        if len(set(command.attempts)) < len(attempts):
            return
        messages: list[Staged] = []
        for attempt, steps in zip(attempts, command.steps, strict=True):
            if (
                attempt is None
                or attempt.is_refused
                or (attempt.epoch, attempt.steps) != (command.epoch, steps)
            ):
                return
            messages += attempt.messages
        sizes: dict[tuple[str, int], list[int]] = {}
        for message in messages:
            for queue in message.queues:
                sizes.setdefault(queue, []).append(message.size)
        there = {ref: self.queues[ref[0]] for ref in sizes if self._number(ref[0]) == ref[1]}
        for queue in there.values():
            if queue.refuses:
                self._serve(queue)
        if len(there) < len(sizes) or any(
            queue.room(sizes[ref]) < len(sizes[ref]) for ref, queue in there.items()
        ):
            return
        for message in messages:
            for ref in message.queues:
                self._enter(there[ref], Message(*message[:3]), message.command)
        sink.first_free = command.epoch + 1
        sink.attempts = {name: each for name, each in sink.attempts.items() if each.epoch > command.epoch}

    def _number(self, name: str) -> int | None:
        return self.queues[name].number if name in self.queues else None

    # Publishing

    def _routes(self, command: c.Enqueue | c.Publish | c.StageMessages) -> list[str]:
        if command.exchange == "amq.fanout":
            return list(self.bound)
        keys = [command.routing_key, *(() if isinstance(command, c.Enqueue) else command.more_keys)]
        return [name for name in self.queues if name in keys]

    def _repeats(self, command: c.Enqueue | c.Publish) -> int:
        if not isinstance(command, c.Publish) or not command.publisher:
            return 0
        last = self.last_seq.get(command.publisher, 0)
        return sum(command.publish_seq + step <= last for step in range(command.count))

    def _publish(self, command: c.Enqueue | c.Publish) -> None:
        slot, self.slot = self.slot, self.slot + command.count
        if (self.node, command.session) in self.failed:
            return
        plain = isinstance(command, c.Enqueue)
        names = sorted(self._routes(command))
        first = self._repeats(command)
        sizes = self.sizes[slot + first : slot + command.count]
        targets = [self.queues[name] for name in names]
        at_once = plain or not command.delay_ms
        rooms = self._rooms(targets, sizes, at_once=at_once)
        accepted = min(rooms, default=len(sizes))
        if not plain and command.publisher and accepted:
            self.last_seq[command.publisher] = command.publish_seq + first + accepted - 1
        for queue in targets:
            for step in range(accepted):
                self._enter(queue, Message(self.index, slot + first + step, sizes[step]), command)
        if accepted:
            self._serve_if_full(targets)
        refused = len(sizes) - accepted
        if refused and command.first_seq:
            first_refused = command.first_seq + first + accepted
            full = names[rooms.index(accepted)]
            rejected = e.Rejected(self.node, command.session, first_refused, refused, full)
            assert self.ahead.popleft() == rejected

    def _enter(
        self, queue: OracleQueue, message: Message, command: c.Enqueue | c.Publish | c.StageMessages
    ) -> None:
        plain = isinstance(command, c.Enqueue)
        delay_ms = 0 if plain else command.delay_ms
        ready_ms = self.now_ms + delay_ms
        message.expires_ms = queue.expiry_ms(NO_TTL if plain else command.ttl_ms, ready_ms)
        message.level = queue.level(NO_PRIORITY if plain else command.priority)
        if delay_ms:
            self._delay(queue, message, ready_ms, returned=False)
        else:
            queue.arrive(message)

    def _rooms(self, queues: Sequence[OracleQueue], sizes: Sequence[int], *, at_once: bool) -> list[int]:
        """How many messages each takes; `at_once`, those that its consumers could have then take no room."""
        for queue in queues:
            if queue.room(sizes) < len(sizes):
                self._serve(queue)
        promised: dict[Key, int] = {}
        rooms: list[int] = []
        for queue in queues:
            is_short = queue.room(sizes) < len(sizes)
            wanted = self._wanted(queue, len(sizes), promised) if at_once and is_short else 0
            rooms.append(wanted + queue.room(sizes[wanted:]))
        return rooms

    def _wanted(self, queue: OracleQueue, count: int, promised: dict[Key, int]) -> int:
        """How many of the next messages consumers would have; `promised` counts those of channels with a limit."""
        if queue.ready():
            return 0
        takers = [consumer for consumer in self.consumers.values() if self._could_get(queue, consumer)]
        by_channel: dict[Key, list[Consumer]] = {}
        wanted = 0
        for taker in takers:
            channel = (taker.node, taker.session)
            if taker.budget is None or not self.limits.get(channel):
                wanted += taker.credit
            else:
                by_channel.setdefault(channel, []).append(taker)
        for channel, together in by_channel.items():
            held = sum(len(other.held) for other in together[0].budget or ())
            left = max(self.limits[channel] - held - promised.get(channel, 0), 0)
            part = min(sum(taker.credit for taker in together), left, count)
            promised[channel] = promised.get(channel, 0) + part
            wanted += part
        return min(wanted, count)

    def _serve_if_full(self, queues: Sequence[OracleQueue]) -> None:
        for queue in queues:
            if queue.refuses and queue.is_too_long(messages=queue.messages()):
                self._serve(queue)

    # Dead letters

    def _die(self, queue: OracleQueue | None, messages: list[Message], reason: str) -> None:
        if queue is not None and messages and queue.get("x-dead-letter-exchange") is not None:
            queue.dead.append(Dead(messages, reason))

    def _dead_letter(self, command: c.DeadLetter) -> None:
        queue = self.queues.get(command.queue)
        if queue is None or queue.number != command.number:
            return
        taken = self._taken_again(queue, command) or self._taken_first(queue, command)
        ended: dict[str, int] = {}
        for number, dead in taken.items():
            moved, target = self._move(queue, number, dead, command)
            if moved:
                ended[dead.reason] = ended.get(dead.reason, 0) + moved
            del dead.messages[:moved]
            if dead.messages:
                queue.stuck[number + moved] = Stuck(dead, target)
        strategy = "at-least-once" if queue.at_least_once else "at-most-once"
        for reason, count in ended.items():
            assert self.ahead.popleft() == e.DeadLettered(self.node, reason, strategy, count)

    def _taken_first(self, queue: OracleQueue, command: c.DeadLetter) -> dict[int, Dead]:
        taken: dict[int, Dead] = {}
        left = command.count if queue.first_dead == command.first else 0
        while left and queue.dead:
            dead = queue.dead[0]
            taken[queue.first_dead] = part = Dead(dead.messages[:left], dead.reason)
            del dead.messages[:left]
            left -= len(part.messages)
            queue.first_dead += len(part.messages)
            if not dead.messages:
                del queue.dead[0]
        return taken

    def _taken_again(self, queue: OracleQueue, command: c.DeadLetter) -> dict[int, Dead]:
        """Those of the command that wait for the same target as its first."""
        end = command.first + command.count
        waiting = {
            number + place: (stuck, place)
            for number, stuck in queue.stuck.items()
            for place in range(len(stuck.dead.messages))
        }
        if command.first not in waiting:
            return {}
        target = waiting[command.first][0].target
        taken: dict[int, Dead] = {}
        for number, (dead, for_target) in sorted(queue.stuck.items()):
            low, high = max(number, command.first), min(number + len(dead.messages), end)
            if for_target != target or low >= high:
                continue
            del queue.stuck[number]
            if number < low:
                queue.stuck[number] = Stuck(Dead(dead.messages[: low - number], dead.reason), target)
            if dead.messages[high - number :]:
                queue.stuck[high] = Stuck(Dead(dead.messages[high - number :], dead.reason), target)
            taken[low] = Dead(dead.messages[low - number : high - number], dead.reason)
        return taken

    def _move(self, queue: OracleQueue, number: int, dead: Dead, command: c.DeadLetter) -> tuple[int, str]:
        """Move messages to their targets.

        Return the number of moved messages, and the queue for which the rest must wait.
        """
        key = queue.get("x-dead-letter-routing-key", dead.messages[0].key)
        keys = [command.routing_key, *command.cc, *command.bcc] if key is None else [key]
        deaths = dead.messages[0].deaths
        deaths = (
            (queue.name, dead.reason, 1 + sum(n for *at, n in deaths if at == [queue.name, dead.reason])),
            *(death for death in deaths if death[:2] != (queue.name, dead.reason)),
        )
        routed = [name for name in sorted(self.queues) if name in keys]
        targets = [self.queues[name] for name in routed if not goes_round(deaths, name)]
        messages = dead.messages
        sizes = [message.size for message in messages]
        behind = [
            target.name
            for target in targets
            if any(stuck.target == target.name and other < number for other, stuck in queue.stuck.items())
        ]
        if queue.at_least_once and (behind or not routed):
            return 0, behind[0] if behind else ""
        any_refuses = any(target.refuses for target in targets)
        room = [len(sizes)] * len(targets)
        if any_refuses:
            room = self._rooms(targets, sizes, at_once=True)
        count = len(messages)
        if queue.at_least_once:
            count = min(room, default=count)
        full = [target.name for target, free in zip(targets, room, strict=True) if free == count]
        for target, free in zip(targets, room, strict=True):
            for message in messages[: min(free, count)]:
                moved = Message(message.index, message.slot, message.size, deaths=deaths, key=key)
                moved.expires_ms = target.expiry_ms(NO_TTL, self.now_ms)
                moved.level = target.level(command.priority)
                moved.failed_before = message.failed_before
                moved.annotations = message.annotations
                if queue.quorum:
                    moved.failed_before += message.failures + (dead.reason == "rejected")
                target.arrive(moved)
        self._serve_if_full(targets)
        return count, full[0] if count < len(messages) else ""

    # Messages come back

    def _taken(
        self, node: str, consumer: int, first: int, last: int
    ) -> tuple[OracleQueue | None, list[Message]]:
        known = self.consumers.get((node, consumer))
        if known is None:
            return None, []
        taken = [known.held.pop(key) for key in sorted(known.held) if first <= key <= last]
        if known.auto_credit:
            known.credit += len(taken)
        return self.queues[known.queue], taken

    def _put_back(
        self,
        queue: OracleQueue | None,
        messages: list[Message],
        *,
        failed: bool,
        ended: bool = False,
        ready_ms: int = 0,
    ) -> None:
        """Return messages that a client rejected (`failed`), or whose channel ended (both), or neither."""
        if queue is None:
            return
        new_contract = queue.get("x-delivery-count-mode") == "4.3"
        limit = queue.get("x-delivery-limit", 20) if queue.quorum else -1
        retry = queue.get("x-delayed-retry-type")
        dead: list[Message] = []
        for message in messages:
            message.deliveries += 1
            message.failures += (failed and new_contract) or (ended and queue.quorum)
            counted = message.failures if new_contract else message.deliveries
            if 0 <= limit < counted:
                dead.append(message)
            elif retry in ("all", "failed" if failed else "returned"):
                wait_ms = queue.get("x-delayed-retry-min") * max(1, counted)
                wait_ms = min(wait_ms, queue.get("x-delayed-retry-max"))
                if ready_ms:
                    wait_ms = max(ready_ms - self.now_ms, 0)
                self._delay(queue, message, self.now_ms + wait_ms, returned=True)
            elif not queue.quorum or queue.get("x-return-position") == "original":
                queue.put_into_place([message])
            else:
                queue.returns.append(message)
        self._die(queue, dead, "delivery_limit")

    def _delay(self, queue: OracleQueue, message: Message, due_ms: int, *, returned: bool) -> None:
        queue.delayed.append((due_ms, queue.delays, returned, message))
        queue.delays += 1

    def _return_all(self, keys: list[Key], *, failed: bool) -> None:
        by_queue: dict[str, list[Message]] = {}
        for node, number in keys:
            consumer = self.consumers[node, number]
            _, taken = self._taken(node, number, 0, consumer.delivered)
            by_queue.setdefault(consumer.queue, []).extend(taken)
        for name, messages in by_queue.items():
            messages.sort(key=lambda message: message.position)
            self._put_back(self.queues[name], messages, failed=failed, ended=failed)

    def _down(self, keys: list[Key], *, failed: bool) -> None:
        for key in keys:
            self.consumers[key].live = False
        self._return_all(keys, failed=failed)
        for key in keys:
            budget = self.consumers.pop(key).budget
            if budget is not None:
                budget.clear()

    def node_down(self, node: str, now_ms: int) -> None:
        self.now_ms = now_ms
        self._down([key for key in self.consumers if key[0] == node], failed=False)
        self.failed = {key for key in self.failed if key[0] != node}
        self.limits = {key: limit for key, limit in self.limits.items() if key[0] != node}
        self._settle_down()

    def _deleted(self, name: str) -> None:
        del self.queues[name]
        self.bound.pop(name, None)
        for key in [key for key, v in self.consumers.items() if v.queue == name]:
            self._forget(key)

    def _forget(self, key: Key) -> None:
        consumer = self.consumers.pop(key)
        if consumer.budget is not None:
            consumer.budget.remove(consumer)

    def _settle_down(self) -> None:
        """Forget ended consumers, and determine the active consumers."""
        for key in [key for key, v in self.consumers.items() if not v.live and not v.held]:
            self._forget(key)
        for queue in self.queues.values():
            if queue.get("x-single-active-consumer"):
                best, active = self._best(queue), queue.active
                if active is None or not active.live or not active.held:
                    queue.active = best

    def _best(self, queue: OracleQueue) -> Consumer | None:
        live = [v for v in self.consumers.values() if v.queue == queue.name and v.live]
        top = max((v.priority for v in live), default=0)
        equals = [v for v in live if v.priority == top]
        return queue.active if queue.active in equals else next(iter(equals), None)

    # Time, and deliveries as the machine decided them

    def end_entry(self, now_ms: int, effects: Sequence[e.Effect]) -> None:
        self.now_ms = now_ms
        self.ahead = deque(effects)
        self._end_idle_groups()
        for name, sink in list(self.sinks.items()):
            if sink.expires_ms and sink.used_ms + sink.expires_ms <= now_ms:
                del self.sinks[name]
        self._time_out()
        served: list[str] = []
        while self.ahead:
            effect = self.ahead[0]
            assert isinstance(effect, e.Deliver | e.ConsumerState)
            name = self.consumers[effect.node, effect.consumer].queue
            assert name not in served
            served.append(name)
            self._serve(self.queues[name])
        for name, queue in self.queues.items():
            if name not in served:
                self._serve(queue)
        # More queues of a channel may have used up its limit.
        for queue in self.queues.values():
            self._check_no_consumer_waits(queue)

    def _time_out(self) -> None:
        """Follow the machine in returning deliveries, whose times it knows to a second."""
        while self.ahead and isinstance(self.ahead[0], e.DeliveryTimeout):
            timeout, released = self.ahead.popleft(), self.ahead.popleft()
            assert isinstance(released, e.DeliveriesReleased)
            node, session, number, first, last = released
            assert timeout[:3] == released[:3]
            consumer = self.consumers[node, number]
            assert consumer.session == session
            assert consumer.flow is not None
            assert not consumer.flow.no_ack
            queue, taken = self._taken(node, number, first, last)
            assert taken
            latest_ms = max(time_ms for key, time_ms in consumer.delivered_ms.items() if first <= key <= last)
            assert latest_ms + consumer.flow.timeout_ms <= self.now_ms
            self._put_back(queue, taken, failed=False)
        for consumer in self.consumers.values():
            flow = consumer.flow
            has_failed = (consumer.node, consumer.session) in self.failed
            if flow is not None and flow.timeout_ms and not flow.no_ack and not has_failed:
                times = [consumer.delivered_ms[key] for key in consumer.held]
                assert all(time_ms + flow.timeout_ms + MARK_MS > self.now_ms for time_ms in times)
        self._settle_down()

    def _serve(self, queue: OracleQueue) -> None:
        self._follow_reports(queue, before=True)
        for entry in sorted(queue.delayed, key=lambda entry: entry[:2]):
            if entry[0] <= self.now_ms:
                queue.delayed.remove(entry)
                due_ms, _, returned, message = entry
                if returned:
                    queue.returns.append(message)
                    continue
                if message.expires_ms:
                    message.expires_ms += self.now_ms - due_ms
                queue.arrive(message)
        self._expire(queue, self.now_ms - 1)
        self._follow(queue)
        self._expire(queue, self.now_ms)
        dropped: list[Message] = []
        while not queue.refuses and queue.ready() and queue.is_too_long():
            dropped.append(queue.take())
        self._die(queue, dropped, "maxlen")
        self._follow_reports(queue, before=False)

    def _follow_reports(self, queue: OracleQueue, *, before: bool) -> None:
        """Each client is told at once what it wants to know: of activity before the deliveries, of the rest behind."""
        for (node, number), consumer in sorted(self.consumers.items(), key=lambda each: each[0]):
            flow = consumer.flow
            if flow is None or consumer.queue != queue.name or not consumer.live:
                continue
            is_active = self._is_active(queue, consumer)
            if before:
                is_due = flow.wants_activity and flow.was_active != is_active
                flow.was_active = is_active if is_due else flow.was_active
            else:
                is_due = flow.is_draining or flow.wants_state
                if flow.is_draining:
                    consumer.credit = 0
                flow.is_draining = flow.wants_state = False
            if is_due:
                may_get = not queue.get("x-single-active-consumer") or consumer is self._best(queue)
                available = len(queue.ready()) if is_active and may_get else 0
                place = (node, consumer.session, number, flow.number, consumer.delivered)
                state = (consumer.credit, available, flow.is_draining, is_active)
                assert self.ahead.popleft() == e.ConsumerState(*place, *state)

    def _is_active(self, queue: OracleQueue, consumer: Consumer) -> bool:
        return not queue.get("x-single-active-consumer") or consumer is queue.active

    def _expire(self, queue: OracleQueue, until_ms: int) -> None:
        dead = [message for message in self._waiting(queue) if 0 < message.expires_ms <= until_ms]
        queue.returns = [message for message in queue.returns if message not in dead]
        queue.levels = [message for message in queue.levels if message not in dead]
        queue.delayed = [entry for entry in queue.delayed if entry[3] not in dead]
        for message in sorted(dead, key=lambda message: message.expires_ms):
            self._die(queue, [message], "expired")

    def _waiting(self, queue: OracleQueue) -> list[Message]:
        """Return all messages that may expire: delayed messages expire only if they were returned."""
        return queue.ready() + [message for _, _, returned, message in queue.delayed if returned]

    def _follow(self, queue: OracleQueue) -> None:
        """Each consumer gets messages in the order of the queue, within its limits; together they get its head."""
        order = queue.in_order()
        at = {message.seen(): place for place, message in enumerate(order)}
        assert len(at) == len(order)
        got: list[int] = []
        served: list[Consumer] = []
        for effect in self._deliveries(queue, set(at), served):
            consumer = self.consumers[effect.node, effect.consumer]
            assert consumer.live
            assert (effect.session, effect.first_id) == (consumer.session, consumer.delivered)
            places = [at[seen] for seen in seen_of(effect.ranges, effect.histories)]
            assert places == sorted(places)
            for place in places:
                consumer.held[consumer.delivered] = order[place]
                consumer.delivered_ms[consumer.delivered] = self.now_ms
                consumer.delivered += 1
                consumer.credit -= 1
            got += places
            served.append(consumer)
        assert sorted(got) == list(range(len(got)))
        for place in range(len(got)):
            assert queue.take() is order[place]
        if queue.get("x-single-active-consumer"):
            assert not served or served == [queue.active] == [self._best(queue)]
        for consumer in self.consumers.values():
            # A delivery goes to a consumer of the highest priority that could have it.
            if served and self._could_get(queue, consumer):
                assert consumer.priority <= min(other.priority for other in served)
        self._check_no_consumer_waits(queue)

    def _deliveries(
        self, queue: OracleQueue, ready: set[Seen], served: list[Consumer]
    ) -> Iterator[e.Deliver]:
        """Yield the next deliveries from the queue, at most one for each consumer."""
        while self.ahead and isinstance(effect := self.ahead[0], e.Deliver):
            consumer = self.consumers[effect.node, effect.consumer]
            released = seen_of(effect.ranges, effect.histories)
            if consumer.queue != queue.name or consumer in served or not ready.issuperset(released):
                return
            if len(released) > self._room_of(consumer):
                return  # a later command causes this delivery
            self.ahead.popleft()
            yield effect

    def _check_no_consumer_waits(self, queue: OracleQueue) -> None:
        if queue.ready():
            assert not any(self._could_get(queue, consumer) for consumer in self.consumers.values())

    def _could_get(self, queue: OracleQueue, consumer: Consumer) -> bool:
        if consumer.queue != queue.name or not consumer.live or self._room_of(consumer) < 1:
            return False
        sac = queue.get("x-single-active-consumer")
        return not sac or (consumer is queue.active and consumer is self._best(queue))

    def _room_of(self, consumer: Consumer) -> int:
        if consumer.budget is None:
            return consumer.credit
        limit = self.limits.get((consumer.node, consumer.session), 0)
        held = sum(len(other.held) for other in consumer.budget)
        return min(consumer.credit, limit - held) if limit else consumer.credit

    # Comparisons with the machine

    def compare(self, machine: QueueMachine, *, sizes: bool) -> None:
        """`sizes`: all sizes are known, because messages have equal sizes or are kept one by one."""
        assert list(machine.vhosts["/"].queues) == list(self.queues)
        for name, queue in self.queues.items():
            there = machine.vhosts["/"].queues[name]
            mine = [v for v in self.consumers.values() if v.queue == name]
            assert peeked(there, ready_ranges(there)) == [m.seen() for m in queue.in_order()]
            delayed = [entry[3].seen() for entry in sorted(queue.delayed, key=lambda entry: entry[1])]
            assert peeked(there, delayed_ranges(there)) == delayed
            assert there.ready == len(queue.ready())
            assert there.messages == queue.messages()
            if sizes or there.backlog.exact_sizes:
                assert there.backlog.size + there.backlog.delayed_size == queue.size()
            assert there.unacked == sum(len(consumer.held) for consumer in mine)
            assert there.consumers == sum(consumer.live for consumer in mine)
            self._compare_dead(queue, there)
            self._compare_groups(queue, there)
            active = None if there.active is None else (there.active.node, there.active.id)
            assert queue.active is (None if active is None else self.consumers.get(active))
            assert not there.to_report
        assert set(machine.consumers) == set(self.consumers)
        for key, consumer in self.consumers.items():
            there = machine.consumers[key]
            held = {
                first + step: seen
                for first, messages in held_ranges(there)
                for step, seen in enumerate(peeked(there.queue, [messages]))
            }
            assert held == {number: message.seen() for number, message in consumer.held.items()}
            assert there.live == consumer.live
            assert there.credit == consumer.credit or not consumer.live
            flow, credit = consumer.flow, there.client_credit
            assert (flow and flow.number) == (credit and credit.number)
        self._compare_sinks(machine)

    def _compare_sinks(self, machine: QueueMachine) -> None:
        there = machine.vhosts["/"].sinks
        assert list(there) == list(self.sinks)
        for name, sink in self.sinks.items():
            machines = there[name]
            assert (machines.user, machines.expires_ms, machines.used_ms, machines.first_free) == (
                sink.user,
                sink.expires_ms,
                sink.used_ms,
                sink.first_free,
            )
            assert {
                each.name: (
                    each.epoch,
                    each.steps,
                    each.refusal is not None,
                    [(run.index, run.slot + at, run.queues) for run in each.runs for at in range(run.count)],
                )
                for each in machines.attempts.values()
            } == {
                attempt: (
                    each.epoch,
                    each.steps,
                    each.is_refused,
                    [(m.index, m.slot, m.queues) for m in each.messages],
                )
                for attempt, each in sink.attempts.items()
            }
            messages = [message for each in sink.attempts.values() for message in each.messages]
            assert (machines.messages, machines.size) == (
                len(messages),
                sum(message.size for message in messages),
            )
        assert not machine._core.committed

    def _compare_groups(self, queue: OracleQueue, there: Queue) -> None:
        assert list(there.groups) == list(queue.groups)
        for name, group in queue.groups.items():
            machines = there.groups[name]
            assert (machines.fence, machines.owner, tuple(machines.settings)) == (
                group.fence,
                group.owner,
                group.settings,
            )
            assert (machines.first_free - 1, machines.last, machines.used_ms, machines.generation) == (
                group.committed,
                group.last,
                group.used_ms,
                group.generation,
            )
            leases = {
                number: peeked(there, list(lease.ranges())) for number, lease in machines.leases.items()
            }
            assert leases == {
                number: [message.seen() for message in messages] for number, messages in group.leases.items()
            }
            assert machines.leased == sum(map(len, leases.values()))
        assert not there.ended
        assert there.leased == sum(group.leased for group in there.groups.values())
        assert there.leased_size == sum(group.leased_size for group in there.groups.values())

    def _compare_dead(self, queue: OracleQueue, there: Queue) -> None:
        """Compare the dead messages; the machine decides the order of those that died at a single moment."""
        assert queue.first_dead == there.first_dead
        mine = [(message, dead.reason) for dead in queue.dead for message in dead.messages]
        by_sight = {(message.seen(), reason): message for message, reason in mine}
        groups = [
            ([by_sight.pop((seen, dead.reason)) for seen in peeked(there, [dead.range])], dead.reason)
            for dead in there.dead
        ]
        assert not by_sight
        queue.dead = [Dead(messages, reason) for messages, reason in groups]
        stuck = stuck_dead(there)
        assert [
            (number + place, seen, dead.reason, target)
            for number, dead, target in stuck
            for place, seen in enumerate(peeked(there, [dead.range]))
        ] == [
            (number + place, message.seen(), dead.reason, target)
            for number, (dead, target) in sorted(queue.stuck.items())
            for place, message in enumerate(dead.messages)
        ]
        messages = {
            number + place: message
            for number, (dead, _) in queue.stuck.items()
            for place, message in enumerate(dead.messages)
        }
        queue.stuck = {
            number: Stuck(
                Dead([messages[number + place] for place in range(dead.range.count)], dead.reason), target
            )
            for number, dead, target in stuck
        }


def goes_round(deaths: Deaths, target: str) -> bool:
    """Return whether the message died in the target without a rejection since."""
    since = [death for death in deaths if death[0] == target]
    if not since:
        return False
    return not any(reason == "rejected" for _, reason, _ in deaths[: deaths.index(since[0]) + 1])


def seen_of(ranges: Sequence[Range], histories: Mapping[int, History | None]) -> list[Seen]:
    found: list[Seen] = []
    for r in ranges:
        history = histories.get(r.history)
        deaths = () if history is None else tuple((d.queue, d.reason, d.count) for d in history.deaths)
        before = 0 if history is None else history.failures
        annotations = () if history is None else history.annotations
        same = (r.deliveries, r.failures, r.expires_ms, r.level, deaths, before, annotations)
        found += [Seen(r.index, r.slot + at, *same) for at in range(r.count)]
    return found


def peeked(queue: Queue, ranges: Sequence[Range]) -> list[Seen]:
    return seen_of(ranges, {r.history: queue.histories.get(r.history) for r in ranges})
