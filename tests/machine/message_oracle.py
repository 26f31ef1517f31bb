"""A deliberately dumb model of the queues: lists of single messages, and no idea of whose turn it is.

It carries out commands by their definition and follows the deliveries that the machine decides on, checking that each
is one that may be.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from machine_driver import held_messages, messages_of, ready_messages

from qq.machine import commands as c
from qq.machine import effects as e

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from machine_driver import Message

    from qq.machine.machine import QueueMachine

Key = tuple[str, int]
E = TypeVar("E")


@dataclass
class OracleConsumer:
    session: int
    queue: str
    credit: int
    no_ack: bool
    auto_credit: bool
    live: bool = True
    delivered: int = 0
    held: dict[int, Message] = field(default_factory=dict)


@dataclass
class OracleQueue:
    returns: list[Message] = field(default_factory=list)
    backlog: list[Message] = field(default_factory=list)

    def ready(self) -> list[Message]:
        return self.returns + self.backlog


class Oracle:
    def __init__(self) -> None:
        self.queues: dict[str, OracleQueue] = {}
        self.bound: dict[str, None] = {}
        self.consumers: dict[Key, OracleConsumer] = {}
        self.published: dict[tuple[str, int, int], str] = {}
        """Where every message ever enqueued has got to, by queue and place in the log."""

    # Commands, by their definition

    def apply(
        self, node: str, index: int, commands: Sequence[c.Command], effects: Sequence[e.Effect]
    ) -> None:
        slot = 0
        ahead = deque(effects)
        for command in commands:
            match command:
                case c.Enqueue(_, _, count, exchange, key):
                    targets = list(self.bound) if exchange else [key]
                    for name in targets:
                        self._publish(name, [(index, slot + step, 0) for step in range(count)])
                    slot += count
                case c.Settle(consumer, first, last) | c.Discard(consumer, first, last):
                    self._settled(self.consumers.get((node, consumer)), first, last)
                case c.Return(consumer, first, last):
                    self._returned((node, consumer), first, last)
                case c.SessionDown(session):
                    self._down(
                        [k for k, v in self.consumers.items() if k[0] == node and v.session == session]
                    )
                case c.Credit(consumer, count):
                    known = self.consumers.get((node, consumer))
                    if known is not None and known.live:
                        known.credit += count
                case _:
                    # A queue is served before somebody counts or takes what is in it.
                    self.follow(list(_leading(ahead, e.Deliver)), ended=False)
                    gone = {(effect.node, effect.consumer) for effect in _leading(ahead, e.ConsumerGone)}
                    if isinstance(command, c.DeleteQueue):
                        mine = [
                            key for key, v in self.consumers.items() if v.queue == command.name and v.live
                        ]
                        assert gone == set(mine)
                    else:
                        assert not gone
                    reply = ahead.popleft()
                    assert isinstance(reply, e.Reply), f"{command} led to {reply}"
                    self._answered(node, command, reply.result)
            self._forget_finished()
        assert not ahead

    def _answered(self, node: str, command: c.Command, result: e.Result) -> None:
        match command, result:
            case c.DeclareQueue(_, _, name), e.QueueDeclared():
                self.queues.setdefault(name, OracleQueue())
            case c.BindQueue(_, _, name), e.Done():
                self.bound[name] = None
            case c.DeleteQueue(_, _, name), e.QueueDeleted(messages):
                assert messages == len(self.queues[name].ready())
                self._deleted(name)
            case c.PurgeQueue(_, _, name), e.QueuePurged(messages):
                queue = self.queues[name]
                assert messages == len(queue.ready())
                self._gone(name, queue.ready(), "purged")
                queue.returns, queue.backlog = [], []
            case c.Checkout(session, _, consumer, queue, _, credit, _, _, auto_credit), e.Consuming():
                self.consumers[node, consumer] = OracleConsumer(session, queue, credit, False, auto_credit)
            case c.Cancel(_, consumer), e.ConsumerCancelled():
                if (node, consumer) in self.consumers:
                    self.consumers[node, consumer].live = False
            case c.Get(session, _, consumer, name, no_ack), e.GetOk(_, message, remaining):
                taker = OracleConsumer(session, name, 1, no_ack, auto_credit=False)
                self.consumers[node, consumer] = taker
                (taken,) = messages_of([message])
                assert taken == self.queues[name].ready()[0]
                self._deliver(taker, taken)
                taker.live = False
                assert remaining == len(self.queues[name].ready())
            case c.Get(_, _, _, name), e.GetEmpty():
                assert not self.queues[name].ready()
            case c.Recover(session), e.Recovered():
                self._return_all(
                    [k for k, v in self.consumers.items() if k[0] == node and v.session == session]
                )
            case _:
                raise AssertionError(f"{command} was answered with {result}")

    def node_down(self, node: str) -> None:
        self._down([key for key in self.consumers if key[0] == node])
        self._forget_finished()

    # Deliveries, as the machine decided them

    def follow(self, effects: Sequence[e.Effect], *, ended: bool) -> None:
        """Each consumer gets messages in the order of the queue, within its credit; together they get its head."""
        heads = {name: queue.ready() for name, queue in self.queues.items()}
        got: dict[str, list[Message]] = {name: [] for name in heads}
        for effect in effects:
            assert isinstance(effect, e.Deliver)
            consumer = self.consumers[effect.node, effect.consumer]
            assert consumer.live
            assert effect.session == consumer.session
            assert effect.first_id == consumer.delivered
            messages = messages_of(effect.ranges)
            positions = [heads[consumer.queue].index(message) for message in messages]
            assert positions == sorted(positions)
            for message in messages:
                assert consumer.credit > 0
                self._deliver(consumer, message)
            got[consumer.queue] += messages
        for name, head in heads.items():
            assert set(got[name]) == set(head[: len(got[name])])
            if ended and self.queues[name].ready():
                assert not any(v.credit for v in self.consumers.values() if v.live and v.queue == name)

    def compare(self, machine: QueueMachine) -> None:
        assert list(machine.queues) == list(self.queues)
        for name, queue in self.queues.items():
            there = machine.queues[name]
            mine = {key: v for key, v in self.consumers.items() if v.queue == name}
            assert ready_messages(there) == queue.ready()
            assert there.ready == len(queue.ready())
            assert there.unacked == sum(len(consumer.held) for consumer in mine.values())
            assert there.consumers == sum(consumer.live for consumer in mine.values())
        assert set(machine.consumers) == set(self.consumers)
        for key, consumer in self.consumers.items():
            assert held_messages(machine.consumers[key]) == consumer.held
            if consumer.live:
                assert machine.consumers[key].credit == consumer.credit
        self._check_conservation()

    def _check_conservation(self) -> None:
        """Every message is in the one place that its history says."""
        places = {
            **{(name, *m[:2]): "ready" for name, queue in self.queues.items() for m in queue.ready()},
            **{(v.queue, *m[:2]): "held" for v in self.consumers.values() for m in v.held.values()},
        }
        assert len(places) == sum(len(queue.ready()) for queue in self.queues.values()) + sum(
            len(consumer.held) for consumer in self.consumers.values()
        )
        assert places == {key: place for key, place in self.published.items() if place in ("ready", "held")}

    # One message at a time

    def _publish(self, name: str, messages: list[Message]) -> None:
        if name in self.queues:
            self.queues[name].backlog += messages
            self._gone(name, messages, "ready")

    def _gone(self, name: str, messages: list[Message], where: str) -> None:
        for message in messages:
            self.published[name, *message[:2]] = where

    def _deliver(self, consumer: OracleConsumer, message: Message) -> None:
        queue = self.queues[consumer.queue]
        (queue.returns if message in queue.returns else queue.backlog).remove(message)
        consumer.credit -= 1
        if consumer.no_ack:
            self._gone(consumer.queue, [message], "settled")
        else:
            consumer.held[consumer.delivered] = message
            self._gone(consumer.queue, [message], "held")
        consumer.delivered += 1

    def _taken(self, consumer: OracleConsumer | None, first: int, last: int) -> list[Message]:
        if consumer is None:
            return []
        taken = [consumer.held.pop(key) for key in sorted(consumer.held) if first <= key <= last]
        if consumer.auto_credit:
            consumer.credit += len(taken)
        return taken

    def _settled(self, consumer: OracleConsumer | None, first: int, last: int) -> None:
        taken = self._taken(consumer, first, last)
        if consumer is not None:
            self._gone(consumer.queue, taken, "settled")

    def _returned(self, key: Key, first: int, last: int) -> None:
        consumer = self.consumers.get(key)
        if consumer is not None:
            self._put_back(consumer.queue, self._taken(consumer, first, last))

    def _put_back(self, name: str, messages: list[Message]) -> None:
        self.queues[name].returns += [(index, slot, deliveries + 1) for index, slot, deliveries in messages]
        self._gone(name, messages, "ready")

    def _return_all(self, keys: list[Key]) -> None:
        by_queue: dict[str, list[Message]] = {}
        for key in keys:
            consumer = self.consumers[key]
            by_queue.setdefault(consumer.queue, []).extend(self._taken(consumer, 0, consumer.delivered))
        for name, messages in by_queue.items():
            self._put_back(name, sorted(messages))

    def _down(self, keys: list[Key]) -> None:
        self._return_all(keys)
        for key in keys:
            del self.consumers[key]

    def _deleted(self, name: str) -> None:
        del self.queues[name]
        self.bound.pop(name, None)
        for key in [key for key, v in self.consumers.items() if v.queue == name]:
            del self.consumers[key]
        for place in [place for place in self.published if place[0] == name]:
            del self.published[place]

    def _forget_finished(self) -> None:
        for key in [key for key, v in self.consumers.items() if not v.live and not v.held]:
            del self.consumers[key]


def _leading(effects: deque[e.Effect], kind: type[E]) -> Iterator[E]:
    while effects and isinstance(effects[0], kind):
        yield effects.popleft()
