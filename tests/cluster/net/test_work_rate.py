"""The rate of expensive work for unauthenticated connections, and its order."""

from __future__ import annotations

import asyncio
import time

from cluster.net.work_rate import WorkRate

FLOODER, CLIENT = "192.0.2.1", "198.51.100.7"
PER_S, AT_ONCE = 100, 10


def test_work_begins_at_the_rate_under_many_requests() -> None:
    async def story() -> float:
        rate, began_s = WorkRate(PER_S, AT_ONCE), time.monotonic()
        await asyncio.gather(*[rate.wait(FLOODER) for _ in range(50)])
        return time.monotonic() - began_s

    assert asyncio.run(story()) >= (50 - AT_ONCE) / PER_S - 0.01


def test_work_after_some_quiet_begins_at_once() -> None:
    async def story() -> None:
        rate = WorkRate(PER_S, AT_ONCE)
        for _ in range(2):
            for _ in range(AT_ONCE):
                waiting = rate.wait(FLOODER)
                try:
                    waiting.send(None)
                except StopIteration:
                    continue
                raise AssertionError("it has to wait")
            await asyncio.sleep(AT_ONCE / PER_S + 0.05)

    asyncio.run(story())


def test_sources_take_turns() -> None:
    async def story() -> list[str]:
        rate = WorkRate(PER_S, AT_ONCE)
        order: list[str] = []

        async def work(source: str) -> None:
            await rate.wait(source)
            order.append(source)

        async with asyncio.TaskGroup() as group:
            for source in [FLOODER] * 40 + [CLIENT] * 3:
                group.create_task(work(source))
        return order

    order = asyncio.run(story())
    assert order[AT_ONCE : AT_ONCE + 6] == [FLOODER, CLIENT] * 3


def test_a_connection_that_ends_takes_no_turn() -> None:
    async def story() -> float:
        rate = WorkRate(PER_S, AT_ONCE)
        flood = [asyncio.create_task(rate.wait(FLOODER)) for _ in range(1000)]
        await asyncio.sleep(0.05)
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        began_s = time.monotonic()
        await asyncio.wait_for(rate.wait(CLIENT), 5)
        return time.monotonic() - began_s

    assert asyncio.run(story()) < 1.0
