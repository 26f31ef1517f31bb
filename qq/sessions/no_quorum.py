"""A node that knows no leader, and its clients that wait: after a while they are told, and may go to another node.

As long as an election lasts, they had better wait: they notice nothing else of it. But a node that is cut off from the
majority, or has none, may be so for hours, and a client that hears nothing takes the connection for a good one.

Invariant: who waits for nothing is not told to go; and once a leader is known, nobody is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cluster.runtime.ports import Runtime, Timer
    from qq.sessions.ports import Connection

LOOK_S = 1.0
"""How often it is looked who waits. Looks are counted and not seconds: the node itself may have stood still."""
TOLD_AT_ONCE = 100
"""How many clients are told before other tasks run: some milliseconds of work."""


class Leaderless:
    """Counts for how long this node has known no leader."""

    def __init__(
        self,
        connections: Mapping[int, Connection],
        why_undecided: Callable[[], str | None],
        runtime: Runtime,
        timeout_s: float,
    ) -> None:
        """Clients in `connections` that wait are told after `timeout_s`; never if that is 0."""
        self._connections = connections
        self._why_undecided = why_undecided
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._look_s = min(LOOK_S, timeout_s)
        self._waited_s = 0.0
        self._timer: Timer | None = None

    def leader_changed(self, leader: str | None) -> None:
        if leader is not None:
            self._waited_s = 0.0
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None and self._timeout_s:
            self._look_later(self._look_s)

    def why_given_up(self) -> str | None:
        """Why nobody new should wait here; None if that may be worth while."""
        return self._why_undecided() if self._timer is not None and self._is_over else None

    @property
    def _is_over(self) -> bool:
        return self._waited_s >= self._timeout_s

    def _look_later(self, wait_s: float) -> None:
        self._timer = self._runtime.call_later(wait_s, self._look)

    def _look(self) -> None:
        self._waited_s += self._look_s
        if self._is_over:
            self._tell()
        else:
            self._look_later(self._look_s)

    def _tell(self) -> None:
        """Tell those who wait, some at a time."""
        waiting = [each for each in self._connections.values() if each.waits_for_log]
        if waiting:
            why = self._why_undecided() or "no leader is known"
            text = f"{why}; what was asked for may still be carried out; try again, here or at another node"
            for connection in waiting[:TOLD_AT_ONCE]:
                connection.shut_down(text)
        is_more = len(waiting) > TOLD_AT_ONCE
        self._timer = self._runtime.call_later(0 if is_more else self._look_s, self._tell)
