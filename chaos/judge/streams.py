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
from chaos.judge.clients import FOREVER_NS, NEVER_NS
from chaos.judge.event import Consumer, Event
from chaos.judge.findings import Cause, Findings
from chaos.judge.rules.times import EXPIRED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from chaos.judge.context import Context
    from chaos.judge.messages import Packed, Stream, Tables

HIGH = 5
"""The lowest priority that is high."""
IN_HAND = 10
"""Messages; more than the consumers of a queue with priorities hold together."""
EXAMINED_MIN = 100
SHARE_MIN, SHARE_MAX = 0.60, 0.74
"""Bounds of the share of high messages: 2/3, with room for begin and end of each burst."""

_IN_ORDER = "a publisher's messages are delivered in the order of their publishing"
OVERTAKEN = Cause("order", "overtaken at its consumer", _IN_ORDER)
OVERTAKEN_BEFORE = Cause("order", "overtaken before its consumer came", _IN_ORDER)
NORMAL_FIRST = Cause(
    "priority_order",
    "normal before an older high",
    "no normal message is delivered before an older high message",
)
TOO_FEW_HIGH = Cause("priority_ratio", "too few high", "while both wait, two of three deliveries are high")
TOO_MANY_HIGH = Cause(
    "priority_ratio", "too many high", "while an older normal message waits, two of three deliveries are high"
)
SECOND_CONSUMER = Cause(
    "single_active", "second consumer", "a single consumer is active, from its first delivery to its last"
)
OVERFULL = Cause(
    "max_length", "more than its length", "a queue has as many ready messages as its length at most"
)


class Fact(NamedTuple):
    """A message with a place in the order: its first delivery, and what is known of its publish."""

    delivery: Packed
    publisher: str
    priority: int
    channel: tuple[str, int]
    sequence: int
    invoked_ns: int
    confirmed_ns: int
    expires_ns: int
    requested_ns: int
    instant: int
    """Number of its consumer's request among the instants of the queue."""


class Placed(NamedTuple):
    """A fact with its delivery as an event."""

    row: Event
    fact: Fact

    @property
    def is_high(self) -> bool:
        return self.fact.priority >= HIGH


class Least(NamedTuple):
    """The least values among later deliveries of a queue."""

    high_confirmed_ns: int = FOREVER_NS
    normal_confirmed_ns: int = FOREVER_NS
    high_sequence: int = FOREVER_NS
    normal_sequence: int = FOREVER_NS

    def with_(self, placed: Placed) -> Least:
        fact = placed.fact
        if placed.is_high:
            return self._replace(
                high_confirmed_ns=min(self.high_confirmed_ns, fact.confirmed_ns),
                high_sequence=min(self.high_sequence, fact.sequence),
            )
        return self._replace(
            normal_confirmed_ns=min(self.normal_confirmed_ns, fact.confirmed_ns),
            normal_sequence=min(self.normal_sequence, fact.sequence),
        )

    def and_(self, other: Least) -> Least:
        return Least(*map(min, self, other))


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


@dataclass(slots=True)
class Shares:
    """The share of high messages among the deliveries of a queue when both kinds waited."""

    examined: int = 0
    high: int = 0
    strictly_examined: int = 0
    strictly_high: int = 0
    last: Packed | None = None

    def add(self, other: Shares) -> None:
        self.examined += other.examined
        self.high += other.high
        self.strictly_examined += other.strictly_examined
        self.strictly_high += other.strictly_high
        if self.last is None or (other.last is not None and other.last[0] > self.last[0]):
            self.last = other.last


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


def placed(facts: Iterable[Packed]) -> list[Placed]:
    """Return facts in the order in which clients saw the deliveries."""
    made = [Placed(Event._make(fact[0]), Fact._make(fact)) for fact in facts]
    made.sort(key=lambda each: (each.row.time_ns, each.row.call))
    return made


def _keys(each: Placed) -> tuple[Any, Any, Any, Any]:
    row, fact = each.row, each.fact
    at = row.queue, row.consuming
    return (
        (*at, "sequence", fact.publisher, fact.priority, tuple(fact.channel)),
        (*at, "publisher", fact.publisher, fact.priority),
        (*at, "any"),
        (*at, "normal"),
    )


def _see(latest: dict[Any, int], each: Placed) -> None:
    sequence, publisher, everything, normal = _keys(each)
    fact = each.fact
    latest[sequence] = max(latest.get(sequence, 0), fact.sequence)
    latest[publisher] = max(latest.get(publisher, NEVER_NS), fact.invoked_ns)
    latest[everything] = max(latest.get(everything, NEVER_NS), fact.invoked_ns)
    if not each.is_high:
        latest[normal] = max(latest.get(normal, NEVER_NS), fact.invoked_ns)


def summary(slice_: Sequence[Placed], context: Context) -> Carry:
    """Return what the other slices must know of this slice."""
    carry = Carry()
    for each in slice_:
        _see(carry.latest, each)
    for queue, members in _with_priorities(slice_, context).items():
        carry.tails[queue] = [each.row.time_ns for each in members[-IN_HAND:]]
        least = Least()
        for each in members:
            least = least.with_(each)
        carry.least[queue] = least
    return carry


def judge(slice_: Sequence[Placed], carry: Carry, known: Knowledge, findings: Findings) -> dict[str, Shares]:
    """Judge a slice; return the shares of high messages by queue."""
    latest = dict(carry.latest)
    at = known.context.at
    for each in slice_:
        row, fact = each.row, each.fact
        findings.checked["order"] += 1
        sequence, publisher, everything, normal = _keys(each)
        if promises.is_overtaken(
            fact.sequence,
            fact.confirmed_ns,
            sequence_before=latest.get(sequence, 0),
            invoked_before_ns=latest.get(publisher, NEVER_NS),
        ):
            observed = (
                f"number {fact.sequence}, confirmed at {at(fact.confirmed_ns)}, came after a later message"
            )
            findings.broken(OVERTAKEN, row, observed)
        elif fact.requested_ns != NEVER_NS:
            stream = row.queue or "", fact.publisher, fact.priority
            if known.seen_before(stream, fact.instant) > fact.confirmed_ns:
                observed = f"its consumer of {at(fact.requested_ns)} came after a later message was seen"
                findings.broken(OVERTAKEN_BEFORE, row, observed)
        if latest.get(everything, NEVER_NS) > fact.expires_ns:
            observed = f"expired by {at(fact.expires_ns)}, delivered behind a message published later"
            findings.broken(EXPIRED, row, observed)
        if known.context.run.queue(row.queue).priorities and each.is_high:
            findings.checked["priority_order"] += 1
            if latest.get(normal, NEVER_NS) > fact.confirmed_ns:
                observed = f"confirmed at {at(fact.confirmed_ns)}, behind a normal message published later"
                findings.broken(NORMAL_FIRST, row, observed)
        _see(latest, each)
    return {
        queue: _shares(members, carry, queue, is_single=queue in known.single_publisher)
        for queue, members in _with_priorities(slice_, known.context).items()
    }


def _with_priorities(slice_: Iterable[Placed], context: Context) -> dict[str, list[Placed]]:
    queues: dict[str, list[Placed]] = defaultdict(list)
    for each in slice_:
        if context.run.queue(each.row.queue).priorities:
            queues[each.row.queue or ""].append(each)
    return queues


def _shares(members: Sequence[Placed], carry: Carry, queue: str, *, is_single: bool) -> Shares:
    """Count the deliveries at which both kinds waited.

    High messages wait at a delivery if a later delivery is of a high message that was confirmed `IN_HAND` deliveries
    before: so that message was in the queue when the broker chose, and not yet in a consumer's hands. The same holds
    for normal messages. If the oldest high message is older than the oldest normal message, the high message comes
    first in any case, so the share is bounded from above only while an older normal message waits; sequence numbers
    show that, for queues with a single publisher.
    """
    shares = Shares()
    tail = carry.tails.get(queue, [])
    times_ns = [*tail, *(each.row.time_ns for each in members)]
    later = carry.least.get(queue, Least())
    for place in range(len(members) - 1, -1, -1):
        each = members[place]
        from_here = later.with_(each)
        chosen = place + len(tail) - IN_HAND
        if chosen >= 0:
            chosen_ns = times_ns[chosen]
            if later.high_confirmed_ns < chosen_ns and later.normal_confirmed_ns < chosen_ns:
                is_strict = is_single and later.normal_sequence < from_here.high_sequence
                last = tuple(each.row)
                shares.add(Shares(1, each.is_high, int(is_strict), int(is_strict and each.is_high), last))
        later = from_here
    return shares


def judge_shares(shares: Mapping[str, Shares], findings: Findings) -> None:
    """Judge the share of high messages of each queue; fewer than `EXAMINED_MIN` deliveries are not judged."""
    for each in shares.values():
        if each.examined < EXAMINED_MIN or each.last is None:
            continue
        findings.checked["priority_ratio"] += each.examined
        row = Event._make(each.last)
        if each.high / each.examined < SHARE_MIN:
            findings.broken(TOO_FEW_HIGH, row, f"{each.high} of {each.examined} deliveries were high")
        elif (
            each.strictly_examined >= EXAMINED_MIN and each.strictly_high / each.strictly_examined > SHARE_MAX
        ):
            observed = f"{each.strictly_high} of {each.strictly_examined} deliveries were high"
            findings.broken(TOO_MANY_HIGH, row, observed)


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
