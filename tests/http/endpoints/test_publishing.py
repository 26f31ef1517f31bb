"""Publishing over HTTP: routing, and refusals in RabbitMQ's words."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qq.http.documents.parsing import read_queue
from qq.machine.protocol.commands import PutVhost, SetPermissions
from tests.http.fakes import MachineManagement
from tests.http.http_node import Node

MESSAGE = {"routing_key": "q", "properties": {}, "payload": "text é", "payload_encoding": "string"}


@pytest.fixture
def node() -> Node[MachineManagement]:
    management = MachineManagement()
    management.make(read_queue("q", {}))
    return Node(management)


def publish(node: Node[MachineManagement], exchange: str = "amq.default", **other: Any) -> Any:
    return node.api(f"exchanges/%2F/{exchange}/publish", "POST", json={**MESSAGE, **other})


def got(node: Node[MachineManagement]) -> Any:
    body = {"count": 10, "ackmode": "ack_requeue_false", "encoding": "auto"}
    return node.api("queues/%2F/q/get", "POST", json=body).json


def test_a_message_is_published_with_all_its_properties(node: Node[MachineManagement]) -> None:
    properties = {
        "content_type": "text/plain",
        "headers": {"a": [1, "x", {"b": None}], "f": 1.5},
        "delivery_mode": 2,
        "priority": 3,
        "timestamp": 1767225600,
        "type": "t",
        "user_id": "guest",
        "unknown": {"is": "passed over"},
    }
    answer = publish(node, properties=properties)
    assert (answer.status, answer.json) == (200, {"routed": True})
    del properties["unknown"]
    [message] = got(node)
    assert (message["payload"], message["properties"]) == (MESSAGE["payload"], properties)
    assert (message["exchange"], message["routing_key"]) == ("", "q")


def test_any_count_may_be_asked_for(node: Node[MachineManagement]) -> None:
    publish(node)
    for count in (10**9, "100000"):
        body = {"count": count, "ackmode": "ack_requeue_true", "encoding": "auto"}
        assert len(node.api("queues/%2F/q/get", "POST", json=body).json) == 1


whole = st.sampled_from([0, 1, -1, 2**31, 2**32 - 1, 2**53 + 1, 2**63 - 1, -(2**63)])
fractions = st.sampled_from([0.1, 1e308, -2.5e-300, 5.0]) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
header_values = st.recursive(
    st.none() | st.booleans() | whole | fractions | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


# Headers with an effect, so that not every value is accepted; BCC is removed.
ACTED_UPON = {"CC", "BCC", "x-delay", "x-publisher-id", "x-publish-seq"}
names = texts.filter(lambda name: name not in ACTED_UPON)


@settings(max_examples=max(5, settings.default.max_examples // 4), deadline=None)
@given(headers=st.dictionaries(names, header_values, min_size=1, max_size=4))
def test_headers_are_returned_as_they_were_published(headers: dict[str, Any]) -> None:
    management = MachineManagement()
    management.make(read_queue("q", {}))
    node = Node(management)
    assert publish(node, properties={"headers": headers}).json == {"routed": True}
    [message] = got(node)
    assert message["properties"] == {"headers": headers}
    kinds = [type(value) for value in headers.values()]
    assert [type(value) for value in message["properties"]["headers"].values()] == kinds


def test_cc_and_bcc_headers_route_and_bcc_is_removed(
    node: Node[MachineManagement],
) -> None:
    headers = {"CC": ["nothing", "q"], "BCC": ["nobody"], "a": 1}
    assert publish(node, routing_key="no queue", properties={"headers": headers}).json == {"routed": True}
    [message] = got(node)
    assert message["properties"] == {"headers": {"CC": ["nothing", "q"], "a": 1}}


@pytest.mark.parametrize("timestamp", [1767225600, 2**32, 4_999_999_999, 253_402_300_799])
def test_timestamp_is_returned_as_it_was_published(node: Node[MachineManagement], timestamp: int) -> None:
    assert publish(node, properties={"timestamp": timestamp}).json == {"routed": True}
    assert got(node)[0]["properties"] == {"timestamp": timestamp}


def test_octets_are_published_as_base64(node: Node[MachineManagement]) -> None:
    payload = base64.b64encode(b"\xff\x00").decode()
    assert publish(node, payload=payload, payload_encoding="base64").json == {"routed": True}
    assert [(each["payload"], each["payload_encoding"]) for each in got(node)] == [(payload, "base64")]


def test_message_without_a_queue_is_not_routed(node: Node[MachineManagement]) -> None:
    assert publish(node, "amq.direct").json == {"routed": False}
    assert publish(node, routing_key="nothing").json == {"routed": False}
    assert got(node) == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"payload": 5}, "payload_not_string"),
        ({"payload": None}, "payload_not_string"),
        ({"payload_encoding": "rot13"}, "unsupported_encoding: rot13"),
        ({"payload_encoding": "base64", "payload": "?"}, "not_base64"),
        ({"routing_key": "x" * 256}, "routing_key is longer than 255 octets"),
        ({"properties": {"priority": "high"}}, "not_int: priority"),
        ({"properties": {"priority": 256}}, "priority must be a whole number from 0 to 255"),
        ({"properties": {"timestamp": 10**15}}, "timestamp must be a whole number from 0 to 253402300799"),
        ({"properties": {"app_id": 5}}, "not_string: app_id"),
        ({"properties": {"headers": {"a": 2**70}}}, "headers: "),
        ({"properties": {"headers": {"a": [2**63]}}}, "406 PRECONDITION_FAILED - a header holds 9223"),
        ({"properties": {"headers": {"a": "x" * 20_000}}}, "headers are larger than"),
        ({"properties": {"headers": {"CC": "no list"}}}, "406 PRECONDITION_FAILED - "),
        ({"properties": {"user_id": "somebody"}}, "406 PRECONDITION_FAILED - "),
        ({"properties": {"expiration": "soon"}}, "406 PRECONDITION_FAILED - "),
    ],
)
def test_invalid_message_is_refused(node: Node[MachineManagement], body: dict[str, Any], reason: str) -> None:
    answer = publish(node, **body)
    assert (answer.status, answer.json["error"]) == (400, "bad_request")
    assert answer.json["reason"].startswith(reason)
    assert got(node) == []


@pytest.mark.parametrize("name", list(MESSAGE))
def test_message_with_a_missing_field_is_refused(node: Node[MachineManagement], name: str) -> None:
    body = {key: value for key, value in MESSAGE.items() if key != name}
    answer = node.api("exchanges/%2F/amq.default/publish", "POST", json=body)
    assert (answer.status, answer.json["reason"]) == (400, f"key_missing: {name}")


def test_publish_to_a_missing_exchange_is_404(node: Node[MachineManagement]) -> None:
    answer = publish(node, "nothing")
    assert (answer.status, answer.json["reason"]) == (404, "exchange_not_found")
    answer = node.api("exchanges/nowhere/amq.direct/publish", "POST", json=MESSAGE)
    assert (answer.status, answer.json["reason"]) == (404, "vhost_not_found")


def test_publish_needs_write_permission(node: Node[MachineManagement]) -> None:
    node.add_user("ann", "management")
    node.management.make(SetPermissions("ann", "/", ".*", "^amq.topic$", ".*"))
    path = "exchanges/%2F/{}/publish"
    refused = node.api(path.format("amq.default"), "POST", user="ann", json=MESSAGE)
    assert (refused.status, refused.json["reason"]) == (
        400,
        "403 ACCESS_REFUSED - write access to exchange 'amq.default' in vhost '/' refused for user 'ann'",
    )
    assert node.api(path.format("amq.topic"), "POST", user="ann", json=MESSAGE).json == {"routed": False}
    node.management.make(PutVhost("v", "", [], ""))
    assert node.api("exchanges/v/amq.topic/publish", "POST", user="ann", json=MESSAGE).status == 404


def test_publish_to_an_internal_exchange_is_refused(node: Node[MachineManagement]) -> None:
    body = {"type": "fanout", "internal": True}
    assert node.api("exchanges/%2F/x", "PUT", json=body).status == 201
    answer = publish(node, "x")
    assert answer.status == 400
    assert answer.json["reason"].startswith("403 ACCESS_REFUSED - cannot publish to internal exchange 'x'")


def test_a_full_queue_rejects(node: Node[MachineManagement]) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    assert node.api("queues/%2F/full", "PUT", json={"arguments": arguments}).status == 201
    assert publish(node, routing_key="full").json == {"routed": True}
    answer = publish(node, routing_key="full")
    reason = "rejected Unable to publish message. Check queue limits."
    assert (answer.status, answer.json["reason"]) == (400, reason)


def test_publish_during_an_alarm_is_503(node: Node[MachineManagement]) -> None:
    node.management.group.broker.alarm = "the disk is full"
    answer = publish(node)
    assert (answer.status, "the disk is full" in answer.json["reason"]) == (503, True)
    node.management.group.broker.alarm = None
    assert got(node) == []


def test_actions_are_answered_as_rabbitmq_4_does(node: Node[MachineManagement]) -> None:
    for action in ("sync", "cancel_sync", "dance"):
        answer = node.api("queues/%2F/q/actions", "POST", json={"action": action})
        assert (answer.status, answer.json["reason"]) == (400, f"unknown: {action}")
    assert node.api("queues/%2F/q/actions", "POST", json={}).json["reason"] == "key_missing: action"
    assert node.api("queues/%2F/no/actions", "POST", json={}).json["reason"] == "queue_not_found"
    node.add_user("ann", "management", vhosts=("/",))
    assert node.api("queues/%2F/q/actions", "POST", user="ann", json={"action": "sync"}).status == 401
