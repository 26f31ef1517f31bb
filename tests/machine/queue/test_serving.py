"""Deliveries of very many ranges are made in portions: to all queues in turn, equally on every node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from qq.machine.handlers import core as core_module
from qq.machine.protocol.commands import Get, PurgeQueue, Settle
from qq.machine.protocol.effects import Deliver, QueuePurged, Reply
from qq.machine.protocol.work_meter import DUE_QUEUES_MAX, SERVED_MAX, SERVING_RANGES
from tests.machine.machine_driver import Driver, batch, consume, declare, publish, reloaded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.machine.protocol.effects import Effect
    from qq.machine.queue.queue import Queue


def fill(driver: Driver, name: str, number: int) -> Queue:
    """So many messages, each of an entry of its own."""
    queue = driver.machine.vhosts["/"].queues[name]
    for _ in range(number):
        driver.index += 1
        queue.backlog.add(driver.index, 0, 1, 1)
    return queue


def served(effects: Sequence[Effect]) -> list[tuple[int, int]]:
    """Consumer and ranges of each delivery."""
    return [(each.consumer, len(each.ranges)) for each in effects if isinstance(each, Deliver)]


@pytest.mark.parametrize("arguments", [{}, {"x_queue_type": "quorum", "x_priority_mode": "strict"}])
def test_no_entry_gives_consumers_more_than_its_limit(arguments: dict[str, object]) -> None:
    driver = Driver()
    driver.apply(declare("q", **arguments))
    queue = fill(driver, "q", 3 * SERVED_MAX)
    first = driver.index - 3 * SERVED_MAX + 1
    effects = driver.apply(*(consume(number, "q", 2 * SERVED_MAX) for number in range(2)))
    got: list[int] = []
    entries = 0
    while True:
        ranges = [each for effect in effects if isinstance(effect, Deliver) for each in effect.ranges]
        got += [each.index for each in ranges]
        assert len(ranges) <= SERVED_MAX
        if driver.machine.due_ms() is None:
            break
        other = reloaded(driver.machine)
        effects = driver.machine.end_entry(driver.time_ms)
        assert other.end_entry(driver.time_ms) == effects
        assert other.digest() == driver.machine.digest()
        entries += 1
    assert entries >= 2
    assert sorted(got) == list(range(first, first + 3 * SERVED_MAX))
    assert queue.ready == 0


def test_queues_with_simultaneous_expiry_are_served_over_entries() -> None:
    driver = Driver()
    driver.apply(*(declare(name, x_message_ttl=1_000) for name in map(str, range(DUE_QUEUES_MAX + 10))))
    queues = list(driver.machine.vhosts["/"].queues.values())
    for queue in queues:
        driver.apply(publish(1, queue.name))
    driver.time_ms += 2_000
    left: list[int] = []
    while driver.machine.due_ms() is not None:
        driver.apply()
        left.append(sum(queue.ready for queue in queues))
        assert reloaded(driver.machine).digest() == driver.machine.digest()
    at_once = -(-SERVED_MAX // (SERVING_RANGES + 1))  # each turn moves a message
    assert left == [max(len(queues) - at_once * number, 0) for number in range(1, len(left) + 1)]
    assert 1 < len(left) < 4


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "SERVED_MAX", 6)
    monkeypatch.setattr(core_module, "SERVING_RANGES", 0)


@pytest.mark.usefixtures("few")
def test_queues_are_served_in_turn() -> None:
    driver = Driver()
    names = ["a", "b", "c"]
    driver.apply(*map(declare, names))
    queues = [fill(driver, name, 8) for name in names]
    driver.apply(*(consume(number, name, 8) for number, name in enumerate(names)))
    left = [[queue.ready for queue in queues]]
    while driver.machine.due_ms() is not None:
        driver.apply()
        left.append([queue.ready for queue in queues])
    assert left == [[2, 8, 8], [2, 2, 8], [2, 2, 2], [0, 0, 0]]


@pytest.mark.usefixtures("few")
def test_get_sees_messages_that_were_not_served_yet() -> None:
    driver = Driver()
    driver.apply(declare("q"))
    fill(driver, "q", 20)
    requests = [consume(1, "q", 18, session=2), Get(3, 1, 1, 9, "q", True, 0), PurgeQueue(4, 1, "q")]
    effects = driver.machine.apply_batch("n1", driver.index, 0, driver.time_ms, batch(requests))
    assert served(effects) == [(1, 6)]
    assert [effect.result for effect in effects if isinstance(effect, Reply)][2:] == [QueuePurged(13)]


@pytest.mark.usefixtures("few")
def test_messages_accepted_by_a_full_queue_are_delivered_at_once() -> None:
    driver = Driver()
    driver.apply(
        declare("q", x_max_length=0, x_overflow="reject-publish", x_max_length_bytes=0), consume(1, "q", 20)
    )
    sizes = [b"x" * number for number in range(1, 11)]
    payload = batch([publish(10), Settle(1, 0, 9)], sizes)
    effects = driver.machine.apply_batch("n1", driver.index + 1, 0, driver.time_ms, payload)
    assert served(effects) == [(1, 10)]


@pytest.mark.usefixtures("few")
def test_end_of_an_entry_serves_as_much_as_its_commands() -> None:
    driver = Driver()
    driver.apply(declare("q"), declare("r"))
    fill(driver, "q", 20)
    fill(driver, "r", 20)
    busy = [consume(1, "q", 10), Get(1, 1, 1, 9, "q", True, 0), consume(2, "r", 10)]
    assert served(driver.apply(*busy)) == [(1, 6), (1, 4), (2, 2)]
