"""How often something took how long.

Lives here: counts by length of time, cheap enough to be kept of everything. Not here: how Prometheus reads them
(qq/metrics.py).
"""

from __future__ import annotations

from bisect import bisect_left

_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Histogram:
    """A histogram: lengths of time in seconds, each counted by the least bound that it does not exceed."""

    bounds_s = _BOUNDS_S
    """The upper bounds of the counts, each included; what took longer than the last is counted behind it."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS_S) + 1)
        self.total_s = 0.0
        self.last_s = 0.0
        """What was added last."""

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(_BOUNDS_S, seconds)] += 1
        self.total_s += seconds
        self.last_s = seconds
