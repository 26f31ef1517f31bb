"""The term of every entry, in memory.

Lives here: the runs of equal terms and the way from an index to its term. Not here: which indexes the log has
(journal.py), the current term (hardstate.py).

Law: memory and time grow with the number of reigns, not with the number of entries; who asks knows that the entry
is there.
"""

from __future__ import annotations

from bisect import bisect_right


class TermRuns:
    """The term of every entry, as runs: a term is a reign, not an entry."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._terms: list[int] = []

    def add(self, index: int, term: int) -> None:
        if not self._terms or self._terms[-1] != term:
            self._starts.append(index)
            self._terms.append(term)

    def at(self, index: int) -> int:
        if index >= self._starts[-1]:
            return self._terms[-1]
        return self._terms[bisect_right(self._starts, index) - 1]

    def cut_from(self, index: int) -> None:
        while self._starts and self._starts[-1] >= index:
            self._starts.pop()
            self._terms.pop()

    def cut_to(self, index: int) -> None:
        below = bisect_right(self._starts, index) - 1
        del self._starts[:below], self._terms[:below]
