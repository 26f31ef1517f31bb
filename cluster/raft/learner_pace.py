"""How fast a learner is fed: slowly enough that clients do not notice, and faster than the log grows.

A new member needs everything that there is, and nobody waits for it: a learner counts for no majority. Sent as fast as
link and disks go, it would take the time of everybody else. So it runs up a *debt* with what it is sent, which is
forgiven with time, and faster if the log grows: else it would never arrive. But as long as the log grows there are
clients, who would notice what it costs: less is forgiven with time then.

Invariant: pure; times are handed in. Twice as much is forgiven as the log has grown by.
"""

from __future__ import annotations

REST_MIN_S = 0.001
"""The shortest rest in seconds: a shorter one would cost a turn that sends next to nothing."""
GROWTH_FACTOR = 2
"""How many bytes a learner may be sent for each byte that is added to the log, however fast the log grows."""
CALM_S = 1.0
"""If nothing was added to the log for so many seconds, there are no clients that could wait."""
SHARE_WITH_CLIENTS = 0.25
"""Which part of its rate a learner is fed with while there are clients. With the whole rate of 64 MiB/s, four nodes on
two cores left no core idle, and others' confirms took three times as long as before."""


class Pace:
    """How much one learner was sent lately, in bytes that are forgiven with time."""

    def __init__(self, bytes_per_s: float, rest_max_s: float, burst_bytes: int, now_s: float) -> None:
        """A debt below `burst_bytes` asks for no rest: one that has caught up is fed like everybody else.

        No rest is longer than `rest_max_s`, so that a large entry does not keep heartbeats back.
        """
        self._full_rate = bytes_per_s
        self._burst_bytes = burst_bytes
        self._rest_max_s = rest_max_s
        self._debt = 0.0
        self._settled_s = now_s
        self._calm_from_s = now_s

    def rest_s(self, now_s: float) -> float:
        """How long the learner should be sent nothing; 0 if it may be sent something now."""
        rate = self._settle(now_s)
        rest_s = (self._debt - self._burst_bytes) / rate
        return rest_s if rest_s > REST_MIN_S else 0.0

    def spend(self, sent_bytes: int, now_s: float) -> None:
        """Count what is sent to the learner."""
        rate = self._settle(now_s)
        self._debt = min(self._debt + sent_bytes, self._debt_max(rate))

    def log_grew(self, grown_bytes: int, now_s: float) -> None:
        """Count bytes that were added to the log, if any: the learner has to be sent them, too."""
        if grown_bytes:
            self._calm_from_s = now_s + CALM_S
            self._debt = max(0.0, self._debt - GROWTH_FACTOR * grown_bytes)

    def _settle(self, now_s: float) -> float:
        """Forgive what time has made up for. Returns how many bytes are forgiven in a second now."""
        rate = self._full_rate * (1.0 if now_s >= self._calm_from_s else SHARE_WITH_CLIENTS)
        debt = self._debt - (now_s - self._settled_s) * rate
        self._debt = min(max(0.0, debt), self._debt_max(rate))
        self._settled_s = now_s
        return rate

    def _debt_max(self, rate: float) -> float:
        return self._burst_bytes + self._rest_max_s * rate
