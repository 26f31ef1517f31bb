"""The law of qq/machine/queue.py: only methods of a queue change it and its parts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from machine_driver import Driver, consume, declare, publish
from scenario_format import rerun

from qq.machine.backlog import Backlog
from qq.machine.consumers import Rotation
from qq.machine.history import Histories
from qq.machine.queue import Consumer, Queue, Tally

if TYPE_CHECKING:
    from collections.abc import Callable

PARTS = ("qq.machine.queue", "qq.machine.consumers", "qq.machine.backlog", "qq.machine.history")
"""The modules of a queue and of its parts."""
ASSIGNED = (Queue, Tally, Consumer, Backlog)
CHANGES: dict[type, tuple[str, ...]] = {
    Backlog: ("add", "give_back", "put_back", "delay", "take", "expire", "release", "clear", "load"),
    Histories: ("intern", "retain", "release", "keep_only", "load"),
    Rotation: ("add", "discard"),
    Consumer: ("wait_for_room", "stop_waiting", "hold", "mark"),
}
SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.fixture(autouse=True)
def strangers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What others have changed of queues."""
    found: list[str] = []

    def note(what: str) -> None:
        caller = sys._getframe(2).f_globals["__name__"]
        if caller not in PARTS:
            found.append(f"{caller}: {what}")

    def checked(kind: type, name: str) -> Callable[..., Any]:
        change = getattr(kind, name)

        def call(self: Any, *values: Any, **options: Any) -> Any:
            note(f"{kind.__name__}.{name}")
            return change(self, *values, **options)

        return call

    for kind in ASSIGNED:
        monkeypatch.setattr(kind, "__setattr__", checked(kind, "__setattr__"))
    for kind, names in CHANGES.items():
        for name in names:
            monkeypatch.setattr(kind, name, checked(kind, name))
    return found


def test_a_stranger_is_noticed(strangers: list[str]) -> None:
    driver = Driver()
    driver.apply(declare("q"), consume(1, "q", 1))
    driver.apply(publish(2))
    assert strangers == []
    queue = driver.machine.vhosts["/"].queues["q"]
    queue.used_ms = 5
    queue.tally.published += 1
    queue.backlog.take(1)
    assert strangers == [
        f"{__name__}: {what}" for what in ("Queue.__setattr__", "Tally.__setattr__", "Backlog.take")
    ]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_only_queues_change_queues(path: Path, strangers: list[str]) -> None:
    rerun(path.read_text(encoding="utf-8"))
    # The driver lets backlogs of its own be loaded, to look into others.
    assert {stranger for stranger in strangers if not stranger.startswith("machine_driver: ")} == set()
