"""Shovels over HTTP: RabbitMQ's parameters and documents, of shovels in the log and of those of clients."""

from __future__ import annotations

from typing import Any

import pytest

from qq.machine.protocol.commands import (
    BeginMove,
    DeclareQueue,
    DeleteParameter,
    PutParameter,
    PutVhost,
    SetPermissions,
    SetTopicPermissions,
)
from qq.shovels.report import Report
from tests.http.fakes import MachineManagement
from tests.http.http_node import Node

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
"""The shovel that RabbitMQ's page declares to move the messages of a queue."""


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
    assert shown.pop("value") == value
    assert shown.pop("component") == "shovel"
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


def test_stopped_shovel_shows_its_reason(node: Machine) -> None:
    put(node, VALUE | {"src-queue": "later"})
    assert node.api(SHOWN).json["reason"] == "no queue 'later' in vhost '/'"
    node.management.make(PutParameter("/", "shovel", "s", "{}"))
    assert node.api(SHOWN).json["state"] == "terminated"
    assert node.api(SHOWN).json["reason"] == "this node does not understand the shovel"


def test_shovel_onto_its_own_source_is_refused_unless_it_changes(node: Machine) -> None:
    answer = put(node, VALUE | {"dest-queue": "q"})
    assert (answer.status, node.api(ONE).status) == (400, 404)
    assert "messages of queue 'q' are where they would be moved to" in answer.json["reason"]
    assert put(node, VALUE | {"dest-queue": "q", "dest-publish-properties": {"priority": 1}}).status == 201


def test_invalid_shovel_is_refused_without_showing_passwords(node: Machine) -> None:
    uri = "amqp://user:hidden@elsewhere:x"
    answer = put(node, VALUE | {"src-uri": uri})
    assert (answer.status, answer.json["reason"]) == (400, "Validation failed\n\nsrc-uri: not a valid URI\n")
    assert "hidden" not in answer.text
    assert node.api("parameters").json == []


def test_a_value_that_is_no_map_is_refused(node: Machine) -> None:
    assert "should be a map" in put(node, [1]).json["reason"]


def test_shovel_needs_the_permissions_of_its_user(node: Machine) -> None:
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


def test_shovel_to_topics_needs_permission_for_all_topics(node: Machine) -> None:
    node.add_user("eve", "policymaker")
    node.management.make(
        SetPermissions("eve", "/", ".*", ".*", ".*"),
        SetTopicPermissions("eve", "/", "amq.topic", "^(mine)?$", ".*"),
    )
    value = {key: each for key, each in VALUE.items() if key != "dest-queue"} | {"dest-exchange": "amq.topic"}
    for shovel in (value, value | {"dest-exchange-key": "mine"}):  # messages have further keys, in CC and BCC
        answer = put(node, shovel, user="eve")
        assert answer.status == 401
        assert "write access to all topics in exchange 'amq.topic'" in answer.json["reason"]
    assert put(node, value | {"dest-exchange": "amq.fanout"}, user="eve").status == 201


def test_shovel_that_publishes_needs_the_default_exchange(node: Machine) -> None:
    """Its messages may go to further queues, which they name in CC and BCC."""
    node.add_user("eve", "policymaker")
    permitted = f"^({VALUE['src-queue']}|{VALUE['dest-queue']})$"
    node.management.make(SetPermissions("eve", "/", permitted, permitted, permitted))
    answer = put(node, VALUE | {"dest-add-forward-headers": True}, user="eve")
    assert (answer.status, "exchange 'amq.default'" in answer.json["reason"]) == (401, True)
    assert put(node, VALUE, user="eve").status == 201  # which is a move


def test_shovels_of_invisible_virtual_hosts_are_404(node: Machine) -> None:
    put(node, VALUE)
    node.add_user("eve", "management")
    node.management.make(PutVhost("other", "", [], ""), SetPermissions("eve", "other", ".*", ".*", ".*"))
    assert node.api("shovels", user="eve").json == []
    assert node.api(SHOWN, user="eve").status == 404


OUTSIDE = VALUE | {
    "dest-uri": ["amqps://bob:hidden@far/v%2F?heartbeat=5&keyfile=k&certfile=c", "amqp://near"]
}


def test_shovel_to_a_broker_shows_its_report_without_passwords(node: Machine) -> None:
    node.management.lead()
    assert put(node, OUTSIDE).status == 201
    assert node.api(ONE).json["value"] == OUTSIDE  # as in RabbitMQ, for users who may set it
    assert node.api(SHOWN).json["state"] == "starting"
    figures = {"forwarded": 3, "remaining": "unlimited"}
    node.management.carrier.current_reports["/", "s"] = Report("running", None, figures)
    shown = node.api(SHOWN).json
    assert (shown["state"], shown["forwarded"], shown["remaining"]) == ("running", 3, "unlimited")
    assert shown["dest_uri"] == shown["value"]["dest-uri"] == ["amqps://far/v%2F", "amqp://near"]
    assert (shown["component"], shown["node"]) == ("shovel", "n1")
    listed = node.api("shovels")
    assert "hidden" not in listed.text + node.api(SHOWN).text
    assert listed.json[0]["dest_uri"] == shown["dest_uri"]
    node.management.carrier.current_reports["/", "s"] = Report("terminated", "it went away", {})
    assert node.api(SHOWN).json["reason"] == "it went away"
    assert node.api(f"{SHOWN}/restart", "DELETE").status == 204
    assert node.management.carrier.restarted == [("/", "s")]


def test_shovel_deleted_during_the_request_is_404(node: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    put(node, OUTSIDE)
    shovels = node.management.shovels.all

    async def query(vhost: str | None) -> Any:
        node.management.make(DeleteParameter("/", "shovel", "s"))
        return await shovels(vhost)

    monkeypatch.setattr(node.management.shovels, "all", query)
    assert node.api(SHOWN).status == 404


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"src-queue": "elsewhere"}, "read access to queue 'elsewhere'"),
        ({"src-predeclared": False}, "configure access to queue 'q'"),
        ({"src-queue": None, "src-exchange": "ex"}, "write access to queue 'amq.gen-'"),
        ({"src-uri": "amqp:///other"}, 'may not connect to vhost "other"'),
        ({"src-uri": "amqp://far", "dest-uri": "amqp://", "dest-queue": "q"}, "write access to queue 'q'"),
        (
            {"src-uri": "amqp://far", "dest-uri": "amqp://", "dest-queue": None, "dest-exchange": "ex"},
            "write access to exchange 'ex'",
        ),
        ({"src-uri": ["amqp://far", "amqp:///other"]}, 'may not connect to vhost "other"'),
    ],
)
def test_shovel_needs_permissions_only_for_its_local_end(
    node: Machine, changes: dict[str, Any], refused: str
) -> None:
    node.add_user("eve", "policymaker")
    node.management.make(PutVhost("other", "", [], ""), SetPermissions("eve", "/", "^$", "^$", "^q$"))
    allowed = OUTSIDE | {"src-predeclared": True}
    assert put(node, allowed, user="eve").status == 201
    value = {key: each for key, each in (allowed | changes).items() if each is not None}
    answer = put(node, value, user="eve")
    assert answer.status in (400, 401)
    assert refused in answer.json["reason"]
    assert node.api(ONE).json["value"] == allowed


def test_import_accepts_shovels_and_skips_unsupported_shovels(node: Machine) -> None:
    rows = [
        {"vhost": "/", "component": "shovel", "name": "far", "value": OUTSIDE},
        {"vhost": "/", "component": "shovel", "name": "s", "value": VALUE},
    ]
    more = [
        {"vhost": "/", "component": "shovel", "name": "t", "value": VALUE | changes}
        for changes in ({"src-protocol": "amqp10"}, {"dest-queue": "q"})
    ]
    assert node.api("definitions", "POST", json={"parameters": [*rows, *more]}).status == 200
    assert node.api("definitions").json["parameters"] == rows
    rows[0]["value"] = VALUE | {"strange": 1}
    answer = node.api("definitions", "POST", json={"parameters": rows})
    assert answer.status == 400
    assert "Unrecognised terms" in answer.json["reason"]
