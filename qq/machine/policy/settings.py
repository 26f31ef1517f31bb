"""Queue and consumer settings: arguments, merged with the policies that apply to the queue.

Invariant: any tables yield settings, and the same settings on every node. An invalid value counts as not given.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.machine.policy.policies import effective_definition
from qq.machine.policy.queue_options import DEFAULTS, QUEUE_OPTIONS, QueueOption, QueueSettings, SettingRule
from qq.machine.policy.value_checks import read_integer, read_time

if TYPE_CHECKING:
    from qq.machine.policy.policies import Policy
    from qq.tables import Table

_NO_SETTINGS = frozenset({"x-queue-type"})
"""Arguments that identify the type of a queue, and have no effect on its settings."""

_RULES = {
    kind: [(option, rule) for option in QUEUE_OPTIONS for rule in option.rules if kind in rule.types]
    for kind in DEFAULTS
}
"""Queue type -> the options that determine its settings."""


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
    given = {
        rule.setting: value
        for option, rule in _RULES[kind]
        if (value := _value_of(option, rule, arguments, definition)) is not None
    }
    return _consistent(DEFAULTS[kind]._replace(**given))


def _value_of(option: QueueOption, rule: SettingRule, arguments: Table, definition: Table) -> Any:
    """Return the value of a setting, merged from argument and policy, or None if neither is given."""
    argument = rule.read(arguments.get(option.argument_name))
    policy = None if option.policy is None else rule.read(definition.get(option.name))
    if argument is None or policy is None:
        return policy if argument is None else argument
    return rule.merge(argument, policy)


def _consistent(settings: QueueSettings) -> QueueSettings:
    """Return the settings without those that need a different setting."""
    changes: dict[str, Any] = {}
    if settings.dead_letter_exchange is None:
        changes["dead_letter_routing_key"] = None
    if settings.dead_letter_exchange is None or settings.overflow != "reject-publish":
        changes["dead_letter_strategy"] = "at-most-once"  # RabbitMQ falls back and logs a warning
    if settings.retry_type == "disabled" or not settings.retry_min_ms:
        changes |= {"retry_type": "disabled", "retry_min_ms": 0, "retry_max_ms": 0}
    elif not settings.retry_max_ms:
        changes["retry_max_ms"] = settings.retry_min_ms
    return settings._replace(**changes)


def consumer_settings_of(arguments: Table) -> ConsumerSettings:
    return ConsumerSettings(
        priority=read_integer(arguments.get("x-priority")) or 0,
        timeout_ms=read_time(arguments.get("x-consumer-timeout")),
        live_prefetch=arguments.get("x-live-prefetch") is True,
    )
