"""Members over HTTP, of a fake group that carries out the requested changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.configuration.change_request import Verb
from cluster.configuration.configuration import Configuration, PeerAddress, Versions
from cluster.membership.health import Verdict
from qq.machine.protocol.commands import Connect, ConnectionDown
from qq.machine.protocol.versions import VERSIONS
from qq.management.nodes import members
from tests.http.fakes import FakeManagement, id_of, trio
from tests.http.http_node import Answer, Node

MEMBERS = "cluster/members"


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node[FakeManagement]:
    for name in ("CHANGE_S", "RETRY_S", "PATIENCE_S", "REACH_S"):
        monkeypatch.setattr(members, name, 0.03 if name == "RETRY_S" else 0.3)
    return Node(FakeManagement())


def hexed(name: str) -> str:
    return id_of(name).hex()


def refusal(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json["reason"]


def member(node: Node[FakeManagement], name: str) -> dict[str, Any]:
    return next(each for each in node.api(MEMBERS).json["members"] if each["name"] == name)


def test_members_show_the_log_and_their_own_reports(node: Node[FakeManagement]) -> None:
    node.add_user("eve", "monitoring")
    shown = node.api(MEMBERS, user="eve").json
    assert {key: shown[key] for key in shown.keys() - {"members"}} == {
        "node": "n1",
        "cluster": "qq",
        "cluster_id": (b"c" * 16).hex(),
        "version": 7,
        "leader": "n1",
        "removed": [],
    }
    assert [each["lag"] for each in shown["members"]] == [0, 7, None]
    assert shown["members"][1] == {
        "name": "n2",
        "host": "10.0.0.1",
        "port": 2,
        "id": hexed("n2"),
        "role": "voter",
        "state": "follower",
        "lag": 7,
        "versions": "7 to 13",
        "drained": False,
        "lost_ms": None,
    }


def test_node_is_added_when_it_listens_at_its_address(node: Node[FakeManagement]) -> None:
    group = node.management.group
    body = {"host": "h4", "port": 9}
    listener = PeerAddress("h4", 7)
    group.listeners |= {listener: "n4", PeerAddress("h4", 8): "n2"}
    status, reason = refusal(node.api(f"{MEMBERS}/n4", "PUT", json=body))
    assert status == 503
    assert reason.startswith("n4 cannot be reached at h4:9 (Connection refused), and nothing is changed: ")
    status, reason = refusal(node.api(f"{MEMBERS}/n4", "PUT", json=body | {"port": 8}))
    assert (status, reason) == (409, "n4 is not at h4:8, and nothing is changed: another one listens there")
    group.listed["n4"] = PeerAddress("proxy", 9)
    status, reason = refusal(node.api(f"{MEMBERS}/n4", "PUT", json=body))
    assert (status, reason.startswith("n4 cannot be reached at proxy:9 (Connection refused)")) == (503, True)
    group.listeners[group.listed["n4"]] = "n2"
    status, reason = refusal(node.api(f"{MEMBERS}/n4", "PUT", json=body))
    assert (status, reason.startswith("n4 is not at proxy:9, and nothing is changed: ")) == (409, True)
    del group.listed["n4"]
    assert group.requested_changes == []
    body["port"] = listener.port
    answers = [node.api(f"{MEMBERS}/n4", "PUT", json=body) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 200]
    assert len(group.requested_changes) == 1
    assert (member(node, "n4")["role"], member(node, "n4")["id"]) == ("learner", hexed("n4"))
    status, reason = refusal(node.api(f"{MEMBERS}/n4", "PUT", json=body | {"port": 9}))
    assert (status, reason.startswith("there is a member 'n4' at h4:")) == (409, True)
    assert node.api(f"{MEMBERS}/n4?id={hexed('n4')}", "DELETE").status == 200
    status, reason = refusal(node.api(f"{MEMBERS}/n4", "PUT", json=body))
    assert (status, "has been removed: start with an empty one" in reason) == (409, True)
    group.listeners[listener] = "n5"
    assert node.api(f"{MEMBERS}/n5", "PUT", json=body).status == 200
    group.listeners[listener] = "n6"
    status, reason = refusal(node.api(f"{MEMBERS}/n6", "PUT", json=body))
    assert (status, reason) == (409, f"{listener} is the address of member 'n5', so 'n6' cannot be there")


def test_member_is_removed_by_id_when_a_majority_remains(
    node: Node[FakeManagement],
) -> None:
    group = node.management.group
    group.verdict = Verdict(False, "no majority")
    assert refusal(node.api(f"{MEMBERS}/n3?id={hexed('n3')}", "DELETE")) == (409, "n3: no majority")
    assert len(group.requested_changes) > 1, "what the leader knows may be a second old"
    group.verdict = Verdict(True, "")
    assert member(node, "n3")["role"] == "voter"
    status, reason = refusal(node.api(f"{MEMBERS}/n3?id={hexed('n2')}", "DELETE"))
    assert (status, "another data directory by now" in reason) == (409, True)
    for _ in range(2):
        answer = node.api(f"{MEMBERS}/n3?id={hexed('n3')}", "DELETE")
        assert answer.status == 200
        assert answer.json["removed"] == [{"name": "n3", "id": hexed("n3")}]
    status, reason = refusal(node.api(f"{MEMBERS}/n2?id={hexed('n2')}", "DELETE"))
    assert (status, "add another one first" in reason) == (409, True)
    expected = (404, "there is no member 'n9'; the members are n1, n2")
    assert refusal(node.api(f"{MEMBERS}/n9?id={hexed('n9')}", "DELETE")) == expected


def test_removed_node_answers_without_the_removal_in_its_log(node: Node[FakeManagement]) -> None:
    group = node.management.group
    group.delayed_changes = 99
    assert node.api(f"{MEMBERS}/n1?id={hexed('n1')}", "DELETE").status == 503
    group.fail_stop.is_removed = True
    assert node.api(f"{MEMBERS}/n1?id={hexed('n1')}", "DELETE").status == 200


def test_replaced_member_is_awaited_until_it_connects(node: Node[FakeManagement]) -> None:
    for _ in range(2):
        assert node.api(f"{MEMBERS}/n3/replace", "POST", json={"id": hexed("n3")}).status == 200
    assert len(node.management.group.requested_changes) == 1
    assert member(node, "n3")["role"] == "awaited"
    expected = "n3 has not connected yet: start it at 10.0.0.1:3 with `qq serve --join`"
    assert refusal(node.api(f"{MEMBERS}/n3/promote", "POST")) == (503, expected)
    node.management.group.listeners[PeerAddress("10.0.0.1", 3)] = "n9"
    expected = "n3 is not at 10.0.0.1:3: another one listens there"
    assert refusal(node.api(f"{MEMBERS}/n3/promote", "POST")) == (503, expected)
    assert len(node.management.group.requested_changes) == 1


def test_a_learner_is_waited_for(node: Node[FakeManagement]) -> None:
    group = node.management.group
    held = group.configurations.committed
    members = [replace(each, is_voter=each.name == "n1") for each in held.members]
    group.configurations.committed = replace(held, members=tuple(members))
    expected = (503, "n2 receives the log, and lacks 7 entries")
    assert refusal(node.api(f"{MEMBERS}/n2/promote", "POST")) == expected
    group.short["n2"] = "n2 is low on disk (make room on it)"
    expected = (503, "n2 receives the log, and lacks 7 entries; n2 is low on disk (make room on it)")
    assert refusal(node.api(f"{MEMBERS}/n2/promote", "POST")) == expected
    group.no_majority = "there would be 2 voters"
    assert refusal(node.api(f"{MEMBERS}/n2/promote", "POST")) == (503, group.no_majority)
    expected = (503, "n3 does not answer")
    assert refusal(node.api(f"{MEMBERS}/n3/promote", "POST")) == expected
    group.listeners[PeerAddress("10.0.0.1", 3)] = "n9"
    expected = (503, "n3 is not at 10.0.0.1:3: another one listens there")
    assert refusal(node.api(f"{MEMBERS}/n3/promote", "POST")) == expected
    assert node.api(f"{MEMBERS}/n1/promote", "POST").status == 200


def test_promotion_needs_a_leader_and_a_connected_member(node: Node[FakeManagement]) -> None:
    group = node.management.group
    assert node.api(f"{MEMBERS}/n2/promote", "POST").status == 200
    assert refusal(node.api(f"{MEMBERS}/n3/promote", "POST")) == (503, "n3 does not answer")
    assert group.requested_changes == [], "there is nothing to be changed"
    group.leader = None
    status, reason = refusal(node.api(f"{MEMBERS}/n2/promote", "POST"))
    assert (status, reason.startswith("no leader is known")) == (503, True)


def test_members_are_not_changed_before_the_log_has_their_ids(node: Node[FakeManagement]) -> None:
    group = node.management.group
    unnamed = [replace(each, id=None) for each in trio().members]
    group.configurations.committed = Configuration.of(7, unnamed)
    for path, method, body in [
        ("n4", "PUT", {"host": "h", "port": 1}),
        ("n3?id=", "DELETE", None),
        ("n3/replace", "POST", {"id": ""}),
        ("n3/drain", "PUT", None),
    ]:
        status, reason = refusal(node.api(f"{MEMBERS}/{path}", method, json=body))
        assert (status, reason.startswith("the members cannot be changed before the upgrade")) == (409, True)
    assert group.requested_changes == []
    assert refusal(node.api(f"{MEMBERS}/n3/promote", "POST")) == (503, "n3 does not answer")


def test_wait_parameter_limits_the_wait_of_a_request(
    node: Node[FakeManagement], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "CHANGE_S", 60.0)
    assert node.api(f"{MEMBERS}/n3/promote?wait=0.1", "POST").status == 503
    assert node.api(f"{MEMBERS}/n1/promote?wait=0", "POST").status == 200
    for text in ("", "x", "-1", "11", "nan"):
        assert node.api(f"{MEMBERS}/n1/promote?wait={text}", "POST").status == 400, text


def test_drain_waits_until_the_clients_have_left(node: Node[FakeManagement]) -> None:
    management = node.management
    management.make(Connect(1, "/", "guest"))
    assert refusal(node.api(f"{MEMBERS}/n2/drain", "PUT")) == (
        503,
        "clients of n2 that are still connected: 1",
    )
    assert member(node, "n2")["drained"]
    management.make(ConnectionDown(1))
    assert node.api(f"{MEMBERS}/n2/drain", "PUT").status == 200
    assert [change.verb for change in management.group.requested_changes[:1]] == [Verb.DRAIN]
    for _ in range(2):
        assert node.api(f"{MEMBERS}/n2/drain", "DELETE").status == 200
    assert not member(node, "n2")["drained"]
    assert refusal(node.api(f"{MEMBERS}/n1/drain", "PUT")) == (
        503,
        "n1 still leads: no other node has taken over yet",
    )
    management.group.verdict = Verdict(False, "nobody else can")
    for wait in ("", "?wait=0.1"):
        assert refusal(node.api(f"{MEMBERS}/n2/drain{wait}", "PUT")) == (409, "n2: nobody else can"), wait


def test_change_is_retried_until_the_leader_finds_it_harmless(
    node: Node[FakeManagement],
) -> None:
    group = node.management.group
    group.verdict = Verdict(False, "n2 does not answer")
    group.answers_after = 2
    assert node.api(f"{MEMBERS}/n3/drain", "PUT").status == 200
    assert len(group.requested_changes) == 3


@pytest.mark.parametrize(
    ("path", "method"), [("n9/drain", "PUT"), ("n9/drain", "DELETE"), ("n9/promote", "POST")]
)
def test_request_about_an_unknown_member_fails_at_once(
    node: Node[FakeManagement], monkeypatch: pytest.MonkeyPatch, path: str, method: str
) -> None:
    monkeypatch.setattr(members, "PATIENCE_S", 60.0)
    expected = (404, "there is no member 'n9'; the members are n1, n2, n3")
    assert refusal(node.api(f"{MEMBERS}/{path}", method)) == expected
    assert node.management.group.requested_changes == []


def test_member_added_a_moment_ago_is_known_after_catching_up(node: Node[FakeManagement]) -> None:
    group = node.management.group
    held = group.configurations.committed
    joined = held.joined("n4", bytes(16), PeerAddress("h4", 7), Versions(*VERSIONS))
    group.unheard_configuration = joined.vacated("n4", bytes(16))
    status, reason = refusal(node.api(f"{MEMBERS}/n4/promote", "POST"))
    assert (status, reason.startswith("n4 has not connected yet")) == (503, True)


def test_upgrade_is_finished_up_to_the_nodes_newest_version(node: Node[FakeManagement]) -> None:
    for _ in range(2):
        assert node.api("cluster/upgrade/finish", "POST").json["version"] == VERSIONS[1]
    assert len(node.management.group.requested_changes) == VERSIONS[1] - VERSIONS[0]


def test_unfinished_change_is_retried_then_reported(
    node: Node[FakeManagement],
) -> None:
    group = node.management.group
    group.delayed_changes = 2
    assert node.api("cluster/upgrade/finish", "POST").status == 200
    assert len(group.requested_changes) == 2 + VERSIONS[1] - VERSIONS[0]
    group.delayed_changes = 99
    expected = "the change is not made yet; it may still be made: ask again"
    assert refusal(node.api(f"{MEMBERS}/n3/replace", "POST", json={"id": hexed("n3")})) == (503, expected)
    group.stuck = "the disks of too many nodes are full: n2, n3"
    expected = f"the change is not made yet; it may still be made: {group.stuck}"
    assert refusal(node.api(f"{MEMBERS}/n3/replace", "POST", json={"id": hexed("n3")})) == (503, expected)
    group.leader = None
    assert refusal(node.api(f"{MEMBERS}/n3/drain", "PUT"))[1].startswith("no leader is known")


@pytest.mark.parametrize(
    ("path", "method", "body"),
    [
        ("n4", "PUT", {"host": "h"}),
        ("n4", "PUT", {"host": "h", "port": "1"}),
        ("n4", "PUT", {"host": "h", "port": 0}),
        ("n4", "PUT", {"host": "", "port": 1}),
        ("n4", "PUT", {"host": "h", "port": 1, "id": ""}),
        ("n%204", "PUT", {"host": "h", "port": 1}),
        ("n3", "DELETE", None),
        ("n3?id=zz", "DELETE", None),
        ("n3?id=abcd", "DELETE", None),
        ("n3/replace", "POST", {}),
        ("n3/replace", "POST", {"id": ""}),
        ("n3/replace", "POST", {"id": 1}),
    ],
)
def test_malformed_member_request_is_400(
    node: Node[FakeManagement], path: str, method: str, body: Any
) -> None:
    assert node.api(f"{MEMBERS}/{path}", method, json=body).status == 400
    assert node.management.group.requested_changes == []


def test_only_administrators_change_members(node: Node[FakeManagement]) -> None:
    node.add_user("eve", "monitoring")
    for path, method, body in [
        ("n4", "PUT", {"host": "h", "port": 1}),
        (f"n3?id={hexed('n3')}", "DELETE", None),
        ("n3/replace", "POST", {"id": hexed("n3")}),
        ("n3/promote", "POST", None),
        ("n3/drain", "PUT", None),
        ("n3/drain", "DELETE", None),
    ]:
        assert node.api(f"{MEMBERS}/{path}", method, json=body, user="eve").status == 401, path
    assert node.api("cluster/upgrade/finish", "POST", user="eve").status == 401
    assert node.management.group.requested_changes == []
