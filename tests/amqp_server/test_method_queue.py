"""Methods that a channel has held back are carried out a few at a time."""

from __future__ import annotations

from typing import Any

from pamqp import commands

from qq.amqp.framing import Method, Publishes
from qq.amqp_server.channel.method_queue import AT_ONCE, MethodQueue


class Carrier:
    """A connection that counts the requests for further turns."""

    def __init__(self) -> None:
        self.requested = 0

    def methods_held(self, _: Any) -> None: ...

    def methods_released(self, _: Any) -> None: ...

    def continue_later(self, _: Any) -> None:
        self.requested += 1


def steps_for(events: list[Any]) -> list[int]:
    """Return how many of the held events each step carries out."""
    carrier: Any = Carrier()
    unused: Any = None
    carried_out: list[Any] = []
    queue = MethodQueue(1, carrier, unused, unused, carried_out.append)
    queue.block()
    for event in events:
        queue.receive(event)
    queue.release()
    steps = list[int]()
    while carrier.requested > len(steps):
        before = len(carried_out)
        queue.carry_out_some()
        steps.append(len(carried_out) - before)
    assert carried_out == events
    return steps


def test_some_held_methods_are_carried_out_together() -> None:
    methods: list[Any] = [Method(1, commands.Basic.Qos()) for _ in range(2 * AT_ONCE + 1)]
    assert steps_for(methods) == [AT_ONCE, AT_ONCE, 1]


def test_held_messages_end_a_step() -> None:
    """An event may have as many messages as a step of the reader. Sixteen such events took 11 ms together."""
    messages = Publishes(1, b"", [b""] * 32, 0)
    qos = Method(1, commands.Basic.Qos())
    assert steps_for([qos, messages, messages, qos]) == [2, 1, 1]
