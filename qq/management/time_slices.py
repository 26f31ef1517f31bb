"""Long work in slices, between which other tasks run.

Invariants: a slice is longer than its time by a single step at most. And however many pieces of long work exist, the
event loop runs a single slice in each of its turns, of each piece in order. So more pieces do not delay other tasks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

SLICE_S = 0.003
"""Seconds of a slice: imperceptible for clients, and far less than a heartbeat interval of the leader."""


class Slices:
    """The slices of a task. The first begins at once unless other tasks wait for their slices."""

    def __init__(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """`is_over` returns whether the work is no longer needed."""
        self._is_over = is_over
        self._until_s = 0.0 if _line().somebody_waits else monotonic() + SLICE_S

    async def give_way(self) -> None:
        """Let other tasks run if the slice is over. Call it between short steps.

        Raises ConnectionResetError if the work is no longer needed.
        """
        if monotonic() >= self._until_s:
            await next_slice()
            if self._is_over():
                raise ConnectionResetError
            self._until_s = monotonic() + SLICE_S


async def next_slice() -> None:
    """Let other tasks run, and the slices of all tasks that already wait."""
    await _line().wait()


class _Line:
    """Queue of the tasks of an event loop that wait for their next slice."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def somebody_waits(self) -> bool:
        return bool(self._waiting)

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        place = loop.create_future()
        self._waiting.append(place)
        if len(self._waiting) == 1:
            loop.call_soon(self._call_next, loop)
        await place

    def _call_next(self, loop: asyncio.AbstractEventLoop) -> None:
        place = self._waiting.popleft()
        if self._waiting:
            loop.call_soon(self._call_next, loop)
        if not place.done():  # false if its task was cancelled
            place.set_result(None)


_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()


def _line() -> _Line:
    return _lines.setdefault(asyncio.get_running_loop(), _Line())
