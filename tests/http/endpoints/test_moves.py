"""Moves over HTTP: valid requests, permissions, and the shown progress."""

from __future__ import annotations

from typing import Any

import pytest

from qq.machine.protocol.commands import (
    BeginMove,
    DeclareQueue,
    DeleteQueue,
    EndMove,
    PutVhost,
    SetPermissions,
)
from tests.http.fakes import MachineManagement
from tests.http.http_node import Node

Machine = Node[MachineManagement]
BODY = {"source": "q", "destination": "to"}


def declared(name: str) -> DeclareQueue:
    return DeclareQueue(1, 1, name, False, True, False, False, False, {"x-queue-type": "quorum"})


@pytest.fixture
def node() -> Machine:
    node = Node(MachineManagement())
    node.management.make(*map(declared, ("q", "to", "a/é")))
    return node


def begun(node: Machine, **body: Any) -> Any:
    answer = node.api("moves/%2F", "POST", json=BODY | body)
    assert answer.status == 201, answer.text
    assert answer.headers["Location"] == f"/api/moves/%2F/{answer.json['id']}"
    return answer.json


def test_a_move_is_begun_shown_and_stopped(node: Machine) -> None:
    shown = begun(
        node, count=10, rate=5, filter={"headers": {"h": "x"}, "reason": "rejected", "from_queue": "w"}
    )
    assert shown == {
        "vhost": "/",
        "id": shown["id"],
        "user": "guest",
        "source": "q",
        "destination": "to",
        "to_origin": False,
        "count": 10,
        "rate": 5,
        "filter": {"headers": {"h": "x"}, "reason": "rejected", "from_queue": "w"},
        "state": "running",
        "waits_for": None,
        "error": None,
        "ready": 0,
        "examined": 0,
        "moved": 0,
        "skipped": 0,
        "begun_at": 0,
        "ended_at": None,
    }
    one = f"moves/%2F/{shown['id']}"
    assert node.api(one).json == shown
    assert node.api("moves").json == node.api("moves/%2F").json == [shown]
    assert node.api(one, "DELETE").status == 204
    assert node.api(one).json["state"] == "stopped"
    assert node.api(one, "DELETE").status == 204
    other = begun(node)
    assert (other["count"], other["rate"], other["filter"]) == (None, None, {})
    assert [each["id"] for each in node.api("moves?columns=id").json] == sorted([other["id"], shown["id"]])


def test_move_of_messages_with_a_text_needs_version_11(node: Machine) -> None:
    wanted = {"text": "Ü", "reason": "rejected"}
    node.management.machine.raise_to(10)
    answer = node.api("moves/%2F", "POST", json=BODY | {"filter": wanted})
    assert (answer.status, answer.json["error"]) == (400, "bad_request")
    assert "version 11 of the state" in answer.json["reason"]
    node.management.machine.raise_to(11)
    assert begun(node, filter=wanted)["filter"] == wanted


def test_search_answers_with_the_number_of_all_matches(node: Machine) -> None:
    for number in range(30):
        message = {
            "routing_key": "q",
            "payload": f"n{number}",
            "payload_encoding": "string",
            "properties": {},
        }
        assert node.api("exchanges/%2F/amq.default/publish", "POST", json=message).json == {"routed": True}
    found = node.api("queues/%2F/q/search?text=N1&count=2").json
    assert [each["payload"] for each in found.pop("messages")] == ["n1", "n10"]
    assert found == {
        "matched": 11,
        "returnable": 0,
        "looked_at": 30,
        "ready": 30,
        "next_offset": None,
        "died": [],
    }
    part = node.api("queues/%2F/q/search?offset=10&look_at=5&count=0").json
    assert (part["matched"], part["next_offset"], part["messages"]) == (5, 15, [])
    for query, reason in (
        ("reason=old", "there is no reason 'old'"),
        ("headers={", "headers must be a JSON object"),
        ("headers=" + "[" * 5_000, "headers must be a JSON object"),
        ('headers={"n":NaN}', "headers must be a JSON object"),
        ('headers={"n":1e999}', "a number is out of range"),
        ("text=" + "x" * 1025, "the text of the filter is longer than 1024 octets"),
        ("look_at=100001", "look_at must be a whole number"),
    ):
        answer = node.api(f"queues/%2F/q/search?{query}")
        assert answer.status == 400, query
        assert reason in answer.json["reason"]
    assert node.api("queues/%2F/nosuch/search").status == 404
    node.add_user("eve", "management")
    node.management.make(SetPermissions("eve", "/", ".*", ".*", "^$"))
    assert node.api("queues/%2F/q/search", user="eve").status == 401
    assert node.api("queues/%2F/q/search?headers={", user="eve").status == 401


def test_dead_letters_are_sent_back_to_their_origin(node: Machine) -> None:
    answer = node.api("moves/%2F", "POST", json={"source": "a/é", "to_origin": True})
    assert answer.status == 201
    assert (answer.json["destination"], answer.json["to_origin"]) == (None, True)


def test_move_shows_the_reason_of_a_wait_or_failure(node: Machine) -> None:
    shown = begun(node)
    move = node.management.machine.moves.all["/", shown["id"]]
    move.waits_for = "to"
    one = f"moves/%2F/{shown['id']}"
    assert node.api(one).json["waits_for"] == "to"
    node.management.make(EndMove("/", shown["id"], "no queue 'q' in vhost '/'"))
    ended = node.api(one).json
    assert (ended["state"], ended["error"], ended["waits_for"]) == (
        "failed",
        "no queue 'q' in vhost '/'",
        None,
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "key_missing: source"),
        ({"source": ""}, "a source has to have a name"),
        ({"source": 1}, "source should be a string, actually was 1"),
        ({"source": "q"}, "either 'destination' has to name a queue, or 'to_origin'"),
        ({"source": "q", "destination": ""}, "either 'destination' has to name a queue, or 'to_origin'"),
        (BODY | {"to_origin": True}, "either 'destination' has to name a queue, or 'to_origin'"),
        (BODY | {"count": 0}, "count should be a number from 1 to 9223372036854775807"),
        (BODY | {"count": 2**63}, "count should be a number from 1 to 9223372036854775807"),
        (BODY | {"count": 1.5}, "count should be a number, actually was 1.5"),
        (BODY | {"rate": -1}, "rate should be a number from 1 to 1000000"),
        (BODY | {"rate": True}, "rate should be a number, actually was true"),
        (BODY | {"dest": "to"}, "a move has no 'dest'; there are source, destination, to_origin"),
        (BODY | {"filter": []}, "filter should be a map, actually was []"),
        (
            BODY | {"filter": {"queue": "x"}},
            "a filter has no 'queue'; there are reason, from_queue, headers, text",
        ),
        (
            BODY | {"filter": {"reason": "old"}},
            "there is no reason 'old' for which messages die; there are rej",
        ),
        (BODY | {"filter": {"headers": {"h": [1]}}}, "header 'h' of the filter should be a string, a number"),
        (
            BODY | {"filter": {"headers": {"h": None}}},
            "header 'h' of the filter should be a string, a number",
        ),
        (BODY | {"filter": {"headers": {"x" * 256: 1}}}, "headers: the name of a field has 256 octets"),
        (
            BODY | {"filter": {"headers": {"h": "x" * 3000}}},
            "cannot begin a move: the headers of its filter take",
        ),
        (BODY | {"filter": {"from_queue": "é" * 128}}, "from_queue is longer than 255 octets"),
        (BODY | {"destination": "é" * 128}, "destination is longer than 255 octets"),
        (BODY | {"destination": "q"}, "messages of queue 'q' in vhost '/' cannot be moved to where they are"),
    ],
)
def test_malformed_move_is_refused_with_the_reason(node: Machine, body: dict[str, Any], reason: str) -> None:
    answer = node.api("moves/%2F", "POST", json=body)
    assert (answer.status, answer.json["error"]) == (400, "bad_request")
    assert reason in answer.json["reason"]
    assert node.management.machine.moves.all == {}


def test_move_of_a_missing_queue_is_404(node: Machine) -> None:
    for body in (BODY | {"source": "none"}, BODY | {"destination": "none"}):
        answer = node.api("moves/%2F", "POST", json=body)
        assert (answer.status, answer.json["reason"]) == (404, "no queue 'none' in vhost '/'")
    assert node.api("moves/none", "POST", json=BODY).status == 404
    for method in ("GET", "DELETE"):
        assert node.api("moves/%2F/none", method).status == 404
    assert node.api("moves/none").status == 404


def test_queues_and_moves_made_at_a_different_node_are_found(node: Machine) -> None:
    node.management.make_elsewhere(declared("new"))
    assert begun(node, source="new")["source"] == "new"
    node.management.make_elsewhere(BeginMove("/", "there", "guest", "q", "to", 0, 0, "", "", {}, "", False))
    assert node.api("moves/%2F/there").json["id"] == "there"


def test_second_move_of_a_queue_is_refused(node: Machine) -> None:
    shown = begun(node)
    answer = node.api("moves/%2F", "POST", json=BODY)
    assert (answer.status, answer.json["reason"]) == (
        400,
        f"messages of queue 'q' in vhost '/' are being moved already (move '{shown['id']}')",
    )


def test_move_needs_read_and_write_permissions(node: Machine) -> None:
    node.add_user("eve", "management")
    node.management.make(SetPermissions("eve", "/", "", "^(a/é|q)$", "^q$"))
    for body, refused in (
        (BODY, "write access to queue 'to'"),
        ({"source": "to", "destination": "q"}, "read access to queue 'to'"),
    ):
        answer = node.api("moves/%2F", "POST", user="eve", json=body)
        assert answer.status == 401
        assert answer.json["reason"] == f"{refused} in vhost '/' refused for user 'eve'"
    answer = node.api("moves/%2F", "POST", user="eve", json=BODY | {"destination": "a/é"})
    assert (answer.status, answer.json["user"]) == (201, "eve")


def test_move_is_stopped_by_its_readers_and_administrators(node: Machine) -> None:
    node.add_user("reader", "management")
    node.add_user("writer", "management")
    node.add_user("admin", "administrator")
    node.management.make(SetPermissions("reader", "/", "", "", "^q$"))
    node.management.make(SetPermissions("writer", "/", "", ".*", ""))
    for user, status in (("writer", 401), ("reader", 204), ("admin", 204)):
        shown = begun(node) if status != 204 or user == "admin" else shown  # noqa: F821
        assert node.api(f"moves/%2F/{shown['id']}", "DELETE", user=user).status == status


def test_moves_of_invisible_virtual_hosts_are_404(node: Machine) -> None:
    node.add_user("eve", "management")
    node.management.make(PutVhost("other", "", [], ""), SetPermissions("eve", "other", ".*", ".*", ".*"))
    shown = begun(node)
    assert node.api("moves", user="eve").json == []
    for path in ("moves/%2F", f"moves/%2F/{shown['id']}"):
        assert node.api(path, user="eve").status == 404
    assert node.api("moves/other", user="eve").json == []


def test_move_without_a_majority_is_503(node: Machine) -> None:
    node.management.changes.has_majority = False
    assert node.api("moves/%2F", "POST", json=BODY).status == 503
    assert node.management.machine.moves.all == {}


def test_move_before_version_8_is_refused(node: Machine) -> None:
    node.management.machine._core.version = 7
    answer = node.api("moves/%2F", "POST", json=BODY)
    assert answer.status == 400
    assert "may be proposed from version 8 of the state on" in answer.json["reason"]


def test_move_of_a_deleted_queue_can_be_stopped(node: Machine) -> None:
    shown = begun(node)
    node.management.make(DeleteQueue(1, 1, "q", False, False))
    assert node.api(f"moves/%2F/{shown['id']}", "DELETE").status == 204
