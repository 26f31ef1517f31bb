"""Delayed messages that have a time to live."""

from __future__ import annotations

from unittest import mock

import pytest

from qq.machine.protocol import commands as c
from qq.machine.protocol.effects import Deliver, Effect
from qq.machine.queue import queue as queue_module
from tests.machine.machine_driver import Driver, consume, declare, publish, ready_ranges, reloaded

LATE_MS = 700


def given(effects: list[Effect]) -> int:
    return sum(part.count for effect in effects if isinstance(effect, Deliver) for part in effect.ranges)


@pytest.mark.parametrize("is_reloaded", [False, True])
def test_late_entry_does_not_shorten_the_ttl_of_delayed_messages(is_reloaded: bool) -> None:
    driver = Driver()
    driver.apply(declare("q"), publish(1, delay_ms=100, ttl_ms=500))
    begin_ms = driver.time_ms
    if is_reloaded:
        driver.machine = reloaded(driver.machine)
    assert driver.machine.due_ms() == begin_ms + 100
    driver.time_ms = begin_ms + 100 + LATE_MS
    driver.apply()
    assert [messages.expires_ms for messages in ready_ranges(driver.machine.vhosts["/"].queues["q"])] == [
        driver.time_ms + 500
    ]
    driver.wait_until(driver.time_ms + 499)
    assert driver.machine.vhosts["/"].queues["q"].ready == 1
    driver.wait_until(driver.time_ms + 1)
    assert driver.machine.vhosts["/"].queues["q"].ready == 0


def test_a_time_to_live_of_0_reaches_a_consumer_that_waits() -> None:
    driver = Driver()
    driver.apply(declare("q", x_message_ttl=0), consume(1, "q", 9), publish(2, delay_ms=100))
    driver.time_ms += 100 + LATE_MS
    assert given(driver.apply()) == 2


def test_messages_released_late_do_not_expire_before_delivery() -> None:
    """Each entry releases a few messages and delivers them; the rest keeps its time to live."""
    driver = Driver()
    driver.apply(declare("q"), consume(1, "q", 25))
    for _ in range(30):
        driver.apply(publish(1, delay_ms=100, ttl_ms=0))
    driver.time_ms += 100
    got: list[int] = []
    with mock.patch.object(queue_module, "DUE_MAX", 10):
        for _ in range(3):
            driver.time_ms += LATE_MS
            driver.machine = reloaded(driver.machine)
            got.append(given(driver.apply()))
    assert got == [10, 10, 5]
    queue = driver.machine.vhosts["/"].queues["q"]
    assert (queue.ready, queue.backlog.delayed) == (0, 0)


def test_returned_message_expires_during_its_retry_delay() -> None:
    driver = Driver()
    retry = {"x_delayed_retry_type": "all", "x_delayed_retry_min": 5_000, "x_delayed_retry_max": 5_000}
    driver.apply(declare("q", x_queue_type="quorum", **retry), consume(1, "q", 1))
    driver.apply(publish(1, ttl_ms=1_000))
    driver.apply(c.Cancel(1, 1), c.Return(1, 0, 0))
    queue = driver.machine.vhosts["/"].queues["q"]
    assert (queue.backlog.delayed, driver.machine.due_ms()) == (1, driver.time_ms + 1_000)
    driver.wait_until(driver.time_ms + 1_000)
    assert queue.backlog.delayed == 0
