"""The verdict on a run: each promise, what was judged of it, and its violations by cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chaos.promises import PROMISES

if TYPE_CHECKING:
    from chaos.judge.findings import Findings
    from chaos.judge.run import Run

FORMAT = 1
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Group:
    """The violations of a promise with the same cause."""

    cause: str
    violations: int
    expected: str
    observed: Sequence[str]
    """In words, of each example."""
    examples: Sequence[Row]
    """The rows that show the first violations best."""


@dataclass(frozen=True, slots=True)
class Promise:
    name: str
    holds: bool
    checked: int
    """Number of messages, deliveries or transactions that were checked."""
    violations: int
    examples: list[Row]
    text: str
    groups: Sequence[Group] = ()
    owed_by: Sequence[str] = ()
    """The workloads that should have given it evidence, if nothing was checked."""

    @property
    def judged(self) -> bool:
        return self.checked > 0 or self.violations > 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The content of verdict.json."""

    valid: bool
    error: str | None
    rows: int = 0
    seconds: float = 0.0
    operations: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    promises: Sequence[Promise] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    problems: Sequence[str] = ()
    """Deviations of the run from its plan."""
    format: int = FORMAT


def promises(findings: Findings, run: Run) -> list[Promise]:
    """Return all promises as they were found."""
    return [_promise(name, text, findings, run) for name, text in PROMISES.items()]


def _promise(name: str, text: str, findings: Findings, run: Run) -> Promise:
    groups: list[Group] = []
    rows: list[Row] = []
    for cause, count in sorted(findings.violations.items()):
        if cause.promise != name:
            continue
        examples = sorted(findings.examples[cause], key=lambda example: example[:3])
        shown = [example.row for example in examples]
        rows += shown
        groups.append(
            Group(cause.name, count, cause.expected, [example.observed for example in examples], shown)
        )
    checked = findings.checked[name]
    violations = sum(group.violations for group in groups)
    rows.sort(key=lambda row: row["time_ns"])
    return Promise(
        name,
        not violations,
        checked,
        violations,
        rows[: findings.limit],
        text,
        groups,
        () if checked or violations else run.owes.get(name, ()),
    )


def describe(verdict: Verdict) -> str:
    """Return a table of the promises, and the verdict in a line."""
    if verdict.error is not None:
        return f"INVALID: {verdict.error}"
    lines = [f"{'promise':<20} {'checked':>10} {'violations':>10}"]
    for promise in verdict.promises:
        lines.append(f"{promise.name:<20} {promise.checked:>10} {promise.violations:>10}" + _remark(promise))
        lines += [
            f"    {group.violations} x {group.cause}: expected: {group.expected}; observed: {group.observed[0]}"
            for group in promise.groups
        ]
    return "\n".join([*lines, f"{_outcome(verdict)} ({verdict.rows} rows in {verdict.seconds:.1f} s)"])


def _remark(promise: Promise) -> str:
    if not promise.holds:
        return f"   BROKEN: {promise.text}; first: {promise.examples[0]}"
    if promise.owed_by:
        return f"   NOT JUDGED, although it ran: {', '.join(promise.owed_by)}"
    return "" if promise.judged else "   not judged"


def is_valid(found: Sequence[Promise], problems: Sequence[str]) -> bool:
    return all(promise.holds and not promise.owed_by for promise in found) and not problems


def _outcome(verdict: Verdict) -> str:
    broken = [promise.name for promise in verdict.promises if not promise.holds]
    unjudged = [promise.name for promise in verdict.promises if promise.owed_by]
    wrong = [f"broken: {', '.join(broken)}"] if broken else []
    if unjudged:
        wrong.append(f"not judged: {', '.join(unjudged)}")
    if verdict.problems:
        wrong.append(f"problems of the run: {'; '.join(verdict.problems)}")
    return f"INVALID: {'; '.join(wrong)}" if wrong else "VALID: every promise was kept"
