"""Long work in slices."""

from __future__ import annotations

import asyncio

import pytest

from qq.management import time_slices
from qq.management.time_slices import Slices

PIECES, SLICES_EACH = 20, 10


async def _long_work(done: list[int], number: int) -> None:
    its_slices = Slices()
    for _ in range(SLICES_EACH):
        done.append(number)
        await its_slices.give_way()


@pytest.fixture(autouse=True)
def _slices_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slices, "SLICE_S", 0.0)


def test_slices_of_long_tasks_alternate() -> None:
    async def story() -> None:
        done: list[int] = []
        works = [asyncio.create_task(_long_work(done, number)) for number in range(PIECES)]
        await asyncio.sleep(0)  # all have begun
        while not all(work.done() for work in works):
            before = len(done)
            await asyncio.sleep(0)
            assert len(done) <= before + 1
        # No task is skipped.
        assert done == [*range(PIECES)] * SLICES_EACH

    asyncio.run(story())


def test_cancelled_task_leaves_the_queue_of_slices() -> None:
    async def story() -> None:
        done: list[int] = []
        works = [asyncio.create_task(_long_work(done, number)) for number in range(3)]
        await asyncio.sleep(0)
        works[0].cancel()
        works[1].cancel()
        async with asyncio.timeout(5):
            await works[2]
        assert done.count(2) == SLICES_EACH
        assert done.count(0) == done.count(1) == 1

    asyncio.run(story())
