"""Judges the messages of a bucket, each by its life, and collects the facts for the judgements beyond a single message.

Invariant: the memory of a collection is that of its bucket, and of small tables by queue, consumer, node and second.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from zlib import crc32

from chaos import promises
from chaos.judge import timeline
from chaos.judge.clients import FOREVER_NS, NEVER_NS
from chaos.judge.event import FIELDS, Consumer, Event, Packed
from chaos.judge.facts import Fact
from chaos.judge.findings import Findings
from chaos.judge.life import Fate, Life
from chaos.judge.rules import arrival, deaths, duplicates, leases, times

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chaos.judge.context import Context
    from chaos.judge.life import Seen

RULES = (
    arrival.lost,
    arrival.unpublished,
    arrival.causality,
    duplicates.duplicates,
    duplicates.acknowledged,
    duplicates.held,
    duplicates.redelivery,
    deaths.delivery_limit,
    deaths.dead_letter,
    deaths.x_death,
    leases.leases,
    times.resurrected,
    times.cancelled,
    times.ttl,
    times.delay,
    times.liveness,
)
_BY_MESSAGE = itemgetter(FIELDS.index("id"), FIELDS.index("time_ns"))

Stream = tuple[str, str, int]
"""Queue, publisher and priority."""
Holder = tuple[str, tuple[str, int], Consumer, int]
"""Queue, axis, consumer, and the number of its requests so far."""


@dataclass(slots=True)
class Tables:
    """Small tables about many messages; those of several buckets add up."""

    findings: Findings = field(default_factory=Findings)
    timeline: timeline.Observed = field(default_factory=timeline.Observed)
    alive_ns: dict[str, int] = field(default_factory=dict)
    """A time when a connection was certainly alive, the latest: it got a message published then."""
    seen: dict[tuple[Stream, int], int] = field(default_factory=dict)
    """The latest publish of a stream seen before an instant of its queue, by the number of the instant."""
    tenures: dict[Holder, tuple[int, int]] = field(default_factory=dict)
    """The first latest place and the last earliest place of a consumer's deliveries, see streams.py."""
    ready: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By how many the ready messages of a queue change from an instant to the next."""
    publishers: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The publishers of each queue with priorities."""

    def add(self, other: Tables) -> None:
        self.findings.add(other.findings)
        self.timeline.add(other.timeline)
        self.ready.update(other.ready)
        for connection, time_ns in other.alive_ns.items():
            _raise(self.alive_ns, connection, time_ns)
        for key, time_ns in other.seen.items():
            _raise(self.seen, key, time_ns)
        for holder, (since, until) in other.tenures.items():
            self.hold(holder, since, until)
        for queue, publishers in other.publishers.items():
            self.publishers[queue] |= publishers

    def hold(self, holder: Holder, latest: int, earliest: int) -> None:
        """Extend a consumer's tenure to a delivery between these places."""
        since, until = self.tenures.get(holder, (latest, earliest))
        self.tenures[holder] = min(since, latest), max(until, earliest)


def _raise(table: dict[Any, int], key: Any, value: int) -> None:
    if value > table.get(key, NEVER_NS):
        table[key] = value


class Collector:
    """Judges messages. The lists by slice or bucket are for the next step (streams.py, transactions.py)."""

    def __init__(self, context: Context, slices: Sequence[int], tx_buckets: int, examples: int) -> None:
        self.tables = Tables(Findings(limit=examples))
        self.facts: dict[int, list[Packed]] = defaultdict(list)
        """For `facts.Fact`, by slice of time."""
        self.points: dict[int, list[Packed]] = defaultdict(list)
        """For `streams.Point`, by slice."""
        self.suspects: dict[int, list[Packed]] = defaultdict(list)
        """For `suspects.Suspect`, by slice."""
        self.parts: dict[int, list[Packed]] = defaultdict(list)
        """For `transactions.Part`, by bucket of transactions."""
        self._context = context
        self._slices = slices
        self._tx_buckets = tx_buckets
        self._instants: dict[str, list[int]] = {}

    def judge(self, rows: list[Packed]) -> None:
        """Judge all messages of a bucket."""
        rows.sort(key=_BY_MESSAGE)
        for name, group in groupby(rows, key=_BY_ID):
            self._judge(Life(name, list(map(Event._make, group)), self._context.run, self._context.clients))

    def _judge(self, life: Life) -> None:
        context, tables = self._context, self.tables
        for rule in RULES:
            rule(life, context, tables.findings)
        for fate in life.fates.values():
            tables.timeline.count(fate, context)
            self._collect_life_signs(life, fate)
            # A released message returns to its place, which may be before messages that were delivered meanwhile.
            if promises.is_comparable(fate) and not fate.leased:
                self._collect_place(fate)
            elif fate.settings.priorities and not fate.leased:
                self._collect_first_deliveries(fate)
            if fate.settings.single_active and fate.invokes:
                self._collect_points(fate)
            self._collect_parts(life, fate)
        if any(fate.deliveries for fate in life.fates.values()):
            self._collect_suspects(life)

    def _slice(self, time_ns: int) -> int:
        return bisect_right(self._slices, time_ns)

    def instants(self, queue: str) -> list[int]:
        known = self._instants.get(queue)
        if known is None:
            known = self._instants[queue] = self._context.clients.instants_ns(queue)
        return known

    def _collect_life_signs(self, life: Life, fate: Fate) -> None:
        alive_ns = self.tables.alive_ns
        for attempt in fate.attempts.values():
            if attempt.invoke is not None and attempt.outcome == "ok" and attempt.invoke.tx is None:
                _raise(alive_ns, attempt.invoke.connection or "", attempt.invoke.time_ns)
        if fate.seen:
            sources = life.sources(fate.queue, self._context.run)
            sent_ns = min((source.possible_ns for source in sources), default=NEVER_NS)
            for seen in fate.seen:
                _raise(alive_ns, seen.connection, sent_ns)

    def _collect_place(self, fate: Fate) -> None:
        """Collect the place of a message in the order of its queue."""
        if times.delay_ms(fate):
            return  # it comes after messages that were published later
        first = fate.first()
        row = first.row
        stream = fate.queue, fate.publisher, fate.priority
        instants = self.instants(fate.queue)
        seen_at = bisect_right(instants, row.time_ns)
        _raise(self.tables.seen, (stream, seen_at), fate.invoked_ns)
        if fate.settings.max_length is not None and first.requested_ns != NEVER_NS:
            # Confirmed, and sent to nobody until its consumer was requested: it was ready in between.
            since = bisect_right(instants, fate.confirmed_ns)
            until = bisect_right(instants, first.requested_ns)
            if since < until:
                self.tables.ready[fate.queue, since] += 1
                self.tables.ready[fate.queue, until] -= 1
        self._add_fact(fate, first, is_placed=True)

    def _collect_first_deliveries(self, fate: Fate) -> None:
        """Collect first deliveries without a place in the order, because they count in the ratio of priorities."""
        for seen in fate.seen:
            if seen.is_first and not times.delay_ms(fate):
                self._add_fact(fate, seen, is_placed=False)

    def _add_fact(self, fate: Fate, first: Seen, *, is_placed: bool) -> None:
        if fate.settings.priorities:
            self.tables.publishers[fate.queue].add(fate.publisher)
        fact = Fact(
            tuple(first.row),
            fate.publisher,
            fate.priority,
            fate.channel,
            fate.sequence,
            fate.invoked_ns,
            fate.confirmed_ns,
            times.expires_ns(fate),
            first.requested_ns,
            bisect_left(self.instants(fate.queue), first.requested_ns),
            is_placed,
        )
        self.facts[self._slice(first.row.time_ns)].append(tuple(fact))

    def _collect_points(self, fate: Fate) -> None:
        """Collect the deliveries of a queue with a single active consumer."""
        is_plain = promises.is_plain(fate)
        for seen in fate.seen:
            row = seen.row
            consumer = self._context.clients.consumers.get(row.consuming)
            times_requested = bisect_left(consumer.requests_ns, row.time_ns) if consumer else 0
            places = [(("time", 0), fate.invoked_ns, row.time_ns)]
            if is_plain and seen.is_first:
                places.append(((fate.publisher, fate.priority), fate.sequence, fate.sequence))
            for axis, earliest, latest in places:
                holder = fate.queue, axis, row.consuming, times_requested
                self.tables.hold(holder, latest, earliest)
            self.points[self._slice(row.time_ns)].append((tuple(row), times_requested, places))

    def _collect_parts(self, life: Life, fate: Fate) -> None:
        """Collect the operations in transactions."""
        publishes = [(each.invoke, each.outcome) for each in fate.attempts.values() if each.invoke]
        settlements = [(each.row, each.outcome) for each in fate.settlements.values()]
        for row, outcome in (*publishes, *settlements):
            if row.tx is None or (row.op == "publish" and fate.invokes != 1):
                continue
            bucket = crc32(row.tx.encode()) % self._tx_buckets
            self.parts[bucket].append((tuple(row), outcome, *self._effects(life, fate, row)))

    def _effects(self, life: Life, fate: Fate, row: Event) -> tuple[Any, ...]:
        """Return what transactions.Part has beside row and outcome."""
        ending = self._context.traced(life, fate)
        elsewhere = life.arrived_elsewhere(fate.queue, self._context.run)
        is_seen = bool(fate.deliveries) or elsewhere
        is_one = bool(fate.invokes) and promises.copies(fate) == 1
        is_gone = (
            row.op == "ack"
            and ending is not None
            and promises.is_owed(fate)
            and ending.must_be_settled
            and not ending.is_limited
            and not fate.rejects
            and fate.acks == 1
            and promises.copies(fate) <= 1
            and not elsewhere
        )
        back = (
            [(seen.requested_ns, tuple(seen.row)) for seen in fate.seen] if row.op == "ack" and is_one else []
        )
        first = tuple(fate.seen[0].row) if fate.seen else None
        return is_seen, ending is not None and not is_seen, first, back, is_gone

    def _collect_suspects(self, life: Life) -> None:
        """Collect deliveries that only a consumer which never showed them, or which died, can explain."""
        run = self._context.run
        for queue, fate in life.fates.items():
            sources = list(life.sources(queue, run))
            if len(sources) != 1 or promises.copies(sources[0]) != 1:
                continue
            way = [name for name in run.reach(sources[0].queue) if name in life.fates]
            times_ns = sorted(seen.time_ns for name in way for seen in life.fates[name].seen)
            for seen in fate.seen:
                row = seen.row
                count = (row.delivery_count or 0) if fate.settings.kind == "quorum" else bool(row.redelivered)
                unexplained = count - bisect_left(times_ns, row.time_ns)
                if unexplained > 0:
                    self.suspects[self._slice(row.time_ns)].append(
                        ("count", tuple(row), sources[0].possible_ns, unexplained, way)
                    )
        for fate in life.fates.values():
            if fate.deliveries and not fate.dead_arrivals and fate.invokes and promises.copies(fate) == 1:
                self.tables.findings.checked["two_holders"] += 1
                self._collect_holders(fate)
            if fate.leased and leases.is_judged(fate):
                self._collect_conflicts(fate)
            if fate.dead_arrivals and sum(map(promises.copies, life.sources(fate.queue, run))) == 1:
                self._collect_arrivals(fate)

    def _collect_holders(self, fate: Fate) -> None:
        settled_ns: dict[str, int] = {}
        for settlement in fate.settlements.values():
            row = settlement.row
            settled_ns[row.connection or ""] = min(
                settled_ns.get(row.connection or "", FOREVER_NS), row.time_ns
            )
        for place, later in enumerate(fate.seen):
            for earlier in fate.seen[:place]:
                ends = [settled_ns.get(each.connection, FOREVER_NS) for each in (earlier, later)]
                if earlier.connection != later.connection and min(ends) > later.time_ns:
                    self.suspects[self._slice(later.time_ns)].append(
                        ("held", tuple(later.row), earlier.time_ns, 0, [earlier.connection, later.connection])
                    )

    def _collect_conflicts(self, fate: Fate) -> None:
        """Collect deliveries that contradict a lease if their connection was alive."""
        for conflict in leases.conflicts(fate, self._context):
            if conflict.connection:
                row = conflict.row
                kind = "committed" if conflict.cause == leases.DELIVERED_AGAIN else "leased"
                names = [conflict.connection, conflict.observed]
                self.suspects[self._slice(row.time_ns)].append(
                    (kind, tuple(row), conflict.alive_ns, 0, names)
                )

    def _collect_arrivals(self, fate: Fate) -> None:
        """Collect dead letters that came to two consumers with the same count."""
        returning = {each.row.connection or "" for each in fate.settlements.values() if each.row.op != "ack"}
        for seen in deaths.arrivals(fate).values():
            holders = [each.connection for each in seen]
            if len(set(holders)) == 2 == len(holders) and returning.isdisjoint(holders):
                row = seen[-1].row
                self.suspects[self._slice(row.time_ns)].append(
                    ("twice", tuple(row), seen[0].time_ns, 0, holders)
                )


_BY_ID = itemgetter(FIELDS.index("id"))


def slices_of(deliveries: Iterable[tuple[int, int]], started_ns: int, most: int) -> list[int]:
    """Return the times between slices with at most `most` deliveries, from the number of each second."""
    bounds: list[int] = []
    total = 0
    for second, count in sorted(deliveries):
        if total and total + count > most:
            bounds.append(started_ns + second * 1_000_000_000)
            total = 0
        total += count
    return bounds
