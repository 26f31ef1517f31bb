"""The promises lost, phantom, routing and causality: each message arrives where it was sent to, after it was sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos import promises
from chaos.judge.findings import Cause
from chaos.judge.rules.leases import RELEASED_AND_GONE, may_be_gone

if TYPE_CHECKING:
    from chaos.judge.context import Context
    from chaos.judge.event import Event
    from chaos.judge.findings import Findings
    from chaos.judge.life import Fate, Life

NEVER_SEEN = Cause("lost", "never delivered", "a confirmed message is delivered before its queue is empty")
NEVER_SETTLED = Cause("lost", "never settled", "a delivery that no consumer settled comes again")
NEVER_PUBLISHED = Cause("phantom", "never published", "a delivered message was published")
REFUSED = Cause("phantom", "refused", "a message whose publishes all failed is not delivered")
WRONG_QUEUE = Cause("routing", "wrong queue", "a message arrives only in queues that it was published to")
LEFT_OUT = Cause("routing", "queue left out", "a message arrives in all queues that it was published to")
CONFIRMED_EARLY = Cause("causality", "confirmed before its publish", "a confirm follows its publish")
CONFIRMED_ALONE = Cause("causality", "confirmed without a publish", "a confirm follows its publish")
DELIVERED_EARLY = Cause("causality", "delivered before its publish", "a delivery follows the publish")


def lost(life: Life, context: Context, findings: Findings) -> None:
    """Find confirmed messages that disappeared from a drained queue.

    Such a message was never seen; or it was seen, never settled, and not seen again.
    """
    for fate in life.fates.values():
        ending = context.owed(life, fate)
        if ending is None:
            continue
        if fate.leased:
            findings.checked["lease_settled"] += 1
            if may_be_gone(fate, context):
                continue
        findings.checked["lost"] += 1
        is_gone = promises.has_disappeared(
            fate, must_be_settled=ending.must_be_settled, is_limited=ending.is_limited
        )
        if not is_gone or life.arrived_elsewhere(fate.queue, context.run):
            continue
        if fate.deliveries:
            last = fate.seen[-1].row
            observed = f"delivered last at {context.at(last.time_ns)} to {last.process}, and not settled"
            findings.broken(NEVER_SETTLED, last, observed)
            continue
        confirm = _confirm(fate)
        others = [
            other.queue
            for other in life.fates.values()
            if other.invokes and other.deliveries and other is not fate
        ]
        if others:
            observed = f"delivered from {', '.join(others)}, never from {fate.queue}"
            findings.broken(LEFT_OUT, confirm, observed)
        else:
            observed = f"confirmed at {context.at(confirm.time_ns)}, and delivered from no queue"
            cause = RELEASED_AND_GONE if fate.leased else NEVER_SEEN
            findings.broken(cause, fate.leased[-1] if fate.leased else confirm, observed)


def _confirm(fate: Fate) -> Event:
    ends = [attempt.end for attempt in fate.attempts.values() if attempt.end and attempt.end.type == "ok"]
    return min(ends, key=lambda end: end.time_ns)


def unpublished(life: Life, context: Context, findings: Findings) -> None:
    """Find deliveries of messages that were published neither there nor in a source of the queue's dead letters."""
    for fate in life.fates.values():
        first = fate.first_arrival()
        if first is None:
            continue
        findings.checked["phantom"] += 1
        is_published_elsewhere = any(
            promises.may_be_there(other) for other in life.fates.values() if other is not fate
        )
        if fate.invokes or is_published_elsewhere:
            findings.checked["routing"] += 1
        if promises.may_be_there(fate):
            continue
        if fate.invokes:
            observed = f"all {fate.invokes} publishes failed; delivered at {context.at(first.time_ns)}"
            findings.broken(REFUSED, first, observed)
        elif not is_published_elsewhere:
            findings.broken(NEVER_PUBLISHED, first, f"delivered at {context.at(first.time_ns)}")
        elif not any(life.sources(fate.queue, context.run)):
            meant = ", ".join(other.queue for other in life.fates.values() if other.invokes)
            findings.broken(WRONG_QUEUE, first, f"published to {meant}; delivered from {fate.queue}")


def causality(life: Life, context: Context, findings: Findings) -> None:
    """Find confirms and deliveries that the history has before the publish; the harness has a single clock."""
    for fate in life.fates.values():
        for attempt in fate.attempts.values():
            end, invoke = attempt.end, attempt.invoke
            if end is None or end.type != "ok":
                continue
            findings.checked["causality"] += 1
            if invoke is None:
                findings.broken(CONFIRMED_ALONE, end, f"confirmed at {context.at(end.time_ns)}")
            elif end.time_ns < invoke.time_ns:
                findings.broken(
                    CONFIRMED_EARLY,
                    end,
                    f"confirmed at {context.at(end.time_ns)}, published at {context.at(invoke.time_ns)}",
                )
        first = fate.first_arrival()
        if first is None:
            continue
        published_ns = min((each.possible_ns for each in life.sources(fate.queue, context.run)), default=None)
        if published_ns is None:
            continue
        findings.checked["causality"] += 1
        if first.time_ns < published_ns:
            findings.broken(
                DELIVERED_EARLY,
                first,
                f"delivered at {context.at(first.time_ns)}, published at {context.at(published_ns)}",
            )
