"""The options of queues: each argument of queue.declare and each key of policies, declared once.

From these declarations follow the checks of arguments (arguments.py) and of policies (policies.py), the merge of user
policies with operator policies, and the settings of queues (settings.py). A test compares docs/reference/queues.md with
them.

If argument and policy both give a value, RabbitMQ's rules decide. Of limits and times, the smaller counts. Of delivery
limits, the greater counts if either is negative (unlimited), else the smaller. For dead letters, the argument counts.
For names of types and modes, the policy counts, so that they can be changed while the queue exists. qq's own options
follow the last rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from qq.machine.policy import value_checks as v
from qq.machine.protocol.effects import CountContract
from qq.machine.protocol.queue_types import CLASSIC, QUORUM
from qq.machine.protocol.versions import VERSIONS
from qq.ranges import LEVELS, NORMAL
from qq.stored.properties import NO_PRIORITY

DELIVERY_LIMIT = 20
"""The default delivery limit of a quorum queue (RabbitMQ 4.0)."""
UNLIMITED = -1

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


DEFAULTS = {
    CLASSIC: QueueSettings(),
    QUORUM: QueueSettings(delivery_limit=DELIVERY_LIMIT, level_max=LEVELS - 1),
}
"""Queue type -> the settings of a queue without arguments and policies."""

# --- the parts of a declaration

_BOTH = (CLASSIC, QUORUM)
_NEITHER = ()
_FIRST_VERSION = VERSIONS[0]

Merge = Callable[[Any, Any], Any]
"""Returns the value that counts if two values are given."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of queue.declare or basic.consume."""

    check: v.Check
    types: tuple[str, ...] = _BOTH
    """The types of queues that support it. A declaration of any other type is refused."""
    since: int = _FIRST_VERSION
    """The first version of the state in which it is known. Unknown arguments are accepted and have no effect."""
    is_compared: bool = True
    """Whether a second declaration of the queue must repeat it."""


@dataclass(frozen=True, slots=True)
class PolicyKey:
    """A key in the definition of policies."""

    is_valid: v.Valid
    description: str
    """The value in RabbitMQ's words, for the text "... is not a valid ..."."""
    operator: Merge | None = None
    """Merges the user's value with the operator's; None if operator policies must not have the key."""
    types: tuple[str, ...] = _BOTH
    """The types of queues to which a policy with this key applies."""
    since: int = _FIRST_VERSION
    """The first version of the state in which a policy may have it."""


@dataclass(frozen=True, slots=True)
class SettingRule:
    """How an option determines a setting."""

    setting: str
    """The name of a field of `QueueSettings`."""
    read: v.Reader
    merge: Merge
    """Merges the argument's value with the policy's, if both are given."""
    types: tuple[str, ...] = _BOTH
    """The types of queues with this setting."""

    def __post_init__(self) -> None:
        if self.setting not in QueueSettings._fields:
            raise TypeError(f"QueueSettings has no field {self.setting!r}")


class QueueOption:
    """An option of queues: an argument of queue.declare, a key of policies, or both."""

    def __init__(
        self, name: str, argument: Argument | None, policy: PolicyKey | None = None, *rules: SettingRule
    ) -> None:
        self.name = name
        """The name as a key of policies."""
        self.argument_name = f"x-{name}"
        self.argument = argument
        self.policy = policy
        self.rules = rules
        """The settings that it determines; empty if the option is only checked."""


def _first(first: Any, _second: Any) -> Any:
    return first


def _second(_first: Any, second: Any) -> Any:
    return second


def lower_delivery_limit(first: int, second: int) -> int:
    """Return the stricter of two delivery limits; a negative limit means unlimited."""
    return max(first, second) if first < 0 or second < 0 else min(first, second)


_SMALLER_COUNTS: Merge = min
_GREATER_COUNTS: Merge = max
_ARGUMENT_COUNTS = _first
_POLICY_COUNTS = _OPERATOR_COUNTS = _second


def _read_classic_level(value: Any) -> int | None:
    # RabbitMQ's classic queues have up to 255 levels. Here the levels above LEVELS - 1 are a single level.
    return min(v.read_amount(value) or 0, LEVELS - 1) or None


def _read_level_absent(value: Any) -> int | None:
    return 0 if v.read_amount(value) else None


def _read_has_levels(value: Any) -> bool | None:
    return True if v.read_amount(value) else None


def _same(choices: tuple[str, ...]) -> dict[str, str]:
    return {choice: choice for choice in choices}


_OVERFLOWS = (*get_args(Overflow), "reject-publish-dlx")
_STRATEGIES = get_args(DeadLetterStrategy)
_RETRY_TYPES = get_args(RetryType)
_LOCATORS = ("client-local", "balanced", "random", "least-leaders")
_PRIORITY_MODES = ("ratio", "strict")
_RETURN_POSITIONS = get_args(ReturnPosition)
_COUNT_MODES = get_args(CountContract)
_TIMEOUT_ACTIONS = get_args(TimeoutAction)
_QUEUE_MODES = ("default", "lazy")

ALTERNATE_EXCHANGE = "alternate-exchange"

RABBITMQ_OPTIONS = (
    # In RabbitMQ's order: if several arguments are invalid, the error text names the first.
    QueueOption(
        "expires",
        Argument(v.expiry),
        PolicyKey(v.is_at_least(1), "queue expiry", _SMALLER_COUNTS),
        SettingRule("expires_ms", v.read_positive_time, _SMALLER_COUNTS),
    ),
    QueueOption(
        "message-ttl",
        Argument(v.time_to_live),
        PolicyKey(v.is_at_least(0), "message TTL", _SMALLER_COUNTS),
        SettingRule("message_ttl_ms", v.read_time, _SMALLER_COUNTS),
    ),
    QueueOption(
        "dead-letter-exchange",
        Argument(v.anything),  # checked earlier, in `check_exchange_argument`
        PolicyKey(v.is_text, "dead letter exchange name"),
        SettingRule("dead_letter_exchange", v.read_text, _ARGUMENT_COUNTS),
    ),
    QueueOption(
        "dead-letter-routing-key",
        Argument(v.dead_letter_key),
        PolicyKey(v.is_routing_key, "dead letter routing key"),
        SettingRule("dead_letter_routing_key", v.read_routing_key, _ARGUMENT_COUNTS),
    ),
    QueueOption(
        "dead-letter-strategy",
        Argument(v.one_of(_STRATEGIES, "invalid_dlx_strategy"), (QUORUM,)),
        PolicyKey(v.is_one_of(_STRATEGIES), "dead letter strategy", types=(QUORUM,)),
        SettingRule("dead_letter_strategy", v.read_choice(_same(_STRATEGIES)), _ARGUMENT_COUNTS, (QUORUM,)),
    ),
    QueueOption(
        "max-length",
        Argument(v.not_negative),
        PolicyKey(v.is_at_least(0), "maximum length", _SMALLER_COUNTS),
        SettingRule("max_length", v.read_amount, _SMALLER_COUNTS),
    ),
    QueueOption(
        "max-length-bytes",
        Argument(v.not_negative),
        PolicyKey(v.is_at_least(0), "maximum length in bytes", _SMALLER_COUNTS),
        SettingRule("max_length_bytes", v.read_amount, _SMALLER_COUNTS),
    ),
    QueueOption(
        "max-in-memory-length",
        Argument(v.not_negative, (QUORUM,)),
        PolicyKey(v.is_at_least(0), "maximum memory in bytes", _SMALLER_COUNTS, (QUORUM,)),
    ),
    QueueOption(
        "max-in-memory-bytes",
        Argument(v.not_negative, (QUORUM,)),
        PolicyKey(v.is_at_least(0), "maximum memory in bytes", _SMALLER_COUNTS, (QUORUM,)),
    ),
    QueueOption(
        "max-priority",
        Argument(v.priorities, (CLASSIC,)),
        None,
        SettingRule("level_max", _read_classic_level, _ARGUMENT_COUNTS, (CLASSIC,)),
        SettingRule("level_absent", _read_level_absent, _ARGUMENT_COUNTS, (CLASSIC,)),
        SettingRule("strict_priorities", _read_has_levels, _ARGUMENT_COUNTS, (CLASSIC,)),
    ),
    QueueOption(
        "overflow",
        Argument(v.one_of(_OVERFLOWS, "invalid_overflow")),
        PolicyKey(v.is_one_of(_OVERFLOWS), "overflow value", _OPERATOR_COUNTS),
        # No queue of qq dead-letters refused messages. RabbitMQ's quorum queues do not support reject-publish-dlx.
        SettingRule(
            "overflow",
            v.read_choice(_same(get_args(Overflow)) | {"reject-publish-dlx": "reject-publish"}),
            _ARGUMENT_COUNTS,
            (CLASSIC,),
        ),
        SettingRule(
            "overflow",
            v.read_choice(_same(get_args(Overflow)) | {"reject-publish-dlx": "drop-head"}),
            _POLICY_COUNTS,
            (QUORUM,),
        ),
    ),
    QueueOption(
        "queue-mode",
        Argument(v.one_of(_QUEUE_MODES, "\"unsupported queue mode '{}'\""), (CLASSIC,)),
        PolicyKey(v.is_one_of(_QUEUE_MODES), "queue-mode value", types=(CLASSIC,)),
    ),
    QueueOption(
        "queue-version",
        Argument(v.queue_version, (CLASSIC,)),
        PolicyKey(v.is_queue_version, "queue-version value", _OPERATOR_COUNTS),
    ),
    QueueOption(
        "single-active-consumer",
        Argument(v.boolean),
        None,
        SettingRule("single_active_consumer", v.read_true, _ARGUMENT_COUNTS),
    ),
    QueueOption("queue-type", Argument(v.one_of(_BOTH, "\"unsupported queue type '{}'\""))),
    QueueOption("quorum-initial-group-size", Argument(v.positive, (QUORUM,))),
    QueueOption("quorum-target-group-size", Argument(v.positive, (QUORUM,))),
    QueueOption(
        "delivery-limit",
        Argument(v.anything, (QUORUM,)),
        PolicyKey(v.is_integer, "delivery limit", lower_delivery_limit, (QUORUM,)),
        SettingRule("delivery_limit", v.read_integer, lower_delivery_limit, (QUORUM,)),
    ),
    QueueOption(
        "queue-leader-locator",
        Argument(v.one_of((*_LOCATORS, "min-masters"), "invalid_queue_locator_arg")),
        PolicyKey(v.is_one_of(_LOCATORS), "queue leader locator value"),
    ),
    QueueOption(
        "consumer-timeout",
        Argument(v.not_negative),
        PolicyKey(v.is_at_least(0), "consumer timeout"),
        SettingRule("consumer_timeout_ms", v.read_time, _SMALLER_COUNTS),
    ),
    QueueOption(
        "consumer-disconnected-timeout",
        Argument(v.not_negative, (QUORUM,)),
        PolicyKey(v.is_at_least(0), "consumer disconnected timeout"),
    ),
    QueueOption(
        "delayed-retry-type",
        Argument(v.one_of(_RETRY_TYPES, "invalid_delayed_retry_type"), (QUORUM,)),
        PolicyKey(
            v.is_one_of(_RETRY_TYPES),
            "delayed retry type. Must be one of: all, failed, returned, disabled",
            _OPERATOR_COUNTS,
        ),
        SettingRule("retry_type", v.read_choice(_same(_RETRY_TYPES)), _POLICY_COUNTS, (QUORUM,)),
    ),
    QueueOption(
        "delayed-retry-min",
        Argument(v.positive, (QUORUM,)),
        PolicyKey(
            v.is_at_least(1), "delayed retry minimum delay. Must be a positive integer", _GREATER_COUNTS
        ),
        SettingRule("retry_min_ms", v.read_positive_time, _SMALLER_COUNTS, (QUORUM,)),
    ),
    QueueOption(
        "delayed-retry-max",
        Argument(v.positive, (QUORUM,)),
        PolicyKey(
            v.is_at_least(1), "delayed retry maximum delay. Must be a positive integer", _SMALLER_COUNTS
        ),
        SettingRule("retry_max_ms", v.read_positive_time, _SMALLER_COUNTS, (QUORUM,)),
    ),
    # Options of streams. qq has no streams, but imported definitions may have policies with these:
    QueueOption(
        "max-age", Argument(v.anything, _NEITHER), PolicyKey(v.is_age, "max age", types=_NEITHER, since=9)
    ),
    QueueOption(
        "stream-max-segment-size-bytes",
        Argument(v.not_negative, _NEITHER),
        PolicyKey(v.is_at_least(0), "segment size", types=_NEITHER, since=9),
    ),
    QueueOption(
        "stream-filter-size-bytes",
        Argument(v.not_negative, _NEITHER),
        PolicyKey(v.is_filter_size, "filter size. Valid range is 16-255", since=9),
    ),
    QueueOption(
        "initial-cluster-size",
        Argument(v.positive, _NEITHER),
        PolicyKey(v.is_at_least(0), "cluster size", types=_NEITHER, since=9),
    ),
    # Of classic queues, the predecessor of `queue-leader-locator`:
    QueueOption(
        "queue-master-locator",
        Argument(v.anything, (CLASSIC,)),
        PolicyKey(
            v.is_one_of(("client-local", "random", "min-masters")),
            "master locator",
            _OPERATOR_COUNTS,
            (CLASSIC,),
            since=9,
        ),
    ),
    # Keys that only policies have:
    QueueOption(ALTERNATE_EXCHANGE, None, PolicyKey(v.is_text, "alternate exchange name")),
    QueueOption(
        "target-group-size",
        None,
        PolicyKey(v.is_at_least(1), "qq target count value", _GREATER_COUNTS, (QUORUM,)),
    ),
)
"""The options that any queue type of RabbitMQ supports."""

OWN_OPTIONS = (
    QueueOption(
        "priority-mode",
        Argument(v.one_of(_PRIORITY_MODES, "invalid_priority_mode"), (QUORUM,)),
        PolicyKey(v.is_one_of(_PRIORITY_MODES), "priority mode"),
        SettingRule(
            "strict_priorities", v.read_choice({"ratio": False, "strict": True}), _POLICY_COUNTS, (QUORUM,)
        ),
    ),
    QueueOption(
        "return-position",
        Argument(v.one_of(_RETURN_POSITIONS, "invalid_return_position")),
        PolicyKey(v.is_one_of(_RETURN_POSITIONS), "return position"),
        SettingRule("return_position", v.read_choice(_same(_RETURN_POSITIONS)), _POLICY_COUNTS),
    ),
    QueueOption(
        "delivery-count-mode",
        Argument(v.one_of(_COUNT_MODES, "invalid_delivery_count_mode"), (QUORUM,)),
        PolicyKey(v.is_one_of(_COUNT_MODES), "delivery count mode"),
        # Before version 9 of the state, the answers of gets from classic queues show it, too.
        SettingRule("count_contract", v.read_choice(_same(_COUNT_MODES)), _POLICY_COUNTS),
    ),
    QueueOption(
        "consumer-timeout-action",
        Argument(v.one_of(_TIMEOUT_ACTIONS, "invalid_consumer_timeout_action")),
        PolicyKey(v.is_one_of(_TIMEOUT_ACTIONS), "consumer timeout action"),
        SettingRule("timeout_action", v.read_choice(_same(_TIMEOUT_ACTIONS)), _POLICY_COUNTS),
    ),
)
"""The options that only qq has."""

QUEUE_OPTIONS = RABBITMQ_OPTIONS + OWN_OPTIONS

CHANGED_ARGUMENTS = (
    ("x-dead-letter-routing-key", Argument(v.dead_letter_key_of_octets, since=11)),
    # RabbitMQ 4.0 knows none of these arguments: it accepts any value, and a second declaration may differ. So an
    # invalid value has no effect.
    *(
        (name, Argument(v.anything, since=11, is_compared=False))
        for name in (
            "x-quorum-target-group-size",
            "x-consumer-timeout",
            "x-consumer-disconnected-timeout",
            "x-delayed-retry-type",
            "x-delayed-retry-min",
            "x-delayed-retry-max",
            "x-stream-filter-size-bytes",
        )
    ),
)
"""Arguments of queue.declare that later versions of the state check differently than the options above."""
