"""The promises resurrected, cancelled, ttl, delay and liveness: when a delivery may be sent, and when it must be.

The time when the broker sent a delivery is unknown, but it is after the request of its consumer. A basic.get on the
channel of a removal is sent after the removal's answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos import promises
from chaos.judge.clients import FOREVER_NS, NEVER_NS
from chaos.judge.findings import Cause

if TYPE_CHECKING:
    from chaos.judge.context import Context
    from chaos.judge.findings import Findings
    from chaos.judge.life import Fate, Life, Seen

MS = 1_000_000
PATIENCE_NS = 75 * 1_000_000_000
"""Longest time that a message waits for its delivery in a healed cluster while its queue has a consumer.

The messages of a dead client's node may take 60 s to return.
"""

FOLLOWED_NS = 75 * 1_000_000_000
"""Longest time until the cluster's time follows a jump of the wall clocks."""
SLOWEST = 0.98
"""The least pace of the cluster's time."""

BACK_AFTER_DELETE = Cause("resurrected", "back after a delete", "a deleted queue's messages do not come back")
BACK_AFTER_PURGE = Cause("resurrected", "back after a purge", "a purged message does not come back")
AFTER_CANCEL = Cause("cancelled", "after cancel-ok", "a cancelled consumer gets no message")
BEFORE_CONSUME = Cause("cancelled", "before its consume", "a consumer gets no message before its request")
EXPIRED = Cause("ttl", "delivered after its time", "an expired message is not delivered")
DIED_EARLY = Cause("ttl", "expired too early", "a message lives as long as its time-to-live")
TOO_EARLY = Cause("delay", "delivered before its time", "a delayed message waits for its delay")
TOO_LATE = Cause(
    "liveness", "delivered too late", "after the faults, a consumer gets what waits in its queue"
)


def resurrected(life: Life, context: Context, findings: Findings) -> None:
    """Find deliveries certainly sent after a removal that was requested after the confirm.

    A purge leaves the messages that consumers hold, and these may come again: after a purge only first deliveries are
    proof. Dead letters are left out, because they were in a different queue meanwhile.
    """
    clients = context.clients
    for fate in life.fates.values():
        last_ns = clients.last_removal_ns.get(fate.queue)
        if last_ns is None or not promises.is_plain(fate) or fate.confirmed_ns >= last_ns:
            continue
        findings.checked["resurrected"] += 1
        for seen in fate.seen:
            if seen.row.deaths:
                continue
            if fate.confirmed_ns < _removed_ns("delete", seen, fate, context):
                cause = BACK_AFTER_DELETE
            elif seen.is_first and fate.confirmed_ns < _removed_ns("purge", seen, fate, context):
                cause = BACK_AFTER_PURGE
            else:
                continue
            observed = f"confirmed at {context.at(fate.confirmed_ns)}, back at {context.at(seen.time_ns)}"
            findings.broken(cause, seen.row, observed)
            break


def _removed_ns(op: str, seen: Seen, fate: Fate, context: Context) -> int:
    """Return the latest request of a removal that was certainly carried out before the delivery was sent."""
    row, clients = seen.row, context.clients
    removed_ns = NEVER_NS
    if seen.requested_ns != NEVER_NS:
        removed_ns = clients.removed(op, fate.queue).last_before(seen.requested_ns)
    if row.consumer is None:
        by_channel = clients.removed_by(op, fate.queue, row.connection, row.channel)
        removed_ns = max(removed_ns, by_channel.last_before(row.time_ns))
    return removed_ns


def cancelled(life: Life, context: Context, findings: Findings) -> None:
    """Find deliveries to a consumer that was cancelled, or that had not been requested yet."""
    for fate in life.fates.values():
        for seen in fate.seen:
            consumer = context.clients.consumers.get(seen.row.consuming)
            if consumer is None or not consumer.requests_ns:
                continue
            findings.checked["cancelled"] += 1
            if consumer.gone_ns is not None and seen.time_ns > consumer.gone_ns:
                observed = (
                    f"cancelled at {context.at(consumer.gone_ns)}, delivered at {context.at(seen.time_ns)}"
                )
                findings.broken(AFTER_CANCEL, seen.row, observed)
            elif seen.time_ns < consumer.requests_ns[0]:
                first_ns = consumer.requests_ns[0]
                observed = f"delivered at {context.at(seen.time_ns)}, requested at {context.at(first_ns)}"
                findings.broken(BEFORE_CONSUME, seen.row, observed)


def lifetime_ms(fate: Fate) -> int | None:
    """Return the message's time-to-live in its queue, or None if it lives for ever."""
    lifetimes = [attempt.row.ttl_ms for attempt in fate.attempts.values() if attempt.row.ttl_ms is not None]
    if fate.settings.message_ttl is not None:
        lifetimes.append(fate.settings.message_ttl)
    return min(lifetimes, default=None)


def delay_ms(fate: Fate) -> int:
    return max((attempt.row.delay_ms or 0 for attempt in fate.attempts.values()), default=0)


def expires_ns(fate: Fate) -> int:
    """Return when a confirmed message has certainly expired; `FOREVER_NS` if that is unknown."""
    lifetime = lifetime_ms(fate)
    if lifetime is None or not promises.is_plain(fate):
        return FOREVER_NS
    return fate.confirmed_ns + round((lifetime + delay_ms(fate)) * MS / SLOWEST)


def ttl(life: Life, context: Context, findings: Findings) -> None:
    """Find deliveries to consumers requested after the message had expired, and deaths before its time."""
    for fate in life.fates.values():
        lifetime = lifetime_ms(fate)
        if lifetime is None or not fate.invokes:
            continue
        findings.checked["ttl"] += 1
        late_ns = expires_ns(fate)
        for seen in fate.seen:
            if not seen.row.deaths and seen.requested_ns > late_ns:
                observed = (
                    f"expired by {context.at(late_ns)}, sent to a consumer of {context.at(seen.requested_ns)}"
                )
                findings.broken(EXPIRED, seen.row, observed)
                break
        earliest_ns = _not_before(fate, lifetime + delay_ms(fate), context)
        dead = [seen.row for seen in _elsewhere(life, fate) if _expired_in(seen, fate.queue)]
        if dead and dead[0].time_ns < earliest_ns - _lead_ns(fate, dead[0].time_ns, context):
            observed = (
                f"could expire from {context.at(earliest_ns)} on, dead at {context.at(dead[0].time_ns)}"
            )
            findings.broken(DIED_EARLY, dead[0], observed)


def _not_before(fate: Fate, wait_ms: int, context: Context) -> int:
    """Return the earliest time at which a wait since the publish may be over, unless clocks jump."""
    return fate.invoked_ns + (wait_ms - context.run.clock_skew_ms) * MS


def _lead_ns(fate: Fate, until_ns: int, context: Context) -> int:
    """Return by how much the cluster's time may have jumped forward during the message's life."""
    return context.clients.lead_ms(fate.invoked_ns - FOLLOWED_NS, until_ns) * MS


def _elsewhere(life: Life, fate: Fate) -> list[Seen]:
    return [seen for other in life.fates.values() if other is not fate for seen in other.seen]


def _expired_in(seen: Seen, queue: str) -> bool:
    return any(name == queue and reason == "expired" for name, reason, _ in seen.row.deaths or ())


def delay(life: Life, context: Context, findings: Findings) -> None:
    """Find messages that were delivered before their delay was over."""
    for fate in life.fates.values():
        delayed_ms = delay_ms(fate)
        if not delayed_ms or not fate.deliveries:
            continue
        first = fate.seen[0].row
        lead_ns = _lead_ns(fate, first.time_ns, context)
        if lead_ns >= delayed_ms * MS:
            continue
        ready_ns = _not_before(fate, delayed_ms, context) - lead_ns
        findings.checked["delay"] += 1
        if first.time_ns < ready_ns:
            observed = f"ready at {context.at(ready_ns)}, delivered at {context.at(first.time_ns)}"
            findings.broken(TOO_EARLY, first, observed)


def liveness(life: Life, context: Context, findings: Findings) -> None:
    """Find messages that waited too long in a healed cluster, although their queue had a consumer."""
    heal_ns = context.run.heal_ns
    if heal_ns is None:
        return
    for fate in life.fates.values():
        if not (fate.oks and fate.deliveries and fate.settings.drained) or fate.leased:
            continue
        consumers = context.clients.consuming.get(fate.queue)
        if not consumers:
            continue
        findings.checked["liveness"] += 1
        consumed_ns = context.clients.consumers[consumers[0]].requests_ns[0]
        ready_ns = max(fate.confirmed_ns + delay_ms(fate) * MS, heal_ns, consumed_ns)
        first = fate.seen[0].row
        if first.time_ns - ready_ns > PATIENCE_NS:
            waited_s = (first.time_ns - ready_ns) / 1e9
            findings.broken(TOO_LATE, first, f"waited for {waited_s:.1f} s after {context.at(ready_ns)}")
