"""The law of qq/machine/queue/queue.py: only methods of a queue change it and its parts."""

from __future__ import annotations

from tests.machine.machine_driver import Driver, consume, declare, publish


def test_foreign_change_of_a_queue_is_detected(foreign_changes: list[str]) -> None:
    driver = Driver()
    driver.apply(declare("q"), consume(1, "q", 1))
    driver.apply(publish(2))
    assert foreign_changes == []
    queue = driver.machine.vhosts["/"].queues["q"]
    queue.used_ms = 5
    queue.tally.published += 1
    queue.backlog.take(1)
    assert foreign_changes == [
        f"{__name__}: {changed}" for changed in ("Queue.__setattr__", "Tally.__setattr__", "Backlog.take")
    ]
