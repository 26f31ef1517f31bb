"""Shares the event loop between HTTP connections, so that floods at the HTTP port do not delay AMQP clients.

Connections parse what they receive in turns, and wait for a turn before each request. Addresses take turns, whatever
their number of connections and requests.

Invariant: in a pass of the event loop, turns take PASS_S of processor time and at most a turn more. Then they rest for
as long as they took. While no connection waits, a connection has its turn at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import thread_time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PASS_S = 0.002
"""Seconds of processor time for turns in a pass of the event loop."""
TURN_S = 0.001
"""Seconds of processor time after which a turn should end."""
REQUEST_S = 0.0005
"""Seconds of processor time that the start of a request is expected to take."""


class RequestTurns:
    """The HTTP connections that wait for a turn, by address."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Callable[[], float]]] = {}
        """Waiting work by source. The source that is served next comes first."""
        self._spent_s = 0.0
        """Processor time that turns have taken since the last pass began."""
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, source: str, work: Callable[[], float]) -> None:
        """Call `work` when it is the turn of this source.

        It returns the processor time, in seconds, that other tasks will take because of it.
        """
        if self._waiting or self._spent_s >= PASS_S:
            self._waiting.setdefault(source, deque()).append(work)
        else:
            self._take(work)
        if self._timer is None:
            self._rest()

    async def wait(self, source: str) -> None:
        """Wait until a request of this source may begin."""
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def begin() -> float:
            if begun.done():  # its task was cancelled
                return 0.0
            begun.set_result(None)
            return REQUEST_S

        self.ask(source, begin)
        await begun

    def _take(self, work: Callable[[], float]) -> None:
        began_s = thread_time()
        later_s = work()
        self._spent_s += thread_time() - began_s + later_s

    def _rest(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._spent_s, self._begin_pass)

    def _begin_pass(self) -> None:
        self._timer = None
        self._spent_s = 0.0
        while self._waiting and self._spent_s < PASS_S:
            source = next(iter(self._waiting))
            works = self._waiting.pop(source)
            work = works.popleft()
            if works:
                self._waiting[source] = works
            self._take(work)
        if self._spent_s and self._timer is None:
            self._rest()
