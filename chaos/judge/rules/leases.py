"""The promises lease_holders, lease_committed and lease_settled: a leased message has a single place at a time.

A lease certainly has its messages from its first answer on, until the first request that may end it. A consumer has a
message from its delivery until it settles the message, or until its connection dies.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from chaos import promises
from chaos.judge.clients import NEVER_NS
from chaos.judge.findings import Cause
from chaos.judge.leases import LeaseId, Span, lease_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chaos.judge.context import Context
    from chaos.judge.event import Event
    from chaos.judge.findings import Findings
    from chaos.judge.life import Fate, Life, Seen, Settlement

_ONE_PLACE = "a leased message is in one lease, and at no consumer"
TWO_LEASES = Cause("lease_holders", "in two leases", _ONE_PLACE)
TWICE = Cause("lease_holders", "twice in a lease", _ONE_PLACE)
AT_A_CONSUMER = Cause("lease_holders", "in a lease and at a consumer", _ONE_PLACE)
AFTER_ITS_ACK = Cause("lease_holders", "leased after its acknowledgement", "an acknowledged message is gone")
_GONE = "a committed message is gone"
DELIVERED_AGAIN = Cause("lease_committed", "delivered after its commit", _GONE)
LEASED_AGAIN = Cause("lease_committed", "leased after its commit", _GONE)
RELEASED_AND_GONE = Cause(
    "lease_settled", "gone after its release", "a released message returns to its queue"
)


class Held(NamedTuple):
    """A message in a lease."""

    lease: LeaseId
    span: Span
    row: Event
    """The message in the first read of the lease."""


class Conflict(NamedTuple):
    """A delivery that contradicts a lease."""

    cause: Cause
    row: Event
    observed: str
    connection: str
    """The connection that must have been alive at `alive_ns`; "" if the delivery alone is proof."""
    alive_ns: int


def held(fate: Fate, context: Context) -> list[Held]:
    """Return the leases of a message, in the order in which they were read."""
    found: dict[LeaseId, Held] = {}
    for row in fate.leased:
        lease = lease_of(row)
        if lease not in found:
            found[lease] = Held(lease, context.leases.span(lease), row)
    return list(found.values())


def may_be_gone(fate: Fate, context: Context) -> bool:
    """Return whether a lease may have committed the message, or may still have it."""
    return any(not each.span.is_released for each in held(fate, context))


def leases(life: Life, context: Context, findings: Findings) -> None:
    """Find leased messages that were somewhere else meanwhile, or after the commit of their lease."""
    for fate in life.fates.values():
        if not (fate.leased and is_judged(fate)):
            continue
        found = held(fate, context)
        findings.checked["lease_holders"] += 1
        findings.checked["lease_committed"] += any(each.span.is_committed for each in found)
        _judge_places(fate, findings)
        for one, other in combinations(found, 2):
            if not (_may_precede(one, other) or _may_precede(other, one)):
                _judge_pair(one, other, context, findings)
        for conflict in conflicts(fate, context):
            if not conflict.connection:
                findings.broken(conflict.cause, conflict.row, conflict.observed)


def is_judged(fate: Fate) -> bool:
    """Return whether all rows are of the same copy of the message."""
    return bool(fate.invokes) and promises.copies(fate) == 1 and not fate.dead_arrivals


def _judge_places(fate: Fate, findings: Findings) -> None:
    places: dict[LeaseId, int | None] = {}
    for row in fate.leased:
        before = places.setdefault(lease_of(row), row.place)
        if before != row.place:
            findings.broken(TWICE, row, f"at places {before} and {row.place} of {lease_of(row)}")
            return


def _may_precede(one: Held, other: Held) -> bool:
    """Return whether the message may have returned from a lease before the other lease certainly had it."""
    return not one.span.is_committed and one.span.release_ns < other.span.taken_ns


def _judge_pair(one: Held, other: Held, context: Context, findings: Findings) -> None:
    at = context.at
    first, second = sorted((one, other), key=lambda each: each.span.taken_ns)
    if first.span.committed_ns < second.span.taken_ns:
        observed = f"committed with {first.lease} by {at(first.span.committed_ns)}, and in {second.lease}"
        findings.broken(LEASED_AGAIN, second.row, observed)
    else:
        observed = f"in {first.lease} by {at(first.span.taken_ns)}, and in {second.lease} by {at(second.span.taken_ns)}"
        findings.broken(TWO_LEASES, second.row, observed)


def conflicts(fate: Fate, context: Context) -> Iterator[Conflict]:
    """Yield the deliveries that were possible neither before nor after a lease of the message."""
    for each in held(fate, context):
        for seen in fate.seen:
            if not each.span.is_committed and each.span.release_ns < seen.time_ns:
                continue
            conflict = _before(each, seen, fate, context)
            if conflict is not None:
                yield conflict


def _before(each: Held, seen: Seen, fate: Fate, context: Context) -> Conflict | None:
    """Return why the delivery was not before the lease, or None if it may have been."""
    at, span = context.at, each.span
    place = f"in {each.lease} by {at(span.taken_ns)}"
    delivered = f"delivered at {at(seen.time_ns)} to {seen.row.process}"
    if span.committed_ns < seen.time_ns:
        cause, observed = DELIVERED_AGAIN, f"committed by {at(span.committed_ns)}, {delivered}"
    else:
        cause, observed = AT_A_CONSUMER, f"{place}, {delivered}"
    if seen.requested_ns > span.taken_ns:
        return Conflict(cause, seen.row, observed, "", NEVER_NS)
    settlement = _settlement(seen, fate)
    if settlement is not None and settlement.row.time_ns < span.taken_ns:
        row = settlement.row
        if row.op != "ack":
            return None
        if context.clients.answered_ns.get(seen.connection, NEVER_NS) > row.time_ns:
            observed = f"acknowledged at {at(row.time_ns)} on {seen.connection}, {place}"
            return Conflict(AFTER_ITS_ACK, each.row, observed, "", NEVER_NS)
    return Conflict(cause, seen.row, f"{observed}, who did not return it", seen.connection, span.taken_ns)


def _settlement(seen: Seen, fate: Fate) -> Settlement | None:
    """Return the settlement of a delivery."""
    found = [
        each
        for each in fate.settlements.values()
        if each.row.connection == seen.row.connection and each.row.time_ns > seen.time_ns and each.counts
    ]
    return min(found, key=lambda each: each.row.time_ns, default=None)
