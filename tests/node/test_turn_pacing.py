"""The pauses between passes of turns at the processor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from qq.metrics.counters import Counters
from qq.node.turn_pacing import TurnPacing

SPENT_S = 0.0012


class World:
    """A node that notes when the next pass begins."""

    def __init__(self) -> None:
        self.broker: Any = SimpleNamespace(submissions=SimpleNamespace(requests=0), counters=Counters())
        self.rests_s: list[float] = []
        runtime: Any = SimpleNamespace(
            call_soon=lambda _: self.rests_s.append(0.0),
            call_later=lambda rest_s, _: self.rests_s.append(rest_s),
        )
        self.pacing = TurnPacing(self.broker, runtime, lambda: 0.0)

    def end_pass(self) -> float:
        """Return the rest after a pass, in seconds."""
        self.pacing.call_after_rest(lambda: None, SPENT_S)
        return self.rests_s[-1]


def test_passes_without_requests_rest_for_as_long_as_they_took() -> None:
    world = World()
    assert [world.end_pass(), world.end_pass()] == [SPENT_S, SPENT_S]


@pytest.mark.parametrize("what", ["requests", "messages"])
def test_passes_that_serve_do_not_rest(what: str) -> None:
    world = World()
    for _ in range(3):
        if what == "requests":
            world.broker.submissions.requests += 1
        else:
            world.broker.counters.amqp091.messages_received += 1
        assert world.end_pass() == 0.0
    assert world.end_pass() == SPENT_S
