"""The steps of a check as Spark's Python workers carry them out: functions from a partition to keyed blocks.

A block is many rows in one piece of bytes, so Spark moves few large values. `SUMMARY` is the key of what the driver
collects; every other key is the partition of the next step.

Invariant: this module and chaos.judge import neither Spark nor anything that a worker lacks.
"""

from __future__ import annotations

import marshal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from chaos.judge import streams, suspects, transactions
from chaos.judge.facts import placed
from chaos.judge.findings import Findings
from chaos.judge.messages import Collector, Tables
from chaos.judge.priorities import Shares
from chaos.judge.scan import Digest, Place, Scan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


SUMMARY = -1

Keyed = tuple[int, Any]


def is_summary(keyed: Keyed) -> bool:
    return keyed[0] == SUMMARY


def is_block(keyed: Keyed) -> bool:
    return keyed[0] != SUMMARY


class Scanned(NamedTuple):
    """What the driver gets of a scanned part of a file."""

    part: int
    digest: Digest
    lines: int
    first: Place | None
    last_ns: int
    wrong: tuple[str, Place] | None


def scan(
    started_ns: int, buckets: int, ordered: Sequence[bool], part: int, lines: Iterable[str | bytes]
) -> Iterator[Keyed]:
    """Scan a part of a file: yield its summary, and a block of rows for each bucket of messages."""
    done = Scan(started_ns, buckets, ordered=ordered[part])
    done.read(lines)
    yield SUMMARY, Scanned(part, done.digest, done.lines, done.first, done.last_ns, done.wrong)
    for bucket, rows in enumerate(done.messages):
        if rows:
            yield bucket, marshal.dumps(rows)


@dataclass(frozen=True, slots=True)
class Layout:
    """The partitions of the last step: first the slices of time, then the buckets of transactions."""

    bounds: Sequence[int]
    """Times between slices, in ns."""
    tx_buckets: int
    examples: int
    """Violations of a cause that are kept with their rows."""

    @property
    def slices(self) -> int:
        return len(self.bounds) + 1

    @property
    def partitions(self) -> int:
        return self.slices + self.tx_buckets


def judge(context: Any, layout: Layout, blocks: Iterable[Keyed]) -> Iterator[Keyed]:
    """Judge the messages of a bucket: yield the tables, and blocks for the last step."""
    collector = Collector(context.value, layout.bounds, layout.tx_buckets, layout.examples)
    rows: list[Any] = []
    for _, block in blocks:
        rows += marshal.loads(block)  # noqa: S302 -- the block is of the step before
    collector.judge(rows)
    yield SUMMARY, collector.tables
    kinds = (("facts", collector.facts), ("points", collector.points), ("suspects", collector.suspects))
    for kind, by_slice in kinds:
        for number, found in by_slice.items():
            yield number, (kind, marshal.dumps(found))
    for bucket, parts in collector.parts.items():
        yield layout.slices + bucket, ("parts", marshal.dumps(parts))


def merged(tables: Iterable[Tables]) -> Iterator[Tables]:
    """Yield the sum of tables."""
    first, *others = tables
    for each in others:
        first.add(each)
    yield first


def carried(context: Any, layout: Layout, part: int, blocks: Iterable[Keyed]) -> Iterator[tuple[int, Any]]:
    """Yield what the other slices must know of this slice."""
    if part < layout.slices:
        facts = _loaded(blocks).get("facts", [])
        yield part, streams.summary(placed(facts), context.value)


@dataclass(slots=True)
class Rest:
    """The findings of the last step."""

    findings: Findings = field(default_factory=Findings)
    shares: dict[str, Shares] = field(default_factory=dict)
    """Of high messages, by queue."""


def finish(known: Any, carries: Any, layout: Layout, part: int, blocks: Iterable[Keyed]) -> Iterator[Rest]:
    """Judge a slice of time, or a bucket of transactions."""
    loaded = _loaded(blocks)
    rest = Rest(Findings(limit=layout.examples))
    if part >= layout.slices:
        transactions.judge(loaded.get("parts", []), known.value.context, rest.findings)
    else:
        slice_ = placed(loaded.get("facts", []))
        rest.shares = streams.judge(slice_, carries.value[part], known.value, rest.findings)
        streams.judge_points(loaded.get("points", []), known.value, rest.findings)
        suspects.judge(loaded.get("suspects", []), known.value, rest.findings)
    yield rest


def _loaded(blocks: Iterable[Keyed]) -> dict[str, list[Any]]:
    loaded: dict[str, list[Any]] = {}
    for _, (kind, block) in blocks:
        loaded.setdefault(kind, []).extend(marshal.loads(block))  # noqa: S302 -- of the step before
    return loaded
