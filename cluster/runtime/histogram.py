"""Count durations in buckets."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper bounds in seconds for work that clients wait for."""
LONG_BOUNDS_S = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""Upper bounds in seconds for background work."""


class Histogram:
    """A histogram of durations in seconds. Each duration counts in the bucket with the least bound not below it."""

    def __init__(self, bounds_s: Sequence[float] = BOUNDS_S) -> None:
        self.bounds_s = bounds_s
        """Upper bounds of the buckets in seconds, inclusive. `counts` has a further bucket for longer durations."""
        self.counts = [0] * (len(bounds_s) + 1)
        self.total_s = 0.0
        self.last_s = 0.0
        """The last added duration in seconds."""

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.total_s += seconds
        self.last_s = seconds
