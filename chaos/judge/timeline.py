"""The run as its clients saw it, second by second: throughput, latency, outages and recovery.

Times of the tables are seconds since the run began.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chaos.judge.clients import NEVER_NS
from chaos.judge.scan import NS, UNAVAILABLE_NS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from chaos.judge.context import Context, Gap, Gaps
    from chaos.judge.event import Event
    from chaos.judge.life import Fate
    from chaos.judge.run import Run
    from chaos.judge.scan import Digest, Tally

RETRY_NS = 2 * NS
"""Nanoseconds; a publisher that fails and tries again within this time was waiting in between."""
ONSET_NS = NS
"""Nanoseconds; a wait that begins this soon after the end of a fault counts as caused by the fault."""
HELD_BACK = "backlog"
"""The workload whose messages wait on purpose, so that the latency of their delivery is meaningless."""
DIGITS = 3
"""Significant digits of latencies."""
EVERYWHERE = "everywhere"
"""In place of a node: the whole cluster."""

Table = list[dict[str, Any]]


@dataclass(slots=True)
class Observed:
    """What the messages of a bucket add to the timeline."""

    published: int = 0
    confirmed: int = 0
    delivered: int = 0
    latencies: Counter[tuple[str, int, float]] = field(default_factory=Counter)
    """By kind, second and ms, to `DIGITS` digits."""
    longest: dict[tuple[str, int], float] = field(default_factory=dict)
    """ms, by kind and second."""
    calls: list[tuple[str, str, int, int | None]] = field(default_factory=list)
    """Publishes during a gap between confirms at their node, which are few: process, node, from, to."""

    def add(self, other: Observed) -> None:
        self.published += other.published
        self.confirmed += other.confirmed
        self.delivered += other.delivered
        self.latencies.update(other.latencies)
        self.calls += other.calls
        for key, ms in other.longest.items():
            self.longest[key] = max(ms, self.longest.get(key, 0.0))

    def count(self, fate: Fate, context: Context) -> None:
        """Count a message.

        Confirms are measured from the last attempt, deliveries from the first, because an application that publishes
        again waits for all of it. Confirms in transactions are left out, because they wait for the client's own commit.
        """
        self.published += fate.invokes > 0
        self.confirmed += fate.oks > 0
        self.delivered += bool(fate.deliveries or fate.leased)
        if not fate.invokes:
            return
        if fate.oks and not fate.in_tx:
            self._measure("confirm", fate.last_invoked_ns, fate.confirmed_ns, context)
        if fate.deliveries and not fate.leased and fate.settings.workload != HELD_BACK:
            self._measure("deliver", fate.invoked_ns, fate.seen[0].time_ns, context)
        for attempt in fate.attempts.values():
            row, end = attempt.invoke, attempt.end
            if row is None or row.node is None:
                continue
            to_ns = None if end is None else end.time_ns
            if _with_ends(context.gaps.get(row.node, ()), row.time_ns, to_ns):
                self.calls.append((row.process, row.node, row.time_ns, to_ns))

    def _measure(self, kind: str, since_ns: int, until_ns: int, context: Context) -> None:
        second = (since_ns - context.run.started_ns) // NS
        ms = (until_ns - since_ns) / 1e6
        self.latencies[kind, second, float(f"{ms:.{DIGITS}g}")] += 1
        self.longest[kind, second] = max(ms, self.longest.get((kind, second), 0.0))


def throughput(tally: Tally) -> Table:
    """Return columns second, node, published, confirmed, delivered, unknown."""
    kinds = {
        ("publish", "invoke"): "published",
        ("publish", "ok"): "confirmed",
        ("deliver", "ok"): "delivered",
        ("publish", "unknown"): "unknown",
    }
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    for (second, node, op, type_), count in tally.items():
        if node is None or op not in ("publish", "deliver"):
            continue
        empty = {"second": second, "node": node, **dict.fromkeys(kinds.values(), 0)}
        row = rows.setdefault((second, node), empty)
        if (op, type_) in kinds:
            row[kinds[op, type_]] += count
    return [rows[key] for key in sorted(rows)]


def latency(observed: Observed) -> Table:
    """Return columns second, kind, p50, p99, max; a null second means the whole run."""
    groups: dict[tuple[str, int | None], Counter[float]] = defaultdict(Counter)
    longest: dict[tuple[str, int | None], float] = {**observed.longest}
    for (kind, second, ms), count in observed.latencies.items():
        groups[kind, second][ms] += count
        groups[kind, None][ms] += count
    for (kind, _), ms in observed.longest.items():
        longest[kind, None] = max(ms, longest.get((kind, None), 0.0))
    rows = [
        {
            "second": second,
            "kind": kind,
            "p50": _quantile(counts, 0.5),
            "p99": _quantile(counts, 0.99),
            "max": longest[kind, second],
        }
        for (kind, second), counts in groups.items()
    ]
    return sorted(rows, key=lambda row: (row["second"] is not None, row["second"], row["kind"]))


def _quantile(counts: Counter[float], share: float) -> float:
    wanted, seen = share * counts.total(), 0
    for ms in sorted(counts):
        seen += counts[ms]
        if seen >= wanted:
            return ms
    raise AssertionError("a quantile of nothing")


def gaps(digest: Digest, run: Run, *, everywhere: bool = False) -> Gaps:
    """Return the periods without a confirm at a node: between two confirms, before its first or after its last."""
    nodes = {node for _, node in digest.publishing} | {node for node, _ in digest.confirms}
    marks: dict[str, list[Gap]] = {
        node: [(run.started_ns, run.started_ns), (run.ended_ns, run.ended_ns)]
        for node in ({EVERYWHERE} if everywhere and nodes else nodes)
    }
    for (node, _), mark in digest.confirms.items():
        marks[EVERYWHERE if everywhere else node].append(mark)
    found: Gaps = {}
    for node, ends in marks.items():
        ends.sort()
        last_ns, of_node = ends[0][1], []
        for first_ns, next_ns in ends[1:]:
            if first_ns - last_ns >= UNAVAILABLE_NS:
                of_node.append((last_ns, first_ns))
            last_ns = max(last_ns, next_ns)
        found[node] = of_node
    return found


def unavailable(observed: Observed, digest: Digest, run: Run, *, everywhere: bool = False) -> Table:
    """Return columns start, end, node of periods when publishers waited at a node without any confirm there."""
    publishers = {process for process, _ in digest.publishing}
    calls = observed.calls + [call for call in _connects(digest.clients) if call[0] in publishers]
    found = gaps(digest, run, everywhere=everywhere)
    waits: dict[tuple[str, Gap], list[Gap]] = defaultdict(list)
    for _, node, from_ns, to_ns in calls:
        name = EVERYWHERE if everywhere else node
        for gap in _with_ends(found.get(name, ()), from_ns, to_ns):
            # A call that began before a gap has waited since the gap began; a call that ended after it, to its end.
            until_ns = gap[1] if to_ns is None else min(to_ns, gap[1])
            waits[name, gap].append((max(from_ns, gap[0]), until_ns))
    table: Table = []
    for (node, _), of_gap in waits.items():
        for begin_ns, end_ns in _islands(sorted(of_gap)):
            if end_ns - begin_ns >= UNAVAILABLE_NS:
                start, end = ((time_ns - run.started_ns) / NS for time_ns in (begin_ns, end_ns))
                table.append({"start": start, "end": end, "node": node})
    return sorted(table, key=lambda row: (row["start"], row["node"]))


def _with_ends(of_node: Sequence[Gap], from_ns: int, to_ns: int | None) -> list[Gap]:
    """Return the gaps of a node in which a call began or ended."""
    found: dict[Gap, None] = {}
    for time_ns in (from_ns, to_ns):
        # A confirm that ends a gap belongs to it.
        place = -1 if time_ns is None else bisect_left(of_node, (time_ns, NEVER_NS)) - 1
        if place >= 0 and time_ns is not None and time_ns <= of_node[place][1]:
            found[of_node[place]] = None
    return list(found)


def _islands(waits: Iterable[Gap]) -> list[Gap]:
    """Return the waits, those that follow each other within `RETRY_NS` as one."""
    islands: list[Gap] = []
    for begin_ns, end_ns in waits:
        if islands and begin_ns <= islands[-1][1] + RETRY_NS:
            islands[-1] = islands[-1][0], max(islands[-1][1], end_ns)
        else:
            islands.append((begin_ns, end_ns))
    return islands


def _connects(clients: Iterable[Event]) -> list[tuple[str, str, int, int | None]]:
    begun: dict[tuple[str, int], Event] = {}
    ended: dict[tuple[str, int], int] = {}
    for row in clients:
        if row.op == "connect" and row.node is not None:
            if row.type == "invoke":
                begun[row.process, row.call] = row
            elif row.type != "info":
                ended[row.process, row.call] = row.time_ns
    return [(row.process, row.node or "", row.time_ns, ended.get(key)) for key, row in begun.items()]


def faults(
    clients: Iterable[Event],
    windows: Sequence[Mapping[str, Any]],
    outages: Sequence[Mapping[str, Any]],
    run: Run,
) -> Table:
    """Return columns start, end, fault, node, outcome, detail, outage, node_outage, recovery of each fault.

    `outage`: the longest time, since the fault's begin, when no publisher could publish through any node.
    `node_outage`: the same through some node. `recovery`: how long after its end publishers of some node still waited.
    Waits that began up to `ONSET_NS` after its end count too; 0 without any wait. `outages` are those of the whole
    cluster, `windows` those of nodes.

    `outcome` is that of the fault's end, `unknown` without an end. `detail` is the last detail: the end of a fault
    repeats the parameters and adds its results.
    """
    spans: dict[tuple[str, int], list[Event]] = defaultdict(list)
    for row in sorted(clients, key=lambda row: row.time_ns):
        # A fault that was left out has only an info row.
        if row.op == "fault" and row.fault is not None and row.type != "info":
            spans[row.process, row.call].append(row)
    table: Table = []
    for rows in spans.values():
        ends = [row for row in rows if row.type != "invoke"]
        start = (rows[0].time_ns - run.started_ns) / NS
        end = ((ends[-1].time_ns if ends else run.ended_ns) - run.started_ns) / NS
        table.append(
            {
                "start": start,
                "end": end,
                "fault": rows[0].fault,
                "node": rows[0].node,
                "outcome": ends[-1].type if ends else "unknown",
                "detail": next((row.detail for row in reversed(rows) if row.detail is not None), None),
                "outage": _longest(outages, start, end),
                "node_outage": _longest(windows, start, end),
                "recovery": max(
                    (row["end"] - end for row in _caused(windows, start, end) if row["end"] > end),
                    default=0.0,
                ),
            }
        )
    return sorted(table, key=lambda row: row["start"])


def _caused(windows: Iterable[Mapping[str, Any]], start: float, end: float) -> list[Mapping[str, Any]]:
    return [row for row in windows if row["end"] > start and row["start"] <= end + ONSET_NS / NS]


def _longest(windows: Iterable[Mapping[str, Any]], start: float, end: float) -> float:
    caused = _caused(windows, start, end)
    return max((row["end"] - max(row["start"], start) for row in caused), default=0.0)
