"""Measures for how long clients have waited for the leader's disk alone.

While a majority of followers stores entries sooner, clients do not wait for the leader's disk. That ends when the
leader's unsynced entries no longer fit into memory (`engine.UNSYNCED_BYTES_MAX`). From then on a leader with a slow
disk delays every client; a follower with such a disk delays no client.

Invariant: pure; the caller passes the times. A single short stall of the disk is not late.
"""

from __future__ import annotations

LATE_MAX_S = 1.0
"""Seconds of counted lateness above which the leader hands over. Lateness decays by `FORGOTTEN` per second."""
FORGOTTEN = 0.1
"""Seconds of lateness forgotten per second.

A leader whose disk delays clients for a smaller share of the time leads on.
"""
MEMORY = 2.0
"""Upper bound of counted lateness, as a multiple of `LATE_MAX_S`.

Without a successor the leader must lead on. The bound lets a disk that has recovered count as quick again soon.
"""


class Lateness:
    """The counted lateness of a leader's disk."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Set the lateness to zero, because a leadership begins or ends."""
        self._late_s = 0.0
        self._looked_s: float | None = None

    @property
    def is_too_much(self) -> bool:
        return self._late_s > LATE_MAX_S

    def look(self, now_s: float, interval_s: float, *, is_waited_for: bool) -> None:
        """Count the time since the last call as late if `is_waited_for`; called every `interval_s` seconds at least.

        A call counts two intervals at most, because a node that was busy has not heard of its own disk either.
        """
        if self._looked_s is not None:
            since_s = now_s - self._looked_s
            self._late_s -= FORGOTTEN * since_s
            if is_waited_for:
                self._late_s += min(since_s, 2 * interval_s)
            self._late_s = min(max(0.0, self._late_s), MEMORY * LATE_MAX_S)
        self._looked_s = now_s
