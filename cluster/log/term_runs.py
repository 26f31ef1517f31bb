"""The term of every entry, in memory, as runs of equal terms.

Invariant: memory and time grow with the number of terms, not with the number of entries. Callers must ask only for
entries that the log holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.log.segment import Run


class TermRuns:
    """The term of every entry, as runs: the entries of a leader's term form a single run."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._starts: list[int] = []
        self._terms: list[int] = []
        self.extend(runs)

    @property
    def last(self) -> int:
        """Term of the last entry; -1 for an empty log."""
        return self._terms[-1] if self._terms else -1

    def add(self, index: int, term: int) -> None:
        if not self._terms or self._terms[-1] != term:
            self._starts.append(index)
            self._terms.append(term)

    def extend(self, runs: Iterable[Run]) -> None:
        for index, term in runs:
            self.add(index, term)

    def at(self, index: int) -> int:
        if index >= self._starts[-1]:
            return self._terms[-1]
        return self._terms[bisect_right(self._starts, index) - 1]

    def between(self, first: int, end: int) -> list[Run]:
        """Return the runs of the entries from `first` to before `end`; the first run begins with `first`.

        The result has at least a single run.
        """
        position = bisect_right(self._starts, first)
        runs = [(first, self.at(first))]
        while position < len(self._starts) and self._starts[position] < end:
            runs.append((self._starts[position], self._terms[position]))
            position += 1
        return runs

    def cut_from(self, index: int) -> None:
        while self._starts and self._starts[-1] >= index:
            self._starts.pop()
            self._terms.pop()

    def cut_to(self, index: int) -> None:
        below = bisect_right(self._starts, index) - 1
        del self._starts[: max(below, 0)], self._terms[: max(below, 0)]

    def all(self) -> list[Run]:
        return list(zip(self._starts, self._terms, strict=True))
