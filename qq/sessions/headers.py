"""Headers that the broker adds to a delivered message, as RabbitMQ does: delivery counts and `x-death`.

Invariant: names and types of the fields are RabbitMQ's, to the octet that encodes the type.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from qq.stored.editing import with_headers
from qq.stored.kinds import SECTIONS_CHANNEL
from qq.stored.layout import FRAME_MAX
from qq.stored.to_frames import headers_of, to_frames

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.machine.protocol.death_history import Death, History
    from qq.machine.protocol.effects import CountContract
    from qq.ranges import Range
    from qq.sessions.entries import Messages
    from qq.stored.editing import HeaderValue


def published_to(stored: Messages, history: History | None) -> tuple[str, str]:
    """Return the exchange and routing key of a delivery: from the publish, or from the last dead-lettering."""
    if history is None or not history.deaths:
        return stored.exchange, stored.routing_key
    return history.exchange, history.routing_key


def in_frames(stored: Messages, channel: int = 1, frame_max: int = FRAME_MAX) -> Messages:
    """Return messages of AMQP 1.0 as frames of AMQP 0-9-1 for a channel, and frames as they are."""
    if stored.frames_channel != SECTIONS_CHANNEL:
        return stored
    return stored._replace(frames_channel=channel, messages=to_frames(stored.messages, channel, frame_max))


def delivered(
    messages: Sequence[bytes], part: Range, history: History | None, *, count_contract: CountContract | None
) -> Sequence[bytes]:
    """Return messages that consist of frames in the form that a consumer of AMQP 0-9-1 gets.

    `part` holds the number of earlier deliveries, and `history` the deaths and annotations of the messages or None.
    `count_contract` says which headers of the queue count deliveries.
    """
    headers = redelivery_headers(part, history, count_contract=count_contract)
    fields = {} if history is None else headers_of(history.annotations)
    if history is None or not history.deaths:
        return with_headers(messages, additions=headers, fields=fields) if headers or fields else messages
    headers = death_headers(history) | headers
    return with_headers(messages, additions=headers, fields=fields, drop_expiration=True)


def is_redelivered(part: Range, history: History | None, count_contract: CountContract | None) -> bool:
    """Return the flag `redelivered` of a delivery.

    At a quorum queue as of RabbitMQ 4.0 it includes failed deliveries in the quorum queues in which the message died.
    """
    return part.deliveries > 0 or (history is not None and history.failures > 0 and count_contract == "4.0")


def redelivery_headers(
    part: Range, history: History | None, *, count_contract: CountContract | None
) -> dict[str, HeaderValue]:
    """Return the headers with the number of earlier deliveries: an empty dict for a first delivery.

    A classic queue, whose `count_contract` is None, adds none: some clients cannot read 64-bit integers in headers.
    """
    if count_contract is None or not is_redelivered(part, history, count_contract):
        return {}
    if count_contract == "4.0":
        # RabbitMQ 4.0 counts the returns in this queue as soon as there are any.
        count = part.deliveries or (0 if history is None else history.failures)
        return {"x-delivery-count": count}
    headers: dict[str, HeaderValue] = {"x-acquired-count": part.deliveries}
    if part.failures:
        headers["x-delivery-count"] = part.failures
    return headers


def death_headers(history: History) -> dict[str, HeaderValue]:
    """Return the headers that describe how a message became a dead letter, newest death first."""
    headers: dict[str, HeaderValue] = {"x-death": [_death(death) for death in history.deaths]}
    for which, cause in (("first", history.first), ("last", history.last)):
        for name, value in zip(("reason", "queue", "exchange"), cause, strict=True):
            headers[f"x-{which}-death-{name}"] = value
    return headers


def _death(death: Death) -> HeaderValue:
    table: dict[str, HeaderValue] = {}
    if death.original_expiration is not None:  # first field, as in RabbitMQ
        table["original-expiration"] = death.original_expiration
    table |= {
        "count": death.count,
        "reason": death.reason,
        "queue": death.queue,
        "time": datetime.fromtimestamp(death.time_ms // 1000, tz=UTC),
        "exchange": death.exchange,
        "routing-keys": list(death.routing_keys),
    }
    return table
