"""Long work in slices, between which other tasks run.

Invariants: no slice is longer than its time and the one step that it takes to notice. And however many long pieces of
work there are, the event loop does one slice in each of its turns, of one after the other: so nobody else waits for
longer because there are more of them.
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
"""How long a slice is: a moment that no client notices, and far less than a heartbeat of the leader's."""


class Slices:
    """The slices of one task. The first one begins at once, unless others wait for theirs."""

    def __init__(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """`is_over` tells whether nobody waits for the work any more."""
        self._is_over = is_over
        self._until_s = 0.0 if _line().somebody_waits else monotonic() + SLICE_S

    async def give_way(self) -> None:
        """Let other tasks run if the slice is over. To be called between short steps.

        Raises ConnectionResetError if nobody waits for the work any more.
        """
        if monotonic() >= self._until_s:
            await next_slice()
            if self._is_over():
                raise ConnectionResetError
            self._until_s = monotonic() + SLICE_S


async def next_slice() -> None:
    """Let other tasks run, and all who wait for a slice already."""
    await _line().wait()


class _Line:
    """Those who wait for their next slice in one event loop."""

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
        if not place.done():  # else its task was cancelled
            place.set_result(None)


_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()


def _line() -> _Line:
    return _lines.setdefault(asyncio.get_running_loop(), _Line())
