"""Drives a machine the way a group does, and looks into it message by message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.machine.codec import encode_batch
from qq.machine.machine import QueueMachine
from qq.machine.runs import Runs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.machine.commands import Command
    from qq.machine.effects import Effect
    from qq.machine.queue import Consumer, Queue
    from qq.ranges import Range

Message = tuple[int, int, int]
"""Index, slot, deliveries."""


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
    backlog.load(queue.backlog.dump())
    ready = messages_of(queue.returns)
    return ready + messages_of(backlog.take(queue.ready - len(ready)))


def held_messages(consumer: Consumer) -> dict[int, Message]:
    held: dict[int, Message] = {}
    for piece in consumer.unacked.pieces():
        part = messages_of([piece.value.part(piece.offset, piece.count)])
        held.update(zip(range(piece.first, piece.last + 1), part, strict=True))
    return held


class Driver:
    """One machine; each call is an entry with one batch of one node."""

    def __init__(self) -> None:
        self.machine = QueueMachine()
        self.index = 0

    def apply(self, *commands: Command, node: str = "n1", messages: Sequence[bytes] = ()) -> list[Effect]:
        self.index += 1
        effects = self.machine.apply_batch(node, self.index, 0, 1_000 + self.index, batch(commands, messages))
        return effects + self.machine.end_entry()
