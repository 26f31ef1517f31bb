"""Closes the connections of waiting clients after a node has known no leader for a while.

During an election, clients should wait, because a delay is all that they notice of it. But a node that is cut off from
the majority may be so for hours. A client that gets no answer would take its connection for a good connection. After a
timeout, this node closes it with the reason, and the client may connect to a different node.

Invariant: a client that waits for no answer is not disconnected. After a leader is known, no client is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cluster.runtime.ports import Runtime, Timer
    from qq.sessions.ports import Connection

CHECK_S = 1.0
"""Seconds between checks for waiting clients. Checks are counted, not seconds, because the node itself may have
stalled."""
DISCONNECTED_AT_ONCE = 100
"""Clients to disconnect before other tasks run: some milliseconds of work."""


class NoQuorum:
    """Counts how long this node has known no leader."""

    def __init__(
        self,
        connections: Mapping[int, Connection],
        why_undecided: Callable[[], str | None],
        runtime: Runtime,
        timeout_s: float,
    ) -> None:
        """Create the counter. Clients in `connections` that wait are disconnected after `timeout_s`; 0 means never."""
        self._connections = connections
        self._why_undecided = why_undecided
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._check_s = min(CHECK_S, timeout_s)
        self._waited_s = 0.0
        self._timer: Timer | None = None

    def leader_changed(self, leader: str | None) -> None:
        if leader is not None:
            self._waited_s = 0.0
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None and self._timeout_s:
            self._check_later(self._check_s)

    def why_no_wait(self) -> str | None:
        """Return why a new client should not wait here; None if waiting makes sense."""
        return self._why_undecided() if self._timer is not None and self._has_timed_out else None

    @property
    def _has_timed_out(self) -> bool:
        return self._waited_s >= self._timeout_s

    def _check_later(self, wait_s: float) -> None:
        self._timer = self._runtime.call_later(wait_s, self._check)

    def _check(self) -> None:
        self._waited_s += self._check_s
        if self._has_timed_out:
            self._disconnect_waiting()
        else:
            self._check_later(self._check_s)

    def _disconnect_waiting(self) -> None:
        """Disconnect the waiting clients, a limited number at a time."""
        waiting = [each for each in self._connections.values() if each.waits_for_log]
        if waiting:
            why = self._why_undecided() or "no leader is known"
            text = f"{why}; what was asked for may still be carried out; try again, here or at another node"
            for connection in waiting[:DISCONNECTED_AT_ONCE]:
                connection.shut_down(text)
        is_more = len(waiting) > DISCONNECTED_AT_ONCE
        self._timer = self._runtime.call_later(0 if is_more else self._check_s, self._disconnect_waiting)
