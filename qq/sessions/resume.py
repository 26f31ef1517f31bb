"""Continues sessions after a snapshot: the node has the new state, but has missed the effects of the skipped entries.

Invariant: a session gets no answer and no message twice, whatever the snapshot skipped, because answers and messages
are numbered. Deliveries come before the answer to a cancellation, and after every other answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.machine.protocol.effects import ConsumerCancelled, ConsumerState, Deliver, Failed, Known, Reply
from qq.ranges import Range
from qq.sessions.ports import CreditedConsumers

if TYPE_CHECKING:
    from qq.machine.protocol.effects import Effect
    from qq.sessions.ports import Session, SessionConsumers


def resume(session: Session, effect: Effect) -> None:
    """Pass on the part of an outstanding effect that the session has not received yet."""
    consumers = session.consumers
    match effect:
        case Failed():
            session.failed(effect)
        case Reply():
            if effect.number > session.answered:
                session.replied(effect.result)
        case Deliver() if consumers is not None:
            _deliver(consumers, effect)
        case ConsumerState() if isinstance(consumers, CreditedConsumers):
            consumers.state(effect)
        case Known():
            _end_cancelled(session, effect)
            if consumers is not None:
                _end_missing(consumers, effect)
        case _:
            pass


def _deliver(consumers: SessionConsumers, effect: Deliver) -> None:
    """Deliver the messages that the consumer has not received yet. Message ids are consecutive."""
    consumer = consumers.find(effect.consumer)
    if consumer is None:
        return
    had = consumer.next_id - effect.first_id
    if had <= 0:
        consumers.deliver(effect)
        return
    ranges: list[Range] = []
    for part in effect.ranges:
        if had < part.count:
            ranges.append(part.part(had, part.count - had))
        had = max(had - part.count, 0)
    if ranges:
        consumers.deliver(effect._replace(first_id=consumer.next_id, ranges=ranges))


def _end_cancelled(session: Session, known: Known) -> None:
    # Only cancellations can have several answers outstanding. Every other answer arrives in an effect of its own.
    while session.answered < known.answers and session.waits_for_answer:
        session.replied(ConsumerCancelled(0))


def _end_missing(consumers: SessionConsumers, known: Known) -> None:
    live = frozenset(known.consumers)
    for consumer in consumers.all:
        if consumer.started and consumer.id not in live:
            consumers.cancelled(consumer.id)
