"""The order of a channel's methods, without a socket and a log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pamqp.commands import Basic

from qq.amqp.framing import Method, Publishes
from qq.amqp_server.channel.method_queue import AT_ONCE, MethodQueue

if TYPE_CHECKING:
    from collections.abc import Callable

EVENT = Method(1, Basic.Get(queue="q"))


class Ends:
    """The connection and the log of a channel."""

    def __init__(self) -> None:
        self.done: list[object] = []
        self.reads: list[Callable[[], None]] = []
        self.turns: list[MethodQueue] = []
        self.holding: set[int] = set()
        connection: Any = SimpleNamespace(
            lane=None,
            requests_held=lambda methods: self.holding.add(methods.number),
            requests_released=lambda methods: self.holding.discard(methods.number),
            continue_later=self.turns.append,
        )
        log: Any = SimpleNamespace(read=lambda done, _lane: self.reads.append(done))
        access: Any = SimpleNamespace(certain=False)
        self.methods = MethodQueue(1, connection, log, access, self.done.append)


def test_answered_read_waits_for_a_turn_of_the_connection() -> None:
    """After a pause of the leader, a message of it answered thousands of channels, in 65 ms without a break."""
    ends = Ends()
    ends.methods.wait_read(lambda: ends.done.append("read"))
    [answered] = ends.reads
    answered()
    ends.methods.receive(EVENT)
    assert (ends.done, ends.turns, ends.holding) == ([], [ends.methods], {1})
    ends.methods.carry_out_some()
    assert (ends.done, ends.holding) == (["read", EVENT], set())


def test_answered_read_of_an_ended_channel_is_ignored() -> None:
    ends = Ends()
    for ends_first in (True, False):
        ends.methods.wait_read(lambda: ends.done.append("read"))
        if ends_first:
            ends.methods.end()
        ends.reads.pop()()
        ends.methods.end()
        ends.methods.carry_out_some()
    assert ends.done == []


def steps_for(events: list[Any]) -> list[int]:
    """Return how many of the held events each step carries out."""
    ends = Ends()
    ends.methods.block()
    for event in events:
        ends.methods.receive(event)
    ends.methods.release()
    steps = list[int]()
    while len(ends.turns) > len(steps):
        before = len(ends.done)
        ends.methods.carry_out_some()
        steps.append(len(ends.done) - before)
    assert ends.done == events
    return steps


def test_some_held_methods_are_carried_out_together() -> None:
    assert steps_for([EVENT] * (2 * AT_ONCE + 1)) == [AT_ONCE, AT_ONCE, 1]


def test_held_messages_end_a_step() -> None:
    """An event may have as many messages as a step of the reader. Sixteen such events took 11 ms together."""
    messages = Publishes(1, b"", [b""] * 32, 0)
    assert steps_for([EVENT, messages, messages, EVENT]) == [2, 1, 1]
