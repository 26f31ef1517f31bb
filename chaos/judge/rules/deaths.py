"""The promises delivery_limit, dead_letter and x_death: the end of a message in its queue, and what it tells of it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from chaos import promises
from chaos.judge.findings import Cause

if TYPE_CHECKING:
    from chaos.judge.context import Context
    from chaos.judge.event import Death, Event
    from chaos.judge.findings import Findings
    from chaos.judge.life import Fate, Life, Seen

COUNTED_TOO_HIGH = Cause("delivery_limit", "count above the limit", "a message above the limit dies")
TOO_OFTEN = Cause("delivery_limit", "more deliveries than the limit", "a message above the limit dies")
NEVER_ARRIVED = Cause("dead_letter", "never arrived", "a dead message arrives in the target of its queue")
TWICE = Cause("dead_letter", "arrived twice", "a dead message arrives once")
NOT_REJECTED = Cause("dead_letter", "nobody rejected it", "a rejected dead letter was rejected by a consumer")
NO_HISTORY = Cause("x_death", "no history", "a dead letter has an entry for each queue that it died in")
WRONG_WAY = Cause("x_death", "wrong queues", "x-death has the queues on the message's way, the last first")
WRONG_COUNT = Cause("x_death", "wrong count", "an entry counts the deaths in its queue")
WRONG_REASON = Cause("x_death", "wrong reason", "a message dies only of what its queue allows")


def delivery_limit(life: Life, _: Context, findings: Findings) -> None:
    """Find deliveries with a count above the limit, and more deliveries than the limit allows."""
    for fate in life.fates.values():
        limit = fate.settings.delivery_limit
        if limit is None or not fate.deliveries:
            continue
        findings.checked["delivery_limit"] += fate.deliveries
        above = [seen.row for seen in fate.seen if (seen.row.delivery_count or 0) > limit]
        for row in above:
            findings.broken(COUNTED_TOO_HIGH, row, f"a delivery count of {row.delivery_count}, limit {limit}")
        # A dead letter that returns starts counting anew.
        most = promises.copies(fate) * (limit + 1)
        if fate.invokes and not fate.dead_arrivals and fate.deliveries > most and not above:
            observed = f"{fate.deliveries} deliveries of {promises.copies(fate)} published, limit {limit}"
            findings.broken(TOO_OFTEN, fate.seen[-1].row, observed)


def dead_letter(life: Life, context: Context, findings: Findings) -> None:
    """Find dead letters that arrived more than once, or not at all, or without their death.

    A message that was seen and never settled has died if its queue was drained: it was rejected, or it came back too
    often. Acknowledged messages are left out, because the acknowledgement may or may not have arrived. That holds for
    each queue on the message's way.
    """
    for fate in life.fates.values():
        if fate.dead_arrivals:
            findings.checked["dead_letter"] += 1
            _judge_arrivals(life, fate, context, findings)
        ending = context.owed(life, fate)
        if ending is None or not (ending.has_target and ending.must_be_settled):
            continue
        has_died = fate.deliveries and not fate.acks and (fate.rejects or ending.is_limited)
        if has_died and not life.arrived_elsewhere(fate.queue, context.run):
            how = "rejected" if fate.rejects else f"delivered {fate.deliveries} times and never settled"
            observed = f"{how} in {fate.queue}, and not delivered from {fate.settings.dead_letters_to}"
            findings.broken(NEVER_ARRIVED, fate.seen[-1].row, observed)


def arrivals(fate: Fate) -> dict[tuple[int, int], list[Seen]]:
    """Return the arrivals of a dead letter in its queue, by number of deaths and delivery count.

    A message that goes round in a circle arrives at each queue again, with more deaths each time. In a quorum queue
    each return raises the count; but the first delivery has the failed deliveries of earlier queues as its count, and
    these count no more after a return. So a single copy may have one of its counts twice, unless that is 0.
    """
    found: dict[tuple[int, int], list[Seen]] = defaultdict(list)
    is_counted = fate.settings.kind == "quorum"
    for seen in fate.seen:
        row = seen.row
        if row.deaths and (is_counted or not row.redelivered):
            died = sum(count for _, _, count in row.deaths)
            found[died, (row.delivery_count or 0) if is_counted else 0].append(seen)
    return found


def _judge_arrivals(life: Life, fate: Fate, context: Context, findings: Findings) -> None:
    published = sum(promises.copies(source) for source in life.sources(fate.queue, context.run))
    returning = {each.row.connection for each in fate.settlements.values() if each.row.op != "ack"}
    for (died, count), seen in arrivals(fate).items():
        most = 2 * published if count else published
        holders = [each.row.connection for each in seen]
        # Without a return, the same connection got a second copy.
        is_held = published == 1 and len(set(holders)) < len(holders) and returning.isdisjoint(holders)
        if published and (len(seen) > most or is_held):
            observed = f"{len(seen)} arrivals with {died} deaths and a delivery count of {count}"
            findings.broken(TWICE, seen[-1].row, observed)
            break
    for seen in fate.seen:
        unexplained = [
            queue
            for queue, reason, _ in seen.row.deaths or ()
            if reason == "rejected" and not (queue in life.fates and life.fates[queue].rejects)
        ]
        if unexplained:
            findings.broken(NOT_REJECTED, seen.row, f"no consumer of {unexplained[0]} rejected it")
            break


def x_death(life: Life, context: Context, findings: Findings) -> None:
    """Find deliveries whose x-death is not the message's way from the queue that it was published to."""
    for fate in life.fates.values():
        if not fate.deliveries:
            continue
        sources = list(life.sources(fate.queue, context.run))
        if len(sources) != 1:
            continue
        origin = sources[0]
        reach = context.run.reach(origin.queue)
        goes_round = context.run.goes_round(origin.queue)
        way = reach[: reach.index(fate.queue)][::-1]
        for seen in fate.seen:
            if not way and not seen.row.deaths and not goes_round:
                continue
            findings.checked["x_death"] += 1
            wrong = _wrong_way(seen.row, way) if not goes_round else None
            wrong = wrong or _wrong_death(seen.row, life, context)
            if wrong is not None:
                findings.broken(wrong[0], seen.row, wrong[1])
                break


def _wrong_way(row: Event, way: tuple[str, ...]) -> tuple[Cause, str] | None:
    deaths = row.deaths or ()
    if not deaths:
        return NO_HISTORY, f"no x-death in {row.queue}"
    if tuple(queue for queue, _, _ in deaths) != way:
        told = ", ".join(queue for queue, _, _ in deaths)
        return WRONG_WAY, f"x-death has {told}; its way was {', '.join(way) or 'none'}"
    for queue, _, count in deaths:
        if count != 1:
            return WRONG_COUNT, f"x-death has {count} deaths in {queue}; its way has one"
    return None


def _wrong_death(row: Event, life: Life, context: Context) -> tuple[Cause, str] | None:
    for death in row.deaths or ():
        queue, reason, count = death
        if not _allows(death, life, context):
            return WRONG_REASON, f"{reason} in {queue}, which has no such limit"
        rejects = life.fates[queue].rejects if queue in life.fates else 0
        # Without any rejection the death itself is a matter of dead_letter.
        if reason == "rejected" and rejects and count > rejects:
            return WRONG_COUNT, f"{count} rejections in {queue}; consumers rejected it {rejects} times"
    return None


def _allows(death: Death, life: Life, context: Context) -> bool:
    queue, reason, _ = death
    settings = context.run.queue(queue)
    match reason:
        case "rejected":
            return True
        case "delivery_limit":
            return settings.delivery_limit is not None
        case "maxlen":
            return settings.max_length is not None
        case "expired":
            attempts = [attempt for fate in life.fates.values() for attempt in fate.attempts.values()]
            return settings.message_ttl is not None or any(attempt.row.ttl_ms for attempt in attempts)
        case _:
            return False
