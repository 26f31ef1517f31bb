"""Judges deliveries against the deliveries before them: order, priorities, lifetimes, single active consumers.

Time is cut into slices. A slice is judged by itself with a carry from the slices before and behind it, so no task needs
a whole queue. The promise order compares only first deliveries of messages that were published once and confirmed,
because returned messages are served first and repeated publishes may come late.

Single active consumers: the time when the broker sent a delivery is known only between two moments: after the message
was published, and before the delivery was seen. First deliveries of a publisher were also sent in the order of their
numbers. Both are *points* on an axis, with their earliest and latest possible place. Between two points of a consumer
that are certainly apart, that consumer was active all the time (its *tenure*). So no delivery to a different consumer
may certainly lie between them.

Invariant: deliveries may be late, so a reversed order of sight alone is no proof.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from chaos import promises
from chaos.judge import priorities
from chaos.judge.clients import NEVER_NS
from chaos.judge.event import Consumer, Event, Packed
from chaos.judge.findings import Cause, Findings
from chaos.judge.priorities import IN_HAND, Least, Shares
from chaos.judge.rules.times import EXPIRED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from chaos.judge.context import Context
    from chaos.judge.facts import Placed
    from chaos.judge.messages import Stream, Tables

_IN_ORDER = "a publisher's messages are delivered in the order of their publishing"
OVERTAKEN = Cause("order", "overtaken at its consumer", _IN_ORDER)
OVERTAKEN_BEFORE = Cause("order", "overtaken before its consumer came", _IN_ORDER)
NORMAL_FIRST = Cause(
    "priority_order",
    "normal before an older high",
    "no normal message is delivered before an older high message",
)
SECOND_CONSUMER = Cause(
    "single_active", "second consumer", "a single consumer is active, from its first delivery to its last"
)
OVERFULL = Cause(
    "max_length", "more than its length", "a queue has as many ready messages as its length at most"
)


@dataclass(slots=True)
class Carry:
    """What a slice must know of its neighbours."""

    latest: dict[Any, int] = field(default_factory=dict)
    """The highest number and the latest publish that each consumer has seen, see `_keys`."""
    tails: dict[str, list[int]] = field(default_factory=dict)
    """The times of the last `IN_HAND` deliveries before, of each queue with priorities."""
    least: dict[str, Least] = field(default_factory=dict)
    """The least values behind, of each queue with priorities."""

    def after(self, before: Carry) -> Carry:
        """Return the carry from this slice and the carry before it to the next; `least` is of this slice alone."""
        latest = dict(before.latest)
        for key, value in self.latest.items():
            latest[key] = max(value, latest.get(key, NEVER_NS))
        tails = {
            queue: [*before.tails.get(queue, ()), *self.tails.get(queue, ())][-IN_HAND:]
            for queue in before.tails.keys() | self.tails.keys()
        }
        return Carry(latest, tails)


def carries(slices: Sequence[Carry]) -> list[Carry]:
    """Return the carry for each slice, from the summaries of all."""
    received: list[Carry] = []
    before = Carry()
    for summary in slices:
        received.append(Carry(before.latest, before.tails))
        before = summary.after(before)
    behind: dict[str, Least] = {}
    for carry, summary in zip(reversed(received), reversed(slices), strict=True):
        carry.least = dict(behind)
        for queue, least in summary.least.items():
            behind[queue] = least.and_(behind.get(queue, Least()))
    return received


class Knowledge:
    """What all slices know: of the whole run, from the tables of all messages."""

    def __init__(self, context: Context, tables: Tables) -> None:
        self.context = context
        self.seen = _prefix_maxima(tables.seen)
        self.single_publisher = {queue for queue, names in tables.publishers.items() if len(names) == 1}
        self.tenures: dict[tuple[str, Any], list[tuple[int, int, tuple[Consumer, int]]]] = defaultdict(list)
        for (queue, axis, consumer, number), (since, until) in tables.tenures.items():
            if since < until:
                self.tenures[queue, axis].append((since, until, (consumer, number)))
        for tenures in self.tenures.values():
            tenures.sort(key=lambda tenure: tenure[0])
        self.alive_ns = dict(context.clients.answered_ns)
        for connection, time_ns in tables.alive_ns.items():
            self.alive_ns[connection] = max(time_ns, self.alive_ns.get(connection, NEVER_NS))

    def seen_before(self, stream: Stream, instant: int) -> int:
        """Return the latest publish of the stream that any consumer had seen before an instant."""
        places, latest = self.seen.get(stream, ((), (NEVER_NS,)))
        return latest[bisect_left(places, instant + 1)]


def _prefix_maxima(seen: Mapping[tuple[Stream, int], int]) -> dict[Stream, tuple[list[int], list[int]]]:
    by_stream: dict[Stream, list[tuple[int, int]]] = defaultdict(list)
    for (stream, instant), time_ns in seen.items():
        by_stream[stream].append((instant, time_ns))
    maxima: dict[Stream, tuple[list[int], list[int]]] = {}
    for stream, found in by_stream.items():
        found.sort()
        places = [instant for instant, _ in found]
        maxima[stream] = places, [NEVER_NS, *accumulate((time_ns for _, time_ns in found), max)]
    return maxima


class _Keys(NamedTuple):
    """Keys of `Carry.latest` for a delivery."""

    sequence: Any
    publisher: Any
    everything: Any
    normal: Any
    normal_sequence: Any


def _keys(each: Placed) -> _Keys:
    row, fact = each.row, each.fact
    at, channel = (row.queue, row.consuming), (fact.publisher, tuple(fact.channel))
    return _Keys(
        (*at, "sequence", *channel, fact.priority),
        (*at, "publisher", fact.publisher, fact.priority),
        (*at, "any"),
        (*at, "normal"),
        (*at, "normal sequence", *channel),
    )


def _see(latest: dict[Any, int], each: Placed) -> None:
    keys, fact = _keys(each), each.fact
    latest[keys.sequence] = max(latest.get(keys.sequence, 0), fact.sequence)
    latest[keys.publisher] = max(latest.get(keys.publisher, NEVER_NS), fact.invoked_ns)
    latest[keys.everything] = max(latest.get(keys.everything, NEVER_NS), fact.invoked_ns)
    if not each.is_high:
        latest[keys.normal] = max(latest.get(keys.normal, NEVER_NS), fact.invoked_ns)
        latest[keys.normal_sequence] = max(latest.get(keys.normal_sequence, 0), fact.sequence)


def summary(slice_: Sequence[Placed], context: Context) -> Carry:
    """Return what the other slices must know of this slice."""
    carry = Carry()
    for each in slice_:
        if each.fact.is_placed:
            _see(carry.latest, each)
    for queue, members in _with_priorities(slice_, context).items():
        carry.tails[queue] = [each.row.time_ns for each in members[-IN_HAND:]]
        least = Least()
        for each in members:
            least = least.with_(each)
        carry.least[queue] = least
    return carry


def judge(slice_: Sequence[Placed], carry: Carry, known: Knowledge, findings: Findings) -> dict[str, Shares]:
    """Judge a slice; return the shares of priorities by queue."""
    latest = dict(carry.latest)
    for each in slice_:
        if each.fact.is_placed:
            _judge_place(each, latest, known, findings)
            _see(latest, each)
    shares: dict[str, Shares] = {}
    for queue, members in _with_priorities(slice_, known.context).items():
        before_ns, behind = carry.tails.get(queue, ()), carry.least.get(queue, Least())
        is_single = queue in known.single_publisher
        waiting = priorities.waiting_at(members, before_ns, behind, is_single=is_single)
        shares[queue] = priorities.judge(members, waiting, known.context.run.started_ns, findings)
    return shares


def _judge_place(each: Placed, latest: Mapping[Any, int], known: Knowledge, findings: Findings) -> None:
    """Judge a delivery by the latest places that its consumer has seen."""
    row, fact, keys, at = each.row, each.fact, _keys(each), known.context.at
    findings.checked["order"] += 1
    if promises.is_overtaken(
        fact.sequence,
        fact.confirmed_ns,
        sequence_before=latest.get(keys.sequence, 0),
        invoked_before_ns=latest.get(keys.publisher, NEVER_NS),
    ):
        observed = f"number {fact.sequence}, confirmed at {at(fact.confirmed_ns)}, came after a later message"
        findings.broken(OVERTAKEN, row, observed)
    elif fact.requested_ns != NEVER_NS:
        stream = row.queue or "", fact.publisher, fact.priority
        if known.seen_before(stream, fact.instant) > fact.confirmed_ns:
            observed = f"its consumer of {at(fact.requested_ns)} came after a later message was seen"
            findings.broken(OVERTAKEN_BEFORE, row, observed)
    if latest.get(keys.everything, NEVER_NS) > fact.expires_ns:
        observed = f"expired by {at(fact.expires_ns)}, delivered behind a message published later"
        findings.broken(EXPIRED, row, observed)
    if known.context.run.queue(row.queue).priorities and each.is_high:
        findings.checked["priority_order"] += 1
        if promises.is_overtaken(
            fact.sequence,
            fact.confirmed_ns,
            sequence_before=latest.get(keys.normal_sequence, 0),
            invoked_before_ns=latest.get(keys.normal, NEVER_NS),
        ):
            observed = f"confirmed at {at(fact.confirmed_ns)}, behind a normal message published later"
            findings.broken(NORMAL_FIRST, row, observed)


def _with_priorities(slice_: Iterable[Placed], context: Context) -> dict[str, list[Placed]]:
    queues: dict[str, list[Placed]] = defaultdict(list)
    for each in slice_:
        if context.run.queue(each.row.queue).priorities:
            queues[each.row.queue or ""].append(each)
    return queues


def judge_points(points: Iterable[Packed], known: Knowledge, findings: Findings) -> None:
    """Find deliveries within the tenure of a different consumer."""
    for packed, number, places in points:
        row = Event._make(packed)
        findings.checked["single_active"] += 1
        holder = row.consuming, number
        for axis, earliest, latest in places:
            other = _tenure_of_another(known, (row.queue or "", axis), holder, earliest, latest)
            if other is not None:
                observed = f"delivered to {row.process} between two deliveries to {other[0][0]}"
                findings.broken(SECOND_CONSUMER, row, observed)
                break


def _tenure_of_another(
    known: Knowledge, axis: tuple[str, Any], holder: tuple[Consumer, int], earliest: int, latest: int
) -> tuple[Consumer, int] | None:
    for since, until, other in known.tenures.get(axis, ()):
        if since >= earliest:
            return None
        if latest < until and other != holder:
            return other
    return None


def judge_lengths(context: Context, ready: Counter[tuple[str, int]], findings: Findings) -> None:
    """Judge how many messages were certainly ready at the moments when consumers came."""
    by_queue: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for (queue, instant), change in ready.items():
        by_queue[queue].append((instant, change))
    for queue, changes in by_queue.items():
        most = context.run.queue(queue).max_length
        instants = context.clients.instants_ns(queue)
        total = 0
        for instant, change in sorted(changes):
            total += change
            findings.checked["max_length"] += 1
            if most is not None and total > most:
                time_ns = instants[min(instant, len(instants) - 1)]
                row = context.clients.request_at[time_ns]._replace(queue=queue)
                observed = f"{total} ready at {context.at(time_ns)}, and a length of {most}"
                findings.broken(OVERFULL, row, observed)
                break
