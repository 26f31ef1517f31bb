"""Drives a machine the way a group does, and looks into it message by message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.machine.codec import encode_batch
from qq.machine.effects import ConsumerCancelled, Deliver, Failed, GetOk, Known, Reply
from qq.machine.machine import QueueMachine
from qq.machine.runs import Runs
from qq.ranges import MESSAGE_BITS, MESSAGE_MASK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.machine.commands import Command
    from qq.machine.effects import Effect
    from qq.machine.queue import Consumer, Queue
    from qq.ranges import Range

Message = tuple[int, int, int]
"""Index, slot, deliveries."""
Place = tuple[int, int, int]
"""Index, ordinal of the batch, ordinal of the message."""


def batch(commands: Sequence[Command], messages: Sequence[bytes] = ()) -> bytes:
    return b"".join(encode_batch(commands, messages))


def reloaded(machine: QueueMachine) -> QueueMachine:
    """A machine that knows the other only from its dump."""
    other = QueueMachine()
    other.load(machine.dump())
    assert other.digest() == machine.digest()
    return other


def messages_of(ranges: Sequence[Range]) -> list[Message]:
    return [
        (index, slot + offset, deliveries)
        for index, slot, count, deliveries in ranges
        for offset in range(count)
    ]


def ready_messages(queue: Queue) -> list[Message]:
    """Every ready message, in the order in which they would be served."""
    backlog = Runs()
    backlog.load(queue.backlog.freeze().dump())
    ready = messages_of(queue.returns)
    return ready + messages_of(backlog.take(queue.ready - len(ready)))


def held_messages(consumer: Consumer) -> dict[int, Message]:
    held: dict[int, Message] = {}
    for piece in consumer.unacked.pieces():
        part = messages_of([piece.value.part(piece.offset, piece.count)])
        held.update(zip(range(piece.first, piece.last + 1), part, strict=True))
    return held


def live_messages(machine: QueueMachine) -> list[Place]:
    """Whatever anything refers to, as often as it is referred to."""
    messages = [message for queue in machine.queues.values() for message in ready_messages(queue)]
    for consumer in machine.consumers.values():
        messages += held_messages(consumer).values()
    for session in machine._sessions.values():
        answer = session.answer
        if isinstance(answer, Reply) and isinstance(answer.result, GetOk):
            messages += messages_of([answer.result.range])
    return [(index, slot >> MESSAGE_BITS, slot & MESSAGE_MASK) for index, slot, _ in messages]


class Shell:
    """What a node knows of its sessions: from the effects, and from the state when it missed some."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.missed = False
        self._answers: dict[int, int] = {}
        self._last: dict[int, Reply | Failed] = {}
        self._messages: dict[int, dict[int, Message]] = {}
        """By consumer and message id, everything that it was ever given."""

    def hear(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if effect.node != self.node:
                continue
            match effect:
                case Reply() | Failed():
                    assert effect.number == self._answers.get(effect.session, 0) + 1
                    self._answered(effect)
                case Deliver():
                    assert effect.first_id > max(self._messages.get(effect.consumer, ()), default=-1)
                    self._given(effect)
                case _:
                    pass

    def forget(self, session: int) -> None:
        """The session is down; the next one may have its number."""
        self._answers.pop(session, None)
        self._last.pop(session, None)

    def resume(self, machine: QueueMachine) -> None:
        """Take from the state what was missed, and find that nothing is missing then."""
        self.missed = False
        effects = machine.outstanding(self.node)
        assert {effect.node for effect in effects} <= {self.node}
        for effect in effects:
            match effect:
                case Reply() | Failed():
                    assert not (isinstance(effect, Reply) and isinstance(effect.result, ConsumerCancelled))
                    self._answered(effect)
                case Deliver():
                    self._given(effect)
                case Known():
                    self._answers[effect.session] = effect.answers
                case _:
                    raise AssertionError(f"{effect} is not about a session's due")
        known = [effect for effect in effects if isinstance(effect, Known)]
        assert {(effect.node, effect.session) for effect in known} == {
            key for key in machine._sessions if key[0] == self.node
        }
        live = {consumer for effect in known for consumer in effect.consumers}
        for (node, number), consumer in machine.consumers.items():
            if node == self.node:
                assert (number in live) == consumer.live
                # What `Get` took is in its answer.
                for message_id, message in held_messages(consumer).items() if consumer.next_id else ():
                    assert self._messages[number][message_id] == message

    def _answered(self, effect: Reply | Failed) -> None:
        self._answers[effect.session] = max(effect.number, self._answers.get(effect.session, 0))
        if not (isinstance(effect, Reply) and isinstance(effect.result, ConsumerCancelled)):
            known = self._last.get(effect.session)
            if known is not None and known.number == effect.number:
                assert known == effect
            self._last[effect.session] = effect

    def _given(self, effect: Deliver) -> None:
        had = self._messages.setdefault(effect.consumer, {})
        for message_id, message in enumerate(messages_of(effect.ranges), effect.first_id):
            assert had.setdefault(message_id, message) == message


class Driver:
    """One machine; each call is an entry with one batch of one node."""

    def __init__(self) -> None:
        self.machine = QueueMachine()
        self.index = 0

    def apply(self, *commands: Command, node: str = "n1", messages: Sequence[bytes] = ()) -> list[Effect]:
        self.index += 1
        effects = self.machine.apply_batch(node, self.index, 0, 1_000 + self.index, batch(commands, messages))
        return effects + self.machine.end_entry()
