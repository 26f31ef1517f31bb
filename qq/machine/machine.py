"""The replicated state machine: what each command does, and which effects follow.

Lives here: dispatch, sessions, whose consumer is whose. Not here: bytes (codec.py), the dump (state.py), the order of
messages (queue.py), rules of declaration (catalog.py), replication (cluster), delivery tags (broker).

Law: a method depends on its arguments and on self, nothing else. No clock, no randomness, no iteration over sets, no
floats. Nothing that a client or a node can send makes it raise: a command that cannot be carried out yields `Failed`
and changes nothing, a batch that cannot be read does nothing at all.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qq.machine.arguments import CLASSIC, check_consumer_arguments
from qq.machine.catalog import Catalog, Exchange, Owner, User
from qq.machine.codec import MalformedBatch, decode_commands, keep
from qq.machine.commands import (
    METHODS,
    BindExchange,
    BindQueue,
    Cancel,
    Checkout,
    Command,
    ConnectionDown,
    Credit,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DeleteUser,
    Discard,
    Enqueue,
    Get,
    Method,
    PurgeQueue,
    PutUser,
    Recover,
    Return,
    SessionDown,
    Settle,
    Table,
    UnbindExchange,
    UnbindQueue,
)
from qq.machine.effects import (
    ConsumerCancelled,
    ConsumerGone,
    Consuming,
    Deliver,
    Done,
    Effect,
    Failed,
    GetEmpty,
    GetOk,
    Known,
    OriginExpelled,
    QueueDeclared,
    QueueDeleted,
    QueuePurged,
    Recovered,
    Reply,
    Result,
    Returned,
)
from qq.machine.errors import (
    NO_ROUTE,
    Refused,
    access_refused,
    internal_error,
    not_allowed,
    not_found,
    precondition_failed,
    the_queue,
)
from qq.machine.queue import Consumer, Queue, held
from qq.machine.state import Frozen, answer_of, read_dump
from qq.ranges import MESSAGE_BITS, Range
from qq.routing.exchanges import Binding, Destination, DestinationKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from qq.machine.state import Answer


@dataclass(slots=True, eq=False)
class Session:
    """One AMQP channel, from its first command that is answered until `SessionDown`."""

    queue: str = ""
    """The queue that was declared last."""
    consumers: dict[int, Consumer] = field(default_factory=dict)
    tags: dict[str, Consumer] = field(default_factory=dict)
    """Consumers that are not cancelled, by consumer tag."""
    answers: int = 0
    """How many of its commands were answered."""
    answer: Answer | None = None
    """The last answer, for a node that missed it. `ConsumerCancelled` does not count: it tells nothing, and several
    can be missed at once."""

    @property
    def failed(self) -> bool:
        """An error was sent: whatever was under way behind it must not happen."""
        return type(self.answer) is Failed


class QueueMachine:
    """Queues, and the catalog they live in."""

    def __init__(self) -> None:
        self._handlers: dict[type[Command], Callable[[str, Any], None]] = {
            Enqueue: self._enqueue,
            Settle: self._settle,
            Discard: self._settle,
            Return: self._return,
            Credit: self._credit,
            SessionDown: self._session_down,
            ConnectionDown: self._connection_down,
            PutUser: self._put_user,
            DeleteUser: self._delete_user,
        }
        self._methods: dict[type[Command], Callable[[str, Any], Result]] = {
            Checkout: self._checkout,
            Cancel: self._cancel,
            Get: self._get,
            Recover: self._recover,
            DeclareQueue: self._declare_queue,
            DeleteQueue: self._delete_queue,
            PurgeQueue: self._purge_queue,
            BindQueue: self._bind_queue,
            UnbindQueue: self._unbind_queue,
            DeclareExchange: self._declare_exchange,
            DeleteExchange: self._delete_exchange,
            BindExchange: self._bind_exchange,
            UnbindExchange: self._unbind_exchange,
        }
        self._effects: list[Effect] = []
        self._index = self._next_slot = self._position = 0
        self._reset()

    def _reset(self) -> None:
        self._catalog = Catalog()
        self._sessions: dict[tuple[str, int], Session] = {}
        self._consumers: dict[tuple[str, int], Consumer] = {}
        self._dirty: dict[Queue, None] = {}

    # What the log calls

    def apply_batch(
        self,
        origin: str,
        index: int,
        ordinal: int,
        time_ms: int,  # noqa: ARG002  # nothing expires yet
        payload: bytes | memoryview,
    ) -> list[Effect]:
        """Carry out the commands of one batch, in order; `ordinal` is its place in the entry."""
        try:
            commands = decode_commands(payload)
        except MalformedBatch:
            return []
        self._index = index
        self._next_slot = ordinal << MESSAGE_BITS
        handlers = self._handlers
        for self._position, command in enumerate(commands):
            handler = handlers.get(type(command))
            if handler is not None:
                handler(origin, command)
            else:
                self._answer(origin, command)
        return self._take_effects()

    def end_entry(self) -> list[Effect]:
        """Serve the queues that have something new, in the order in which they got it."""
        for queue in self._dirty:
            self._effects.extend(queue.serve())
        self._dirty.clear()
        return self._take_effects()

    def origin_down(self, origin: str, *, expelled: bool) -> list[Effect]:
        """The node restarted or was given up: what its sessions held returns, its exclusive queues go."""
        for key in [key for key in self._sessions if key[0] == origin]:
            del self._sessions[key]
        self._end_consumers([consumer for consumer in self._consumers.values() if consumer.node == origin])
        for queue in self._catalog.owned_queues_of_node(origin):
            self._remove_queue(queue)
        if expelled:
            self._effects.append(OriginExpelled(origin))
        return self._take_effects()

    def outstanding(self, origin: str) -> list[Effect]:
        """What the sessions of a node are owed: for each its last answer, all that its consumers hold, and `Known`."""
        effects: list[Effect] = []
        for (node, number), session in self._sessions.items():
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

    def _answer(self, origin: str, command: Any) -> None:
        """Carry out what a client waits for, unless an error has already closed its channel."""
        session = self._session(origin, command.session)
        if session.failed:
            return
        try:
            result = self._methods[type(command)](origin, command)
        except Refused as refused:
            self._fail(origin, command, refused)
            return
        session.answers += 1
        reply = Reply(origin, command.session, result, session.answers)
        if type(result) is not ConsumerCancelled:
            session.answer = reply
        self._effects.append(reply)

    # Messages

    def _enqueue(self, origin: str, command: Enqueue) -> None:
        session, _, count, exchange, routing_key, mandatory, frames_channel = command
        slot = self._next_slot
        self._next_slot = slot + count
        if self._failed(origin, session):
            return
        try:
            queues = self._catalog.route(exchange, routing_key)
        except Refused as refused:
            self._fail(origin, command, refused)
            return
        for queue in queues:
            queue.enqueue(self._index, slot, count)
            self._dirty[queue] = None
        if mandatory and not queues:
            place = (self._index, slot, count, exchange, routing_key, frames_channel)
            self._effects.append(Returned(origin, session, *place, NO_ROUTE, "NO_ROUTE"))

    def _settle(self, origin: str, command: Settle | Discard) -> None:
        consumer = self._consumers.get((origin, command.consumer))
        if consumer is not None and consumer.queue.settle(consumer, command.first, command.last):
            self._dirty[consumer.queue] = None
            self._forget_if_over(consumer)

    def _return(self, origin: str, command: Return) -> None:
        consumer = self._consumers.get((origin, command.consumer))
        if consumer is not None and consumer.queue.give_back(consumer, command.first, command.last):
            self._dirty[consumer.queue] = None
            self._forget_if_over(consumer)

    def _credit(self, origin: str, command: Credit) -> None:
        consumer = self._consumers.get((origin, command.consumer))
        if consumer is not None and consumer.live:
            consumer.queue.give_credit(consumer, command.count)
            self._dirty[consumer.queue] = None

    def _recover(self, origin: str, command: Recover) -> Recovered:
        self._give_back(list(self._session(origin, command.session).consumers.values()))
        return Recovered()

    # Consumers

    def _checkout(self, origin: str, command: Checkout) -> Consuming:
        queue = self._queue_to_consume(origin, command)
        self._check_fresh(origin, command.consumer)
        consumer = Consumer(
            node=origin,
            session=command.session,
            id=command.consumer,
            queue=queue,
            tag=command.tag,
            credit=command.credit,
            no_ack=command.no_ack,
            exclusive=command.exclusive,
            auto_credit=command.auto_credit,
            cancel_on_failover=command.cancel_on_failover,
            arguments=command.arguments,
        )
        self._enter_consumer(consumer)
        queue.add_consumer(consumer)
        self._dirty[queue] = None
        return Consuming(consumer.id)

    def _queue_to_consume(self, origin: str, command: Checkout) -> Queue:
        if command.tag in self._session(origin, command.session).tags:
            raise not_allowed(f"attempt to reuse consumer tag '{command.tag}'")
        queue = self._queue(origin, command.session, command.connection, command.queue)
        check_consumer_arguments(queue.name, queue.kind, command.arguments)
        # RabbitMQ's quorum queues accept the flag and ignore it.
        if queue.kind == CLASSIC and (queue.exclusively_consumed or (command.exclusive and queue.consumers)):
            raise access_refused(f"{the_queue(queue.name)} in exclusive use")
        return queue

    def _cancel(self, origin: str, command: Cancel) -> ConsumerCancelled:
        consumer = self._consumers.get((origin, command.consumer))
        if consumer is not None and consumer.live and consumer.session == command.session:
            del self._sessions[origin, consumer.session].tags[consumer.tag]
            consumer.queue.cancel(consumer)
            self._forget_if_over(consumer)
            self._remove_if_automatic(consumer.queue)
        return ConsumerCancelled(command.consumer)

    def _get(self, origin: str, command: Get) -> GetOk | GetEmpty:
        queue = self._queue(origin, command.session, command.connection, command.queue)
        self._check_fresh(origin, command.consumer)
        self._serve(queue)
        if not queue.ready:
            return GetEmpty()
        taker = Consumer(
            node=origin,
            session=command.session,
            id=command.consumer,
            queue=queue,
            tag="",
            credit=0,
            no_ack=command.no_ack,
            exclusive=False,
            auto_credit=False,
            cancel_on_failover=False,
            arguments={},
            live=False,
        )
        message = queue.get(taker)
        if not command.no_ack:
            self._enter_consumer(taker)
        return GetOk(taker.id, message, queue.ready)

    # Sessions and connections

    def _session_down(self, origin: str, command: SessionDown) -> None:
        session = self._sessions.pop((origin, command.session), None)
        if session is not None:
            self._end_consumers(list(session.consumers.values()))

    def _connection_down(self, origin: str, command: ConnectionDown) -> None:
        for queue in self._catalog.owned_queues((origin, command.connection)):
            self._remove_queue(queue)

    # Queues

    def _declare_queue(self, origin: str, command: DeclareQueue) -> QueueDeclared:
        owner = (origin, command.connection)
        name = _stripped(command.name)
        if command.passive:
            queue = self._catalog.queue(name or self._last_declared(origin, command.session), owner)
        else:
            queue = self._catalog.declare_queue(command, name, owner, self._generated_name())
        self._session(origin, command.session).queue = queue.name
        self._serve(queue)
        return QueueDeclared(queue.name, queue.ready, queue.consumers)

    def _delete_queue(self, origin: str, command: DeleteQueue) -> QueueDeleted:
        name = _stripped(command.name) or self._last_declared(origin, command.session)
        if name not in self._catalog.queues:
            return QueueDeleted(0)
        queue = self._catalog.queue(name, (origin, command.connection))
        self._serve(queue)
        if command.if_empty and queue.ready:
            raise precondition_failed(f"{the_queue(name)} not empty")
        if command.if_unused and queue.consumers:
            raise precondition_failed(f"{the_queue(name)} in use")
        self._remove_queue(queue)
        return QueueDeleted(queue.ready)

    def _purge_queue(self, origin: str, command: PurgeQueue) -> QueuePurged:
        queue = self._queue(origin, command.session, command.connection, command.name)
        self._serve(queue)
        return QueuePurged(queue.purge())

    # Exchanges and bindings

    def _bind_queue(self, origin: str, command: BindQueue) -> Done:
        self._catalog.bind(*self._queue_binding(origin, command))
        return Done()

    def _unbind_queue(self, origin: str, command: UnbindQueue) -> Done:
        self._catalog.unbind(*self._queue_binding(origin, command))
        return Done()

    def _queue_binding(
        self, origin: str, command: BindQueue | UnbindQueue
    ) -> tuple[str, Destination, str, Table, Owner]:
        session, connection, queue, exchange, routing_key, arguments = command
        name = _stripped(queue) or self._last_declared(origin, session)
        # RabbitMQ: with neither queue nor routing key given, both are the queue declared last.
        key = routing_key or ("" if queue else name)
        destination = Destination(DestinationKind.QUEUE, name)
        return _stripped(exchange), destination, key, arguments, (origin, connection)

    def _bind_exchange(self, _: str, command: BindExchange) -> Done:
        self._catalog.bind(*_exchange_binding(command))
        return Done()

    def _unbind_exchange(self, _: str, command: UnbindExchange) -> Done:
        self._catalog.unbind(*_exchange_binding(command))
        return Done()

    def _declare_exchange(self, _: str, command: DeclareExchange) -> Done:
        self._catalog.declare_exchange(command, _stripped(command.name))
        return Done()

    def _delete_exchange(self, _: str, command: DeleteExchange) -> Done:
        self._catalog.delete_exchange(_stripped(command.name), if_unused=command.if_unused)
        return Done()

    # Users

    def _put_user(self, _: str, command: PutUser) -> None:
        self._catalog.put_user(User(*command))

    def _delete_user(self, _: str, command: DeleteUser) -> None:
        self._catalog.delete_user(command.name)

    # What the above is made of

    def _take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def _fail(self, origin: str, command: Method, refused: Refused) -> None:
        session = self._session(origin, command.session)
        session.answers += 1
        code, text, method = refused.code, refused.text, METHODS[type(command)]
        session.answer = Failed(origin, command.session, code, text, *method, session.answers)
        self._effects.append(session.answer)

    def _failed(self, origin: str, session: int) -> bool:
        known = self._sessions.get((origin, session))
        return known is not None and known.failed

    def _session(self, origin: str, session: int) -> Session:
        known = self._sessions.get((origin, session))
        if known is None:
            known = self._sessions[origin, session] = Session()
        return known

    def _last_declared(self, origin: str, session: int) -> str:
        queue = self._session(origin, session).queue
        if not queue:
            raise not_found("previously declared queue")
        return queue

    def _queue(self, origin: str, session: int, connection: int, name: str) -> Queue:
        """The queue that the command means, if this connection may use it; else raises Refused."""
        return self._catalog.queue(name or self._last_declared(origin, session), (origin, connection))

    def _generated_name(self) -> str:
        """A name for a server-named queue: no other command ever has this place in the log."""
        place = f"{self._index}.{self._next_slot}.{self._position}"
        return "amq.gen-" + urlsafe_b64encode(hashlib.sha256(place.encode()).digest()[:16]).decode().rstrip(
            "="
        )

    def _serve(self, queue: Queue) -> None:
        """Let the queue's consumers have what is theirs before somebody counts or takes what is left."""
        if queue in self._dirty:
            self._effects.extend(queue.serve())

    def _check_fresh(self, origin: str, consumer: int) -> None:
        if (origin, consumer) in self._consumers:
            raise internal_error(f"consumer {consumer} of node {origin} is there already")

    def _enter_consumer(self, consumer: Consumer) -> None:
        session = self._session(consumer.node, consumer.session)
        session.consumers[consumer.id] = consumer
        if consumer.live:
            session.tags[consumer.tag] = consumer
        self._consumers[consumer.node, consumer.id] = consumer

    def _forget_if_over(self, consumer: Consumer) -> None:
        """A consumer that has stopped goes with the last message it held."""
        if not consumer.live and not consumer.unacked:
            self._forget(consumer)

    def _forget(self, consumer: Consumer) -> None:
        del self._consumers[consumer.node, consumer.id]
        session = self._sessions.get((consumer.node, consumer.session))
        if session is not None:
            del session.consumers[consumer.id]
            if session.tags.get(consumer.tag) is consumer:
                del session.tags[consumer.tag]

    def _give_back(self, consumers: list[Consumer]) -> None:
        """Return all that these consumers hold, per queue in the order of the messages."""
        by_queue: dict[Queue, list[Consumer]] = {}
        for consumer in consumers:
            by_queue.setdefault(consumer.queue, []).append(consumer)
        for queue, holders in by_queue.items():
            queue.give_back_all(holders)
            self._dirty[queue] = None
            for consumer in holders:
                self._forget_if_over(consumer)

    def _end_consumers(self, consumers: list[Consumer]) -> None:
        """Their sessions are gone: cancel them and return what they hold."""
        lost_a_consumer: dict[Queue, None] = {}
        for consumer in consumers:
            if consumer.live:
                consumer.queue.cancel(consumer)
                lost_a_consumer[consumer.queue] = None
        self._give_back(consumers)
        for queue in lost_a_consumer:
            self._remove_if_automatic(queue)

    def _remove_if_automatic(self, queue: Queue) -> None:
        """An auto-delete queue goes with its last consumer."""
        if queue.auto_delete and queue.had_consumer and not queue.consumers:
            self._remove_queue(queue)

    def _remove_queue(self, queue: Queue) -> None:
        """The queue goes with all its messages; later settlements of them find nothing."""
        self._catalog.delete_queue(queue)
        self._dirty.pop(queue, None)
        for consumer in queue.holders:
            self._forget(consumer)
            if consumer.live:
                self._effects.append(ConsumerGone(consumer.node, consumer.session, consumer.id))

    # What the shell may look at

    @property
    def queues(self) -> Mapping[str, Queue]:
        """By name; `ready`, `unacked` and `consumers` of each are the counts to show."""
        return self._catalog.queues

    @property
    def exchanges(self) -> Mapping[str, Exchange]:
        return self._catalog.exchanges

    @property
    def bindings(self) -> Sequence[Binding]:
        return list(self._catalog.bindings)

    @property
    def users(self) -> Mapping[str, User]:
        return self._catalog.users

    @property
    def consumers(self) -> Mapping[tuple[str, int], Consumer]:
        """By node and consumer id; those that are not `live` only hold messages."""
        return self._consumers

    # The whole state

    def freeze(self) -> Frozen:
        """The state as it is now, to be read on any thread."""
        catalog = self._catalog
        return Frozen(
            users=list(catalog.users.values()),
            exchanges=list(catalog.exchanges.values()),
            queues=[queue.freeze() for queue in catalog.queues.values()],
            bindings=list(catalog.bindings),
            sessions=[
                (key, session.queue, session.answers, session.answer)
                for key, session in self._sessions.items()
            ],
            consumers=[
                (consumer, consumer.credit, consumer.live, consumer.next_id, consumer.unacked.freeze())
                for consumer in self._consumers.values()
            ],
            dirty=list(self._dirty),
        )

    def dump(self) -> bytes:
        return self.freeze().dump()

    def load(self, data: bytes) -> None:
        """Replace the state by a dumped one. Raises MalformedDump."""
        state = read_dump(data)
        self._reset()
        catalog = self._catalog
        for user in state.users:
            catalog.put_user(User(*user))
        for exchange in state.exchanges:
            if exchange[0] not in catalog.exchanges:
                catalog.restore_exchange(Exchange(*exchange))
        for row, returns in zip(state.queues, state.returns, strict=True):
            catalog.restore_queue(_load_queue(row, returns))
        for source, kind, name, routing_key, arguments in state.bindings:
            destination = Destination(DestinationKind(kind), name)
            catalog.restore_binding(Binding(source, destination, routing_key, arguments))
        for node, number, last_declared, answers, answer in state.sessions:
            self._sessions[node, number] = Session(
                last_declared, answers=answers, answer=answer_of(node, number, answer)
            )
        for row, unacked in zip(state.consumers, state.unacked, strict=True):
            self._load_consumer(row, unacked)
        for queue, row in zip(catalog.queues.values(), state.queues, strict=True):
            for node, number in row[-1]:
                queue.ring[self._consumers[node, number]] = None
        for name in state.dirty:
            self._dirty[catalog.queues[name]] = None

    def _load_consumer(self, row: list[Any], unacked: list[tuple[int, list[int]]]) -> None:
        node, session, number, queue_name, *properties, live, next_id = row
        queue = self._catalog.queues[queue_name]
        consumer = Consumer(node, session, number, queue, *properties, live=live, next_id=next_id)
        for first, messages in unacked:
            held_range = Range(*messages)
            consumer.unacked.append(first, held_range.count, held_range)
        queue.holders[consumer] = None
        queue.consumers += live
        queue.unacked += len(consumer.unacked)
        self._enter_consumer(consumer)

    def digest(self) -> str:
        """Equal states, equal digests."""
        return hashlib.sha256(self.dump()).hexdigest()


def _exchange_binding(command: BindExchange | UnbindExchange) -> tuple[str, Destination, str, Table, None]:
    _, name, source, routing_key, arguments = command
    return (
        _stripped(source),
        Destination(DestinationKind.EXCHANGE, _stripped(name)),
        routing_key,
        arguments,
        None,
    )


def _stripped(name: str) -> str:
    """RabbitMQ drops line ends from the names of queues and exchanges."""
    return name.replace("\r", "").replace("\n", "") if "\r" in name or "\n" in name else name


def _load_queue(row: list[Any], returns: list[list[int]]) -> Queue:
    name, kind, durable, owner, auto_delete, arguments, had_consumer, ready, backlog, _ = row
    queue = Queue(
        name, kind, durable, tuple(owner) if owner else None, auto_delete, arguments, had_consumer, ready
    )
    queue.returns.extend(Range(*messages) for messages in returns)
    queue.backlog.load(backlog)
    return queue


def _deliveries(consumer: Consumer) -> Iterator[Deliver]:
    """Everything that the consumer holds, as if it were delivered again."""
    delivery: Deliver | None = None
    next_id = 0
    for first, messages in held(consumer):
        if delivery is None or first != next_id:
            if delivery is not None:
                yield delivery
            delivery = Deliver(consumer.node, consumer.session, consumer.id, first, [])
        delivery.ranges.append(messages)
        next_id = first + messages.count
    if delivery is not None:
        yield delivery
