"""What all commands share: the state, where in the log we are, and the effects so far.

Lives here: sessions and whose consumer is whose; how an answer or an error is given; what happens at the end of an
entry. Not here: what the commands do (publishing.py, consuming.py, declaring.py).

Law: nothing is told twice and nothing is forgotten: each command that a client waits for adds one to its session's
answers, whatever becomes of it.
"""

from __future__ import annotations

import hashlib
from array import array
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qq.machine.catalog import Catalog
from qq.machine.commands import METHODS
from qq.machine.consumers import Budget
from qq.machine.effects import (
    ConsumerCancelled,
    ConsumerGone,
    DeliveryTimeout,
    Effect,
    Failed,
    Reply,
)
from qq.machine.errors import internal_error, not_found, precondition_failed
from qq.machine.publishers import Publishers
from qq.machine.timers import Timers

if TYPE_CHECKING:
    from qq.machine.commands import Method
    from qq.machine.consumers import Consumer
    from qq.machine.effects import Result
    from qq.machine.errors import Refused
    from qq.machine.queue import Queue
    from qq.machine.state import Answer


@dataclass(slots=True, eq=False)
class Session:
    """One AMQP channel, from its first command that is answered until `SessionDown`."""

    queue: str = ""
    """The queue that was declared last."""
    consumers: dict[int, Consumer] = field(default_factory=dict)
    tags: dict[str, Consumer] = field(default_factory=dict)
    """Consumers that are not cancelled, by consumer tag."""
    budget: Budget = field(default_factory=Budget)
    answers: int = 0
    """How many of its commands were answered."""
    answer: Answer | None = None
    """The last answer, for a node that missed it. `ConsumerCancelled` does not count: it tells nothing, and several
    can be missed at once."""

    @property
    def failed(self) -> bool:
        """An error was sent: whatever was under way behind it must not happen."""
        return type(self.answer) is Failed


class Core:
    """The state of a machine, and the entry that is being applied to it."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.sessions: dict[tuple[str, int], Session] = {}
        self.consumers: dict[tuple[str, int], Consumer] = {}
        self.publishers = Publishers()
        self.dirty: dict[Queue, None] = {}
        """Queues that have something new in this entry."""
        self.dying: dict[Queue, None] = {}
        """Queues that have messages to dead-letter."""
        self.queue_timers: Timers[Queue] = Timers()
        self.consumer_timers: Timers[Consumer] = Timers()
        self.effects: list[Effect] = []
        self.origin = ""
        self.index = 0
        self.time_ms = 0
        self.next_slot = 0
        """Of the first message of the batch that no command has published yet."""
        self.sizes = array("I")
        """Of the messages of the batch, in octets."""
        self.size = 0
        """Of all of them."""
        self.position = 0
        """Of the command in the batch."""

    # Answers

    def take_effects(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects

    def answer(self, session: Session, number: int, result: Result) -> None:
        session.answers += 1
        reply = Reply(self.origin, number, result, session.answers)
        if type(result) is not ConsumerCancelled:
            session.answer = reply
        self.effects.append(reply)

    def fail(self, command: Method, refused: Refused) -> None:
        """Close the channel of a command that cannot be carried out."""
        self._fail(self.origin, command.session, refused.code, refused.text, METHODS[type(command)])

    def _fail(self, node: str, number: int, code: int, text: str, method: tuple[int, int]) -> None:
        session = self.session(node, number)
        session.answers += 1
        session.answer = Failed(node, number, code, text, *method, session.answers)
        self.effects.append(session.answer)
        for consumer in session.consumers.values():
            self.consumer_timers.set(consumer, None)  # its channel is about to go

    # Sessions

    def session(self, node: str, number: int) -> Session:
        known = self.sessions.get((node, number))
        if known is None:
            known = self.sessions[node, number] = Session()
        return known

    def has_failed(self, session: int) -> bool:
        known = self.sessions.get((self.origin, session))
        return known is not None and known.failed

    def last_declared(self, session: int) -> str:
        """The queue that is meant by no name. Raises Refused."""
        queue = self.session(self.origin, session).queue
        if not queue:
            raise not_found("previously declared queue")
        return queue

    def queue(self, session: int, connection: int, name: str) -> Queue:
        """The queue that the command means, if this connection may use it. Raises Refused."""
        return self.catalog.queue(name or self.last_declared(session), (self.origin, connection))

    def generated_name(self) -> str:
        """A name for a server-named queue: no other command ever has this place in the log."""
        place = f"{self.index}.{self.next_slot}.{self.position}"
        digest = hashlib.sha256(place.encode()).digest()
        return "amq.gen-" + urlsafe_b64encode(digest[:16]).decode().rstrip("=")

    # Consumers

    def check_fresh(self, consumer: int) -> None:
        if (self.origin, consumer) in self.consumers:
            raise internal_error(f"consumer {consumer} of node {self.origin} is there already")

    def enter_consumer(self, consumer: Consumer) -> None:
        session = self.session(consumer.node, consumer.session)
        session.consumers[consumer.id] = consumer
        if consumer.live:
            session.tags[consumer.tag] = consumer
        self.consumers[consumer.node, consumer.id] = consumer

    def forget_if_over(self, consumer: Consumer) -> None:
        """A consumer that has stopped goes with the last message it held."""
        if not consumer.live and not consumer.unacked:
            self._forget(consumer)

    def _forget(self, consumer: Consumer) -> None:
        del self.consumers[consumer.node, consumer.id]
        self.consumer_timers.set(consumer, None)
        session = self.sessions.get((consumer.node, consumer.session))
        if session is not None:
            del session.consumers[consumer.id]
            if session.tags.get(consumer.tag) is consumer:
                del session.tags[consumer.tag]

    def checked_in(self, consumer: Consumer) -> None:
        """A consumer holds less than before: it may go, or its channel's other consumers may have more."""
        self.touch(consumer.queue)
        self._room_for_others(consumer)
        self.forget_if_over(consumer)

    def _room_for_others(self, consumer: Consumer) -> None:
        """What it does not hold any more, others on its channel may."""
        session = self.sessions.get((consumer.node, consumer.session))
        if session is not None and consumer.budget is not None and consumer.budget.limit:
            self.look_again(session)

    def look_again(self, session: Session) -> None:
        """The channel's limit leaves room again, or another: its consumers may have more."""
        for consumer in session.consumers.values():
            if consumer.live and consumer.room > 0:
                consumer.queue.give_credit(consumer, 0)
                self.touch(consumer.queue)

    def give_back(self, consumers: list[Consumer], *, failed: bool) -> None:
        """Return all that these consumers hold, per queue in the order of the messages."""
        by_queue: dict[Queue, list[Consumer]] = {}
        for consumer in consumers:
            by_queue.setdefault(consumer.queue, []).append(consumer)
        for queue, holders in by_queue.items():
            queue.give_back_all(holders, self.time_ms, failed=failed)
            for consumer in holders:
                self.checked_in(consumer)

    def end_consumers(self, consumers: list[Consumer], *, failed: bool) -> None:
        """Their sessions are gone: cancel them and return what they hold."""
        lost_a_consumer: dict[Queue, None] = {}
        for consumer in consumers:
            if consumer.live:
                consumer.queue.cancel(consumer, self.time_ms)
                lost_a_consumer[consumer.queue] = None
                self.touch(consumer.queue)
        self.give_back(consumers, failed=failed)
        for queue in lost_a_consumer:
            self.remove_if_automatic(queue)

    # Queues

    def touch(self, queue: Queue) -> None:
        """The queue has something new: at the end of the entry, consumers get what is theirs."""
        self.dirty[queue] = None

    def serve(self, queue: Queue) -> None:
        """Let the queue's consumers have what is theirs before somebody counts or takes what is left."""
        due_ms = queue.due_ms()
        if queue in self.dirty or (due_ms is not None and due_ms <= self.time_ms):
            self._turn(queue)
            self.touch(queue)

    def _turn(self, queue: Queue) -> None:
        deliveries = queue.turn(self.time_ms)
        self.effects.extend(deliveries)
        for delivery in deliveries:
            consumer = self.consumers[delivery.node, delivery.consumer]
            if consumer.marks:
                self.watch(consumer)
        if queue.dying:
            self.dying[queue] = None

    def watch(self, consumer: Consumer) -> None:
        """See to it that a message which is out for too long is noticed."""
        if consumer not in self.consumer_timers and not self.session(consumer.node, consumer.session).failed:
            self.consumer_timers.set(consumer, self._deadline_ms(consumer))

    def _deadline_ms(self, consumer: Consumer) -> int | None:
        timeout_ms, since_ms = consumer.queue.timeout_ms(consumer), consumer.out_since_ms()
        return since_ms + timeout_ms if timeout_ms and since_ms is not None else None

    def remove_if_automatic(self, queue: Queue) -> None:
        """An auto-delete queue goes with its last consumer."""
        if queue.auto_delete and queue.had_consumer and not queue.consumers:
            self.remove_queue(queue)

    def remove_queue(self, queue: Queue) -> None:
        """The queue goes with all its messages; later settlements of them find nothing."""
        self.catalog.delete_queue(queue)
        self.dirty.pop(queue, None)
        self.dying.pop(queue, None)
        self.queue_timers.set(queue, None)
        for consumer in queue.holders:
            self._forget(consumer)
            if consumer.budget is not None:
                consumer.budget.held -= len(consumer.unacked)
            if consumer.live:
                self.effects.append(ConsumerGone(consumer.node, consumer.session, consumer.id))
        for consumer in queue.holders:
            self._room_for_others(consumer)

    # Time

    def due_ms(self) -> int | None:
        """When there will be something to do that no command asks for; None for never."""
        queue_ms, consumer_ms = self.queue_timers.due_ms(), self.consumer_timers.due_ms()
        if queue_ms is None or consumer_ms is None:
            return consumer_ms if queue_ms is None else queue_ms
        return min(queue_ms, consumer_ms)

    def end_entry(self) -> None:
        """Do what time brings, and serve the queues that have something new, in the order in which they got it."""
        now_ms = self.time_ms
        # In an order that does not depend on when a timer was set: a state that was loaded sets them all at once.
        for consumer in sorted(self.consumer_timers.pop_due(now_ms), key=_consumer_key):
            self._consumer_is_due(consumer)
        for queue in sorted(self.queue_timers.pop_due(now_ms), key=_queue_key):
            if queue.is_abandoned(now_ms):
                self.remove_queue(queue)
            else:
                self.touch(queue)
        for queue in self.dirty:
            self._turn(queue)
            due_ms = queue.due_ms()
            if due_ms is not None or queue in self.queue_timers:
                self.queue_timers.set(queue, due_ms)
        self.dirty.clear()

    def _consumer_is_due(self, consumer: Consumer) -> None:
        queue, deadline_ms = consumer.queue, self._deadline_ms(consumer)
        message_id = consumer.unacked.first()
        if deadline_ms is None or message_id is None or deadline_ms > self.time_ms:
            self.consumer_timers.set(consumer, deadline_ms)
            return
        timeout_ms = queue.timeout_ms(consumer)
        node, number = consumer.node, consumer.session
        if self.session(node, number).failed:
            return  # its channel is about to go
        self.effects.append(
            DeliveryTimeout(node, number, consumer.id, consumer.tag, queue.name, message_id, timeout_ms)
        )
        by_cancelling = queue.settings.timeout_action == "cancel-consumer" and consumer.can_be_cancelled
        if by_cancelling and consumer.live:
            self.effects.append(ConsumerGone(node, number, consumer.id))
            self.end_consumers([consumer], failed=False)
        else:
            refused = precondition_failed(
                f"delivery acknowledgement on channel {consumer.channel} timed out. Timeout value used: "
                f"{timeout_ms} ms. This timeout value can be configured, see consumers doc guide to learn more"
            )
            self._fail(node, number, refused.code, refused.text, (0, 0))


def _queue_key(queue: Queue) -> int:
    return queue.number


def _consumer_key(consumer: Consumer) -> tuple[str, int]:
    return consumer.node, consumer.id
