"""Going on after a snapshot: the node has the state, but never saw what the entries before it had to tell.

Lives here: what a channel is told instead. Not here: the confirms (submissions.py), what the state knows of a session
(`outstanding` in qq/machine).

Law: what the channel has had before it is not told again, whatever the snapshot skipped; answers and message ids are
numbered for that. Deliveries come before the answer to a cancellation, and behind every other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.machine.effects import ConsumerCancelled, Deliver, Failed, Known, Reply
from qq.ranges import Range

if TYPE_CHECKING:
    from qq.broker.channel import Channel
    from qq.machine.effects import Effect


def resume(channel: Channel, effect: Effect) -> None:
    """Tell the channel what is new to it of something that its session is owed according to the state."""
    match effect:
        case Failed():
            channel.failed(effect)
        case Reply():
            if effect.number > channel.answered:
                channel.replied(effect.result)
        case Deliver():
            _deliver(channel, effect)
        case Known():
            _end_cancelled(channel, effect)
            _end_gone(channel, effect)
        case _:
            pass


def _deliver(channel: Channel, effect: Deliver) -> None:
    """Deliver the messages that the consumer has not been given yet: ids are given in order."""
    consumer = channel.consumer(effect.consumer)
    if consumer is None:
        return
    had = consumer.next_id - effect.first_id
    if had <= 0:
        channel.deliver(effect)
        return
    ranges: list[Range] = []
    for part in effect.ranges:
        if had < part.count:
            ranges.append(part.part(had, part.count - had))
        had = max(had - part.count, 0)
    if ranges:
        channel.deliver(effect._replace(first_id=consumer.next_id, ranges=ranges))


def _end_cancelled(channel: Channel, known: Known) -> None:
    # Other answers come singly and are told by themselves. Only cancellations can be under way together.
    while channel.answered < known.answers and channel.waits_for_answer:
        channel.replied(ConsumerCancelled(0))


def _end_gone(channel: Channel, known: Known) -> None:
    live = frozenset(known.consumers)
    for consumer in channel.consumers:
        if consumer.started and consumer.id not in live:
            channel.consumer_gone(consumer.id)
