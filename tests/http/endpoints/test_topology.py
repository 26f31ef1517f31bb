"""Queues, messages, exchanges, bindings and connections over HTTP, with a machine that applies commands at once."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from pamqp import frame, header
from pamqp.commands import Basic

from qq.machine.protocol.codec import encode_batch
from qq.machine.protocol.commands import (
    Connect,
    DeclareQueue,
    Enqueue,
    OpenChannel,
    PutVhost,
    SetPermissions,
    SetUserLimits,
)
from tests.http.fakes import MachineManagement
from tests.http.http_node import Node

Machine = Node[MachineManagement]


@pytest.fixture
def node() -> Machine:
    return Node(MachineManagement())


def sessions(node: Machine) -> int:
    """Return the number of sessions and connections that are open in the log."""
    catalog = node.management.machine.catalog
    return len(node.management.machine._core.sessions) + len(catalog.connections)


# --- queues


def test_a_queue_is_declared_shown_and_deleted(node: Machine) -> None:
    body = {"durable": "true", "auto_delete": False, "arguments": {"x-queue-type": "quorum"}, "node": "n1"}
    assert node.api("queues/%2F/a%2Fb", "PUT", json=body).status == 201
    queue = node.api("queues/%2F/a%2Fb").json
    assert (queue["name"], queue["type"], queue["durable"]) == ("a/b", "quorum", True)
    assert node.api("queues/%2F/a%2Fb", "PUT", json=body).status == 204
    assert node.api("queues/%2F/a%2Fb", "DELETE").status == 204
    assert node.api("queues/%2F/a%2Fb", "DELETE").status == 404
    assert sessions(node) == 0


def test_a_queue_needs_no_body_and_is_durable(node: Machine) -> None:
    assert node.api("queues/%2F/q", "PUT").status == 201
    queue = node.api("queues/%2F/q").json
    assert (queue["type"], queue["durable"], queue["auto_delete"]) == ("classic", True, False)


def test_line_ends_are_dropped_from_a_name_as_of_a_clients(node: Machine) -> None:
    node.management.make(SetPermissions("guest", "/", "^q$", "", ""))
    assert node.api("queues/%2F/q%0D%0A", "PUT").status == 201
    assert [each["name"] for each in node.api("queues").json] == ["q"]


@pytest.mark.parametrize("path", ["e/amq.direct%0A/q/q%0A", "e/amq.direct/e/amq.fanout%0D"])
def test_binding_is_found_by_its_declared_names(node: Machine, path: str) -> None:
    """Line ends are dropped from those, too."""
    node.api("queues/%2F/q", "PUT")
    answer = node.api(f"bindings/%2F/{path}", "POST", json={"routing_key": "k"})
    assert (answer.status, answer.headers.get("Location", "").endswith("/k")) == (201, True)
    assert node.api(f"bindings/%2F/{path}/k", "DELETE").status == 204
    assert node.api(f"bindings/%2F/{path}/k", "DELETE").status == 404


def nested_json(depth: int) -> dict[str, Any]:
    return {} if depth == 1 else {"x": nested_json(depth - 1)}


@pytest.mark.parametrize(
    ("name", "body", "reason"),
    [
        ("amq.q", {}, "queue name 'amq.q' contains reserved prefix 'amq.*'"),
        ("p", {"arguments": {"x-max-length": -1}}, "invalid arg 'x-max-length' for queue 'p' in vhost '/'"),
        ("q", {"durable": False}, "inequivalent arg 'durable' for queue 'q' in vhost '/'"),
        ("p", {"durable": 1}, "durable should be a boolean, actually was 1"),
        ("p", {"arguments": [1]}, "arguments: a field table is not a map"),
        ("p", {"arguments": {"x": [2**64]}}, "arguments: a number in a field table is out of range"),
        ("p", {"arguments": {"x" * 256: 1}}, "arguments: the name of a field has 256 octets"),
        ("p", {"arguments": nested_json(33)}, "arguments: a field table is nested deeper than 32 levels"),
        ("p", {"x": nested_json(40)}, "the JSON is nested deeper than 40 levels"),
        ("x" * 256, {}, "name is longer than 255 octets"),
    ],
)
def test_a_queue_that_cannot_be_is_refused_with_the_reason(
    node: Machine, name: str, body: dict[str, Any], reason: str
) -> None:
    assert node.api("queues/%2F/q", "PUT").status == 201
    answer = node.api(f"queues/%2F/{name}", "PUT", json=body)
    is_reserved = name.startswith("amq.")
    assert (answer.status, answer.json["error"]) == (
        (401, "not_authorised") if is_reserved else (400, "bad_request")
    )
    assert reason in answer.json["reason"]
    assert [each["name"] for each in node.api("queues").json] == ["q"]
    assert sessions(node) == 0


def test_queue_is_deleted_only_under_the_given_conditions(node: Machine) -> None:
    put_messages(node, "q", b"m")
    answer = node.api("queues/%2F/q?if-empty=true", "DELETE")
    assert (answer.status, answer.json["reason"]) == (400, "queue 'q' in vhost '/' not empty")
    assert node.api("queues/%2F/q/contents", "DELETE").status == 204
    assert node.api("queues/%2F/q").json["messages"] == 0
    assert node.api("queues/%2F/q?if-empty=true&if-unused=true", "DELETE").status == 204


def test_an_exclusive_queue_of_a_client_cannot_be_touched(node: Machine) -> None:
    node.management.make(DeclareQueue(7, 7, "q", False, False, True, False, False, {}))
    for path, method in (("q", "DELETE"), ("q/contents", "DELETE"), ("q", "PUT")):
        answer = node.api(f"queues/%2F/{path}", method)
        assert (answer.status, answer.json["error"]) == (400, "bad_request")
        assert "cannot obtain exclusive access to locked queue 'q'" in answer.json["reason"]


# --- messages


def put_messages(node: Machine, queue: str, *bodies: bytes) -> None:
    """Publish them to a queue, which is declared if it is not there, as a client would."""
    node.api(f"queues/%2F/{queue}", "PUT", json={})
    stored: list[bytes] = []
    for body in bodies:
        content = header.ContentHeader(0, len(body), Basic.Properties(content_type="a/b"))
        stored.append(frame.marshal(content, 1) + struct.pack(">BHI", 3, 1, len(body)) + body + b"\xce")
    node.management.keep(encode_batch([Enqueue(99, 0, len(stored), "", queue, False, 1)], stored))


@pytest.mark.parametrize(
    ("mode", "left", "redelivered"),
    [
        ("ack_requeue_true", 3, True),
        ("reject_requeue_true", 3, True),
        ("ack_requeue_false", 1, False),
        ("reject_requeue_false", 1, False),
    ],
)
def test_get_settles_messages_as_its_ackmode_says(
    node: Machine, mode: str, left: int, redelivered: bool
) -> None:
    put_messages(node, "q", b"one", b"\xff\x00", b"three")
    body = {"count": "2", "ackmode": mode, "encoding": "auto"}
    got = node.api("queues/%2F/q/get", "POST", json=body).json
    assert got == [
        {
            "message_count": 2,
            "payload_bytes": 3,
            "redelivered": False,
            "exchange": "",
            "routing_key": "q",
            "properties": {"content_type": "a/b"},
            "payload": "one",
            "payload_encoding": "string",
        },
        got[0] | {"message_count": 1, "payload_bytes": 2, "payload": "/wA=", "payload_encoding": "base64"},
    ]
    queue = node.api("queues/%2F/q").json
    assert (queue["messages"], queue["messages_ready"]) == (left, left)
    again = node.api("queues/%2F/q/get", "POST", json=body | {"count": 10}).json
    assert len(again) == left
    assert again[0]["redelivered"] == redelivered
    assert sessions(node) == 0


def test_of_a_message_that_is_got_a_part_may_be_shown(node: Machine) -> None:
    put_messages(node, "q", b"text")
    body = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "base64", "truncate": 3}
    [got] = node.api("queues/%2F/q/get", "POST", json=body).json
    assert (got["payload"], got["payload_bytes"]) == ("dGV4", 4)


def test_no_more_is_got_than_an_answer_may_hold(node: Machine) -> None:
    put_messages(node, "q", *[b"x" * 600_000] * 3)
    body = {"count": 3, "ackmode": "ack_requeue_false", "encoding": "auto"}
    assert len(node.api("queues/%2F/q/get", "POST", json=body).json) == 2
    assert node.api("queues/%2F/q").json["messages_ready"] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"count": "-x"},
        {"count": "x"},
        {"count": None},
        {"ackmode": "x"},
        {"ackmode": []},
        {"encoding": "x"},
        {"truncate": -1},
    ],
)
def test_invalid_get_request_is_400(node: Machine, change: dict[str, Any]) -> None:
    put_messages(node, "q", b"m")
    body = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"} | change
    assert node.api("queues/%2F/q/get", "POST", json=body).status == 400
    assert node.api("queues/%2F/nothing/get", "POST", json=body).status == 404
    assert node.api("queues/%2F/q").json["messages_ready"] == 1


@pytest.mark.parametrize("count", [-1, "-2"])
def test_negative_count_gets_all_messages(node: Machine, count: Any) -> None:
    put_messages(node, "q", b"1", b"2", b"3")
    body = {"count": count, "ackmode": "ack_requeue_true", "encoding": "auto"}
    got = node.api("queues/%2F/q/get", "POST", json=body).json
    assert [each["payload"] for each in got] == ["1", "2", "3"]


@pytest.mark.parametrize("body", [b"", b"null"])
def test_missing_body_and_null_are_an_empty_object(node: Machine, body: bytes) -> None:
    """As RabbitMQ reads them; definitions are the exception."""
    for path in ("queues/%2F/q", "exchanges/%2F/x", "vhosts/v"):
        assert node.api(path, "PUT", data=body).status == 201
    assert node.api("permissions/%2F/guest", "PUT", data=body).json["reason"] == "key_missing: configure"
    answer = node.api("definitions", "POST", data=body)
    assert answer.status == (400 if body else 204)


def test_exchange_without_a_policy_has_no_such_field(node: Machine) -> None:
    assert not any("policy" in each for each in node.api("exchanges/%2F").json)
    node.api("policies/%2F/p", "PUT", json={"pattern": "^amq", "definition": {"alternate-exchange": "x"}})
    listed = {each["name"]: each for each in node.api("exchanges/%2F").json}
    assert listed["amq.topic"]["policy"] == node.api("exchanges/%2F/amq.topic").json["policy"] == "p"
    assert "policy" not in listed[""]


# --- exchanges and bindings


def test_an_exchange_is_declared_shown_and_deleted(node: Machine) -> None:
    body = {"type": "topic", "auto_delete": False, "durable": True, "internal": False, "arguments": {}}
    assert node.api("exchanges/%2F/x", "PUT", json=body).status == 201
    shown = {"name": "x", "vhost": "/", **body, "incoming": [], "outgoing": []}
    shown["user_who_performed_action"] = "guest"
    assert node.api("exchanges/%2F/amq.topic").json["user_who_performed_action"] == "rmq-internal"
    assert node.api("exchanges/%2F/x").json == shown
    assert node.api("exchanges/%2F/x", "PUT", json=body).status == 204
    assert "x" in [each["name"] for each in node.api("exchanges/%2F").json]
    answer = node.api("exchanges/%2F/x", "PUT", json=body | {"type": "direct"})
    assert (answer.status, "inequivalent arg 'type'" in answer.json["reason"]) == (400, True)
    assert node.api("exchanges/%2F/x", "DELETE").status == 204
    assert node.api("exchanges/%2F/x", "DELETE").status == 404
    assert node.api("exchanges/%2F/amq.default").json["name"] == ""
    assert node.api("exchanges/%2F/amq.topic", "DELETE").status == 401
    assert node.api("exchanges/%2F/y", "PUT", json={"type": "nothing"}).status == 400


def test_bindings_are_made_shown_and_deleted(node: Machine) -> None:
    node.api("queues/%2F/q", "PUT")
    node.api("exchanges/%2F/x%2Fy", "PUT", json={"type": "headers"})
    assert node.api("bindings").json == [
        {
            "source": "",
            "vhost": "/",
            "destination": "q",
            "destination_type": "queue",
            "routing_key": "q",
            "arguments": {},
            "properties_key": "q",
        }
    ]
    for base, key, arguments in (
        ("bindings/%2F/e/amq.topic/q/q", "a.#~", {}),
        ("bindings/%2F/e/amq.topic/q/q", "", {}),
        ("bindings/%2F/e/x%2Fy/q/q", "", {"a": 1}),
        ("bindings/%2F/e/x%2Fy/q/q", "", {"a": 2}),
        ("bindings/%2F/e/amq.fanout/e/x%2Fy", "k", {}),
    ):
        body = {"routing_key": key, "arguments": arguments}
        answer = node.api(base, "POST", json=body)
        assert answer.status == 201
        place = answer.headers["Location"]
        shown = node.api(f"{base.rsplit('/', 1)[0]}/{place}").json
        assert (shown["routing_key"], shown["arguments"]) == (key, arguments)
        assert shown in node.api(base).json
        assert shown in node.api("bindings/%2F").json
    assert [each["properties_key"] for each in node.api("bindings/%2F/e/amq.topic/q/q").json] == [
        "~",
        "a.%23%7E",
    ]
    assert len(node.api("queues/%2F/q/bindings").json) == 5
    assert len(node.api("exchanges/%2F/x%2Fy/bindings/source").json) == 2
    assert len(node.api("exchanges/%2F/x%2Fy/bindings/destination").json) == 1
    assert node.api("bindings/%2F/e/amq.topic/q/q/a.%2523%257E", "DELETE").status == 204
    assert node.api("bindings/%2F/e/amq.topic/q/q/a.%2523%257E", "DELETE").status == 404
    [first, second] = node.api("bindings/%2F/e/x%2Fy/q/q").json
    assert node.api(f"bindings/%2F/e/x%2Fy/q/q/{first['properties_key']}", "DELETE").status == 204
    assert node.api("bindings/%2F/e/x%2Fy/q/q").json == [second]
    assert node.api("bindings/%2F/e/amq.fanout/e/x%2Fy/k", "DELETE").status == 204
    assert node.api("exchanges/%2F/x%2Fy/bindings/destination").json == []
    assert sessions(node) == 0


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("e/nothing/q/q", 404),
        ("e/amq.topic/q/nothing", 404),
        ("e/amq.default/q/q", 401),
        ("e/amq.topic/z/q", 404),
    ],
)
def test_a_binding_that_cannot_be_is_refused(node: Machine, path: str, status: int) -> None:
    node.api("queues/%2F/q", "PUT")
    assert node.api(f"bindings/%2F/{path}", "POST", json={"routing_key": "k"}).status == status


# --- permissions


@pytest.mark.parametrize(
    ("path", "method", "permissions"),
    [
        ("queues/%2F/q", "PUT", ("^q$", "", "")),
        ("queues/%2F/q", "DELETE", ("^q$", "", "")),
        ("queues/%2F/q/contents", "DELETE", ("", "", "^q$")),
        ("exchanges/%2F/x", "PUT", ("^x$", "", "")),
        ("exchanges/%2F/x", "DELETE", ("^x$", "", "")),
        ("bindings/%2F/e/x/q/q", "POST", ("", "^q$", "^x$")),
        ("bindings/%2F/e/x/q/q/k", "DELETE", ("", "^q$", "^x$")),
        ("bindings/%2F/e/x/e/y", "POST", ("", "^y$", "^x$")),
        ("queues/%2F/q/get", "POST", ("", "", "^q$")),
        ("queues/%2F/q/browse", "GET", ("", "", "^q$")),
    ],
)
def test_http_declaration_needs_the_permissions_of_amqp(
    node: Machine, path: str, method: str, permissions: tuple[str, str, str]
) -> None:
    body = {"routing_key": "k", "count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
    for name in ("exchanges/%2F/x", "exchanges/%2F/y", "queues/%2F/q"):
        assert node.api(name, "PUT").status == 201
    assert node.api("bindings/%2F/e/x/q/q", "POST", json=body).status == 201
    node.add_user("ann", "management")
    assert node.api(path, method, user="ann", json=body).status == 404  # it sees no virtual host
    for position in (position for position, pattern in enumerate(permissions) if pattern):
        lacking = list(permissions)
        lacking[position] = "other"
        node.management.make(SetPermissions("ann", "/", *lacking))
        assert node.api(path, method, user="ann", json=body).status == 401
    # An administrator has no more permissions than any user.
    node.management.make(SetPermissions("guest", "/", "", "", ""))
    assert node.api(path, method, json=body).status == 401
    node.management.make(SetPermissions("ann", "/", *permissions))
    assert node.api(path, method, user="ann", json=body).status in (200, 201, 204)


def test_dead_letter_exchange_needs_read_and_write_permissions(node: Machine) -> None:
    node.add_user("ann", "management")
    body = {"arguments": {"x-dead-letter-exchange": "dlx"}}
    for read, write, status in (("", "dlx", 401), ("q", "", 401), ("q", "dlx", 201)):
        node.management.make(SetPermissions("ann", "/", "q", write, read))
        assert node.api("queues/%2F/q", "PUT", user="ann", json=body).status == status


def test_request_at_a_user_limit_is_refused(node: Machine) -> None:
    node.management.make(SetUserLimits("guest", {"max-connections": 0}))
    answer = node.api("queues/%2F/q", "PUT")
    assert answer.status == 401
    assert "user connection limit (0) is reached" in answer.json["reason"]


# --- connections


def connect(node: Machine, origin: str, number: int, vhost: str, user: str) -> None:
    commands = Connect(number, vhost, user), OpenChannel(number + 1, number)
    node.management.make(*commands, node=origin)


@pytest.fixture
def connected(node: Machine) -> Machine:
    node.management.make(PutVhost("v", "", [], ""))
    node.add_user("ann", "management", vhosts=("v",))
    node.add_user("bob", "monitoring", vhosts=("/",))
    connect(node, "n3", 5, "v", "ann")
    connect(node, "n2", 7, "/", "guest")
    return node


def names(node: Machine, path: str, user: str = "guest") -> list[str]:
    return [each["name"] for each in node.api(path, user=user).json]


def test_connections_of_all_nodes_are_shown(connected: Machine) -> None:
    shown = {
        "name": "n3:5",
        "node": "n3",
        "vhost": "v",
        "user": "ann",
        "user_who_performed_action": "ann",
        "state": "running",
        "protocol": "AMQP",
        "type": "network",
        "client_properties": {},
    }
    assert connected.api("connections/n3:5").json == shown
    assert names(connected, "connections") == names(connected, "connections", "bob") == ["n2:7", "n3:5"]
    assert names(connected, "connections", "ann") == ["n3:5"]
    assert names(connected, "vhosts/v/connections") == ["n3:5"]
    assert names(connected, "connections/username/guest") == ["n2:7"]
    assert connected.api("connections/n2:7", user="ann").status == 401
    assert connected.api("connections/n9:7").status == connected.api("vhosts/x/connections").status == 404


@pytest.mark.parametrize(
    ("header", "reason"),
    [(None, "Closed via management plugin"), ("for a test", "for a test"), ("é" * 300, "é" * 100)],
)
def test_administrator_closes_a_connection_of_any_node(
    connected: Machine, header: str | None, reason: str
) -> None:
    assert connected.close("connections/n3:5", header).status == 204
    assert connected.api("connections/n3:5").json["state"] == "closing"
    [row] = [row for row in connected.management.machine.catalog.connections.values() if row.user == "ann"]
    assert row.closing == reason
    assert connected.close("connections/n9:5", header).status == 404


def test_plain_users_close_only_their_own_connections(connected: Machine) -> None:
    for user, path, status in (
        ("ann", "connections/n2:7", 401),
        ("bob", "connections/n2:7", 401),
        ("ann", "connections/username/guest", 401),
        ("ann", "connections/n3:5", 204),
        ("guest", "connections/username/guest", 204),
        ("guest", "connections/username/nobody", 204),
    ):
        assert connected.api(path, "DELETE", user=user).status == status
    assert {each["state"] for each in connected.api("connections").json} == {"closing"}
