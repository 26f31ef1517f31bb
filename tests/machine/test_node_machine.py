"""That a node does not look for garbage in a state while it reads it."""

from __future__ import annotations

import gc

from machine_driver import Driver, consume, declare, publish

from qq import garbage
from qq.garbage import THRESHOLDS
from qq.machine.commands import Settle
from qq.machine.machine import QueueMachine
from qq.node.node_machine import NodeMachine

MESSAGES = 120_000


def most_walked(machine: QueueMachine, state: bytes) -> int:
    """How many objects a collection of garbage has walked at most, while a state was read or right after that."""
    walked = [0]

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            walked.append(
                sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1))
            )

    gc.collect()
    gc.freeze()
    thresholds = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(note)
    try:
        kept = machine.read(state)
        filler = [[] for _ in range(3 * THRESHOLDS[0])]
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*thresholds)
        garbage.collect()
    assert kept
    assert filler
    return max(walked)


def test_no_collection_of_garbage_walks_a_state_that_was_read() -> None:
    driver = Driver()
    driver.apply(declare("q"), publish(MESSAGES), consume(1, "q", MESSAGES), messages=[b"x"] * MESSAGES)
    driver.apply(*(Settle(1, number, number) for number in range(0, MESSAGES, 2)))
    state = driver.machine.dump()
    assert most_walked(NodeMachine(), state) < MESSAGES
    assert most_walked(QueueMachine(), state) > MESSAGES, "what is looked for here does not happen"
