"""The comparison of machines finds every planted difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from qq.machine.protocol.commands import BindExchange, BindQueue, DeclareExchange, Limit, UnbindQueue
from qq.machine.queue.consumers import Budget
from tests.machine.likeness import differences
from tests.machine.machine_driver import Driver, consume, declare, publish, reloaded

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.machine.machine import QueueMachine


def eventful() -> QueueMachine:
    """A machine that numbers its bindings in a different order than a loaded machine."""
    driver = Driver()
    driver.apply(declare("q"), declare("r", x_max_length=9))
    for kind in ("topic", "headers", "x-consistent-hash"):
        driver.apply(DeclareExchange(1, kind, kind, False, True, False, False, {}))
    for queue, key in (("q", "a.#"), ("r", "a.*"), ("q", "*.b")):
        driver.apply(BindQueue(1, 1, queue, "topic", key, {}))
    for number, queue in enumerate("qrq", 1):
        driver.apply(BindQueue(1, 1, queue, "headers", "", {"size": number}))
    driver.apply(
        UnbindQueue(1, 1, "q", "topic", "a.#", {}), UnbindQueue(1, 1, "q", "headers", "", {"size": 1})
    )
    driver.apply(
        BindQueue(1, 1, "q", "x-consistent-hash", "2", {}),
        BindExchange(1, "topic", "headers", "", {}),
        Limit(1, 2),
        consume(1, "q", 5, timeout_ms=1_000),
        consume(2, "r", 5),
        publish(4),
        publish(3, "r"),
    )
    return driver.machine


def test_loaded_machine_has_no_differences_from_its_source() -> None:
    machine = eventful()
    assert differences(machine, reloaded(machine)) == []
    assert differences(machine, reloaded(reloaded(machine))) == []


def forget_a_number(machine: QueueMachine) -> None:
    machine.vhosts["/"]._table._routers["headers"]._wants_all ^= 1


def forget_a_pattern_word(machine: QueueMachine) -> None:
    machine.vhosts["/"]._table._routers["topic"]._patterns._places[1].any_word = 0


def count_arguments_twice(machine: QueueMachine) -> None:
    machine.vhosts["/"].argument_bytes *= 2


def count_a_step_more(machine: QueueMachine) -> None:
    machine.vhosts["/"]._table._routers["x-consistent-hash"]._steps += 1


def change_the_order_of_queues(machine: QueueMachine) -> None:
    queues = machine.vhosts["/"].queues
    queues["q"] = queues.pop("q")


def change_a_type(machine: QueueMachine) -> None:
    machine.vhosts["/"].queues["q"].durable = 1


def wait_for_no_timer(machine: QueueMachine) -> None:
    machine._core.sessions["n1", 1].budget.waiting.append(7)


def share_no_budget(machine: QueueMachine) -> None:
    budget = machine._core.sessions["n1", 1].budget
    machine.consumers["n1", 2].budget = Budget(budget.limit, budget.held, budget.waiting, budget.ranks)


def be_late(machine: QueueMachine) -> None:
    machine._core.consumer_timers.set(machine.consumers["n1", 1], 2**62)


def forget_a_timer(machine: QueueMachine) -> None:
    machine._core.consumer_timers.set(machine.consumers["n1", 1], None)


def keep_an_attribute(machine: QueueMachine) -> None:
    machine._core.catalog.another = 1


FAULTS = [
    be_late,
    change_a_type,
    change_the_order_of_queues,
    count_a_step_more,
    count_arguments_twice,
    forget_a_number,
    forget_a_timer,
    forget_a_pattern_word,
    keep_an_attribute,
    share_no_budget,
    wait_for_no_timer,
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: Callable[[QueueMachine], None]) -> None:
    machine = eventful()
    loaded = reloaded(machine)
    fault(machine)
    assert len(differences(machine, loaded)) == 1
