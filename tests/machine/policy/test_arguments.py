"""Arguments: RabbitMQ's texts for those that are wrong, and which of them must be repeated."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.machine.policy.arguments import (
    check_consumer_arguments,
    check_equivalent_queue_arguments,
    check_exchange_argument,
    check_queue_arguments,
    queue_kind,
)
from qq.machine.policy.queue_options import CHANGED_ARGUMENTS
from qq.machine.policy.settings import settings_of
from qq.machine.policy.value_checks import EXPIRY_MAX_MS
from qq.machine.protocol.queue_types import CLASSIC, QUORUM
from qq.machine.protocol.refusals import Refused
from qq.machine.protocol.versions import VERSIONS
from qq.octets import octets_of

VERSION = VERSIONS[1]
CHECKED = 10
"""The last version that checks arguments which RabbitMQ 4.0 does not know."""
HERE = "for queue 'q' in vhost '/'"


def error(check: Any, *arguments: Any) -> str | None:
    """Return the error text without the common beginning."""
    try:
        check("queue 'q' in vhost '/'", *arguments)
    except Refused as refusal:
        return refusal.text
    return None


@pytest.mark.parametrize(
    ("key", "value", "wrong"),
    [
        ("x-expires", 0, "{value_zero,0}"),
        ("x-expires", -1, "{value_negative,-1}"),
        ("x-expires", EXPIRY_MAX_MS + 1, "{value_too_large,315360000001}"),
        ("x-expires", "1", '"expected integer, got longstr"'),
        ("x-expires", True, '"expected integer, got bool"'),
        ("x-message-ttl", -1, "{value_negative,-1}"),
        ("x-message-ttl", EXPIRY_MAX_MS + 1, "{value_too_large,315360000001}"),
        ("x-message-ttl", 1.5, '"expected integer, got double"'),
        ("x-max-length", -5, "{value_negative,-5}"),
        ("x-max-length", None, '"expected integer, got void"'),
        ("x-max-length-bytes", [], '"expected integer, got array"'),
        ("x-overflow", "drop-tail", "invalid_overflow"),
        ("x-overflow", 1, "{unacceptable_type,signedint}"),
        ("x-dead-letter-routing-key", "k", "routing_key_but_no_dlx_defined"),
        ("x-dead-letter-routing-key", b"\xff", "{unacceptable_type,binary}"),
        ("x-dead-letter-routing-key", "é" * 128, "routing_key_too_long"),
        ("x-single-active-consumer", "true", "{unacceptable_type,longstr}"),
        ("x-queue-leader-locator", "nearest", "invalid_queue_locator_arg"),
        ("x-queue-leader-locator", {}, "{unacceptable_type,table}"),
        ("x-consumer-timeout", -1, "{value_negative,-1}"),
        ("x-consumer-timeout-action", "close", "invalid_consumer_timeout_action"),
        ("x-return-position", "tail", "invalid_return_position"),
        ("x-return-position", 0, "{unacceptable_type,signedint}"),
    ],
)
@pytest.mark.parametrize("kind", [CLASSIC, QUORUM])
def test_a_wrong_value_is_refused_for_every_kind(kind: str, key: str, value: Any, wrong: str) -> None:
    assert error(check_queue_arguments, kind, {key: value}, CHECKED) == f"invalid arg '{key}' {HERE}: {wrong}"


def test_wrong_exchange_argument_has_its_own_text() -> None:
    key = "x-dead-letter-exchange"
    wrong = f"invalid type 'long' for arg '{key}' in queue 'q' in vhost '/'"
    assert error(check_exchange_argument, key, {key: 2**40}) == wrong
    assert error(check_exchange_argument, key, {key: ""}) is None
    assert error(check_exchange_argument, key, {}) is None


@pytest.mark.parametrize(
    ("key", "value", "wrong"),
    [
        ("x-dead-letter-strategy", "exactly-once", "invalid_dlx_strategy"),
        ("x-quorum-initial-group-size", 0, "{value_zero,0}"),
        ("x-quorum-target-group-size", -1, "{value_negative,-1}"),
        ("x-max-in-memory-length", -1, "{value_negative,-1}"),
        ("x-consumer-disconnected-timeout", -1, "{value_negative,-1}"),
        ("x-delayed-retry-type", "some", "invalid_delayed_retry_type"),
        ("x-delayed-retry-min", 0, "{value_zero,0}"),
        ("x-delayed-retry-max", "1", '"expected integer, got longstr"'),
        ("x-priority-mode", "loose", "invalid_priority_mode"),
        ("x-delivery-count-mode", "4.1", "invalid_delivery_count_mode"),
        ("x-delivery-count-mode", 4.3, "{unacceptable_type,double}"),
    ],
)
def test_a_wrong_value_is_refused_for_quorum_queues(key: str, value: Any, wrong: str) -> None:
    assert (
        error(check_queue_arguments, QUORUM, {key: value}, CHECKED) == f"invalid arg '{key}' {HERE}: {wrong}"
    )


@pytest.mark.parametrize(
    ("key", "value", "wrong"),
    [
        ("x-max-priority", 256, "{max_value_exceeded,256}"),
        ("x-max-priority", -1, "{value_negative,-1}"),
        ("x-queue-mode", "busy", "\"unsupported queue mode 'busy'\""),
        ("x-queue-version", 3, "\"unsupported queue version '3'\""),
    ],
)
def test_a_wrong_value_is_refused_for_classic_queues(key: str, value: Any, wrong: str) -> None:
    assert (
        error(check_queue_arguments, CLASSIC, {key: value}, VERSION) == f"invalid arg '{key}' {HERE}: {wrong}"
    )


@pytest.mark.parametrize(
    ("kind", "module", "keys"),
    [
        (
            QUORUM,
            "rabbit_quorum_queue",
            ["x-max-priority", "x-queue-mode", "x-queue-version", "x-max-age", "x-queue-master-locator"],
        ),
        (QUORUM, "rabbit_quorum_queue", ["x-stream-max-segment-size-bytes", "x-initial-cluster-size"]),
        (
            CLASSIC,
            "rabbit_classic_queue",
            ["x-delivery-limit", "x-quorum-initial-group-size", "x-dead-letter-strategy", "x-max-age"],
        ),
        (
            CLASSIC,
            "rabbit_classic_queue",
            ["x-delayed-retry-type", "x-priority-mode", "x-delivery-count-mode"],
        ),
    ],
)
def test_argument_of_an_unrelated_queue_type_is_refused(kind: str, module: str, keys: list[str]) -> None:
    for key in keys:
        text = f"invalid arg '{key}' {HERE} of queue type {module}"
        assert error(check_queue_arguments, kind, {key: 1}, CHECKED) == text


@pytest.mark.parametrize("kind", [CLASSIC, QUORUM])
@pytest.mark.parametrize("key", [key for key, argument in CHANGED_ARGUMENTS if not argument.is_compared])
def test_unknown_argument_of_rabbitmq_may_have_any_value(kind: str, key: str) -> None:
    for value in (None, True, -1, 0, "a", b"\xff", [], {}):
        table = {key: value}
        assert error(check_queue_arguments, kind, table, VERSION) is None
        assert error(check_equivalent_queue_arguments, kind, table, {}, VERSION) is None
        if value not in (0, -1):
            assert settings_of(kind, table, None, None) == settings_of(kind, {}, None, None)


def test_dead_letter_routing_key_may_have_any_octets() -> None:
    arguments = {"x-dead-letter-exchange": "x", "x-dead-letter-routing-key": b"caf\xe9"}
    assert error(check_queue_arguments, QUORUM, arguments, VERSION) is None
    key = settings_of(QUORUM, arguments, None, None).dead_letter_routing_key
    assert key is not None
    assert octets_of(key) == b"caf\xe9"


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (QUORUM, {"x-expires": EXPIRY_MAX_MS, "x-message-ttl": 0, "x-max-length": 0}),
        (QUORUM, {"x-expires": 1, "x-message-ttl": EXPIRY_MAX_MS}),
        (QUORUM, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": ""}),
        (QUORUM, {"x-delivery-limit": "whatever", "x-overflow": "reject-publish-dlx"}),
        (QUORUM, {"x-queue-leader-locator": "least-leaders", "x-quorum-initial-group-size": 5}),
        (QUORUM, {"x-priority-mode": "strict", "x-return-position": "original"}),
        (QUORUM, {"x-delivery-count-mode": "4.3", "x-consumer-timeout-action": "cancel-consumer"}),
        (QUORUM, {"x-delayed-retry-type": "failed", "x-delayed-retry-min": 1, "x-delayed-retry-max": 1}),
        (QUORUM, {"x-unknown": object, "else": None}),
        (CLASSIC, {"x-max-priority": 255, "x-queue-mode": "lazy", "x-queue-version": 2}),
        (CLASSIC, {"x-consumer-timeout": 0, "x-return-position": "original"}),
        (CLASSIC, {"x-queue-master-locator": "min-masters", "x-overflow": "reject-publish-dlx"}),
    ],
)
def test_valid_argument_is_accepted(kind: str, arguments: dict[str, Any]) -> None:
    assert error(check_queue_arguments, kind, arguments, VERSION) is None


def test_the_type_of_a_queue_is_classic_or_quorum() -> None:
    assert queue_kind("q", {}) == CLASSIC
    assert queue_kind("q", {"x-queue-type": "quorum"}) == QUORUM
    text = f"invalid arg 'x-queue-type' {HERE}: \"unsupported queue type 'stream'\""
    assert error(queue_kind, {"x-queue-type": "stream"}) == text
    text = f"invalid arg 'x-queue-type' {HERE}: {{unacceptable_type,signedint}}"
    assert error(queue_kind, {"x-queue-type": 1}) == text


@pytest.mark.parametrize(
    ("key", "value", "wrong"),
    [
        ("x-priority", "1", '"expected integer, got longstr"'),
        ("x-priority", True, '"expected integer, got bool"'),
        ("x-consumer-timeout", -1, "{value_negative,-1}"),
        ("x-live-prefetch", 1, "{unacceptable_type,signedint}"),
    ],
)
@pytest.mark.parametrize("kind", [CLASSIC, QUORUM])
def test_a_wrong_argument_of_a_consumer_is_refused(kind: str, key: str, value: Any, wrong: str) -> None:
    assert error(check_consumer_arguments, kind, {key: value}, 9) == f"invalid arg '{key}' {HERE}: {wrong}"


@pytest.mark.parametrize("key", ["x-stream-offset", "x-stream-filter", "x-stream-match-unfiltered"])
def test_an_argument_of_stream_consumers_is_refused(key: str) -> None:
    text = f"invalid arg '{key}' {HERE} of queue type rabbit_quorum_queue"
    assert error(check_consumer_arguments, QUORUM, {key: "first"}, 9) == text
    before = error(check_consumer_arguments, QUORUM, {key: "first"}, 8)
    assert before == (text if key == "x-stream-offset" else None)


def test_a_failover_argument_may_be_anything_since_version_9() -> None:
    arguments = {"x-cancel-on-ha-failover": "yes"}
    wrong = f"invalid arg 'x-cancel-on-ha-failover' {HERE}: {{unacceptable_type,longstr}}"
    assert error(check_consumer_arguments, CLASSIC, arguments, 8) == wrong
    assert error(check_consumer_arguments, CLASSIC, arguments, 9) is None


def test_valid_argument_of_a_consumer_is_accepted() -> None:
    arguments = {
        "x-priority": -(2**40),
        "x-consumer-timeout": 0,
        "x-cancel-on-ha-failover": True,
        "x-live-prefetch": True,
        "other": [],
    }
    for kind in (CLASSIC, QUORUM):
        assert error(check_consumer_arguments, kind, arguments, 9) is None


@pytest.mark.parametrize(
    ("current", "received", "difference"),
    [
        ({}, {}, None),
        ({"x-max-length": 5}, {"x-max-length": 5}, None),
        ({"x-unknown": 1}, {"x-unknown": 2, "other": 3}, None),
        (
            {},
            {"x-max-length": 5},
            "'x-max-length' {}: received the value '5' of type 'signedint' but current is none",
        ),
        (
            {"x-dead-letter-exchange": "d"},
            {},
            "'x-dead-letter-exchange' {}: received none but current is the value 'd' of type 'longstr'",
        ),
        ({"x-max-length": 5}, {"x-max-length": 6}, "'x-max-length' {}: received '6' but current is '5'"),
        ({"x-max-length": 1}, {"x-max-length": "1"}, "'x-max-length' {}: received '1' but current is '1'"),
        (
            {"x-single-active-consumer": True},
            {"x-single-active-consumer": False},
            "'x-single-active-consumer' {}: received 'false' but current is 'true'",
        ),
        (
            {"x-priority-mode": "strict"},
            {"x-priority-mode": "ratio"},
            "'x-priority-mode' {}: received 'ratio' but current is 'strict'",
        ),
        (
            {"x-return-position": "original"},
            {},
            "'x-return-position' {}: received none but current is the value 'original' of type 'longstr'",
        ),
    ],
)
def test_a_declaration_must_repeat_the_arguments_that_matter(
    current: dict[str, Any], received: dict[str, Any], difference: str | None
) -> None:
    text = None if difference is None else f"inequivalent arg {difference.format(HERE)}"
    assert error(check_equivalent_queue_arguments, QUORUM, current, received, VERSION) == text


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.decimals(allow_nan=False),
    st.just(dt.datetime(2030, 1, 1, tzinfo=dt.UTC)),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)
keys = st.sampled_from(
    [
        "x-queue-type",
        "x-expires",
        "x-message-ttl",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-dead-letter-strategy",
        "x-max-length",
        "x-max-priority",
        "x-overflow",
        "x-queue-version",
        "x-single-active-consumer",
        "x-quorum-initial-group-size",
        "x-delivery-limit",
        "x-queue-leader-locator",
        "x-consumer-timeout",
        "x-delayed-retry-min",
        "x-priority-mode",
        "x-return-position",
        "x-delivery-count-mode",
        "x-consumer-timeout-action",
        "x-max-age",
        "x-priority",
        "x-live-prefetch",
        "x-stream-offset",
        "other",
    ]
)
tables = st.dictionaries(keys, values, max_size=6)


@given(st.sampled_from([CLASSIC, QUORUM]), tables, tables)
def test_any_argument_table_is_accepted_or_refused(
    kind: str, table: dict[str, Any], other: dict[str, Any]
) -> None:
    error(queue_kind, table)
    error(check_queue_arguments, kind, table, VERSION)
    error(check_consumer_arguments, kind, table, 9)
    error(check_equivalent_queue_arguments, kind, table, other, VERSION)
