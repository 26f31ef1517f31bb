"""Findings about publishers that a limit holds up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from qq.diagnosis.node_rules import ThrottledPublisher
from qq.management.statistics.session_watch import THROTTLED_MS, SessionWatch
from qq.sessions.session_info import LinkFacts, SessionFacts

LIMIT = ("max-publishes-per-second", 10)
CHANNEL = SessionFacts(7)
LINK = SessionFacts(259, link=LinkFacts("orders", "sender", "/queues/orders", 0, 1))


class World:
    """A node with a channel and a link, and a watch of both."""

    def __init__(self) -> None:
        self.held = {1, 2}
        throttle: Any = SimpleNamespace(limit_of=lambda session: LIMIT if session in self.held else None)
        self.watch = SessionWatch(throttle)

    def check(self, now_ms: int) -> list[ThrottledPublisher]:
        for number, facts in ((1, CHANNEL), (2, LINK)):
            session: Any = SimpleNamespace(session=number, connection=SimpleNamespace(name="a -> b"))
            self.watch.check(session, facts, now_ms)
        self.watch.end_pass()
        return list(self.watch.throttled)


def test_publishers_held_up_for_a_minute_are_named() -> None:
    world = World()
    assert world.check(5) == world.check(4 + THROTTLED_MS) == []
    found = world.check(5 + THROTTLED_MS)
    assert found == [ThrottledPublisher(name, "a -> b", *LIMIT, 5) for name in ("channel 7", "link 'orders'")]


def test_publisher_that_publishes_meanwhile_is_not_held_up() -> None:
    world = World()
    world.check(5)
    world.held = {1}
    world.check(6)
    world.held = {1, 2}
    assert [each.name for each in world.check(5 + THROTTLED_MS)] == ["channel 7"]
