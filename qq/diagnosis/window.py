"""What happened in the last minute: how often something took how long, and how fast something changes.

Invariant: bounded memory, and no clock of its own.
"""

from __future__ import annotations

from collections import deque
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

SAMPLES_KEPT = 12
"""How many samples a window has: a minute, with one each 5 s."""


class Times(Protocol):
    """A histogram of lengths of time that only grows, as `cluster.runtime.histogram.Histogram` is."""

    @property
    def bounds_s(self) -> Sequence[float]: ...

    @property
    def counts(self) -> Sequence[int]: ...

    @property
    def total_s(self) -> float: ...


class _TimesSample(NamedTuple):
    time_s: float
    counts: tuple[int, ...]
    total_s: float


class TimesWindow:
    """What a histogram has counted within its last samples."""

    def __init__(self, times: Times) -> None:
        self._times = times
        self._samples: deque[_TimesSample] = deque(maxlen=SAMPLES_KEPT + 1)

    def sample(self, now_s: float) -> None:
        self._samples.append(_TimesSample(now_s, tuple(self._times.counts), self._times.total_s))

    @property
    def _counts(self) -> list[int]:
        if not self._samples:
            return [0]
        first, last = self._samples[0], self._samples[-1]
        return [new - old for new, old in zip(last.counts, first.counts, strict=True)]

    @property
    def is_whole(self) -> bool:
        """Whether the window is as long as it gets, so that what came before it is forgotten."""
        return len(self._samples) == self._samples.maxlen

    @property
    def seconds(self) -> float:
        """How long a time the window is of."""
        return self._samples[-1].time_s - self._samples[0].time_s if self._samples else 0.0

    @property
    def count(self) -> int:
        return sum(self._counts)

    @property
    def per_second(self) -> float:
        return self.count / self.seconds if self.seconds > 0 else 0.0

    @property
    def share(self) -> float:
        """The share of the time that all of it has taken together."""
        if self.seconds <= 0:
            return 0.0
        return (self._samples[-1].total_s - self._samples[0].total_s) / self.seconds

    @property
    def mean_s(self) -> float:
        """How long it has taken on average, in seconds; 0 if nothing was counted."""
        count = self.count
        return (self._samples[-1].total_s - self._samples[0].total_s) / count if count else 0.0

    def quantile(self, share: float, spared: int = 0) -> float:
        """The least bound that so large a share did not exceed, in seconds; 0 if nothing was counted.

        So many are `spared`: if no more than these exceed a bound, it is not exceeded.
        """
        counts = self._counts
        wanted = min(share * sum(counts), sum(counts) - spared)
        if wanted <= 0:
            return 0.0
        bounds = [*self._times.bounds_s, inf]
        return next(
            bound for bound, so_far in zip(bounds, accumulate(counts), strict=True) if so_far >= wanted
        )


class Trend:
    """How much a number changes a second, over so many samples."""

    def __init__(self, samples: int = SAMPLES_KEPT) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=samples + 1)

    def sample(self, value: float, now_s: float) -> None:
        self._samples.append((now_s, value))

    @property
    def amount(self) -> float:
        """By how much it has changed altogether."""
        return self._samples[-1][1] - self._samples[0][1] if self._samples else 0.0

    @property
    def seconds(self) -> float:
        return self._samples[-1][0] - self._samples[0][0] if self._samples else 0.0

    @property
    def per_second(self) -> float:
        return self.amount / self.seconds if self.seconds > 0 else 0.0
