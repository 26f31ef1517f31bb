"""Load for the queue machine: publishers and consumers at every node, as the broker would submit for them.

Law: as in workload.py. What is delivered is looked up in the node's own log, the way the broker finds bodies, and must
be what its publisher wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chaos.sim.checks import TAG
from chaos.sim.workload import Client, Workload
from cluster.entry import batches_of
from qq.machine.codec import decode_batch, encode_batch
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
from qq.machine.effects import ConsumerGone, Deliver, GetOk, Reply
from qq.ranges import MESSAGE_BITS, MESSAGE_MASK, Range

if TYPE_CHECKING:
    from chaos.sim.cluster import SimulatedNode

QUEUES = ("q1", "q2", "q3")
CONNECTION = 1
CONSUMERS_MAX = 4
THINKING_MAX_S = 1.0
DRAIN_CREDIT = 1_000_000


class QueueClient(Client):
    """Sessions of one client generation: one publishes, each consumer has its own."""

    def __init__(self, node: SimulatedNode, number: int, workload: Workload) -> None:
        super().__init__(node, number, workload)
        self._ids = 1
        self._published = 0
        self._sessions: dict[int, int] = {}
        """Session by consumer, of those that are open."""
        self._draining = False

    def act(self) -> None:
        random = self.workload.random
        if self._ids == 1:
            self._command(*(_declare(queue) for queue in QUEUES))
        queue = random.choice(QUEUES)
        choice = random.random()
        if choice < 0.55:
            self._publish(queue, random.randint(1, 12))
        elif choice < 0.75:
            self._consume(queue, random.choice((1, 3, 10, 100)))
        elif choice < 0.85:
            self._end_a_session()
        elif choice < 0.90:
            self._command(Get(0, CONNECTION, self._fresh_id(), queue, no_ack=False))
        elif choice < 0.94:
            self._command(Recover(self._any_session()))
        elif choice < 0.97:
            self._cancel()
        else:
            self._command(PurgeQueue(0, CONNECTION, queue))

    def drain(self) -> None:
        """Settle whatever comes, at once, from every queue."""
        self._draining = True
        for queue in QUEUES:
            self._checkout(queue, DRAIN_CREDIT)

    def stop_consuming(self) -> None:
        """Close every session, so that all that is unsettled returns."""
        self._command(*(SessionDown(session) for session in dict.fromkeys([0, *self._sessions.values()])))
        self._sessions.clear()

    def effects(self, index: int, effects: Sequence[Any]) -> None:  # noqa: ARG002
        for effect in effects:
            match effect:
                case Deliver(node, _, consumer, first_id, ranges) if node == self.node.name:
                    self._delivered(consumer, first_id, ranges)
                case Reply(node, _, GetOk(consumer, range_, _)) if node == self.node.name:
                    self._delivered(consumer, 0, [range_])
                case ConsumerGone(node, _, consumer) if node == self.node.name:
                    self._sessions.pop(consumer, None)
                case _:
                    pass

    # Publishing

    def _publish(self, queue: str, count: int) -> None:
        self._published += count
        random = self.workload.random
        size = random.randint(2_000, 10_000) if random.random() < self.workload.large_batches else 8
        tag = f"{self.node.name} {self.number}".encode()
        bodies = [tag.ljust(size, b".") for _ in range(count)]
        self._batch([Enqueue(0, 0, count, "", queue, mandatory=False, frames_channel=1)], bodies)

    # Consuming

    def _consume(self, queue: str, credit: int) -> None:
        if len(self._sessions) < CONSUMERS_MAX:
            self._checkout(queue, credit)

    def _checkout(self, queue: str, credit: int) -> None:
        consumer = self._fresh_id()
        session = self._fresh_id()
        self._sessions[consumer] = session
        self._command(
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
            )
        )

    def _end_a_session(self) -> None:
        if self._sessions:
            consumer = self.workload.random.choice(list(self._sessions))
            self._command(SessionDown(self._sessions.pop(consumer)))

    def _cancel(self) -> None:
        if self._sessions:
            consumer = self.workload.random.choice(list(self._sessions))
            self._command(Cancel(self._sessions[consumer], consumer))

    def _any_session(self) -> int:
        return self.workload.random.choice([0, *self._sessions.values()])

    def _delivered(self, consumer: int, first_id: int, ranges: Sequence[Range]) -> None:
        self._check_content(ranges[0])
        last_id = first_id + sum(range_.count for range_ in ranges) - 1
        if self._draining:
            self._command(Settle(consumer, first_id, last_id))
            return
        delay_s = self.workload.random.uniform(0.0, THINKING_MAX_S)
        self.node.runtime.call_later(delay_s, lambda: self._decide(consumer, first_id, last_id))

    def _decide(self, consumer: int, first_id: int, last_id: int) -> None:
        """Mostly settle, now and then only a part of it."""
        if self.workload.clients.get(self.node.name) is not self:
            return
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

    def _check_content(self, range_: Range) -> None:
        """Find the body where the range says it is."""
        entry = self.node.group.journal.read(range_.index)
        view = batches_of(entry)[range_.slot >> MESSAGE_BITS]
        payload = entry[view.start + TAG.size : view.end]
        client, _ = TAG.unpack_from(entry, view.start)
        message = range_.slot & MESSAGE_MASK
        offsets = decode_batch(payload).offsets
        body = payload[offsets[message] : offsets[message + 1]]
        if body.rstrip(b".") != f"{view.origin} {client}".encode():
            self.workload.checks.fail(f"{range_} leads to another body at {self.node.name}: {body[:40]!r}")

    # Submitting

    def _fresh_id(self) -> int:
        self._ids += 1
        return self._ids

    def _command(self, *commands: Command) -> None:
        self._batch(commands, [])

    def _batch(self, commands: Sequence[Command], messages: Sequence[bytes]) -> None:
        self.submit(encode_batch(commands, messages))


class QueueWorkload(Workload):
    client = QueueClient

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
