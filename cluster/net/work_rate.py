"""Limit the rate of costly work for unauthenticated connections, such as TLS handshakes, fairly between sources.

Invariant: the rate is bounded, however much work is requested. Sources are served in turn, so a flood from an address
delays a client from a different address by a single piece of work.
"""

from __future__ import annotations

import asyncio


class WorkRate:
    """Allows a number of pieces of work per second."""

    def __init__(self, per_s: float, at_once: int) -> None:
        """Allow `per_s` pieces of work per second. After a pause, `at_once` pieces may begin together."""
        self._interval_s = 1 / per_s
        self._ahead_s = (at_once - 1) / per_s
        self._next_s = 0.0
        """Time at which the next piece of work would begin without any pause before, by the clock of the event loop."""
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}
        """Waiting requests by source. The source that is served next comes first."""
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, source: str) -> None:
        """Wait until work for this source may begin."""
        loop = asyncio.get_running_loop()
        if not self._waiting and self._next_s - self._ahead_s <= loop.time():
            self._count(loop.time())
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(source, {})[turn] = None
        if self._timer is None:
            self._timer = loop.call_at(self._next_s - self._ahead_s, self._begin)
        try:
            await turn
        finally:
            self._forget(source, turn)

    def _count(self, now_s: float) -> None:
        self._next_s = max(self._next_s, now_s) + self._interval_s

    def _begin(self) -> None:
        """Start the waiting work that is due."""
        self._timer = None
        loop = asyncio.get_running_loop()
        while self._waiting and self._next_s - self._ahead_s <= loop.time():
            source = next(iter(self._waiting))
            turns = self._waiting.pop(source)
            turn = next(iter(turns))
            del turns[turn]
            if turns:
                self._waiting[source] = turns
            if not turn.done():
                turn.set_result(None)
                self._count(loop.time())
        if self._waiting:
            self._timer = loop.call_at(self._next_s - self._ahead_s, self._begin)

    def _forget(self, source: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(source)
        if turns is not None:
            turns.pop(turn, None)
            if not turns:
                del self._waiting[source]
