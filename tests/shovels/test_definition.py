"""Values of shovels: their meaning, and refused values."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.machine.queue.moves import SHOVEL
from qq.sessions.shovels import move_for
from qq.shovels import definition
from qq.shovels.definition import (
    PROTOCOLS,
    InvalidShovel,
    NotSupported,
    definition_of,
    read_shovel,
)

MOVE = {"src-uri": "amqp://", "src-queue": "q", "dest-uri": "amqp:///%2F", "dest-queue": "to"}
FAR = MOVE | {"dest-uri": "amqp://user:hidden@far"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"src-queue": None}, "src-queue should be a string"),
        ({"src-queue": ""}, "Must specify 'src-exchange' or 'src-queue'"),
        ({"src-exchange": "e"}, "Cannot specify 'src-exchange' and 'src-queue'"),
        ({"dest-exchange": "e"}, "Cannot specify 'dest-exchange' and 'dest-queue'"),
        (
            {"dest-queue": ""},
            "Must specify 'dest-exchange' or 'dest-queue', because the target is this cluster",
        ),
        ({"dest-queue": "é" * 128}, "dest-queue is longer than 255 octets"),
        ({"strange": 1}, 'Unrecognised terms [<<"strange">>] in shovel'),
        ({"src-uri": None}, "src-uri should be a URI, or a list of URIs"),
        ({"src-uri": []}, "src-uri should be a URI, or a list of URIs"),
        ({"src-uri": "http://"}, "src-uri: it should begin with amqp:// or amqps://"),
        ({"src-uri": "amqp://["}, "src-uri: not a valid URI"),
        ({"dest-uri": ["amqp://", "amqps://"]}, "dest-uri: a port, or amqps, needs a host"),
        ({"dest-queue": "q"}, "messages of queue 'q' are where they would be moved to"),
        ({"src-protocol": "amqp10"}, "src-protocol amqp10 is not supported: amqp091 or local"),
        ({"src-protocol": "mqtt"}, "src-protocol should be one of amqp091, local"),
        ({"dest-protocol": "local", "dest-uri": "amqp://far"}, "dest-uri should have no host"),
        ({"src-delete-after": 0}, "src-delete-after should be a number greater than 0"),
        ({"src-delete-after": True}, "src-delete-after should be a number greater than 0"),
        ({"ack-mode": "maybe"}, "ack-mode should be one of on-confirm, on-publish, no-ack"),
        ({"ack-mode": "no-ack", "delete-after": 5}, "Cannot specify 'no-ack' and numerical 'delete-after'"),
        ({"src-prefetch-count": -1}, "src-prefetch-count should be a number of 0 or more"),
        ({"reconnect-delay": "5"}, "reconnect-delay should be a number of 0 or more"),
        ({"src-predeclared": 1}, "src-predeclared should be a boolean"),
        ({"dest-add-forward-headers": "yes"}, "dest-add-forward-headers should be a boolean"),
        (
            {"publish-properties": {"delivery_mode": "2"}},
            "delivery_mode in dest-publish-properties should be a",
        ),
        ({"publish-properties": {"app_id": 2}}, "app_id in dest-publish-properties should be a string"),
        (
            {"publish-properties": {"headers": {}}},
            'Unrecognised terms [<<"headers">>] in dest-publish-properties',
        ),
        ({"src-consumer-args": [1]}, "src-consumer-args: a field table is not a map"),
        ({"dest-queue-args": {"x": 2**70}}, "dest-queue-args: a number in a field table is out of range"),
    ],
)
def test_invalid_shovel_is_refused_with_its_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidShovel) as refused:
        definition_of("/", MOVE | changes)
    assert reason in str(refused.value)


def test_a_key_that_is_missing_is_named() -> None:
    for key in ("src-uri", "dest-uri"):
        value = {name: each for name, each in MOVE.items() if name != key}
        with pytest.raises(InvalidShovel, match=f'Key "{key}" not found'):
            definition_of("/", value)


@pytest.mark.parametrize(
    ("changes", "is_move"),
    [
        ({}, True),
        ({"src-uri": ["amqp://", "amqp:///%2f"], "delete-after": 7, "prefetch-count": 3}, True),
        ({"src-consumer-args": {}, "dest-queue-args": [], "add-forward-headers": False}, True),
        ({"src-uri": "amqp:///other"}, False),
        ({"src-uri": "amqp://user:hidden@/"}, False),
        ({"dest-uri": ["amqp://", "amqp://far"]}, False),
        ({"dest-add-forward-headers": True}, False),
        ({"publish-properties": {"delivery_mode": 2}}, False),
        ({"dest-queue-args": {"x-queue-type": "quorum"}}, False),
    ],
)
def test_shovel_within_the_cluster_is_a_move(changes: dict[str, Any], is_move: bool) -> None:
    assert definition_of("/", MOVE | changes).is_move is is_move


def test_definition_is_read_with_defaults_and_old_keys() -> None:
    assert PROTOCOLS == ("amqp091", "local")
    plain = definition_of("v", FAR)
    assert (plain.ack_mode, plain.prefetch, plain.delete_after, plain.reconnect_delay_s) == (
        "on-confirm",
        1000,
        "never",
        5,
    )
    assert (plain.target.queue, plain.target.exchange, plain.target.key) == ("to", None, None)
    old = {"delete-after": 7, "prefetch-count": 3, "add-timestamp-header": True, "src-prefetch-count": 4}
    read = definition_of("v", FAR | old | {"publish-properties": {"app_id": "s"}, "reconnect-delay": 0.5})
    assert (read.delete_after, read.prefetch, read.tells_time, read.properties) == (
        7,
        4,
        True,
        {"app_id": "s"},
    )
    assert read.reconnect_delay_s == 0.5
    local = definition_of("v", {"src-protocol": "local", "src-queue": "q"} | {"dest-uri": "amqp://far"})
    assert (local.source.uris[0].vhost, local.target.queue, local.target.exchange) == ("v", "", None)


def test_shovel_of_an_unsupported_protocol_raises_not_supported() -> None:
    with pytest.raises(NotSupported):
        definition_of("/", {"dest-protocol": "amqp10", "src-address": "/queue/q"})


@pytest.mark.parametrize(
    ("after", "count", "is_endless"),
    [({}, 0, True), ({"delete-after": "queue-length"}, 0, False), ({"src-delete-after": 5}, 5, True)],
)
def test_when_a_move_for_a_shovel_ends(after: dict[str, Any], count: int, is_endless: bool) -> None:
    move = move_for("/", "s", definition_of("/", MOVE | after), "m")
    assert (move.count, move.is_endless, move.shovel, move.user) == (count, is_endless, "s", "")


# A node refuses numbers that JSON does not allow before any further check.
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9)
    | st.sampled_from(["amqp://"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from([*MOVE, "src-exchange", "ack-mode", "publish-properties", "x"]), JSON),
    JSON,
)
def test_any_value_is_read_or_refused_without_showing_passwords(value: dict[str, Any], key: Any) -> None:
    for each in (value, FAR | value, FAR | {"src-consumer-args": key, "dest-queue-args": key}, key):
        text, definition = "", None
        try:
            definition = definition_of("/", each)
        except InvalidShovel as refused:
            text = str(refused)
        assert "hidden" not in text + repr(definition)
        assert read_shovel("/", json.dumps(each)) == definition


def test_new_leader_reads_many_shovels_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definition, "_remembered", {})
    monkeypatch.setattr(definition, "READ_CHARS", 1000)
    value = {"src-uri": ["amqp://far"] * 16, "src-queue": "q", "dest-uri": "amqp://", "dest-queue": "to"}
    texts = [json.dumps(value | {"src-queue": f"q{number}"}) for number in range(20)]
    parameters = {("other", "o"): "1"} | {(SHOVEL, f"s{number}"): text for number, text in enumerate(texts)}
    vhost: Any = SimpleNamespace(name="/", parameters=parameters)
    counts = [len(list(definition.shovels_of([vhost]))) for _ in range(9)]
    assert counts[0] * len(texts[0]) < 2000
    assert counts == sorted(counts)
    assert counts[-1] == 20
    with pytest.raises(InvalidShovel, match="16 URIs at most"):
        definition_of("/", value | {"src-uri": ["amqp://far"] * 17})
