"""The replicated state machine: what the log calls, and which command is carried out by whom.

Lives here: the order of an entry, and the whole state as bytes. Not here: what commands do (publishing.py,
consuming.py, declaring.py), what they share (core.py), bytes (codec.py, state.py), replication (cluster).

Law: a method depends on its arguments and on self, nothing else. No clock, no randomness, no iteration over sets, no
floats. Nothing that a client or a node can send makes it raise: a command that cannot be carried out yields `Failed`
and changes nothing, a batch that cannot be read does nothing at all.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.machine import commands as c
from qq.machine.catalog import Exchange, User
from qq.machine.codec import MalformedBatch, decode_commands, keep, message_sizes
from qq.machine.consumers import Consumer
from qq.machine.consuming import Taking
from qq.machine.core import Core
from qq.machine.declaring import Declaring
from qq.machine.effects import Known, OriginExpelled
from qq.machine.errors import Refused
from qq.machine.policies import Policy
from qq.machine.publishing import Publishing
from qq.machine.queue import Dying, Queue, held
from qq.machine.settings import consumer_settings_of, settings_of
from qq.machine.state import ConsumerRow, Frozen, SessionRow, answer_of, read_dump
from qq.ranges import MESSAGE_BITS, Range
from qq.routing.exchanges import Binding, Destination, DestinationKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from qq.machine.effects import Deliver, Effect, Result


class DyingMessages(NamedTuple):
    """The first messages of a queue that wait to be dead-lettered, for the node that sees to it."""

    queue: str
    number: int
    """Of the queue."""
    first: int
    """Number of the first of these messages."""
    ranges: list[Range]


class QueueMachine:
    """Queues, and the catalog they live in."""

    def __init__(self) -> None:
        self._begin(Core())

    def _begin(self, core: Core) -> None:
        self._core = core
        publishing, taking, declaring = Publishing(core), Taking(core), Declaring(core)
        self._publishing = publishing
        self._handlers: dict[type[c.Command], Callable[[Any], None]] = {
            c.Publish: publishing.publish,
            c.DeadLetter: publishing.dead_letter,
            c.Settle: taking.settle,
            c.Discard: taking.settle,
            c.Return: taking.settle,
            c.Reject: taking.settle,
            c.Credit: taking.credit,
            c.SetPrefetch: taking.set_prefetch,
            c.SessionDown: taking.session_down,
            c.ConnectionDown: declaring.connection_down,
            c.PutUser: declaring.put_user,
            c.DeleteUser: declaring.delete_user,
            c.PutPolicy: declaring.put_policy,
            c.DeletePolicy: declaring.delete_policy,
            c.LimitPublishers: declaring.limit_publishers,
        }
        self._methods: dict[type[c.Command], Callable[[Any], Result]] = {
            c.Checkout: taking.checkout,
            c.Cancel: taking.cancel,
            c.Get: taking.get,
            c.Recover: taking.recover,
            c.Limit: taking.limit,
            c.DeclareQueue: declaring.declare_queue,
            c.DeleteQueue: declaring.delete_queue,
            c.PurgeQueue: declaring.purge_queue,
            c.BindQueue: declaring.bind_queue,
            c.UnbindQueue: declaring.unbind_queue,
            c.DeclareExchange: declaring.declare_exchange,
            c.DeleteExchange: declaring.delete_exchange,
            c.BindExchange: declaring.bind_exchange,
            c.UnbindExchange: declaring.unbind_exchange,
        }

    # What the log calls

    def apply_batch(
        self, origin: str, index: int, ordinal: int, time_ms: int, payload: bytes | memoryview
    ) -> list[Effect]:
        """Carry out the commands of one batch, in order; `ordinal` is its place in the entry."""
        try:
            commands = decode_commands(payload)
        except MalformedBatch:
            return []
        core = self._core
        core.origin, core.index, core.time_ms = origin, index, time_ms
        core.next_slot = ordinal << MESSAGE_BITS
        core.sizes, core.size = message_sizes(payload)
        handlers, publishing = self._handlers, self._publishing
        ahead = iter(enumerate(commands))
        for core.position, command in ahead:
            if type(command) is c.Enqueue:
                publishing.enqueue(command)
                continue
            publishing.flush()
            handler = handlers.get(type(command))
            if handler is not None:
                handler(command)
            elif isinstance(command, c.Commit):
                content = commands[core.position + 1 : core.position + 1 + command.count]
                publishing.commit(command, content, handlers[c.Settle])
                for _ in content:
                    next(ahead)
            else:
                self._answer(command)
        publishing.flush()
        return core.take_effects()

    def end_entry(self, time_ms: int) -> list[Effect]:
        """Do what time brings, and serve the queues that have something new, in the order in which they got it."""
        self._core.time_ms = time_ms
        self._core.end_entry()
        return self._core.take_effects()

    def due_ms(self) -> int | None:
        """When an entry will do something although nobody asks for anything; None for never."""
        return self._core.due_ms()

    def origin_down(self, origin: str, time_ms: int, *, expelled: bool) -> list[Effect]:
        """The node restarted or was given up: what its sessions held returns, its exclusive queues go."""
        core = self._core
        core.time_ms = time_ms
        for key in [key for key in core.sessions if key[0] == origin]:
            del core.sessions[key]
        mine = [consumer for consumer in core.consumers.values() if consumer.node == origin]
        core.end_consumers(mine, failed=False)
        for queue in core.catalog.owned_queues_of_node(origin):
            core.remove_queue(queue)
        if expelled:
            core.effects.append(OriginExpelled(origin))
        return core.take_effects()

    def outstanding(self, origin: str) -> list[Effect]:
        """What the sessions of a node are owed: for each its last answer, all that its consumers hold, and `Known`."""
        effects: list[Effect] = []
        for (node, number), session in self._core.sessions.items():
            if node != origin:
                continue
            if session.answer is not None:
                effects.append(session.answer)
            for consumer in session.consumers.values():
                # What `Get` took was told in its answer.
                if consumer.next_id:
                    effects.extend(_deliveries(consumer))
            live = [consumer.id for consumer in session.consumers.values() if consumer.live]
            effects.append(Known(node, number, session.answers, live))
        return effects

    def compact(self, payload: bytes | memoryview, messages: Sequence[tuple[int, int]]) -> bytes:
        """Reduce a batch to some of its messages; one that cannot be read stays as it is."""
        try:
            return keep(payload, messages)
        except MalformedBatch:
            return bytes(payload)

    def _answer(self, command: Any) -> None:
        """Carry out what a client waits for, unless an error has already closed its channel."""
        core = self._core
        session = core.session(core.origin, command.session)
        if session.failed:
            return
        try:
            result = self._methods[type(command)](command)
        except Refused as refused:
            core.fail(command, refused)
            return
        core.answer(session, command.session, result)

    # What the shell may look at

    @property
    def queues(self) -> Mapping[str, Queue]:
        """By name; `ready`, `unacked` and `consumers` of each are the counts to show."""
        return self._core.catalog.queues

    @property
    def exchanges(self) -> Mapping[str, Exchange]:
        return self._core.catalog.exchanges

    @property
    def bindings(self) -> Sequence[Binding]:
        return list(self._core.catalog.bindings)

    @property
    def users(self) -> Mapping[str, User]:
        return self._core.catalog.users

    @property
    def policies(self) -> Sequence[Policy]:
        """Those of users first, by name."""
        return self._core.catalog.policies.rows()

    @property
    def publishers_bounds(self) -> tuple[int, int]:
        """How many publishers are remembered, and for how long (ms) after their last message."""
        return self._core.publishers.bounds

    @property
    def consumers(self) -> Mapping[tuple[str, int], Consumer]:
        """By node and consumer id; those that are not `live` only hold messages."""
        return self._core.consumers

    def dying(self, ranges_max: int) -> Iterator[DyingMessages]:
        """What waits to be dead-lettered, queue by queue; at most so many ranges of each."""
        for queue in self._core.dying:
            if not queue.retry_ms:
                first = [dead.range for dead, _ in zip(queue.dying, range(ranges_max), strict=False)]
                yield DyingMessages(queue.name, queue.number, queue.dying_first, first)

    # The whole state

    def freeze(self) -> Frozen:
        """The state as it is now, to be read on any thread."""
        core, catalog = self._core, self._core.catalog
        return Frozen(
            users=list(catalog.users.values()),
            policies=catalog.policies.rows(),
            exchanges=list(catalog.exchanges.values()),
            queues_declared=catalog.queues_declared,
            queues=[queue.freeze() for queue in catalog.queues.values()],
            bindings=list(catalog.bindings),
            publishers=core.publishers.freeze(),
            sessions=[
                SessionRow(key, session.queue, session.budget.limit, session.answers, session.answer)
                for key, session in core.sessions.items()
            ],
            consumers=[
                ConsumerRow(
                    consumer,
                    consumer.credit,
                    consumer.prefetch,
                    consumer.live,
                    consumer.next_id,
                    [(first_id, time_ms) for first_id, time_ms in consumer.marks],
                    consumer.unacked.freeze(),
                )
                for consumer in core.consumers.values()
            ],
            dirty=list(core.dirty),
        )

    def dump(self) -> bytes:
        return self.freeze().dump()

    def load(self, data: bytes) -> None:
        """Replace the state by a dumped one. Raises MalformedDump."""
        state = read_dump(data)
        self._begin(Core())
        core, catalog = self._core, self._core.catalog
        for user in state.users:
            catalog.put_user(User(*user))
        for policy in state.policies:
            catalog.put_policy(Policy(*policy))
        for exchange in state.exchanges:
            if exchange[0] not in catalog.exchanges:
                catalog.restore_exchange(Exchange(*exchange))
        for row, dying in zip(state.queues, state.dying, strict=True):
            self._load_queue(row, dying)
        catalog.queues_declared = state.queues_declared
        for source, kind, name, routing_key, arguments in state.bindings:
            destination = Destination(DestinationKind(kind), name)
            catalog.restore_binding(Binding(source, destination, routing_key, arguments))
        core.publishers.load(*state.publishers)
        for node, number, last_declared, limit, answers, answer in state.sessions:
            session = core.session(node, number)
            session.queue, session.answers = last_declared, answers
            session.budget.limit = limit
            session.answer = answer_of(node, number, answer)
        for row, unacked in zip(state.consumers, state.unacked, strict=True):
            self._load_consumer(row, unacked)
        for queue, row in zip(catalog.queues.values(), state.queues, strict=True):
            *_, turns, active = row
            for node, number in turns:
                queue.turns.add(core.consumers[node, number])
            queue.active = core.consumers.get(tuple(active)) if active else None
            core.queue_timers.set(queue, queue.due_ms())
            if queue.dying:
                core.dying[queue] = None
        for name in state.dirty:
            core.dirty[catalog.queues[name]] = None

    def _load_queue(self, row: list[Any], dying: list[list[Any]]) -> None:
        name, kind, durable, owner, auto_delete, arguments, number, had_consumer, used_ms = row[:9]
        backlog, histories, (dying_first, dying_count, retry_ms), _, _ = row[9:]
        queue = Queue(
            name=name,
            kind=kind,
            durable=durable,
            owner=tuple(owner) if owner else None,
            auto_delete=auto_delete,
            arguments=arguments,
            number=number,
            settings=settings_of(kind, arguments, None, None),
            had_consumer=had_consumer,
            used_ms=used_ms,
            dying_first=dying_first,
            dying_count=dying_count,
            retry_ms=retry_ms,
        )
        queue.backlog.load(backlog)
        queue.histories.load(histories)
        queue.dying.extend(Dying(Range(*messages), reason, time_ms) for messages, reason, time_ms in dying)
        self._core.catalog.restore_queue(queue)

    def _load_consumer(self, row: list[Any], unacked: list[tuple[int, list[int]]]) -> None:
        core = self._core
        node, session, channel, number, queue_name, tag, *properties = row
        credit, prefetch, no_ack, exclusive, auto_credit, cancel_on_failover, can_be_cancelled = properties[
            :7
        ]
        timeout_ms, arguments, budgeted, live, next_id, marks = properties[7:]
        queue = core.catalog.queues[queue_name]
        consumer = Consumer(
            node=node,
            session=session,
            channel=channel,
            id=number,
            queue=queue,
            tag=tag,
            credit=credit,
            prefetch=prefetch,
            no_ack=no_ack,
            exclusive=exclusive,
            auto_credit=auto_credit,
            cancel_on_failover=cancel_on_failover,
            can_be_cancelled=can_be_cancelled,
            default_timeout_ms=timeout_ms,
            arguments=arguments,
            settings=consumer_settings_of(arguments),
            budget=core.session(node, session).budget if budgeted else None,
            live=live,
            next_id=next_id,
            marks=[list(mark) for mark in marks],
        )
        for first, messages in unacked:
            held_range = Range(*messages)
            consumer.unacked.append(first, held_range.count, held_range)
            queue.unacked_size += held_range.size
        if consumer.budget is not None:
            consumer.budget.held += len(consumer.unacked)
        queue.holders[consumer] = None
        queue.consumers += live
        queue.unacked += len(consumer.unacked)
        core.enter_consumer(consumer)
        core.watch(consumer)

    def digest(self) -> str:
        """Equal states, equal digests."""
        return hashlib.sha256(self.dump()).hexdigest()


def _deliveries(consumer: Consumer) -> Iterator[Deliver]:
    """Everything that the consumer holds, as if it were delivered again."""
    delivery: Deliver | None = None
    next_id = 0
    for first, messages in held(consumer):
        if delivery is None or first != next_id:
            if delivery is not None:
                yield delivery
            delivery = consumer.delivery([])._replace(first_id=first)
        delivery.ranges.append(messages)
        delivery.histories.update(consumer.queue.histories_of((messages,)))
        next_id = first + messages.count
    if delivery is not None:
        yield delivery
