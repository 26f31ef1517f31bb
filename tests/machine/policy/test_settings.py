"""Settings: which of several values counts."""

from __future__ import annotations

import datetime as dt
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.machine.policy.policies import InvalidPolicy, Policy, check_policy
from qq.machine.policy.queue_options import (
    QUEUE_OPTIONS,
    DeadLetterStrategy,
    Overflow,
    QueueSettings,
    RetryType,
)
from qq.machine.policy.settings import ConsumerSettings, consumer_settings_of, settings_of
from qq.machine.policy.value_checks import EXPIRY_MAX_MS
from qq.machine.protocol.queue_types import CLASSIC, QUORUM
from qq.stored.properties import NO_PRIORITY


def settings(
    kind: str = QUORUM,
    arguments: dict[str, Any] | None = None,
    policy: dict[str, Any] | None = None,
    operator: dict[str, Any] | None = None,
) -> QueueSettings:
    return settings_of(
        kind,
        {f"x-{key}": value for key, value in (arguments or {}).items()},
        Policy("p", "", policy, 0, "all") if policy else None,
        Policy("o", "", operator, 0, "all", operator=True) if operator else None,
    )


DEFAULTS = QueueSettings(delivery_limit=20, level_max=31)


def test_quorum_queue_has_a_delivery_limit_by_default() -> None:
    assert settings() == DEFAULTS


def test_a_classic_queue_has_no_delivery_limit_and_no_priorities() -> None:
    assert settings(CLASSIC) == QueueSettings()
    # Such policies do not apply to classic queues, and the arguments are refused.
    assert settings(CLASSIC, {"delivery-limit": 3}).delivery_limit == -1


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("max-length", "max_length"),
        ("max-length-bytes", "max_length_bytes"),
        ("message-ttl", "message_ttl_ms"),
        ("expires", "expires_ms"),
    ],
)
@pytest.mark.parametrize("kind", [CLASSIC, QUORUM])
def test_the_smallest_limit_counts(kind: str, key: str, field: str) -> None:
    def limit(*values: Any) -> Any:
        given = [None if value is None else {key: value} for value in values]
        return getattr(settings(kind, *given), field)

    assert limit(None, None, None) is None
    assert limit(7, None, None) == 7
    assert limit(None, 7, None) == 7
    assert limit(None, None, 7) == 7
    assert limit(7, 8, None) == 7
    assert limit(8, 7, None) == 7
    assert limit(9, 8, 7) == 7
    assert limit(7, 8, 9) == 7
    assert limit("7", 8, None) == 8
    assert limit(-7, 8, None) == 8
    assert limit(True, 8, None) == 8


def test_the_smallest_consumer_timeout_counts() -> None:
    for kind in (CLASSIC, QUORUM):
        assert settings(kind, {"consumer-timeout": 7}, {"consumer-timeout": 8}).consumer_timeout_ms == 7
        assert settings(kind, {"consumer-timeout": 8}, {"consumer-timeout": 7}).consumer_timeout_ms == 7
        assert settings(kind, None, {"consumer-timeout": 0}).consumer_timeout_ms == 0


@pytest.mark.parametrize(
    ("argument", "policy", "operator", "limit"),
    [
        (5, None, None, 5),
        (None, 5, None, 5),
        (5, 9, None, 5),
        (9, 5, None, 5),
        (-1, None, None, -1),
        (-1, 5, None, 5),
        (5, -1, None, 5),
        (-5, -1, None, -1),
        (9, 8, 7, 7),
        (None, -1, 7, 7),
        (0, 5, None, 0),
        ("20", None, None, 20),
        ("20", 5, None, 5),
        (30, None, None, 30),
    ],
)
def test_the_stricter_delivery_limit_counts(argument: Any, policy: Any, operator: Any, limit: int) -> None:
    given = [None if value is None else {"delivery-limit": value} for value in (argument, policy, operator)]
    assert settings(QUORUM, *given).delivery_limit == limit


def test_dead_letter_target_argument_overrides_the_policy() -> None:
    mine = {"dead-letter-exchange": "a", "dead-letter-routing-key": "k"}
    theirs = {"dead-letter-exchange": "p", "dead-letter-routing-key": "l"}
    for kind in (CLASSIC, QUORUM):
        found = settings(kind, mine, theirs)
        assert (found.dead_letter_exchange, found.dead_letter_routing_key) == ("a", "k")
        found = settings(kind, None, theirs)
        assert (found.dead_letter_exchange, found.dead_letter_routing_key) == ("p", "l")
        found = settings(kind, {"dead-letter-exchange": ""}, theirs)
        assert (found.dead_letter_exchange, found.dead_letter_routing_key) == ("", "l")


def test_dead_letter_key_longer_than_255_octets_is_ignored() -> None:
    """A log of an earlier version may have such a key."""
    given = {"dead-letter-exchange": "a", "dead-letter-routing-key": "k" * 256}
    assert settings(QUORUM, given, None).dead_letter_routing_key is None
    assert settings(QUORUM, None, given).dead_letter_routing_key is None


def test_dead_letter_key_or_strategy_needs_an_exchange() -> None:
    policy = {
        "dead-letter-routing-key": "l",
        "dead-letter-strategy": "at-least-once",
        "overflow": "reject-publish",
    }
    assert settings(QUORUM, None, policy) == DEFAULTS._replace(overflow="reject-publish")


@pytest.mark.parametrize("overflow", [None, "drop-head", "reject-publish", "reject-publish-dlx"])
@pytest.mark.parametrize("strategy", [None, "at-most-once", "at-least-once"])
@pytest.mark.parametrize("kind", [CLASSIC, QUORUM])
def test_at_least_once_needs_a_quorum_queue_with_reject_publish(
    kind: str, strategy: str | None, overflow: str | None
) -> None:
    arguments = {
        "dead-letter-exchange": "d",
        "dead-letter-strategy": strategy,
        "overflow": overflow,
    }
    kept = kind == QUORUM and strategy == "at-least-once" and overflow == "reject-publish"
    found = settings(kind, arguments)
    assert found.dead_letter_strategy == ("at-least-once" if kept else "at-most-once")


def test_dead_letter_strategy_argument_overrides_the_policy() -> None:
    arguments = {"dead-letter-exchange": "d", "overflow": "reject-publish"}
    policy = {"dead-letter-strategy": "at-least-once"}
    assert settings(QUORUM, arguments, policy).dead_letter_strategy == "at-least-once"
    arguments["dead-letter-strategy"] = "at-most-once"
    assert settings(QUORUM, arguments, policy).dead_letter_strategy == "at-most-once"


def test_a_policy_changes_the_overflow_of_quorum_queues_only() -> None:
    mine, theirs = {"overflow": "reject-publish"}, {"overflow": "drop-head"}
    assert settings(QUORUM, mine, theirs).overflow == "drop-head"
    assert settings(CLASSIC, mine, theirs).overflow == "reject-publish"
    assert settings(CLASSIC, None, theirs, mine).overflow == "reject-publish"


def test_reject_publish_dlx_falls_back_to_a_supported_overflow() -> None:
    assert settings(QUORUM, {"overflow": "reject-publish-dlx"}).overflow == "drop-head"
    assert settings(CLASSIC, {"overflow": "reject-publish-dlx"}).overflow == "reject-publish"


def retry(found: QueueSettings) -> tuple[str, int, int]:
    return found.retry_type, found.retry_min_ms, found.retry_max_ms


def test_delayed_retry_takes_the_policy_type_and_smaller_times() -> None:
    mine = {"delayed-retry-type": "all", "delayed-retry-min": 10, "delayed-retry-max": 50}
    assert retry(settings(QUORUM, mine)) == ("all", 10, 50)
    assert retry(settings(QUORUM, mine, {"delayed-retry-type": "failed"})) == ("failed", 10, 50)
    theirs = {"delayed-retry-type": "failed", "delayed-retry-min": 20, "delayed-retry-max": 40}
    assert retry(settings(QUORUM, mine, theirs)) == ("failed", 10, 40)
    assert retry(settings(QUORUM, None, theirs, {"delayed-retry-min": 30})) == ("failed", 30, 40)
    assert retry(settings(QUORUM, mine, None, {"delayed-retry-type": "disabled"})) == ("disabled", 0, 0)


def test_longest_retry_delay_defaults_to_the_shortest() -> None:
    assert retry(settings(QUORUM, {"delayed-retry-type": "all", "delayed-retry-min": 10})) == ("all", 10, 10)


def test_retry_without_a_minimum_delay_is_disabled() -> None:
    assert retry(settings(QUORUM, {"delayed-retry-type": "all", "delayed-retry-max": 10})) == (
        "disabled",
        0,
        0,
    )
    assert retry(settings(QUORUM, {"delayed-retry-type": "all", "delayed-retry-min": 0})) == (
        "disabled",
        0,
        0,
    )
    assert retry(settings(CLASSIC, {"delayed-retry-type": "all", "delayed-retry-min": 10})) == (
        "disabled",
        0,
        0,
    )


def test_single_active_consumer_is_an_argument_only() -> None:
    for kind in (CLASSIC, QUORUM):
        assert settings(kind, {"single-active-consumer": True}).single_active_consumer
        assert not settings(kind, None, {"single-active-consumer": True}).single_active_consumer
        assert not settings(kind, {"single-active-consumer": "true"}).single_active_consumer


@pytest.mark.parametrize(
    ("key", "field", "choices"),
    [
        ("return-position", "return_position", ["returns", "original"]),
        ("delivery-count-mode", "count_contract", ["4.0", "4.3"]),
        ("consumer-timeout-action", "timeout_action", ["close-channel", "cancel-consumer"]),
    ],
)
def test_a_policy_changes_modes(key: str, field: str, choices: list[str]) -> None:
    usual, other = choices
    assert getattr(settings(), field) == usual
    assert getattr(settings(QUORUM, {key: other}), field) == other
    assert getattr(settings(QUORUM, None, {key: other}), field) == other
    assert getattr(settings(QUORUM, {key: other}, {key: usual}), field) == usual
    assert getattr(settings(QUORUM, {key: "else"}), field) == usual
    assert getattr(settings(QUORUM, {key: ["4.3"]}), field) == usual


def test_quorum_queue_has_32_levels_in_either_priority_mode() -> None:
    for found in (settings(), settings(QUORUM, {"priority-mode": "strict"})):
        assert [found.level(priority) for priority in (0, 4, 31, 32, 255, NO_PRIORITY)] == [
            0,
            4,
            31,
            31,
            31,
            4,
        ]
    assert not settings().strict_priorities
    assert settings(QUORUM, None, {"priority-mode": "strict"}).strict_priorities
    assert not settings(QUORUM, {"priority-mode": "strict"}, {"priority-mode": "ratio"}).strict_priorities


def test_classic_queue_has_its_declared_priority_levels() -> None:
    found = settings(CLASSIC, {"max-priority": 10})
    assert found.strict_priorities
    assert [found.level(priority) for priority in (0, 10, 11, 255, NO_PRIORITY)] == [0, 10, 10, 10, 0]
    found = settings(CLASSIC, {"max-priority": 255})
    assert [found.level(priority) for priority in (0, 31, 32, 255, NO_PRIORITY)] == [0, 31, 31, 31, 0]


@pytest.mark.parametrize("arguments", [{}, {"max-priority": 0}, {"priority-mode": "strict"}])
def test_a_classic_queue_without_levels_ignores_priorities(arguments: dict[str, Any]) -> None:
    found = settings(CLASSIC, arguments)
    assert not found.strict_priorities
    assert {found.level(priority) for priority in range(NO_PRIORITY + 1)} == {4}


def test_very_long_times_are_capped() -> None:
    times = ("message-ttl", "expires", "consumer-timeout", "delayed-retry-min", "delayed-retry-max")
    found = settings(QUORUM, {"delayed-retry-type": "all"}, dict.fromkeys(times, 2**70))
    assert {
        found.message_ttl_ms,
        found.expires_ms,
        found.consumer_timeout_ms,
        found.retry_min_ms,
        found.retry_max_ms,
    } == {EXPIRY_MAX_MS}
    assert consumer_settings_of({"x-consumer-timeout": 2**63}).timeout_ms == EXPIRY_MAX_MS


def test_consumer_arguments_become_consumer_settings() -> None:
    assert consumer_settings_of({}) == ConsumerSettings(0, None, live_prefetch=False)
    arguments = {"x-priority": -3, "x-consumer-timeout": 0, "x-live-prefetch": True}
    assert consumer_settings_of(arguments) == ConsumerSettings(-3, 0, live_prefetch=True)
    arguments = {"x-priority": "1", "x-consumer-timeout": -1, "x-live-prefetch": 1}
    assert consumer_settings_of(arguments) == ConsumerSettings()


values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 300),
        st.integers(-(2**63), 2**64),
        st.floats(),
        st.text(max_size=3),
        st.sampled_from(["strict", "original", "4.3", "reject-publish", "at-least-once", "all"]),
        st.binary(max_size=3),
        st.decimals(allow_nan=False),
        st.just(dt.datetime(2030, 1, 1, tzinfo=dt.UTC)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=3,
)
keys = st.sampled_from(
    [
        "max-length",
        "max-length-bytes",
        "overflow",
        "message-ttl",
        "expires",
        "dead-letter-exchange",
        "dead-letter-routing-key",
        "dead-letter-strategy",
        "delivery-limit",
        "consumer-timeout",
        "single-active-consumer",
        "delayed-retry-type",
        "delayed-retry-min",
        "delayed-retry-max",
        "priority-mode",
        "max-priority",
        "return-position",
        "delivery-count-mode",
        "consumer-timeout-action",
        "priority",
        "live-prefetch",
    ]
)
tables = st.dictionaries(keys, values, max_size=6)


def accepted(definition: dict[str, Any], *, operator: bool) -> Policy | None:
    """Return a policy of the valid entries, or None."""
    single = {}
    for key, value in definition.items():
        candidate = Policy("p", "", {key: value}, 0, "all", operator)
        try:
            check_policy(candidate)
        except InvalidPolicy:
            continue
        single[key] = value
    return Policy("p", "", single, 0, "all", operator) if single else None


def test_each_setting_is_determined_by_a_queue_option() -> None:
    assert {rule.setting for option in QUEUE_OPTIONS for rule in option.rules} == set(QueueSettings._fields)
    assert len({option.name for option in QUEUE_OPTIONS}) == len(QUEUE_OPTIONS)


@given(st.sampled_from([CLASSIC, QUORUM]), tables, tables, tables)
def test_any_table_yields_valid_settings(
    kind: str, arguments: dict[str, Any], policy: dict[str, Any], operator: dict[str, Any]
) -> None:
    table = {f"x-{key}": value for key, value in arguments.items()}
    found = settings_of(kind, table, accepted(policy, operator=False), accepted(operator, operator=True))
    numbers = (
        found.max_length,
        found.max_length_bytes,
        found.message_ttl_ms,
        found.expires_ms,
        found.consumer_timeout_ms,
    )
    assert all(number is None or (type(number) is int and number >= 0) for number in numbers)
    assert found.overflow in get_args(Overflow)
    assert found.dead_letter_strategy in get_args(DeadLetterStrategy)
    assert found.retry_type in get_args(RetryType)
    assert type(found.delivery_limit) is int
    assert (found.retry_type == "disabled") == (found.retry_min_ms == 0)
    assert all(0 <= found.level(priority) <= 31 for priority in (0, 5, 255, NO_PRIORITY))
    consumer = consumer_settings_of(table)
    assert type(consumer.priority) is int
    assert consumer.timeout_ms is None or consumer.timeout_ms >= 0
