"""Shovels over HTTP: RabbitMQ's parameters and documents, as far as both ends are queues of one virtual host."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import MachineManagement
from http_node import Node

from qq.machine.commands import BeginMove, DeclareQueue, PutParameter, PutVhost, SetPermissions
from qq.sessions.shovels import Shovel

Machine = Node[MachineManagement]
ONE = "parameters/shovel/%2F/s"
SHOWN = "shovels/vhost/%2F/s"
VALUE = {"src-uri": "amqp://", "src-queue": "q", "dest-uri": "amqp:///%2F", "dest-queue": "to"}
MOVE_MESSAGES = VALUE | {
    "src-uri": "amqp:///%2F",
    "src-protocol": "amqp091",
    "src-prefetch-count": 1000,
    "src-delete-after": "queue-length",
    "dest-protocol": "amqp091",
    "dest-add-forward-headers": False,
    "ack-mode": "on-confirm",
}
"""What RabbitMQ's page asks for when somebody moves the messages of a queue there."""


@pytest.fixture
def node() -> Machine:
    node = Node(MachineManagement())
    arguments = {"x-queue-type": "quorum"}
    queues = (DeclareQueue(1, 1, name, False, True, False, False, False, arguments) for name in ("q", "to"))
    node.management.make(*queues)
    return node


def put(node: Machine, value: Any, **options: Any) -> Any:
    return node.api(ONE, "PUT", json={"value": value}, **options)


@pytest.mark.parametrize(
    "value",
    [
        VALUE,
        MOVE_MESSAGES,
        VALUE | {"src-uri": ["amqp://", "amqp:///%2f"], "delete-after": 7, "prefetch-count": 3},
        VALUE | {"reconnect-delay": 5, "publish-properties": {}, "add-timestamp-header": False},
        {"src-protocol": "local", "dest-protocol": "local", "src-queue": "q", "dest-queue": "to"},
        VALUE | {"src-predeclared": True, "src-consumer-args": {}, "src-delete-after": "never"},
    ],
)
def test_a_shovel_within_a_virtual_host_is_set_and_shown(node: Machine, value: dict[str, Any]) -> None:
    assert put(node, value).status == 201
    assert node.api(ONE).json["value"] == value
    shown = node.api(SHOWN).json
    assert (shown["name"], shown["vhost"], shown["type"], shown["state"]) == ("s", "/", "dynamic", "starting")
    assert (shown["src_queue"], shown["dest_queue"], shown["reason"]) == ("q", "to", None)
    assert node.api("shovels").json == node.api("shovels/%2F").json == [shown]


def test_a_shovel_that_has_a_move_is_running(node: Machine) -> None:
    put(node, VALUE)
    node.management.make(BeginMove("/", "m", "", "q", "to", 0, 0, "", "", {}, "s", True))
    shown = node.api(SHOWN).json
    assert (shown["state"], shown["move"], shown["forwarded"]) == ("running", "m", 0)
    assert node.api(f"{SHOWN}/restart", "DELETE").status == 204
    assert node.api("moves/%2F/m").json["state"] == "stopped"
    assert node.api(SHOWN).json["state"] == "starting"
    assert node.api(SHOWN, "DELETE").status == 204
    for path, method in ((SHOWN, "GET"), (SHOWN, "DELETE"), (f"{SHOWN}/restart", "DELETE"), (ONE, "GET")):
        assert node.api(path, method).status == 404


def test_why_a_shovel_does_not_run_is_told(node: Machine) -> None:
    put(node, VALUE | {"src-queue": "later"})
    assert node.api(SHOWN).json["reason"] == "no queue 'later' in vhost '/'"
    node.management.make(PutParameter("/", "shovel", "s", "{}"))
    assert node.api(SHOWN).json["reason"] == "this node does not understand the shovel"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"src-queue": None}, "src-queue should be a string"),
        ({"src-queue": ""}, 'Key "src-queue" not found'),
        ({"dest-queue": "é" * 128}, "dest-queue is longer than 255 octets"),
        ({"dest-queue": "q"}, ""),
        ({"strange": 1}, "Unrecognised terms"),
        ({"src-uri": None}, "src-uri should be a URI, or a list of URIs"),
        ({"src-uri": []}, "src-uri should be a URI, or a list of URIs"),
        ({"src-uri": "http://"}, "src-uri should begin with amqp:// or amqps://"),
        ({"src-uri": "amqp://["}, "src-uri is not a valid URI"),
        ({"src-uri": "amqp:///other"}, "src-uri leads to vhost 'other', and the shovel is in vhost '/'"),
        (
            {"dest-uri": "amqp://user:hidden@elsewhere"},
            "dest-uri names a broker or a user, and only queues of",
        ),
        ({"dest-uri": ["amqp://", "amqps://elsewhere/"]}, "dest-uri names a broker or a user"),
        ({"src-protocol": "amqp10"}, "src-protocol amqp10 is not supported: amqp091 or local"),
        ({"src-protocol": "mqtt"}, "src-protocol should be one of amqp091, local"),
        ({"src-exchange": "e"}, "src-exchange is not supported: bind a queue to the exchange"),
        ({"dest-exchange": "e"}, "dest-exchange is not supported"),
        (
            {"dest-add-forward-headers": True},
            "dest-add-forward-headers is not supported: messages are moved as",
        ),
        ({"publish-properties": {"delivery_mode": 2}}, "dest-publish-properties is not supported"),
        ({"src-delete-after": 0}, "src-delete-after should be a number greater than 0"),
        ({"src-delete-after": True}, "src-delete-after should be a number greater than 0"),
        ({"ack-mode": "maybe"}, "ack-mode should be one of on-confirm, on-publish, no-ack"),
        ({"src-prefetch-count": -1}, "src-prefetch-count should be a number of 0 or more"),
        ({"src-predeclared": 1}, "src-predeclared should be a boolean"),
    ],
)
def test_what_a_shovel_cannot_be_is_told(node: Machine, changes: dict[str, Any], reason: str) -> None:
    if changes == {"dest-queue": "q"}:
        put(node, VALUE | changes)
        assert "cannot be moved to where they are" in node.api(SHOWN).json["reason"]
        return
    answer = put(node, VALUE | changes)
    assert answer.status == 400
    assert reason in answer.json["reason"]
    assert "hidden" not in answer.text
    assert node.api("parameters").json == []


def test_a_value_that_is_no_map_is_refused(node: Machine) -> None:
    assert "should be a map" in put(node, [1]).json["reason"]


def test_who_sets_a_shovel_has_to_be_permitted_what_it_does(node: Machine) -> None:
    node.add_user("eve", "policymaker")
    node.management.make(SetPermissions("eve", "/", "", "^q$", ".*"))
    answer = put(node, VALUE, user="eve")
    assert (answer.status, answer.json["reason"]) == (
        401,
        "write access to queue 'to' in vhost '/' refused for user 'eve'",
    )
    assert put(node, VALUE | {"src-queue": "to", "dest-queue": "q"}, user="eve").status == 201
    node.add_user("reader", "management", vhosts=("/",))
    for path in (SHOWN, f"{SHOWN}/restart"):
        assert node.api(path, "DELETE", user="reader").status == 401


def test_shovels_of_virtual_hosts_that_one_does_not_see_are_not_there(node: Machine) -> None:
    put(node, VALUE)
    node.add_user("eve", "management")
    node.management.make(PutVhost("other", "", [], ""), SetPermissions("eve", "other", ".*", ".*", ".*"))
    assert node.api("shovels", user="eve").json == []
    assert node.api(SHOWN, user="eve").status == 404


def test_definitions_bring_shovels_of_this_cluster_and_pass_over_others(node: Machine) -> None:
    rows = [
        {"vhost": "/", "component": "shovel", "name": "s", "value": VALUE},
        {"vhost": "/", "component": "shovel", "name": "far", "value": VALUE | {"src-uri": "amqp://u:p@far"}},
    ]
    assert node.api("definitions", "POST", json={"parameters": rows}).status == 204
    assert node.api("definitions").json["parameters"] == [rows[0]]
    rows[0]["value"] = VALUE | {"strange": 1}
    answer = node.api("definitions", "POST", json={"parameters": rows})
    assert answer.status == 400
    assert "Unrecognised terms" in answer.json["reason"]


@pytest.mark.parametrize(
    ("after", "count", "is_endless"),
    [({}, 0, True), ({"delete-after": "queue-length"}, 0, False), ({"src-delete-after": 5}, 5, True)],
)
def test_when_a_shovel_ends(after: dict[str, Any], count: int, is_endless: bool) -> None:
    value = str(VALUE | after).replace("'", '"')
    shovel = Shovel.of(value)
    assert shovel is not None
    move = shovel.move("/", "s", "m")
    assert (move.count, move.is_endless, move.shovel, move.user) == (count, is_endless, "s", "")
