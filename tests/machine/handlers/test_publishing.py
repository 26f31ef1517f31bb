"""Dead-lettering must not multiply a message without bound."""

from __future__ import annotations

import pytest

from qq.machine.handlers import publishing as publishing_module
from qq.machine.protocol.commands import BindQueue, Discard
from tests.machine.machine_driver import Driver, consume, declare, publish, reloaded


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing_module, "SPREAD_MAX", 30)


def messages(driver: Driver) -> int:
    return sum(queue.messages + queue.unacked for queue in driver.machine.queues())


def most_messages(driver: Driver) -> int:
    """Return the largest number of messages until the queues are empty."""
    most = 0
    while messages(driver):
        most = max(most, messages(driver))
        driver = advanced(driver)
    return most


def advanced(driver: Driver) -> Driver:
    due_ms = driver.machine.due_ms()
    assert due_ms is not None
    driver.wait_until(due_ms)
    assert reloaded(driver.machine).digest() == driver.machine.digest()
    return driver


def test_dead_lettering_between_all_queues_is_bounded() -> None:
    driver = Driver()
    names = [f"q{number}" for number in range(7)]
    driver.apply(
        *(declare(name, x_message_ttl=100, x_dead_letter_exchange="amq.fanout") for name in names),
        *(BindQueue(1, 1, name, "amq.fanout", "", {}) for name in names),
        publish(1, "q0"),
    )
    # 6 queues, then 5 queues for each; 4 more for each would be 120.
    assert most_messages(driver) == 30


def test_chain_of_40_dead_letter_queues_does_not_multiply() -> None:
    driver = Driver()
    names = [f"q{number}" for number in range(40)]
    driver.apply(
        *(
            declare(name, x_message_ttl=100, x_dead_letter_exchange="", x_dead_letter_routing_key=next_name)
            for name, next_name in zip(names, [*names[1:], "end"], strict=True)
        ),
        declare("end"),
        publish(1, "q0"),
    )
    driver.wait_until(driver.time_ms + 10_000)
    assert driver.machine.vhosts["/"].queues["end"].ready == 1


def test_rejections_may_continue_forever() -> None:
    driver = Driver()
    driver.apply(
        declare("work", x_dead_letter_exchange="amq.fanout"),
        declare("wait", x_message_ttl=100, x_dead_letter_exchange="", x_dead_letter_routing_key="work"),
        declare("log"),
        *(BindQueue(1, 1, name, "amq.fanout", "", {}) for name in ("wait", "log")),
        consume(1, "work", 1),
        publish(1, "work"),
    )
    for turn in range(20):
        driver.apply(Discard(1, turn, turn))
        driver.wait_until(driver.time_ms + 1000)
    queues = driver.machine.vhosts["/"].queues
    assert (queues["work"].unacked, queues["log"].ready) == (1, 20)
