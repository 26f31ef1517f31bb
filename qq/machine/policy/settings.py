"""Queue and consumer settings: arguments, merged with the policies that apply to the queue.

Invariant: any tables yield settings, and the same settings on every node. An invalid value counts as not given.

If argument and policy both give a value, RabbitMQ's rules decide. Of limits and times, the smaller counts. Of delivery
limits, the greater counts if either is negative (unlimited), else the smaller. For dead letters, the argument counts.
For names of types and modes, the policy counts, so that they can be changed while the queue exists. qq's own settings
follow the last rule.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args

from qq.machine.policy.policies import effective_definition, lower_delivery_limit
from qq.machine.protocol.arguments import EXPIRY_MAX_MS, QUORUM, is_routing_key
from qq.machine.protocol.effects import CountContract
from qq.ranges import LEVELS, NORMAL
from qq.stored.properties import NO_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.machine.policy.policies import Policy
    from qq.machine.protocol.commands import Table

T = TypeVar("T")

DELIVERY_LIMIT = 20
"""The default delivery limit of a quorum queue (RabbitMQ 4.0)."""
UNLIMITED = -1
_NO_SETTINGS = frozenset({"x-queue-type"})
"""Arguments that identify the type of a queue, and have no effect on its settings."""

Overflow = Literal["drop-head", "reject-publish"]
DeadLetterStrategy = Literal["at-most-once", "at-least-once"]
RetryType = Literal["disabled", "all", "failed", "returned"]
ReturnPosition = Literal["returns", "original"]
TimeoutAction = Literal["close-channel", "cancel-consumer"]


class QueueSettings(NamedTuple):
    """The settings of a queue; the defaults are those of a plain classic queue. A limit of None means unlimited."""

    max_length: int | None = None
    """Maximum messages in the queue."""
    max_length_bytes: int | None = None
    overflow: Overflow = "drop-head"
    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    """Milliseconds after which an unused queue is deleted; None for never."""
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    """The routing key of dead letters; None keeps the keys of the original publish."""
    dead_letter_strategy: DeadLetterStrategy = "at-most-once"
    delivery_limit: int = UNLIMITED
    """Maximum failed deliveries of a message; a negative number means unlimited."""
    consumer_timeout_ms: int | None = None
    """Milliseconds that a consumer may hold a message; None for the node's default."""
    single_active_consumer: bool = False
    retry_type: RetryType = "disabled"
    """The returned messages that wait before their next delivery."""
    retry_min_ms: int = 0
    retry_max_ms: int = 0
    strict_priorities: bool = False
    return_position: ReturnPosition = "returns"
    count_contract: CountContract = "4.0"
    """The returns that count towards the delivery limit: all (4.0), or those reported as failed deliveries (4.3)."""
    timeout_action: TimeoutAction = "close-channel"
    level_max: int = 0
    """The highest priority level; 0 if priorities have no effect."""
    level_absent: int = NORMAL
    """The level of messages without a priority, and of all messages if priorities have no effect."""

    def level(self, priority: int) -> int:
        """Return the level of a message with this priority (or NO_PRIORITY)."""
        if priority == NO_PRIORITY or not self.level_max:
            return self.level_absent
        return min(priority, self.level_max)


class ConsumerSettings(NamedTuple):
    """The settings that a consumer requests with its arguments."""

    priority: int = 0
    timeout_ms: int | None = None
    """Milliseconds that the consumer may hold a message; None for the queue's setting."""
    live_prefetch: bool = False
    """Whether a later basic.qos changes the prefetch limit of this running consumer, too."""


def settings_of(
    kind: str,
    arguments: Table,
    policy: Policy | None,
    operator: Policy | None,
) -> QueueSettings:
    """Return the settings of a queue of this type, with the policies that apply to it."""
    definition = effective_definition(policy, operator)
    if not definition and arguments.keys() <= _NO_SETTINGS:
        return _unset(kind)
    return _settings_of(kind, arguments, definition)


@cache
def _unset(kind: str) -> QueueSettings:
    """Return the settings of a queue without arguments and policies.

    They are cached, because most queues have them.
    """
    return _settings_of(kind, {}, {})


def _settings_of(kind: str, arguments: Table, definition: Table) -> QueueSettings:
    values = _Values(arguments, definition)
    quorum = kind == QUORUM
    overflow = _overflow(values, quorum=quorum)
    exchange = values.argument_first("dead-letter-exchange", _text)
    strategy = values.argument_first("dead-letter-strategy", _strategy)
    if exchange is None or overflow != "reject-publish" or not quorum:
        strategy = "at-most-once"  # RabbitMQ falls back and logs a warning
    retry_type, retry_min_ms, retry_max_ms = _retry(values) if quorum else ("disabled", 0, 0)
    level_max, level_absent = (LEVELS - 1, NORMAL) if quorum else _classic_levels(arguments)
    mode = values.policy_first("priority-mode", _priority_mode)
    return QueueSettings(
        max_length=values.least("max-length"),
        max_length_bytes=values.least("max-length-bytes"),
        overflow=overflow,
        message_ttl_ms=_time(values.least("message-ttl")),
        expires_ms=_time(values.least("expires", 1)),
        dead_letter_exchange=exchange,
        dead_letter_routing_key=None
        if exchange is None
        else values.argument_first("dead-letter-routing-key", _routing_key),
        dead_letter_strategy=strategy or "at-most-once",
        delivery_limit=_delivery_limit(values) if quorum else UNLIMITED,
        consumer_timeout_ms=_time(values.least("consumer-timeout")),
        single_active_consumer=arguments.get("x-single-active-consumer") is True,
        retry_type=retry_type,
        retry_min_ms=retry_min_ms,
        retry_max_ms=retry_max_ms,
        strict_priorities=mode == "strict" if quorum else level_max > 0,
        return_position=values.policy_first("return-position", _return_position) or "returns",
        count_contract=values.policy_first("delivery-count-mode", _count_contract) or "4.0",
        timeout_action=values.policy_first("consumer-timeout-action", _timeout_action) or "close-channel",
        level_max=level_max,
        level_absent=level_absent,
    )


def consumer_settings_of(arguments: Table) -> ConsumerSettings:
    return ConsumerSettings(
        priority=_integer(arguments.get("x-priority"), None) or 0,
        timeout_ms=_time(_integer(arguments.get("x-consumer-timeout"), 0)),
        live_prefetch=arguments.get("x-live-prefetch") is True,
    )


class _Values(NamedTuple):
    """The argument and the policy setting of each name; the argument's name starts with "x-"."""

    arguments: Table
    definition: Table

    def least(self, key: str, lowest: int = 0) -> int | None:
        given = [
            number
            for value in (self.arguments.get(f"x-{key}"), self.definition.get(key))
            if (number := _integer(value, lowest)) is not None
        ]
        return min(given, default=None)

    def argument_first(self, key: str, read: Callable[[Any], T | None]) -> T | None:
        value = read(self.arguments.get(f"x-{key}"))
        return read(self.definition.get(key)) if value is None else value

    def policy_first(self, key: str, read: Callable[[Any], T | None]) -> T | None:
        value = read(self.definition.get(key))
        return read(self.arguments.get(f"x-{key}")) if value is None else value


def _overflow(values: _Values, *, quorum: bool) -> Overflow:
    # For a quorum queue the policy counts, for a classic queue the argument.
    first = values.policy_first if quorum else values.argument_first
    overflow = first("overflow", _named_overflow)
    if overflow == "reject-publish-dlx":
        # RabbitMQ's quorum queues do not support this value. No queue of qq dead-letters refused messages.
        return "drop-head" if quorum else "reject-publish"
    return overflow or "drop-head"


def _delivery_limit(values: _Values) -> int:
    argument = _integer(values.arguments.get("x-delivery-limit"), None)
    policy = _integer(values.definition.get("delivery-limit"), None)
    if argument is None or policy is None:
        given = policy if argument is None else argument
        return DELIVERY_LIMIT if given is None else given
    return lower_delivery_limit(policy, argument)


def _retry(values: _Values) -> tuple[RetryType, int, int]:
    retry_type = values.policy_first("delayed-retry-type", _retry_type)
    retry_min_ms = _time(values.least("delayed-retry-min", 1))
    if retry_type is None or retry_type == "disabled" or retry_min_ms is None:
        return "disabled", 0, 0
    return retry_type, retry_min_ms, _time(values.least("delayed-retry-max", 1)) or retry_min_ms


def _classic_levels(arguments: Table) -> tuple[int, int]:
    highest = _integer(arguments.get("x-max-priority"), 0)
    # RabbitMQ's classic queues have up to 255 levels. Here the levels above LEVELS - 1 are a single level.
    return (min(highest, LEVELS - 1), 0) if highest else (0, NORMAL)


def _integer(value: Any, lowest: int | None) -> int | None:
    if type(value) is not int or (lowest is not None and value < lowest):
        return None
    return value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _routing_key(value: Any) -> str | None:
    return value if is_routing_key(value) else None


def _time(time_ms: int | None) -> int | None:
    """Return the time, at most EXPIRY_MAX_MS, because sums of times are kept in 64 bits."""
    return None if time_ms is None else min(time_ms, EXPIRY_MAX_MS)


def _choice(choices: tuple[Any, ...]) -> Callable[[Any], Any]:
    return lambda value: next((choice for choice in choices if choice == value), None)


_named_overflow: Callable[[Any], Overflow | Literal["reject-publish-dlx"] | None] = _choice(
    (*get_args(Overflow), "reject-publish-dlx")
)
_strategy: Callable[[Any], DeadLetterStrategy | None] = _choice(get_args(DeadLetterStrategy))
_retry_type: Callable[[Any], RetryType | None] = _choice(get_args(RetryType))
_priority_mode: Callable[[Any], Literal["ratio", "strict"] | None] = _choice(("ratio", "strict"))
_return_position: Callable[[Any], ReturnPosition | None] = _choice(get_args(ReturnPosition))
_count_contract: Callable[[Any], CountContract | None] = _choice(get_args(CountContract))
_timeout_action: Callable[[Any], TimeoutAction | None] = _choice(get_args(TimeoutAction))
