"""Consumers of a lost node end in portions. Until then they get no messages."""

from __future__ import annotations

from itertools import pairwise

import pytest

from qq.machine.protocol.commands import DeleteQueue, Limit
from qq.machine.protocol.effects import ConsumerGone, Deliver
from qq.machine.protocol.work_meter import LOST_MAX
from tests.machine.machine_driver import Driver, consume, declare, publish, reloaded

SESSIONS = 5
CONSUMERS = 5 * LOST_MAX


def run_session(driver: Driver, *, no_ack: bool = False) -> None:
    """Add consumers of n1 at "q", and a consumer of n2."""
    driver.apply(declare("q"), *(Limit(session, 10) for session in range(1, SESSIONS + 1)))
    requests = [
        consume(number, "q", 1, session=1 + number % SESSIONS, no_ack=no_ack) for number in range(CONSUMERS)
    ]
    driver.apply(*requests)
    driver.apply(consume(1, "q", 20), node="n2")
    driver.apply(publish(30))


@pytest.mark.slow
@pytest.mark.parametrize("no_ack", [False, True])
def test_consumers_of_a_lost_node_end_in_portions(*, no_ack: bool) -> None:
    driver = Driver()
    run_session(driver, no_ack=no_ack)
    machine, queue = driver.machine, driver.machine.vhosts["/"].queues["q"]
    messages = queue.ready + queue.unacked
    effects = list(machine.origin_down("n1", driver.time_ms, evicted=False))
    counts = [len(machine.consumers)]
    assert counts[0] > CONSUMERS // 2
    while machine.due_ms() is not None:
        effects += driver.apply(publish(1, session=9), node="n3")
        counts.append(len(machine.consumers))
        assert reloaded(machine).digest() == machine.digest()
        assert machine.outstanding("n1") == []
    assert max(before - after for before, after in pairwise(counts)) <= LOST_MAX
    assert counts[-1] == 1
    assert {effect.node for effect in effects if isinstance(effect, Deliver)} == {"n2"}
    assert queue.consumers == 1
    assert queue.ready + queue.unacked == messages + len(counts) - 1


def test_new_command_of_a_node_follows_the_end_of_its_sessions() -> None:
    """Its sessions and consumers have the same numbers."""
    driver = Driver()
    run_session(driver)
    machine = driver.machine
    machine.origin_down("n1", driver.time_ms, evicted=True)
    assert machine.has_lost_sessions("n1")
    effects = driver.apply(consume(0, "q", 5, session=1))
    assert not machine.has_lost_sessions("n1")
    assert sorted(machine.consumers) == [("n1", 0), ("n2", 1)]
    assert [effect.node for effect in effects if isinstance(effect, Deliver)] == ["n2", "n1"]


def test_deleted_queue_notifies_only_live_nodes() -> None:
    driver = Driver()
    run_session(driver)
    driver.machine.origin_down("n1", driver.time_ms, evicted=True)
    effects = driver.apply(DeleteQueue(1, 1, "q", False, False), node="n2")
    assert [effect.node for effect in effects if isinstance(effect, ConsumerGone)] == ["n2"]
    driver.lead()
    assert not driver.machine.consumers
    assert not driver.machine.has_lost_sessions("n1")
