"""What a message tells its consumer of its life in the broker: the headers that RabbitMQ would have added.

Invariant: the names and the types of the fields are RabbitMQ's, to the octet that says what type it is.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from qq.stored.editing import with_headers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.machine.protocol.death_history import Death, History
    from qq.machine.protocol.effects import CountContract
    from qq.ranges import Range
    from qq.sessions.entries import Messages
    from qq.stored.editing import HeaderValue


def published_to(stored: Messages, history: History | None) -> tuple[str, str]:
    """Exchange and routing key to tell with a delivery: where the messages were published, or dead-lettered last."""
    if history is None:
        return stored.exchange, stored.routing_key
    return history.exchange, history.routing_key


def delivered(
    messages: Sequence[bytes], part: Range, history: History | None, *, count_contract: CountContract | None
) -> Sequence[bytes]:
    """Stored messages as a consumer gets them.

    `part` tells how often they were delivered before, `history` what befell them, if anything, and
    `count_contract` which headers of their queue count the deliveries.
    """
    headers = redelivery_headers(part, count_contract=count_contract)
    if history is None:
        return with_headers(messages, additions=headers) if headers else messages
    return with_headers(
        messages,
        additions=death_headers(history) | headers,
        # A dead-letter routing key takes the place of all others: the header which told them goes, too.
        removals=("CC",) if history.cc_removed else (),
        drop_expiration=True,
    )


def redelivery_headers(part: Range, *, count_contract: CountContract | None) -> dict[str, HeaderValue]:
    """The headers that tell how often messages were delivered before; none at the first delivery.

    A classic queue, whose `count_contract` is None, adds none: some clients cannot read 64-bit integers in headers.
    """
    if not part.deliveries or count_contract is None:
        return {}
    if count_contract == "4.0":
        return {"x-delivery-count": part.deliveries}
    headers: dict[str, HeaderValue] = {"x-acquired-count": part.deliveries}
    if part.failures:
        headers["x-delivery-count"] = part.failures
    return headers


def death_headers(history: History) -> dict[str, HeaderValue]:
    """The headers that tell how a message became a dead letter, newest death first."""
    headers: dict[str, HeaderValue] = {"x-death": [_death(death) for death in history.deaths]}
    for which, cause in (("first", history.first), ("last", history.last)):
        for name, value in zip(("reason", "queue", "exchange"), cause, strict=True):
            headers[f"x-{which}-death-{name}"] = value
    return headers


def _death(death: Death) -> HeaderValue:
    table: dict[str, HeaderValue] = {}
    if death.original_expiration is not None:  # first, as in RabbitMQ
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
