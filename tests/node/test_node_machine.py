"""That a node does not look for garbage in a state while it reads it."""

from __future__ import annotations

from qq.machine.machine import QueueMachine
from qq.machine.protocol.commands import Settle
from qq.node.node_machine import NodeMachine
from qq.process.garbage import THRESHOLDS
from tests.harness.garbage_walks import collections_as_in_a_node
from tests.machine.machine_driver import Driver, consume, declare, publish

MESSAGES = 120_000


def most_walked(machine: QueueMachine, state: bytes) -> int:
    """How many objects a collection of garbage has walked at most, while a state was read or right after that."""
    with collections_as_in_a_node() as walked:
        kept = machine.read(state)
        filler = [[] for _ in range(3 * THRESHOLDS[0])]
    assert kept
    assert filler
    return max(walked, default=0)


def test_no_collection_of_garbage_walks_a_state_that_was_read() -> None:
    driver = Driver()
    driver.apply(declare("q"), publish(MESSAGES), consume(1, "q", MESSAGES), messages=[b"x"] * MESSAGES)
    driver.apply(*(Settle(1, number, number) for number in range(0, MESSAGES, 2)))
    state = driver.machine.dump()
    assert most_walked(NodeMachine(), state) < MESSAGES
    assert most_walked(QueueMachine(), state) > MESSAGES, "what is looked for here does not happen"
