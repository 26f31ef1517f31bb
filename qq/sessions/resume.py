"""Going on after a snapshot: the node has the state, but never saw what the entries before it had to tell.

Invariant: what the session has had before it is not told again, whatever the snapshot skipped; answers and message ids
are numbered for that. Deliveries come before the answer to a cancellation, and behind every other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.machine.protocol.effects import ConsumerCancelled, Deliver, Failed, Known, Reply
from qq.ranges import Range

if TYPE_CHECKING:
    from qq.machine.protocol.effects import Effect
    from qq.sessions.ports import Session


def resume(session: Session, effect: Effect) -> None:
    """Tell the session that part of an effect which it has not been told yet."""
    match effect:
        case Failed():
            session.failed(effect)
        case Reply():
            if effect.number > session.answered:
                session.replied(effect.result)
        case Deliver():
            _deliver(session, effect)
        case Known():
            _end_cancelled(session, effect)
            _end_gone(session, effect)
        case _:
            pass


def _deliver(session: Session, effect: Deliver) -> None:
    """Deliver the messages that the consumer has not been given yet: ids are given in order."""
    consumer = session.consumer(effect.consumer)
    if consumer is None:
        return
    had = consumer.next_id - effect.first_id
    if had <= 0:
        session.deliver(effect)
        return
    ranges: list[Range] = []
    for part in effect.ranges:
        if had < part.count:
            ranges.append(part.part(had, part.count - had))
        had = max(had - part.count, 0)
    if ranges:
        session.deliver(effect._replace(first_id=consumer.next_id, ranges=ranges))


def _end_cancelled(session: Session, known: Known) -> None:
    # Other answers come singly and are told by themselves. Only cancellations can be under way together.
    while session.answered < known.answers and session.waits_for_answer:
        session.replied(ConsumerCancelled(0))


def _end_gone(session: Session, known: Known) -> None:
    live = frozenset(known.consumers)
    for consumer in session.consumers:
        if consumer.started and consumer.id not in live:
            session.consumer_gone(consumer.id)
