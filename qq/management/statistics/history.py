"""Histories of numbers over minutes, hours and days, in coarser steps for older samples.

Invariant: bounded memory, some 40 KiB for each object and a fixed number of objects; a sample costs microseconds.
Histories are neither replicated nor stored: a node's histories begin when it starts.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.management.statistics.rates import SAMPLE_INTERVAL_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HISTORIES_MAX = 300
"""Objects with a history at most: those that clients asked for last."""
_SLACK = 64
"""Rows that a level may exceed its size by, so that many are cut off together."""


class _Level(NamedTuple):
    """Distance between the samples of a level, and the number of samples kept."""

    step_ms: int
    kept: int


LEVELS = (
    _Level(int(SAMPLE_INTERVAL_S * 1000), 180),
    _Level(60_000, 480),
    _Level(900_000, 672),
)
"""A quarter of an hour, eight hours and a week."""

Columns = dict[str, Sequence[float]]
"""Samples by the names of their numbers, the oldest first; `times` are in milliseconds."""


class _Samples:
    """The samples of a level: each is the mean of all samples taken in its step."""

    def __init__(self, level: _Level, width: int) -> None:
        self._level = level
        self._width = width
        self._times = array("q")
        self._values = array("f")
        self._slot = -1
        self._sums = [0.0] * width
        self._count = 0

    def add(self, time_ms: int, row: Sequence[float]) -> None:
        slot = time_ms // self._level.step_ms
        if slot != self._slot:
            self._close()
            self._slot = slot
        self._sums = [total + value for total, value in zip(self._sums, row, strict=True)]
        self._count += 1

    def _close(self) -> None:
        if not self._count:
            return
        self._times.append(self._slot * self._level.step_ms)
        self._values.extend(self._means())
        self._sums = [0.0] * self._width
        self._count = 0
        spare = len(self._times) - self._level.kept
        if spare > _SLACK:
            del self._times[:spare]
            del self._values[: spare * self._width]

    def _means(self) -> list[float]:
        return [total / self._count for total in self._sums]

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that the samples take."""
        return len(self._times) * self._times.itemsize + len(self._values) * self._values.itemsize

    def since(self, since_ms: int) -> tuple[list[int], list[list[float]]]:
        """Return the times from `since_ms` on, and for each number its values at these times."""
        first = bisect_left(self._times, since_ms)
        times, values = list(self._times[first:]), self._values[first * self._width :]
        columns = [list(values[place :: self._width]) for place in range(self._width)]
        if self._count:
            times.append(self._slot * self._level.step_ms)
            for column, mean in zip(columns, self._means(), strict=True):
                column.append(mean)
        return times, columns


class Shape(NamedTuple):
    """Names of the numbers of an object: counts, which are shown as rates, and values, which are shown unchanged."""

    counts: tuple[str, ...]
    values: tuple[str, ...]


class NumberHistory:
    """The history of an object's numbers."""

    def __init__(self, shape: Shape) -> None:
        self._names = shape.counts + shape.values
        self._read: Callable[[Any], tuple[float, ...]] = attrgetter(*self._names)
        self._counts = len(shape.counts)
        self._last: tuple[int, tuple[float, ...]] | None = None
        self._levels = [_Samples(level, len(self._names)) for level in LEVELS]
        self._newest: dict[str, float] = {}

    def record(self, time_ms: int, numbers: Any) -> None:
        """Add a sample. `numbers` has the numbers as attributes."""
        row = self._read(numbers)
        last, self._last = self._last, (time_ms, row)
        if last is None or time_ms <= last[0]:
            return
        elapsed_s, (before, counts) = (time_ms - last[0]) / 1000, (last[1], self._counts)
        # A count decreases only when a state was loaded: then counting starts again.
        rates = [
            max(new - old, 0) / elapsed_s for new, old in zip(row[:counts], before[:counts], strict=True)
        ]
        values = [*rates, *row[counts:]]
        for samples in self._levels:
            samples.add(time_ms, values)
        named = zip(self._names, values, strict=True)
        self._newest = {"time": time_ms} | {name: round(value, 3) for name, value in named}

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that the samples take."""
        return sum(samples.held_bytes for samples in self._levels)

    def newest(self) -> Mapping[str, float]:
        """Return the last sample with its `time`; {} before the first sample."""
        return self._newest

    def since(self, age_s: int, now_ms: int) -> Columns:
        """Return the samples of the last `age_s` seconds, from the finest level that reaches back that far."""
        age_ms = age_s * 1000
        reaching = [place for place, each in enumerate(LEVELS) if each.step_ms * each.kept >= age_ms]
        times, columns = self._levels[reaching[0] if reaching else -1].since(now_ms - age_ms)
        rounded = ([round(value, 3) for value in column] for column in columns)
        return {"times": times, **dict(zip(self._names, rounded, strict=True))}


class NumberHistories:
    """The histories of many objects by key, the object that was asked for last at the end."""

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        """`shapes` maps the first word of a key to the numbers of such objects."""
        self._shapes = shapes
        self._histories: dict[tuple[str, ...], NumberHistory] = {}

    def begin(self, key: tuple[str, ...]) -> NumberHistory:
        """Return the history of an object, which begins now if there is none.

        If there are too many, the history that was unused for longest is dropped.
        """
        history = self._histories.pop(key, None) or NumberHistory(self._shapes[key[0]])
        self._histories[key] = history
        while len(self._histories) > HISTORIES_MAX:
            del self._histories[next(iter(self._histories))]
        return history

    def begin_if_room(self, key: tuple[str, ...]) -> None:
        """Begin the history of an object if that drops no other history."""
        if key not in self._histories and len(self._histories) < HISTORIES_MAX:
            self.begin(key)

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that the samples take."""
        return sum(history.held_bytes for history in self._histories.values())

    def all(self) -> list[tuple[tuple[str, ...], NumberHistory]]:
        return list(self._histories.items())

    def drop(self, key: tuple[str, ...]) -> None:
        self._histories.pop(key, None)
