"""Measurements of the last minute: a window over a histogram, and the trend of a number.

Invariant: bounded memory, and the caller gives the time.
"""

from __future__ import annotations

from collections import deque
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

SAMPLES_KEPT = 12
"""Samples in a window: a minute, at a sample every 5 s."""


class Times(Protocol):
    """A histogram of durations whose counts only grow, such as `cluster.runtime.histogram.Histogram`."""

    @property
    def bounds(self) -> Sequence[float]: ...

    @property
    def counts(self) -> Sequence[int]: ...

    @property
    def total(self) -> float: ...


class _TimesSample(NamedTuple):
    time_s: float
    counts: tuple[int, ...]
    total_s: float


class TimesWindow:
    """Counts that a histogram has gained within the last samples."""

    def __init__(self, times: Times) -> None:
        self._times = times
        self._samples: deque[_TimesSample] = deque(maxlen=SAMPLES_KEPT + 1)

    def restart(self) -> None:
        """Forget all samples."""
        self._samples.clear()

    def sample(self, now_s: float) -> None:
        self._samples.append(_TimesSample(now_s, tuple(self._times.counts), self._times.total))

    @property
    def _counts(self) -> list[int]:
        if not self._samples:
            return [0]
        first, last = self._samples[0], self._samples[-1]
        return [new - old for new, old in zip(last.counts, first.counts, strict=True)]

    @property
    def is_whole(self) -> bool:
        """Return whether the window has its full length, so that older counts have left it."""
        return len(self._samples) == self._samples.maxlen

    @property
    def seconds(self) -> float:
        """Return the seconds that the window covers."""
        return self._samples[-1].time_s - self._samples[0].time_s if self._samples else 0.0

    @property
    def count(self) -> int:
        return sum(self._counts)

    @property
    def per_second(self) -> float:
        return self.count / self.seconds if self.seconds > 0 else 0.0

    @property
    def share(self) -> float:
        """Return the sum of all durations as a share of the window's time."""
        if self.seconds <= 0:
            return 0.0
        return (self._samples[-1].total_s - self._samples[0].total_s) / self.seconds

    @property
    def mean_s(self) -> float:
        """Return the mean duration in seconds; 0 if the window is empty."""
        count = self.count
        return (self._samples[-1].total_s - self._samples[0].total_s) / count if count else 0.0

    def quantile(self, share: float, spared: int = 0) -> float:
        """Return the least bound, in seconds, that at least `share` of the durations keep; 0 if the window is empty.

        A bound also counts as kept if at most `spared` durations exceed it.
        """
        counts = self._counts
        wanted = min(share * sum(counts), sum(counts) - spared)
        if wanted <= 0:
            return 0.0
        bounds = [*self._times.bounds, inf]
        return next(
            bound for bound, so_far in zip(bounds, accumulate(counts), strict=True) if so_far >= wanted
        )


class Trend:
    """Change of a number per second, over a fixed number of samples."""

    def __init__(self, samples: int = SAMPLES_KEPT) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=samples + 1)

    def sample(self, value: float, now_s: float) -> None:
        self._samples.append((now_s, value))

    @property
    def amount(self) -> float:
        """Return by how much the number has changed between the first and the last sample."""
        return self._samples[-1][1] - self._samples[0][1] if self._samples else 0.0

    @property
    def seconds(self) -> float:
        return self._samples[-1][0] - self._samples[0][0] if self._samples else 0.0

    @property
    def per_second(self) -> float:
        return self.amount / self.seconds if self.seconds > 0 else 0.0
