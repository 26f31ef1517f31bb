"""Closes the connections of waiting clients when the log takes in no request of this node for a while.

During an election, clients should wait, because a delay is all that they notice of it. But a node that is cut off from
the majority may be so for hours. A client that gets no answer would take its connection for a good connection. After a
timeout, this node closes it with the reason, and the client may connect to a different node.

A node may also hear a leader that does not hear the node. So batches that the log does not apply count like a missing
leader.

Invariant: a client that waits for no answer is not disconnected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cluster.runtime.ports import Runtime
    from qq.sessions.ports import Connection

CHECK_S = 1.0
"""Seconds between checks for waiting clients. Checks are counted, not seconds, because the node itself may have
stalled."""
STUCK_S = 10.0
"""Seconds without an applied batch after which a node with pending batches reports that it cannot serve clients."""
DISCONNECTED_AT_ONCE = 100
"""Clients to disconnect before other tasks run: some milliseconds of work."""


class NoQuorum:
    """Counts how long this node has known no leader, and how long its oldest batch has been pending."""

    def __init__(
        self,
        connections: Mapping[int, Connection],
        why_undecided: Callable[[], str | None],
        oldest_pending: Callable[[], int | None],
        runtime: Runtime,
        timeout_s: float,
    ) -> None:
        """Create the counter. Clients in `connections` that wait are disconnected after `timeout_s`; 0 means never.

        `oldest_pending` returns the number of the oldest batch that is not applied, or None if all are applied.
        """
        self._connections = connections
        self._why_undecided = why_undecided
        self._oldest_pending = oldest_pending
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._check_s = min(CHECK_S, timeout_s) or CHECK_S
        self._is_checking = False
        self._has_leader = False
        self._leaderless_s: float | None = None
        """Seconds without a leader, by the number of checks; `None` until the first check without a leader."""
        self._pending: int | None = None
        """The oldest pending batch at the last check."""
        self._pending_s = 0.0
        """Seconds since the first check that found this batch to be the oldest, by the number of checks."""

    def leader_changed(self, leader: str | None) -> None:
        self._has_leader = leader is not None
        if self._has_leader:
            self._leaderless_s = None
        if not self._is_checking:
            self._is_checking = True
            self._check_later()

    def why_no_wait(self) -> str | None:
        """Return why a new client should not wait here, or `None` if waiting makes sense."""
        return self._why() if self._has_timed_out else None

    def why_stuck(self) -> str | None:
        """Return that the log applies no pending batch of this node for `STUCK_S`, or `None`."""
        return self._why() if self._stuck_s >= STUCK_S else None

    @property
    def _stuck_s(self) -> float:
        """Seconds for which the oldest pending batch has stayed the same; 0 if it is applied by now."""
        return self._pending_s if self._oldest_pending() == self._pending else 0.0

    @property
    def _has_timed_out(self) -> bool:
        return 0 < self._timeout_s <= max(self._leaderless_s or 0.0, self._stuck_s)

    def _why(self) -> str:
        if why := self._why_undecided():
            return why
        return f"the cluster has applied no request of this node for {self._stuck_s:.0f} s"

    def _check_later(self) -> None:
        self._runtime.call_later(self._check_s, self._check)

    def _check(self) -> None:
        pending = self._oldest_pending()
        is_stuck = pending is not None and pending == self._pending
        self._pending, self._pending_s = pending, self._pending_s + self._check_s if is_stuck else 0.0
        if not self._has_leader:
            self._leaderless_s = 0.0 if self._leaderless_s is None else self._leaderless_s + self._check_s
        self._disconnect_waiting()

    def _disconnect_waiting(self) -> None:
        """Disconnect the waiting clients after the timeout, a limited number at a time."""
        waiting = (
            [each for each in self._connections.values() if each.waits_for_log] if self._has_timed_out else []
        )
        if waiting:
            text = f"{self._why()}; what was asked for may still be carried out; try again, here or at another node"
            for connection in waiting[:DISCONNECTED_AT_ONCE]:
                connection.shut_down(text)
        if len(waiting) > DISCONNECTED_AT_ONCE:
            self._runtime.call_soon(self._disconnect_waiting)
        else:
            self._check_later()
