"""The attributes that an accepted message keeps when it dies or is moved, of either kind.

Invariant: no message in the log makes these functions raise.
"""

from __future__ import annotations

from qq.amqp10.conditions import ConditionError
from qq.amqp10.sections import PROPERTIES, first_from
from qq.stored.attributes10 import attributes_of
from qq.stored.kinds import has_sections
from qq.stored.properties import NO_TTL, PLAIN, Attributes, UnacceptableProperties, attributes


def kept_when_dead(message: bytes) -> tuple[list[str], str, int]:
    """Return the attributes that an accepted message keeps as a dead letter: keys, expiration, priority.

    They are the keys from the header CC, the expiration ("" without it), and the priority (NO_PRIORITY without it).
    """
    found = _had(message)
    # The expiration is written as RabbitMQ writes it, in any notation of the client.
    expiration = "" if found.ttl_ms == NO_TTL else str(found.ttl_ms)
    return list(found.more_keys), expiration, found.priority


def kept_when_moved(message: bytes) -> tuple[int, int]:
    """Return the attributes that an accepted message keeps when it is moved: priority and time to live.

    The priority is NO_PRIORITY without the property, the time to live in milliseconds is NO_TTL without it.
    """
    found = _had(message)
    return found.priority, found.ttl_ms


def _had(message: bytes) -> Attributes:
    try:
        if has_sections(message):
            return attributes_of(message[: first_from(message, PROPERTIES)]) or PLAIN
        return attributes(message) or PLAIN
    except (UnacceptableProperties, ConditionError):
        # The message is from a log that was written before messages were checked by `group`. Its invalid properties had
        # no effect then and have no effect now.
        return PLAIN
