"""Whether everybody waits for the disk of the leader, and has for too long.

Nobody waits for a leader's disk while a majority of others stores entries sooner, until it is so far behind that what
it lacks does not fit into memory (`engine.UNSYNCED_BYTES_MAX`). Then a leader with a slow disk makes every client wait,
while a follower with such a disk makes nobody wait.

Invariant: pure; times are handed in. A disk that stops once for a moment is not late.
"""

from __future__ import annotations

LATE_MAX_S = 1.0
"""A disk is too late when it has kept the others waiting for so long in all, less what is forgotten meanwhile."""
FORGOTTEN = 0.1
"""So much lateness is forgotten in a second: who keeps others waiting for a smaller part of the time may go on."""
MEMORY = 2.0
"""Lateness is counted up to so many times what is too much: one day the disk may be well, if nobody else could lead."""


class Lateness:
    """How late a leader's disk is."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: a reign begins or ends."""
        self._late_s = 0.0
        self._looked_s: float | None = None

    @property
    def is_too_much(self) -> bool:
        return self._late_s > LATE_MAX_S

    def look(self, now_s: float, interval_s: float, *, is_waited_for: bool) -> None:
        """Note whether others wait for this disk; it is looked every `interval_s` seconds at least.

        If they do, so they did since the last look, but for two intervals at most: a node that was busy has not heard
        of its own disk either.
        """
        if self._looked_s is not None:
            since_s = now_s - self._looked_s
            self._late_s -= FORGOTTEN * since_s
            if is_waited_for:
                self._late_s += min(since_s, 2 * interval_s)
            self._late_s = min(max(0.0, self._late_s), MEMORY * LATE_MAX_S)
        self._looked_s = now_s
