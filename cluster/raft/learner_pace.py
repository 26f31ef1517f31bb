"""Limit the rate at which a learner gets the log: slow enough for clients, and faster than the log grows.

A new member needs the whole log. No client waits for it, because a learner counts for no majority. At full speed it
would take the links and disks from clients. So bytes sent to a learner are a *debt*. Time pays it off, and growth of
the log pays it off faster, because otherwise the learner would never catch up. While the log grows there are clients,
so time pays off less.

Invariant: pure; times are arguments. Growth of the log pays off twice the grown bytes.
"""

from __future__ import annotations

REST_MIN_S = 0.001
"""Seconds of the shortest rest. A shorter rest would cost a turn that sends almost no bytes."""
GROWTH_FACTOR = 2
"""Bytes that a learner may be sent for each byte added to the log, however fast the log grows."""
CALM_S = 1.0
"""Seconds without growth of the log after which no clients are waiting."""
SHARE_WITH_CLIENTS = 0.25
"""Fraction of the full rate while there are clients. At the whole rate of 64 MiB/s, four nodes on two cores left no
core idle, and confirms took three times as long."""


class Pace:
    """The debt of a single learner: bytes sent lately, paid off with time."""

    def __init__(self, bytes_per_s: float, rest_max_s: float, burst_bytes: int, now_s: float) -> None:
        """Begin without debt.

        A debt below `burst_bytes` needs no rest, so a learner that has caught up is fed like a voter.

        No rest is longer than `rest_max_s`, so a large entry does not hold back heartbeats.
        """
        self._full_rate = bytes_per_s
        self._burst_bytes = burst_bytes
        self._rest_max_s = rest_max_s
        self._debt = 0.0
        self._settled_s = now_s
        self._calm_from_s = now_s

    def rest_s(self, now_s: float) -> float:
        """Return the seconds for which the learner should get no entries; 0 if it may get some now."""
        rate = self._settle(now_s)
        rest_s = (self._debt - self._burst_bytes) / rate
        return rest_s if rest_s > REST_MIN_S else 0.0

    def spend(self, sent_bytes: int, now_s: float) -> None:
        """Count bytes sent to the learner."""
        rate = self._settle(now_s)
        self._debt = min(self._debt + sent_bytes, self._debt_max(rate))

    def log_grew(self, grown_bytes: int, now_s: float) -> None:
        """Count bytes added to the log. The learner needs them, too, so they pay off debt."""
        if grown_bytes:
            self._calm_from_s = now_s + CALM_S
            self._debt = max(0.0, self._debt - GROWTH_FACTOR * grown_bytes)

    def _settle(self, now_s: float) -> float:
        """Pay off debt for the time that has passed. Return the bytes paid off in a second at present."""
        rate = self._full_rate * (1.0 if now_s >= self._calm_from_s else SHARE_WITH_CLIENTS)
        debt = self._debt - (now_s - self._settled_s) * rate
        self._debt = min(max(0.0, debt), self._debt_max(rate))
        self._settled_s = now_s
        return rate

    def _debt_max(self, rate: float) -> float:
        return self._burst_bytes + self._rest_max_s * rate
