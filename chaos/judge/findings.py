"""The findings of a judge: violations grouped by their cause, and how much was judged.

Invariant: the memory of findings is bounded, however many violations there are: of each cause the first are kept.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from chaos.judge.event import Event, row_of

if TYPE_CHECKING:
    from collections.abc import Iterable

EXAMPLES = 20
"""Violations of a cause that are kept with their rows."""


class Cause(NamedTuple):
    """A way to break a promise."""

    promise: str
    name: str
    expected: str


class Example(NamedTuple):
    """A violation, with the row of the history that shows it best."""

    time_ns: int
    queue: str
    id: str
    observed: str
    row: dict[str, Any]


@dataclass(slots=True)
class Findings:
    """Findings in a part of a history; of several parts they add up."""

    checked: Counter[str] = field(default_factory=Counter)
    """Number of messages, deliveries or transactions that were judged, by promise."""
    violations: Counter[Cause] = field(default_factory=Counter)
    examples: dict[Cause, list[Example]] = field(default_factory=lambda: defaultdict(list))
    limit: int = EXAMPLES

    def broken(self, cause: Cause, row: Event, observed: str) -> None:
        self.violations[cause] += 1
        self._keep(cause, [Example(row.time_ns, row.queue or "", row.id or "", observed, row_of(row))])

    def add(self, other: Findings) -> None:
        self.checked.update(other.checked)
        self.violations.update(other.violations)
        for cause, examples in other.examples.items():
            self._keep(cause, examples)

    def _keep(self, cause: Cause, examples: Iterable[Example]) -> None:
        kept = self.examples[cause]
        kept += examples
        if len(kept) > self.limit:
            kept.sort(key=lambda example: example[:3])
            del kept[self.limit :]
