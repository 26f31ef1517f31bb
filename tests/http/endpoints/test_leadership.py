"""Leadership and its health checks over HTTP, on a fake group with a state set by the test."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.membership.health import Verdict
from qq.management.nodes import leadership
from tests.http.fakes import FakeManagement
from tests.http.http_node import Node

LEADER = "cluster/leader"
SAFE_TO_STOP = "health/checks/safe-to-stop"
CRITICAL = "health/checks/node-is-quorum-critical"


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node[FakeManagement]:
    monkeypatch.setattr(leadership, "RETRY_S", 0.2)
    monkeypatch.setattr(leadership, "PATIENCE_S", 0.2)
    return Node(FakeManagement())


def transfer(node: Node[FakeManagement], to: str | None = None) -> tuple[int, str]:
    """Return the status, and the leader or the reason of a refusal."""
    answer = node.api(LEADER, "PUT", json={} if to is None else {"to": to})
    return answer.status, answer.json.get("leader") or answer.json["reason"]


def test_leadership_transfer_is_answered_when_it_is_complete(
    node: Node[FakeManagement],
) -> None:
    group = node.management.group
    assert node.api(LEADER).json == {"leader": "n1"}
    assert transfer(node, "n3") == (200, "n3")
    assert node.api(LEADER).json == {"leader": "n3"}
    assert transfer(node, "n3") == (200, "n3")
    assert group.requested_leaders == ["n3"]
    assert transfer(node) == (200, "n1")
    assert node.api(LEADER, "PUT").json == {"leader": "n2"}
    assert node.api(f"{LEADER}/").json == {"leader": "n2"}


def test_ignored_transfer_of_leadership_is_requested_again(node: Node[FakeManagement]) -> None:
    group = node.management.group
    group.ignored_requests = 1
    assert transfer(node, "n2") == (200, "n2")
    assert group.requested_leaders == ["n2", "n2"]
    group.ignored_requests = 9
    text = "n3 has not taken over within 0.4 s; n2 leads; try again"
    assert transfer(node, "n3") == (503, text)
    assert group.requested_leaders == ["n2", "n2", "n3", "n3"]
    assert transfer(node) == (503, text.replace("n3 has not", "no other node has"))


def test_failed_transfer_names_the_link_that_is_missing(
    node: Node[FakeManagement],
) -> None:
    """The leader, which has links with both, refuses; the node itself does not know that the peer is up."""
    group = node.management.group
    group.ignored_requests = 9
    group.known["n2"].misses = ("n3",)
    assert transfer(node, "n2") == (
        503,
        "n2 has not taken over within 0.4 s; n1 leads; n2 has no link with n3",
    )


def test_transfer_to_a_node_that_cannot_lead_is_refused(node: Node[FakeManagement]) -> None:
    group = node.management.group
    group.flaws["n2"] = "n2 does not answer (start it)"
    assert transfer(node, "n2") == (400, "n1 leads on: n2 does not answer (start it)")
    assert transfer(node, "n9") == (404, "'n9' is no node of this cluster, which has n1, n2, n3")
    group.members.of_release_0_1 = ("n1",)
    why = "n1 leads on: it runs release 0.1, and hands over only when it is stopped"
    assert transfer(node, "n3") == transfer(node) == (400, why)
    group.members.of_release_0_1 = ()
    group.members.names = ["n1"]
    assert transfer(node) == (400, "n1 leads on: there is no other node")
    assert transfer(node, "n1") == (200, "n1")
    group.leader = None
    assert transfer(node, "n1")[0] == 503
    assert node.api(LEADER).json == {"leader": None}
    assert group.requested_leaders == []


@pytest.mark.parametrize("body", [{"to": 1}, {"to": None}, {"from": "n1"}, ["n1"]])
def test_malformed_transfer_is_400(node: Node[FakeManagement], body: Any) -> None:
    assert node.api(LEADER, "PUT", json=body).status == 400


def test_only_administrators_transfer_leadership(node: Node[FakeManagement]) -> None:
    node.add_user("eve", "monitoring")
    assert node.api(LEADER, "PUT", user="eve").status == 401
    assert node.management.group.requested_leaders == []
    assert {node.api(path, user="eve").status for path in (LEADER, SAFE_TO_STOP, CRITICAL)} == {200}


def test_safe_to_stop_is_the_status_of_the_answer(node: Node[FakeManagement]) -> None:
    answer = node.api(SAFE_TO_STOP)
    assert (answer.status, answer.json) == (200, {"status": "ok", "reason": "n1: it may be stopped"})
    node.management.group.verdict = Verdict(False, "no majority")
    answer = node.api(f"{SAFE_TO_STOP}/n3")
    assert (answer.status, answer.json) == (503, {"status": "failed", "reason": "n3: no majority"})
    assert node.api(f"{SAFE_TO_STOP}/n9").status == 404


def test_node_needed_for_the_majority_is_critical(node: Node[FakeManagement]) -> None:
    answer = node.api(CRITICAL)
    assert (answer.status, answer.json) == (200, {"status": "ok"})
    group = node.management.group
    group.verdict = Verdict(False, "no majority")
    answer = node.api(CRITICAL)
    assert answer.status == 503
    assert answer.json == {
        "status": "failed",
        "reason": "There are quorum queues that would lose their quorum if the target node is shut down",
        "queues": [
            {
                "readable_name": "queue 'orders' in vhost '/'",
                "name": "orders",
                "virtual_host": "/",
                "type": "rabbit_quorum_queue",
            }
        ],
    }
    group.members.names = ["n1"]
    answer = node.api(CRITICAL)
    assert (answer.status, answer.json) == (200, {"status": "ok", "reason": "single node cluster"})
