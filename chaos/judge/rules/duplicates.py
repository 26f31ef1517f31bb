"""The promises about a message that comes again: unmarked_duplicate, dedup_duplicate, acknowledged and redelivery."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from chaos import promises
from chaos.judge.findings import Cause

if TYPE_CHECKING:
    from chaos.judge.context import Context
    from chaos.judge.findings import Findings
    from chaos.judge.life import Fate, Life, Seen

_MARKED = "a message that comes again is marked redelivered"
_ONCE = "a message with a publisher id arrives once"
TOO_MANY = {
    0: Cause("unmarked_duplicate", "more first deliveries than publishes", _MARKED),
    1: Cause("dedup_duplicate", "more first deliveries than publishes", _ONCE),
}
LATE = {
    0: Cause("unmarked_duplicate", "first delivery after an earlier delivery", _MARKED),
    1: Cause("dedup_duplicate", "first delivery after an earlier delivery", _ONCE),
}
AGAIN = Cause(
    "acknowledged",
    "delivered again on its connection",
    "an acknowledged message stays away from its connection",
)
TO_ITS_HOLDER = Cause(
    "two_holders", "again to its holder", "a message that a connection holds does not come to it again"
)
SAME_COUNT = Cause("redelivery", "a count twice", "each return raises the delivery count")
FALLING_COUNT = Cause("redelivery", "a falling count", "each return raises the delivery count")
MARK_ALONE = Cause("redelivery", "mark without a count", "a quorum queue counts what it marks as redelivered")
COUNT_ALONE = Cause(
    "redelivery", "count without a mark", "a message with a delivery count is marked redelivered"
)


def duplicates(life: Life, context: Context, findings: Findings) -> None:
    """Find too many first deliveries, or a first delivery certainly sent after an earlier delivery."""
    for fate in life.fates.values():
        if not fate.deliveries:
            continue
        findings.checked["dedup_duplicate" if fate.dedup else "unmarked_duplicate"] += 1
        if promises.is_new_too_often(fate):
            last = [seen for seen in fate.seen if seen.is_first][-1].row
            observed = f"{fate.unmarked} first deliveries of {promises.copies(fate)} published"
            findings.broken(TOO_MANY[fate.dedup], last, observed)
        elif promises.may_prove_late(fate):
            first = fate.first()
            earlier = [seen for seen in fate.seen if promises.was_sent_before(seen, first)]
            if earlier:
                observed = (
                    f"delivered to {earlier[0].row.process} at {context.at(earlier[0].time_ns)}, "
                    f"and unmarked at {context.at(first.time_ns)}"
                )
                findings.broken(LATE[fate.dedup], first.row, observed)


def acknowledged(life: Life, context: Context, findings: Findings) -> None:
    """Find deliveries on the connection that has acknowledged the message (in a transaction: committed it)."""
    for fate in life.fates.values():
        if not fate.acks:
            continue
        findings.checked["acknowledged"] += 1
        if len(fate.seen) < 2 or promises.copies(fate) != 1 or fate.dead_arrivals:
            continue
        acked_ns: dict[str, int] = {}
        for settlement in fate.settlements.values():
            row = settlement.row
            if row.op == "ack" and settlement.counts and (row.tx is None or settlement.outcome == "ok"):
                acked_ns.setdefault(row.connection or "", row.time_ns)
        for seen in fate.seen:
            at_ns = acked_ns.get(seen.connection)
            if at_ns is not None and seen.time_ns > at_ns:
                observed = f"acknowledged at {context.at(at_ns)}, delivered at {context.at(seen.time_ns)}"
                findings.broken(AGAIN, seen.row, observed)
                break


def held(life: Life, context: Context, findings: Findings) -> None:
    """Find a delivery on the connection that still holds the message of an earlier delivery."""
    for fate in life.fates.values():
        if len(fate.seen) < 2 or fate.dead_arrivals or not fate.invokes or promises.copies(fate) != 1:
            continue
        settled_ns = sorted(
            (settlement.row.connection or "", settlement.row.time_ns)
            for settlement in fate.settlements.values()
        )
        last: dict[str, Seen] = {}
        for seen in fate.seen:
            before = last.get(seen.connection)
            last[seen.connection] = seen
            if before is None:
                continue
            between = [
                at_ns
                for name, at_ns in settled_ns
                if name == seen.connection and before.time_ns < at_ns < seen.time_ns
            ]
            if not between:
                observed = (
                    f"delivered at {context.at(before.time_ns)}, and again at {context.at(seen.time_ns)} "
                    f"on the same connection, which had not returned it"
                )
                findings.broken(TO_ITS_HOLDER, seen.row, observed)
                break


def redelivery(life: Life, context: Context, findings: Findings) -> None:
    """Find marks and counts of quorum queues that contradict each other, or an earlier delivery."""
    for fate in life.fates.values():
        if fate.settings.kind != "quorum" or not fate.deliveries:
            continue
        findings.checked["redelivery"] += fate.deliveries
        for seen in fate.seen:
            count = seen.row.delivery_count or 0
            if seen.row.redelivered and not count:
                findings.broken(MARK_ALONE, seen.row, "redelivered, and a delivery count of 0")
            elif count and not seen.row.redelivered:
                findings.broken(COUNT_ALONE, seen.row, f"a delivery count of {count}, and not redelivered")
        if len(fate.seen) > 1 and _copies(life, fate, context) == 1 and not fate.dead_arrivals:
            _compare_counts(fate, context, findings)


def _copies(life: Life, fate: Fate, context: Context) -> int:
    return sum(promises.copies(source) for source in life.sources(fate.queue, context.run))


def _compare_counts(fate: Fate, context: Context, findings: Findings) -> None:
    times = Counter(seen.row.delivery_count or 0 for seen in fate.seen)
    for seen in fate.seen:
        count = seen.row.delivery_count or 0
        # First deliveries are the matter of unmarked_duplicate.
        if count and times[count] > 1 and _is_last_of(seen, fate):
            findings.broken(
                SAME_COUNT, seen.row, f"{times[count]} deliveries with a delivery count of {count}"
            )
            return
    for before, seen in zip(fate.seen, fate.seen[1:], strict=False):
        count, count_before = seen.row.delivery_count or 0, before.row.delivery_count or 0
        if count and count < count_before and promises.was_sent_before(before, seen):
            observed = f"a delivery count of {count_before}, then of {count} at {context.at(seen.time_ns)}"
            findings.broken(FALLING_COUNT, seen.row, observed)
            return


def _is_last_of(seen: Seen, fate: Fate) -> bool:
    same = [each for each in fate.seen if each.row.delivery_count == seen.row.delivery_count]
    return seen is same[-1]
