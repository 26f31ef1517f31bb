"""Nodes, the broker as a whole, and replicas over HTTP."""

from __future__ import annotations

import base64
import hashlib
import os
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

from cluster.configuration.change_request import Verb
from cluster.raft.messages import Alarm
from cluster.runtime.ports import pack
from qq.machine.protocol.commands import Connect, DeclareQueue, OpenChannel, PutVhost, SetPermissions
from qq.management.nodes.node_reports import decode_report
from qq.management.reports.nodes import Listener
from tests.http.fakes import MachineManagement
from tests.http.http_node import Node

Machine = Node[MachineManagement]


@pytest.fixture
def node() -> Machine:
    node = Node(MachineManagement())
    node.management.listeners += [
        Listener("http", "10.0.0.1", 15672),
        Listener("amqp/ssl", "10.0.0.1", 5671, uses_tls=True),
        Listener("amqp", "10.0.0.1", 5672),
    ]
    return node


def declare_queue(name: str, session: int = 0, **options: Any) -> DeclareQueue:
    flags = {"durable": True, "exclusive": False, "auto_delete": False} | options
    return DeclareQueue(session, session, name, False, **flags, server_named=False, arguments={})


# --- nodes


def test_node_shows_its_figures_and_the_status_of_its_peers(node: Machine) -> None:
    one, other = node.api("nodes").json
    assert (one["name"], one["running"], one["being_drained"]) == ("n1", True, False)
    assert one["os_pid"] == str(os.getpid())
    for figure in ("mem_used", "fd_used", "run_queue", "processors", "context_switches"):
        assert one[figure] > 0, figure
    assert one["mem_limit"] == 2**40
    assert one["fd_used"] < one["fd_total"]
    assert (one["sockets_used"], one["sockets_total"]) == (0, 3)
    assert (one["disk_free"], one["disk_free_limit"]) == (10**9, 5 * 10**7)
    assert one["mem_alarm"] is one["disk_free_alarm"] is False
    assert one["partitions"] == other["partitions"] == []
    assert (other["name"], other["running"]) == ("n2", False)
    assert "mem_used" not in other
    assert node.api("nodes/n1").json.keys() == one.keys()
    assert node.api("nodes/n2").json == other
    assert node.api("nodes/n9").status == 404


@pytest.mark.parametrize("path", ["nodes/{}", "nodes/{}/memory", "healthchecks/node/{}", "auth/attempts/{}"])
def test_node_may_be_named_as_in_rabbitmq(node: Machine, path: str) -> None:
    assert node.api(path.format("rabbit@n1")).status == node.api(path.format("n1")).status == 200
    assert node.api(path.format("rabbit@nonesuch")).status == 404


def test_node_with_an_alarm_shows_it(node: Machine) -> None:
    node.management.group.known["n1"].alarm = Alarm.MEMORY
    shown = node.api("nodes/n1").json
    assert (shown["mem_alarm"], shown["disk_free_alarm"]) == (True, False)


def test_report_of_a_node_is_read_as_it_was_packed(node: Machine) -> None:
    node.management.broker.logins.outcomes["http", True] += 1
    report = node.management.nodes.own_report()
    assert decode_report(msgpack.unpackb(pack(report))) == report
    assert decode_report([*report, "of a later program"]) == report
    for malformed in (None, "", report[:-1]):
        assert decode_report(malformed) is None


def test_figures_of_peers_are_queried(node: Machine) -> None:
    mine = node.management.nodes.own_report()
    theirs = mine._replace(
        name="n2", pid=7, memory_bytes=2**20, listeners=[Listener("amqp", "10.0.0.2", 5672)]
    )

    async def expected(name: str, topic: str) -> Any:
        return msgpack.unpackb(pack(theirs)) if (name, topic) == ("n2", "node") else None

    node.management.nodes._queries.query = expected  # pyright: ignore[reportAttributeAccessIssue]
    assert [each["os_pid"] for each in node.api("nodes").json] == [str(mine.pid), "7"]
    assert node.api("nodes/n2/memory").json["memory"]["total"]["rss"] == 2**20
    assert [each["node"] for each in node.api("overview").json["listeners"]] == ["n1", "n2", "n1", "n1"]
    assert node.api("auth/attempts/n2").json == []
    assert node.api("auth/attempts/n2", "DELETE").status == 503


def test_memory_of_a_node_is_its_resident_size(node: Machine) -> None:
    node.management.group.journal.cached_bytes = 10**6
    node.management.broker.connections[7] = SimpleNamespace(unread_bytes=300, unsent_bytes=40)
    memory = node.api("nodes/n1/memory").json["memory"]
    strategy, totals = memory.pop("strategy"), memory.pop("total")
    assert strategy == "rss"
    assert sum(memory.values()) == totals["rss"] > 10**7
    assert (memory["binary"], memory["connection_readers"], memory["connection_writers"]) == (10**6, 300, 40)
    assert 10**6 < memory["code"] < memory["other_system"]
    assert memory["quorum_ets"] == memory["atom"] == 0
    assert node.api("nodes/n2/memory").json == {"memory": "not_available"}


def test_memory_of_a_node_is_shown_in_percent_and_with_the_node(node: Machine) -> None:
    node.management.broker.connections[7] = SimpleNamespace(unread_bytes=1, unsent_bytes=0)
    memory = node.api("nodes/n1/memory").json["memory"]
    assert node.api("nodes/n1?memory=true").json["memory"].keys() == memory.keys()
    assert "memory" not in node.api("nodes/n1").json
    shares = node.api("nodes/n1/memory/relative").json["memory"]
    assert shares.pop("total") == 100
    assert shares.keys() == memory.keys() - {"strategy", "total"}
    assert (shares["connection_readers"], shares["connection_writers"]) == (1, 0)  # as RabbitMQ rounds
    assert 95 <= sum(shares.values()) <= 105


def test_settings_of_all_nodes_change_with_a_single_request(node: Machine) -> None:
    asked: list[tuple[Any, ...]] = []

    async def query_all(topic: str, *arguments: Any) -> dict[str, Any]:
        asked.append((topic, *arguments))
        return {"n2": "", "n3": None, "n4": "its limit is another"}

    node.management.nodes._queries.query_all = query_all  # pyright: ignore[reportAttributeAccessIssue]
    path = "config/effective/log_level?nodes=all"
    shown = {
        "changed": ["n1", "n2"],
        "unconfirmed": {
            "n3": "it does not answer, or runs an earlier release",
            "n4": "its limit is another",
        },
    }
    assert node.api(path, "PUT", json={"value": "debug"}).json == shown
    assert "log_level = debug" in node.api("config/effective").text
    assert node.api(path, "DELETE").json == shown
    assert asked == [("setting", "log_level", "debug"), ("setting", "log_level")]


def test_impossible_setting_reaches_no_node(node: Machine) -> None:
    node.management.nodes._queries.query_all = None  # pyright: ignore[reportAttributeAccessIssue]
    assert node.api("config/effective/frame_max?nodes=all", "PUT", json={"value": 1}).status == 400
    assert node.api("config/effective/frame_max?nodes=all", "DELETE").status == 400
    assert node.api("config/effective/log_level?nodes=n2", "PUT", json={"value": "debug"}).status == 400


def test_node_changes_a_setting_for_a_peer(node: Machine) -> None:
    change = node.management.nodes._queries._topics["setting"]
    assert change("log_level", "debug") == change("log_level") == ""
    assert change("frame_max", 1) == change("frame_max") == "frame_max cannot be changed"
    assert node.api("nodes/n9/memory").status == 404


@pytest.mark.parametrize("path", ["nodes", "nodes/n1", "nodes/n1/memory", "auth/attempts/n1"])
def test_nodes_are_for_monitors(node: Machine, path: str) -> None:
    node.add_user("ann", "policymaker")
    node.add_user("eve", "monitoring")
    assert (node.api(path, user="ann").status, node.api(path, user="eve").status) == (401, 200)


def test_logins_are_counted_and_reset(node: Machine) -> None:
    outcomes = node.management.broker.logins.outcomes
    outcomes["amqp091", True] += 3
    outcomes["amqp091", False] += 1
    outcomes["http", False] += 2
    amqp = {
        "protocol": "amqp091",
        "auth_attempts": 4,
        "auth_attempts_failed": 1,
        "auth_attempts_succeeded": 3,
    }
    http = {"protocol": "http", "auth_attempts": 2, "auth_attempts_failed": 2, "auth_attempts_succeeded": 0}
    assert node.api("auth/attempts/n1").json == [amqp, http]
    assert node.api("auth/attempts/n1/source").json == []
    assert node.api("auth/attempts/n2").json == "not_available"
    answer = node.api("auth/attempts/n2", "DELETE")
    assert (answer.status, answer.json["reason"]) == (503, "n2 has to be asked for it itself")
    assert node.api("auth/attempts/n9", "DELETE").status == 404
    node.add_user("eve", "monitoring")
    assert node.api("auth/attempts/n1", "DELETE", user="eve").status == 401
    for path in ("auth/attempts/n1", "auth/attempts/n1/source", "reset", "reset/n1"):
        outcomes["http", True] += 1
        assert node.api(path, "DELETE").status == 204
        assert node.api("auth/attempts/n1").json == []
    assert node.api("reset/n2", "DELETE").status == 404
    assert node.api("reset", "DELETE", user="eve").status == 401


def test_virtual_host_can_be_started_at_each_node(node: Machine) -> None:
    assert node.api("vhosts/%2F/start/n2", "POST").status == 204
    answer = node.api("vhosts/%2F/start/n9", "POST")
    assert (answer.status, answer.json["reason"]) == (400, "Unknown node: n9")
    assert node.api("vhosts/other/start/n1", "POST").status == 404


# --- the whole


def test_overview_shows_totals_of_visible_objects(node: Machine) -> None:
    node.management.make(
        PutVhost("v", "", [], ""),
        SetPermissions("guest", "v", ".*", ".*", ".*"),
        Connect(1, "v", "guest"),
        OpenChannel(2, 1),
        declare_queue("q", 2),
    )
    shown = node.api("overview").json
    assert shown["object_totals"] == {
        "consumers": 0,
        "queues": 1,
        "exchanges": 14,
        "connections": 1,
        "channels": 1,
    }
    assert (shown["node"], shown["cluster_name"], shown["rabbitmq_version"]) == ("n1", "qq", "4.0.0")
    assert [each["name"] for each in shown["exchange_types"]][:4] == ["direct", "fanout", "headers", "topic"]
    listener = {"node": "n1", "ip_address": "10.0.0.1", "socket_opts": {}}
    assert shown["listeners"] == [
        listener | {"protocol": "amqp", "port": 5672, "tls": False},
        listener | {"protocol": "amqp/ssl", "port": 5671, "tls": True},
        listener | {"protocol": "http", "port": 15672, "tls": False},
    ]
    [context] = shown["contexts"]
    assert (context["node"], context["path"], context["port"]) == ("n1", "/", "15672")
    node.add_user("ann", "management", vhosts=("/",))
    seen = node.api("overview", user="ann").json
    assert "listeners" not in seen
    assert seen["object_totals"]["queues"] == seen["object_totals"]["connections"] == 0
    assert seen["object_totals"]["exchanges"] == 7


def test_missing_plugins_answer_like_rabbitmq(node: Machine) -> None:
    assert node.api("version").json == "4.0.0"
    assert node.api("extensions").json == []
    assert node.api("federation-links").status == 404


def test_feature_flags_of_versions_are_enabled_by_an_upgrade(node: Machine) -> None:
    def states() -> dict[str, str]:
        return {flag["name"]: flag["state"] for flag in node.api("feature-flags").json}

    assert states() == dict.fromkeys(states(), "enabled") | {
        "qq_state_version_8": "disabled",
        "qq_state_version_9": "disabled",
        "qq_state_version_10": "disabled",
        "qq_state_version_11": "disabled",
        "qq_state_version_12": "disabled",
        "qq_state_version_13": "disabled",
    }
    assert node.api("feature-flags/quorum_queue/enable", "PUT", json={}).status == 204
    assert node.management.group.requested_changes == []
    assert node.api("feature-flags/qq_state_version_9/enable", "PUT").status == 204
    assert {change.verb for change in node.management.group.requested_changes} == {Verb.FINISH_UPGRADE}
    assert set(states().values()) == {"enabled"}
    answer = node.api("feature-flags/khepri_db/enable", "PUT")
    assert (answer.status, answer.json["reason"]) == (400, "unsupported")
    node.add_user("eve", "monitoring")
    assert node.api("feature-flags/quorum_queue/enable", "PUT", user="eve").status == 401


def test_deprecated_feature_is_in_use_with_a_transient_queue(node: Machine) -> None:
    assert [each["name"] for each in node.api("deprecated-features").json] == ["transient_nonexcl_queues"]
    node.management.make(declare_queue("durable"))
    assert node.api("deprecated-features/used").json == []
    node.management.make(declare_queue("transient", durable=False))
    assert node.api("deprecated-features/used").json == node.api("deprecated-features").json


def test_effective_configuration_is_shown_to_administrators(node: Machine) -> None:
    answer = node.api("config/effective")
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert answer.text == "cluster_name = qq\nlimits.cache_bytes = 7\n"
    node.add_user("eve", "monitoring")
    assert node.api("config/effective", user="eve").status == 401


def test_a_password_is_hashed(node: Machine) -> None:
    octets = base64.b64decode(node.api("auth/hash_password/p%C3%A4ss").json["ok"])
    assert hashlib.sha256(octets[:4] + "päss".encode()).digest() == octets[4:]
    node.add_user("eve", "monitoring")
    assert node.api("auth/hash_password/x", user="eve").status == 401


def test_queues_of_a_user_are_those_of_its_connections(node: Machine) -> None:
    mine, shared = declare_queue("mine", 2, exclusive=True), declare_queue("shared", 2)
    node.management.make(Connect(1, "/", "guest"), OpenChannel(2, 1), mine._replace(connection=1), shared)
    assert [queue["name"] for queue in node.api("users/guest/queues").json] == ["mine"]
    assert node.api("users/nobody/queues").json == []
    node.add_user("ann", "management")
    assert node.api("users/guest/queues", user="ann").json == []


# --- replicas


@pytest.fixture
def queues() -> Machine:
    node = Node(MachineManagement())
    quorum = declare_queue("q")._replace(arguments={"x-queue-type": "quorum"})
    node.management.make(quorum, declare_queue("classic"))
    return node


def test_the_status_of_a_quorum_queue_is_that_of_the_log(queues: Machine) -> None:
    one, other = queues.api("queues/quorum/%2F/q/status").json
    assert one == {
        "Node Name": "n1",
        "Raft State": "leader",
        "Membership": "voter",
        "Last Log Index": 12,
        "Last Written": 12,
        "Last Applied": 10,
        "Commit Index": 11,
        "Snapshot Index": 9,
        "Term": 3,
        "Machine Version": 8,
    }
    assert (other["Node Name"], other["Raft State"], other["Commit Index"]) == ("n2", "noproc", "")
    answer = queues.api("queues/quorum/%2F/classic/status")
    assert (answer.status, answer.json["reason"]) == (503, "classic_queue_not_supported")
    assert queues.api("queues/quorum/%2F/nothing/status").status == 404


GROW = {"vhost_pattern": ".*", "queue_pattern": ".*", "strategy": "all"}


@pytest.mark.parametrize(
    ("path", "method", "body", "status", "expected"),
    [
        ("queues/quorum/%2F/q/replicas/add", "POST", {"node": "n2"}, 204, ""),
        ("queues/quorum/%2F/q/replicas/add", "POST", {"node": "n9"}, 400, "`qq member add n9` makes it one"),
        ("queues/quorum/%2F/q/replicas/add", "POST", {}, 400, "key_missing: node"),
        ("queues/quorum/%2F/nothing/replicas/add", "POST", {"node": "n2"}, 404, ""),
        (
            "queues/quorum/%2F/q/replicas/delete",
            "DELETE",
            {"node": "n2"},
            400,
            "`qq member remove n2` takes it",
        ),
        ("queues/quorum/%2F/q/replicas/delete", "DELETE", {"node": "n9"}, 202, ""),
        ("queues/quorum/replicas/on/n2/grow", "POST", GROW, 204, ""),
        ("queues/quorum/replicas/on/n2/grow", "POST", {"strategy": "all"}, 400, "key_missing: vhost_pattern"),
        ("queues/quorum/replicas/on/n9/grow", "POST", GROW, 404, ""),
        ("queues/quorum/replicas/on/n2/shrink", "DELETE", None, 400, "`qq drain n2` has it lead none"),
        ("queues/quorum/replicas/on/n9/shrink", "DELETE", None, 404, ""),
        ("rebalance/queues", "POST", None, 204, ""),
    ],
)
def test_replica_requests_are_accepted_only_if_already_true(
    queues: Machine, path: str, method: str, body: Any, status: int, expected: str
) -> None:
    answer = queues.api(path, method, json=body)
    assert answer.status == status
    assert expected in answer.text
    queues.add_user("eve", "monitoring", vhosts=("/",))
    assert queues.api(path, method, user="eve", json=body).status == 401
    assert queues.management.group.requested_changes == []


def test_only_requested_columns_of_a_node_are_returned(node: Machine) -> None:
    assert node.api("nodes/n1?columns=name,type").json == {"name": "n1", "type": "disc"}
