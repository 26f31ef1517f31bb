"""How fast a learner is fed: slowly enough that clients do not notice, and faster than the log grows.

A new member needs everything that there is, and nobody waits for it: a learner counts for no majority. Sent as fast as
link and disks go, it would take the time of everybody else. So it runs up a *debt* with what it is sent, which is
forgiven with time, and faster if the log grows: else it would never arrive.

Lives here: the debt of one learner. Not here: what it is sent (engine.py, catch_up.py).

Law: pure; times are handed in. Twice as much is forgiven as the log has grown by.
"""

from __future__ import annotations

REST_MIN_S = 0.001
"""The shortest rest in seconds: a shorter one would cost a turn that sends next to nothing."""
GROWTH_FACTOR = 2
"""How many bytes a learner may be sent for each byte that is added to the log, however fast the log grows."""


class Pace:
    """How much one learner was sent lately, in bytes that are forgiven with time."""

    def __init__(self, bytes_per_s: float, rest_max_s: float, burst_bytes: int, now_s: float) -> None:
        """A debt below `burst_bytes` asks for no rest: one that has caught up is fed like everybody else.

        No rest is longer than `rest_max_s`, so that a large entry does not keep heartbeats back.
        """
        self._bytes_per_s = bytes_per_s
        self._burst_bytes = burst_bytes
        self._debt_max = burst_bytes + bytes_per_s * rest_max_s
        self._debt = 0.0
        self._settled_s = now_s

    def rest_s(self, now_s: float) -> float:
        """How long the learner should be sent nothing; 0 if it may be sent something now."""
        self._settle(now_s)
        rest_s = (self._debt - self._burst_bytes) / self._bytes_per_s
        return rest_s if rest_s > REST_MIN_S else 0.0

    def spend(self, sent_bytes: int, now_s: float) -> None:
        """Count what is sent to the learner."""
        self._settle(now_s)
        self._debt = min(self._debt + sent_bytes, self._debt_max)

    def log_grew(self, grown_bytes: int) -> None:
        """Count bytes that were added to the log: the learner has to be sent them, too."""
        self._debt = max(0.0, self._debt - GROWTH_FACTOR * grown_bytes)

    def _settle(self, now_s: float) -> None:
        self._debt = max(0.0, self._debt - (now_s - self._settled_s) * self._bytes_per_s)
        self._settled_s = now_s
