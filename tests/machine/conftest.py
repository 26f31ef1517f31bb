"""The option that regenerates the golden scenarios, and a fixture that detects foreign changes of queues.

`pytest tests/machine --rewrite`, then review the diff.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from qq.machine.protocol.death_history import Histories
from qq.machine.queue.backlog import Backlog
from qq.machine.queue.consumers import Rotation
from qq.machine.queue.queue import Consumer, Queue, Tally

if TYPE_CHECKING:
    from collections.abc import Callable

PARTS = (
    "qq.machine.queue.queue",
    "qq.machine.queue.consumers",
    "qq.machine.queue.backlog",
    "qq.machine.protocol.death_history",
)
"""The modules of a queue and of its parts."""
ASSIGNED = (Queue, Tally, Consumer, Backlog)
CHANGES: dict[type, tuple[str, ...]] = {
    Backlog: ("add", "give_back", "put_back", "delay", "take", "expire", "release", "clear", "load"),
    Histories: ("intern", "retain", "release", "keep_only", "load"),
    Rotation: ("add", "discard"),
    Consumer: ("wait_for_room", "stop_waiting", "hold", "mark"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write what the machine does into the golden scenarios"
    )


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite", default=False))


@pytest.fixture
def foreign_changes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Changes of queues by code outside their package."""
    found: list[str] = []

    def record(changed: str) -> None:
        caller = sys._getframe(2).f_globals["__name__"]
        if caller not in PARTS:
            found.append(f"{caller}: {changed}")

    def checked(kind: type, name: str) -> Callable[..., Any]:
        change = getattr(kind, name)

        def call(self: Any, *values: Any, **options: Any) -> Any:
            record(f"{kind.__name__}.{name}")
            return change(self, *values, **options)

        return call

    for kind in ASSIGNED:
        monkeypatch.setattr(kind, "__setattr__", checked(kind, "__setattr__"))
    for kind, names in CHANGES.items():
        for name in names:
            monkeypatch.setattr(kind, name, checked(kind, name))
    return found
