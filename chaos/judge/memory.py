"""Judges a small history within this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from chaos.judge import leases, priorities, readers, streams, suspects, timeline, transactions
from chaos.judge.clients import Clients
from chaos.judge.context import Context
from chaos.judge.facts import placed
from chaos.judge.findings import EXAMPLES
from chaos.judge.messages import Collector
from chaos.judge.run import Queue, Run
from chaos.judge.scan import Scan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from chaos.history import Row
    from chaos.judge.findings import Findings

UNKNOWN_SESSIONS = ("two_holders", "redelivery")
"""Promises that are judged only if each connection has a single channel, which stays open as long as it."""


NO_QUEUES: Mapping[str, Queue] = {}


class Violation(NamedTuple):
    promise: str
    queue: str
    id: str


def findings(rows: Sequence[Row], run: Run, limit: int = EXAMPLES) -> Findings:
    """Return the findings in a history, whose rows must be in the order of time. `limit`: examples of a cause."""
    scan = Scan(run.started_ns, buckets=1)
    for row in rows:
        scan.add(row)
    held = leases.Leases(scan.digest.leases)
    context = Context(run, Clients(scan.digest), held, timeline.gaps(scan.digest, run))
    collector = Collector(context, (), 1, limit)
    found = collector.tables.findings
    collector.judge(scan.messages[0])
    known = streams.Knowledge(context, collector.tables)
    shares = streams.judge(placed(collector.facts[0]), streams.Carry(), known, found)
    priorities.judge_shares(shares, found)
    streams.judge_points(collector.points[0], known, found)
    streams.judge_lengths(context, collector.tables.ready, found)
    suspects.judge(collector.suspects[0], known, found)
    transactions.judge(collector.parts[0], context, found)
    readers.judge(context, found)
    return found


def violations(rows: Sequence[Row], queues: Mapping[str, Queue] = NO_QUEUES) -> set[Violation]:
    """Return all violations in a history of clients with several channels on a connection.

    All queues were drained at the end. Queues that are not in `queues` lose no messages by themselves: no message in
    them dies, is purged or is deleted with its queue.
    """
    run = Run(0, 0, queues, others=Queue(drained=True))
    found = findings(list(with_ends(rows)), run, limit=len(rows))
    return {
        Violation(cause.promise, example.queue, example.id)
        for cause, examples in found.examples.items()
        for example in examples
        if cause.promise not in UNKNOWN_SESSIONS
    }


def with_ends(rows: Sequence[Row]) -> Iterator[Row]:
    """End each operation in a transaction as the transaction ended, in the order of time.

    For clients that record only the invokes of such operations. Without a commit the operation had no effect.
    """
    outcomes = _outcomes(rows)
    ended: list[Row] = []
    for row in rows:
        tx = row.get("tx")
        if tx is None or row["op"].startswith("tx_"):
            ended.append(row)
        elif row["type"] == "invoke":
            outcome, ended_ns = outcomes.get(tx, ("fail", row["time_ns"]))
            end: Any = {**row, "type": outcome, "time_ns": max(ended_ns, row["time_ns"])}
            ended += [row, end]
    last_ns = 0
    for row in sorted(ended, key=_time_ns):
        last_ns = max(last_ns + 1, row["time_ns"])
        moved: Any = {**row, "time_ns": last_ns}
        yield moved


def _time_ns(row: Row) -> int:
    return row["time_ns"]


def _outcomes(rows: Iterable[Row]) -> Mapping[str, tuple[str, int]]:
    outcomes: dict[str, tuple[str, int]] = {}
    for row in rows:
        tx = row.get("tx")
        if tx is None or row["op"] != "tx_commit":
            continue
        if row["type"] in ("ok", "fail"):
            outcomes[tx] = row["type"], row["time_ns"]
        else:
            outcomes.setdefault(tx, ("unknown", row["time_ns"]))
    return outcomes
