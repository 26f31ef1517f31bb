"""Schedule the turns of a group: at once, or after a delay.

Invariant: each request gets a turn, in the next pass of the event loop. Several requests before that pass share a turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.runtime.ports import Runtime, Timer


class TurnTimer:
    """Schedules the turns of a single group."""

    def __init__(self, runtime: Runtime, take: Callable[[], None], heartbeat_s: float) -> None:
        """`take` is called for each turn.

        The owner requests a turn at least every `heartbeat_s` seconds, the heartbeat interval.
        """
        self._runtime = runtime
        self._take = take
        self.heartbeat_s = heartbeat_s
        self.is_on = False
        """Whether turns may be requested."""
        self._is_requested = False
        self._due_s = math.inf
        """Time at which the next turn is due, as the last turn requested it, in seconds of the monotonic clock."""
        self._timer: Timer | None = None
        self._timer_s = math.inf
        """Time at which `_timer` fires, in seconds of the monotonic clock."""

    def fail(self, error: BaseException) -> None:
        """End all turns, and report the error that ends the node."""
        self.is_on = False
        self._runtime.fail(error)

    def request(self) -> None:
        if self.is_on and not self._is_requested:
            self._is_requested = True
            self._runtime.call_soon(self._begin)

    def request_in(self, delay_s: float) -> None:
        """Request a turn in `delay_s` seconds, unless the next heartbeat brings a turn sooner.

        An earlier turn cancels the request, because that turn requests again if work remains.
        """
        if delay_s > self.heartbeat_s:
            return
        self._due_s = min(self._due_s, self._runtime.monotonic() + delay_s)
        if self._due_s < self._timer_s:
            self._set_timer(delay_s)

    def _set_timer(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._runtime.call_later(delay_s, self._on_timer)
        self._timer_s = self._due_s

    def _begin(self) -> None:
        self._is_requested = False
        self._due_s = math.inf
        if self.is_on:
            self._take()

    def _on_timer(self) -> None:
        """Request a turn, or set the timer anew. Under load, an earlier turn has usually done the work."""
        due_s, now_s = self._due_s, self._timer_s
        self._timer, self._timer_s = None, math.inf
        if due_s <= now_s:
            self.request()
        elif due_s < math.inf:
            self._set_timer(due_s - now_s)
