"""Turns of HTTP connections: order among addresses, and bounds on a pass of the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from qq.http.turns import PASS_S, RequestTurns


@pytest.fixture
def done() -> list[str]:
    return []


def work(done: list[str], name: str, cost_s: float = PASS_S) -> Callable[[], float]:
    def take() -> float:
        done.append(name)
        return cost_s

    return take


async def passes(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(PASS_S * 2)


def test_turn_is_taken_at_once_when_no_connection_waits(done: list[str]) -> None:
    async def story() -> None:
        RequestTurns().ask("a", work(done, "a"))
        assert done == ["a"]

    asyncio.run(story())


def test_busy_address_delays_a_second_address_by_a_turn(done: list[str]) -> None:
    async def story() -> None:
        turns = RequestTurns()
        for number in range(50):
            turns.ask("a", work(done, f"a{number}"))
        turns.ask("b", work(done, "b"))
        await passes(4)
        assert done[:3] == ["a0", "a1", "b"]
        assert len(done) < 10

    asyncio.run(story())


def test_pass_takes_its_time_and_rests_for_as_long(done: list[str]) -> None:
    async def story() -> None:
        turns = RequestTurns()
        for number in range(200):
            turns.ask("a", work(done, f"a{number}", PASS_S / 2))
        assert len(done) == 2
        began_s = time.monotonic()
        await passes(4)
        assert 2 < len(done) <= 2 + 2 * (time.monotonic() - began_s) / PASS_S
        assert done == [f"a{number}" for number in range(len(done))]

    asyncio.run(story())


def test_request_of_a_cancelled_task_costs_no_turn(done: list[str]) -> None:
    async def story() -> None:
        turns = RequestTurns()
        turns.ask("a", work(done, "a"))
        waiting = asyncio.create_task(turns.wait("a"))
        await asyncio.sleep(0)
        waiting.cancel()
        await passes(1)
        turns.ask("a", work(done, "b"))
        await asyncio.wait_for(turns.wait("a"), 5)
        assert done == ["a", "b"]

    asyncio.run(story())
