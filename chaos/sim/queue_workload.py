"""Load for the queue machine: publishers and consumers at every node, as the broker would submit for them.

Law: as in workload.py. What is delivered is looked up in the node's own log, the way the broker finds bodies, and must
be what its publisher wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chaos.sim.checks import TAG
from chaos.sim.queue_checks import QueueOracle, messages_of
from chaos.sim.stored import batch_payloads
from chaos.sim.workload import Client, Workload
from cluster.segment import CorruptJournal
from qq.machine.codec import encode_batch
from qq.machine.commands import (
    Cancel,
    Checkout,
    Command,
    DeclareQueue,
    Discard,
    Enqueue,
    Get,
    PurgeQueue,
    Recover,
    Return,
    SessionDown,
    Settle,
)
from qq.machine.effects import ConsumerCancelled, ConsumerGone, Deliver, GetOk, Known, Reply, Result
from qq.ranges import MESSAGE_BITS, MESSAGE_MASK, Range

if TYPE_CHECKING:
    from chaos.sim.cluster import SimulatedNode

QUEUES = ("q1", "q2", "q3")
CONNECTION = 1
CONSUMERS_MAX = 4
THINKING_MAX_S = 1.0
DRAIN_CREDIT = 1_000_000


class Session:
    """What a client knows of one of its sessions. Answers are numbered; all but a cancellation are waited for."""

    def __init__(self) -> None:
        self.asked = 0
        self.answered = 0
        self.cancels = 0
        """Cancellations asked for."""
        self.consumer = 0
        """The session's consumer, 0 if it has none (any more)."""

    @property
    def waits(self) -> bool:
        return self.asked > self.answered


class QueueClient(Client):
    """Sessions of one client generation: one gets and purges, each consumer has its own."""

    workload: QueueWorkload

    def __init__(self, node: SimulatedNode, number: int, workload: Workload) -> None:
        super().__init__(node, number, workload)
        self._ids = CONNECTION
        self._sessions: dict[int, Session] = {}
        self._asking = 0
        """The session that gets and purges."""
        self._next_ids: dict[int, int] = {}
        """Message id that a consumer is given next."""
        self._reading: dict[int, Range] = {}
        """What will be read again, by the number of the delivery."""
        self._deliveries = 0
        self._draining = False

    def act(self) -> None:
        random = self.workload.random
        if not self._asking:
            for queue in QUEUES:
                self._ask(self._new_session(), _declare(queue))
            self._asking = self._new_session()
        queue = random.choice(QUEUES)
        choice = random.random()
        if choice < 0.55:
            if not self.must_wait():
                self._publish(queue, random.randint(1, 12))
        elif choice < 0.75:
            self._consume(queue, random.choice((1, 3, 10, 100)))
        elif choice < 0.85:
            self._end_a_session()
        elif choice < 0.90:
            self._ask(self._asking, Get(0, CONNECTION, self._fresh_id(), queue, no_ack=False))
        elif choice < 0.94:
            self._ask(self._any_session(), Recover(0))
        elif choice < 0.97:
            self._cancel()
        else:
            self._ask(self._asking, PurgeQueue(0, CONNECTION, queue))

    def drain(self) -> None:
        """Settle whatever comes, at once, from every queue."""
        self._draining = True
        for queue in QUEUES:
            self._checkout(queue, DRAIN_CREDIT)

    def stop_consuming(self) -> None:
        """Close every session, so that all that is unsettled returns."""
        self._command(*(SessionDown(session) for session in self._sessions))
        self._sessions.clear()
        self._asking = 0

    def complaint(self) -> str:
        """What is wrong if nothing is under way any more; empty if nothing is."""
        waiting = [number for number, session in self._sessions.items() if session.waits]
        if waiting:
            return f"sessions {waiting} wait for answers"
        consumers = [session.consumer for session in self._sessions.values() if session.consumer]
        for consumer, message_id in self.workload.oracle.held_ids(self.node.name):
            if consumer in consumers and message_id >= self._next_ids.get(consumer, 0):
                return f"consumer {consumer} was not given message {message_id}"
        return ""

    # What the node tells

    def effect(self, effect: Any) -> None:
        if effect[0] != self.node.name:
            return
        match effect:
            case Deliver(_, _, consumer, first_id, ranges):
                if first_id < self._next_ids.get(consumer, 0):
                    self._fail(f"is given messages again: {effect}")
                self._delivered(consumer, first_id, ranges)
            case Reply(_, number, result, answer):
                session = self._sessions.get(number)
                if session is not None:
                    if answer != session.answered + 1:
                        self._fail(f"gets an answer after answer {session.answered}: {effect}")
                    self._answered(session, result)
            case ConsumerGone(_, number, _):
                self._sessions.pop(number, None)
            case _:
                pass

    def resumed(self, sequence: int, outstanding: Sequence[Any]) -> None:
        """Take what is new of what the sessions are owed: known are ids up to the next, and answers by their number."""
        super().resumed(sequence, outstanding)
        self._reading.clear()  # what was given back meanwhile may be gone with the old log
        for effect in outstanding:
            match effect:
                case Deliver(_, _, consumer, first_id, ranges):
                    self._delivered_again(consumer, first_id, ranges)
                case Reply(_, number, result, answer):
                    session = self._sessions.get(number)
                    if session is not None and answer > session.answered:
                        self._answered_late(session, answer, result)
                case Known(_, number, answers, consumers):
                    session = self._sessions.get(number)
                    if session is not None:
                        self._known(session, answers, consumers)
                case _:
                    self._fail(f"resumes with {effect}")

    def _delivered_again(self, consumer: int, first_id: int, ranges: Sequence[Range]) -> None:
        had = self._next_ids.get(consumer, 0) - first_id
        if had > 0:
            ranges = _without(ranges, had)
            first_id += had
        if ranges:
            self._delivered(consumer, first_id, ranges)

    def _answered_late(self, session: Session, answer: int, result: Result) -> None:
        cancels = answer - session.answered - 1
        if cancels > session.cancels:
            self._fail(f"has lost answers: the last is {answer}, after {session.answered}")
        session.cancels -= cancels
        session.answered = answer - 1
        self._answered(session, result)

    def _known(self, session: Session, answers: int, consumers: Sequence[int]) -> None:
        if answers - session.answered > session.cancels:
            self._fail(f"has lost answers: there were {answers}, {session.answered} were told")
        session.cancels -= answers - session.answered
        session.answered = answers
        if session.consumer and session.consumer not in consumers and not session.waits:
            self._fail(f"has lost consumer {session.consumer}")

    def _answered(self, session: Session, result: Result) -> None:
        session.answered += 1
        match result:
            case ConsumerCancelled():
                session.cancels -= 1
            case GetOk(consumer, range_, _):
                self._delivered(consumer, 0, [range_])
            case _:
                pass

    # Publishing

    def _publish(self, queue: str, count: int) -> None:
        random = self.workload.random
        size = random.randint(2_000, 10_000) if random.random() < self.workload.large_batches else 8
        tag = f"{self.node.name} {self.number}".encode()
        bodies = [tag.ljust(size, b".") for _ in range(count)]
        self._batch([Enqueue(0, 0, count, "", queue, mandatory=False, frames_channel=1)], bodies)

    # Consuming

    def _consume(self, queue: str, credit: int) -> None:
        if sum(session.consumer > 0 for session in self._sessions.values()) < CONSUMERS_MAX:
            self._checkout(queue, credit)

    def _checkout(self, queue: str, credit: int) -> None:
        consumer = self._fresh_id()
        session = self._new_session()
        self._sessions[session].consumer = consumer
        self._ask(
            session,
            Checkout(
                session,
                CONNECTION,
                consumer,
                queue,
                f"tag {consumer}",
                credit,
                no_ack=False,
                exclusive=False,
                auto_credit=True,
                cancel_on_failover=False,
                arguments={},
            ),
        )

    def _end_a_session(self) -> None:
        if self._consuming():
            number = self.workload.random.choice(self._consuming())
            del self._sessions[number]
            self._command(SessionDown(number))

    def _cancel(self) -> None:
        if self._consuming():
            number = self.workload.random.choice(self._consuming())
            session = self._sessions[number]
            if not session.waits:
                session.asked += 1
                session.cancels += 1
                self._command(Cancel(number, session.consumer))
                session.consumer = 0

    def _consuming(self) -> list[int]:
        return [number for number, session in self._sessions.items() if session.consumer]

    def _any_session(self) -> int:
        return self.workload.random.choice([self._asking, *self._consuming()])

    def _delivered(self, consumer: int, first_id: int, ranges: Sequence[Range]) -> None:
        message_id = first_id
        for range_ in ranges:
            for slot in range(range_.slot, range_.slot + range_.count):
                known = self.workload.oracle.place(self.node.name, consumer, message_id)
                if known != (range_.index, slot):
                    self._fail(f"consumer {consumer} is given {range_} as {message_id}, which is {known}")
                message_id += 1
        self._next_ids[consumer] = message_id
        self._check_content(ranges[0])
        if self._draining:
            self._command(Settle(consumer, first_id, message_id - 1))
            return
        delay_s = self.workload.random.uniform(0.0, THINKING_MAX_S)
        self._deliveries += 1
        delivery = self._deliveries
        self._reading[delivery] = ranges[-1]
        self.node.runtime.call_later(
            delay_s, lambda: self._decide(delivery, consumer, first_id, message_id - 1)
        )

    def _decide(self, delivery: int, consumer: int, first_id: int, last_id: int) -> None:
        """Mostly settle, now and then only a part of it."""
        range_ = self._reading.pop(delivery, None)
        if self.workload.clients.get(self.node.name) is not self:
            return
        if range_ is not None:
            self._check_content(range_)
        random = self.workload.random
        choice = random.random()
        if choice < 0.7:
            self._command(Settle(consumer, first_id, last_id))
        elif choice < 0.8:
            middle = random.randint(first_id, last_id)
            self._command(Settle(consumer, middle, last_id))
        elif choice < 0.9:
            self._command(Return(consumer, first_id, last_id))
        elif choice < 0.95:
            self._command(Discard(consumer, first_id, first_id))

    def needed_from(self) -> int | None:
        return min((range_.index for range_ in self._reading.values()), default=None)

    def _check_content(self, range_: Range) -> None:
        """Find the body where the range says it is; whether it may be compacted by now depends on `needed_from`."""
        try:
            entry = self.node.group.journal.read(range_.index)
        except CorruptJournal as damage:
            self.node.group.disk_failed(damage)
            return
        payload = batch_payloads(entry)[range_.slot >> MESSAGE_BITS]
        client, _ = TAG.unpack_from(payload)
        body = messages_of(payload[TAG.size :])[range_.slot & MESSAGE_MASK]
        submitted = self.workload.checks.batches[range_.index, range_.slot >> MESSAGE_BITS]
        expected = messages_of(submitted[TAG.size :])[range_.slot & MESSAGE_MASK]
        if body != expected or client != TAG.unpack_from(submitted)[0]:
            self._fail(f"{range_} leads to another body: {body[:40]!r}")

    # Submitting

    def _fresh_id(self) -> int:
        self._ids += 1
        return self._ids

    def _new_session(self) -> int:
        number = self._fresh_id()
        self._sessions[number] = Session()
        return number

    def _ask(self, number: int, command: Command) -> None:
        """Submit what will be answered, unless the session still waits for another answer."""
        session = self._sessions[number]
        if not session.waits:
            session.asked += 1
            self._command(command._replace(session=number))

    def _command(self, *commands: Command) -> None:
        self._batch(commands, [])

    def _batch(self, commands: Sequence[Command], messages: Sequence[bytes]) -> None:
        self.submit(encode_batch(commands, messages))

    def _fail(self, what: str) -> None:
        self.workload.checks.fail(f"client {self.number} of {self.node.name} {what}")


def _without(ranges: Sequence[Range], count: int) -> list[Range]:
    """The ranges without their first messages."""
    rest: list[Range] = []
    for range_ in ranges:
        if count < range_.count:
            rest.append(range_.part(count, range_.count - count))
        count = max(count - range_.count, 0)
    return rest


class QueueWorkload(Workload):
    client = QueueClient
    oracle: QueueOracle

    def check_clients(self) -> None:
        """At rest every client has been told everything."""
        for client in self._queue_clients():
            complaint = client.complaint()
            if complaint:
                self.checks.fail(f"client {client.number} of {client.node.name}: {complaint}")

    def stop_consuming(self) -> None:
        for client in self._queue_clients():
            client.node.runtime.enter(client.stop_consuming)

    def drain(self) -> None:
        for client in self._queue_clients():
            client.node.runtime.enter(client.drain)

    def _queue_clients(self) -> list[QueueClient]:
        return [client for client in self.clients.values() if isinstance(client, QueueClient)]


def _declare(queue: str) -> DeclareQueue:
    return DeclareQueue(
        1, CONNECTION, queue, passive=False, durable=True, exclusive=False, auto_delete=False, arguments={}
    )
