"""Count values in buckets."""

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
    """A histogram of durations in seconds, or of other values.

    Each value counts in the bucket with the least bound that is not below it.
    """

    def __init__(self, bounds: Sequence[float] = BOUNDS_S) -> None:
        self.bounds = bounds
        """Upper bounds of the buckets, inclusive. `counts` has a further bucket for higher values."""
        self.counts = [0] * (len(bounds) + 1)
        self.total: float = 0
        self.last: float = 0
        """The value that was added last."""

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
        self.last = value

    def add_all(self, values: Sequence[float]) -> None:
        """Add at least one value. This is quick for values that are equal or nearly so."""
        self.total += sum(values)
        self.last = values[-1]
        highest = bisect_left(self.bounds, max(values))
        if bisect_left(self.bounds, min(values)) == highest:
            self.counts[highest] += len(values)
        else:
            for value in values:
                self.counts[bisect_left(self.bounds, value)] += 1
