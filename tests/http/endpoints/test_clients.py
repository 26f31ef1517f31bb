"""Connections, channels and consumers as shown by every node of a cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote

import pika
import pytest

from qq.testing import ClusterNode, LocalCluster
from tests.amqp10_server.socket_client import SocketClient

GUEST = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
QUORUM = {"x-queue-type": "quorum"}
PATIENCE_S = 30.0
"""Some times the interval between samples."""


@pytest.fixture(scope="module")
def nodes(until_left: Callable[[str, AbstractContextManager[Any]], Any]) -> list[ClusterNode]:
    return until_left("trio", LocalCluster(nodes=3)).nodes


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return request.node.name


@pytest.fixture
def connection(nodes: list[ClusterNode], name: str) -> Generator[Any]:
    """A connection of the last node."""
    parameters = pika.URLParameters(nodes[2].url)
    parameters.client_properties = {"connection_name": name}
    parameters.heartbeat = 30
    opened = pika.BlockingConnection(parameters)
    yield opened
    if opened.is_open:
        opened.close()


def request(node: ClusterNode, path: str, method: str = "GET") -> Any:
    connection = HTTPConnection("127.0.0.1", node.http_port, timeout=10)
    try:
        connection.request(method, f"/api/{path}", headers=GUEST)
        response = connection.getresponse()
        text = response.read()
        assert response.status in (200, 204), text
        return json.loads(text) if text else None
    finally:
        connection.close()


def wait_for(probe: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := probe()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def mine(node: ClusterNode, kind: str, connection_name: str) -> list[dict[str, Any]]:
    """The connections, or the channels, that belong to the connection of this test."""
    connections = [
        each for each in request(node, "connections") if each.get("user_provided_name") == connection_name
    ]
    if kind == "connections":
        return connections
    names = {each["name"] for each in connections}
    return [each for each in request(node, "channels") if each["connection_details"]["name"] in names]


def test_every_node_shows_a_connection(nodes: list[ClusterNode], connection: Any, name: str) -> None:
    connection.channel()
    [shown] = wait_for(lambda: mine(nodes[0], "connections", name))
    assert shown["name"] == f"{shown['peer_host']}:{shown['peer_port']} -> {shown['host']}:{shown['port']}"
    assert (shown["node"], shown["port"], shown["channels"]) == ("n3", nodes[2].amqp_port, 1)
    assert (shown["timeout"], shown["frame_max"], shown["channel_max"]) == (30, 131_072, 2047)
    assert (shown["auth_mechanism"], shown["protocol"], shown["ssl"]) == ("PLAIN", "AMQP 0-9-1", False)
    assert abs(shown["connected_at"] / 1000 - time.time()) < 60
    assert (shown["recv_cnt"] > 2, shown["recv_oct"] > 200, shown["send_cnt"] > 2) == (True, True, True)
    assert shown["send_pend"] == 0
    assert shown["recv_oct_details"].keys() == shown["send_oct_details"].keys() == {"rate"}
    assert "id" not in shown
    path = f"connections/{quote(shown['name'], safe='')}"
    assert request(nodes[1], path)["client_properties"]["connection_name"] == name
    [channel] = wait_for(lambda: request(nodes[1], f"{path}/channels"))  # applied after its connection
    assert channel["name"] == f"{shown['name']} (1)"
    basics = request(nodes[0], "connections?disable_stats=true&columns=name,recv_oct,vhost,user")
    assert {"name": shown["name"], "vhost": "/", "user": "guest"} in basics


def test_every_node_shows_sessions_of_amqp10(nodes: list[ClusterNode]) -> None:
    with SocketClient(nodes[2].amqp_port) as client:
        client.open()
        client.begin(3)
        client.attach_sender(None, 5, 3)
        [shown] = wait_for(
            lambda: [
                each for each in request(nodes[0], "connections") if each.get("container_id") == "client"
            ]
        )
        sessions = request(nodes[0], f"connections/{quote(shown['name'], safe='')}/sessions")
    assert [session["channel_number"] for session in sessions] == [3]
    assert [link["handle"] for link in sessions[0]["incoming_links"]] == [5]


def test_every_node_counts_confirms_of_all_nodes(nodes: list[ClusterNode], connection: Any) -> None:
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("", "nothing", b"m")

    def stats(node: ClusterNode) -> Any:
        return request(node, "vhosts/%2F")["message_stats"]

    for node in nodes:
        wait_for(lambda node=node: stats(node)["confirm"] and stats(node)["drop_unroutable"])
        wait_for(lambda node=node: request(node, "overview")["message_stats"]["confirm"])


def test_idle_queue_and_channel_show_since_when(nodes: list[ClusterNode], connection: Any, name: str) -> None:
    began = datetime.now(UTC)
    channel = connection.channel()
    channel.queue_declare(name, durable=True)
    channel.basic_publish("", name, b"m")
    assert "idle_since" not in request(nodes[0], f"queues/%2F/{name}")
    queue = wait_for(lambda: request(nodes[0], f"queues/%2F/{name}").get("idle_since"))
    of_channel = wait_for(lambda: mine(nodes[0], "channels", name)[0].get("idle_since"))
    for since in (queue, of_channel):
        assert began - timedelta(seconds=1) < datetime.fromisoformat(since) < began + timedelta(seconds=10)
    channel.basic_publish("", name, b"m")
    assert "idle_since" not in wait_for(
        lambda: (shown := request(nodes[0], f"queues/%2F/{name}"))["messages"] == 2 and shown
    )


def test_connection_counts_octets_read_and_written(
    nodes: list[ClusterNode], connection: Any, name: str
) -> None:
    channel = connection.channel()
    [before] = wait_for(lambda: mine(nodes[2], "connections", name))
    channel.queue_declare(name, durable=True, arguments=QUORUM)
    channel.basic_publish("", name, b"x" * 10_000)
    assert len(channel.basic_get(name, auto_ack=True)[2]) == 10_000
    [after] = mine(nodes[2], "connections", name)
    assert 10_000 < after["recv_oct"] - before["recv_oct"] < 11_000
    assert 10_000 < after["send_oct"] - before["send_oct"] < 11_000
    assert 1 < after["send_cnt"] - before["send_cnt"] < 10


def test_every_node_shows_the_work_of_a_channel(nodes: list[ClusterNode], connection: Any, name: str) -> None:
    channel = connection.channel()
    channel.queue_declare(name, durable=True, arguments=QUORUM)
    channel.confirm_delivery()
    for _ in range(4):
        channel.basic_publish("", name, b"m")
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "nothing", b"m", mandatory=True)
    channel.basic_publish("", "nothing", b"m")
    channel.basic_qos(prefetch_count=7)
    channel.basic_qos(prefetch_count=9, global_qos=True)
    tag = channel.basic_get(name)[0].delivery_tag
    channel.basic_get(name, auto_ack=True)
    channel.basic_ack(tag)
    channel.basic_consume(name, print, consumer_tag="mine")

    def shown() -> Any:
        found = mine(nodes[0], "channels", name)
        return found[0] if found and found[0]["messages_unacknowledged"] == 2 else None

    found = wait_for(shown)
    for node in nodes:
        wait_for(lambda node=node: request(node, f"queues/%2F/{name}")["consumers"])
    assert (found["node"], found["number"], found["user"], found["vhost"]) == ("n3", 1, "guest", "/")
    assert (found["confirm"], found["transactional"], found["state"]) == (True, False, "running")
    assert (found["prefetch_count"], found["global_prefetch_count"], found["consumer_count"]) == (7, 9, 1)
    assert found["messages_unconfirmed"] == 0
    stats = found["message_stats"]
    assert {key: value for key, value in stats.items() if isinstance(value, int)} == {
        "publish": 6,
        "confirm": 6,
        "return_unroutable": 1,
        "drop_unroutable": 1,
        "deliver": 2,
        "deliver_no_ack": 0,
        "get": 1,
        "get_no_ack": 1,
        "get_empty": 0,
        "deliver_get": 4,
        "redeliver": 0,
        "ack": 1,
    }
    assert stats["publish_details"].keys() == {"rate"}
    one = request(nodes[1], f"channels/{quote(found['name'], safe='')}")
    [consumer] = one["consumer_details"]
    assert (consumer["consumer_tag"], consumer["queue"]) == ("mine", {"name": name, "vhost": "/"})
    assert one["publishes"] == one["deliveries"] == []
    assert found["name"] in [each["name"] for each in request(nodes[0], "vhosts/%2F/channels")]
    [consumer] = request(nodes[1], f"queues/%2F/{name}")["consumer_details"]
    connection_name = found["connection_details"]["name"]
    assert consumer["channel_details"] == {
        "node": "n3",
        "number": 1,
        "name": found["name"],
        "connection_name": connection_name,
        "user_provided_name": name,
        "peer_host": "127.0.0.1",
        "peer_port": int(connection_name.partition(" ")[0].rpartition(":")[2]),
        "user": "guest",
    }
    assert consumer in request(nodes[0], "consumers")
    assert consumer in request(nodes[0], "consumers?page=1&page_size=500")["items"]
    [queue] = [each for each in request(nodes[1], "queues/detailed") if each["name"] == name]
    stats = queue["message_stats"]
    assert (stats["get"], stats["get_no_ack"], stats["deliver"], stats["ack"]) == (1, 1, 2, 1)
    assert queue["messages_persistent"] == queue["messages"] == 2


def test_uncommitted_transaction_is_shown(nodes: list[ClusterNode], connection: Any, name: str) -> None:
    channel = connection.channel()
    channel.queue_declare(name, durable=True, arguments=QUORUM)
    channel.basic_publish("", name, b"m")
    channel.tx_select()
    tag = wait_for(lambda: channel.basic_get(name)[0]).delivery_tag
    channel.basic_publish("", name, b"m")
    channel.basic_publish("", name, b"m")
    channel.basic_ack(tag)
    channel.queue_declare(name, passive=True)  # all before it has arrived
    [shown] = wait_for(lambda: mine(nodes[1], "channels", name))
    assert (shown["transactional"], shown["messages_uncommitted"], shown["acks_uncommitted"]) == (True, 2, 1)
    channel.tx_commit()
    [shown] = mine(nodes[1], "channels", name)
    assert (shown["messages_uncommitted"], shown["acks_uncommitted"]) == (0, 0)


def test_exclusive_queue_shows_its_owner(nodes: list[ClusterNode], connection: Any, name: str) -> None:
    channel = connection.channel()
    channel.queue_declare(name, exclusive=True)
    channel.basic_consume(name, print, consumer_tag="only", exclusive=True)
    queue = request(nodes[2], f"queues/%2F/{name}")
    [shown] = mine(nodes[2], "connections", name)
    assert queue["owner_pid_details"] == {key: shown[key] for key in ("name", "peer_host", "peer_port")}
    assert queue["exclusive_consumer_tag"] == "only"


def test_pages_of_connections_are_parts_of_the_whole_list(
    nodes: list[ClusterNode], connection: Any, name: str
) -> None:
    connections = [pika.BlockingConnection(pika.URLParameters(node.url)) for node in nodes for _ in range(2)]
    wait_for(lambda: len(request(nodes[0], "connections")) > len(connections))
    for order in ("", "&sort=channels", "&sort=node&sort_reverse=true", "&sort=user"):
        whole = [each["name"] for each in request(nodes[0], f"connections?x{order}")]
        pages = [request(nodes[0], f"connections?page={page}&page_size=3{order}") for page in (1, 2, 3)]
        assert [each["name"] for page in pages for each in page["items"]] == whole[:9]
        assert pages[0]["total_count"] == len(whole) >= 7
        assert all(each["timeout"] for page in pages for each in page["items"])  # it is all of each
    [shown] = mine(nodes[0], "connections", name)
    found = request(nodes[1], f"connections?page=1&name={shown['peer_port']}")
    assert shown["name"] in [each["name"] for each in found["items"]]
    for each in connections:
        each.close()


def test_pages_of_channels_are_parts_of_the_whole_list(
    nodes: list[ClusterNode], connection: Any, name: str
) -> None:
    connections = [pika.BlockingConnection(pika.URLParameters(node.url)) for node in nodes]
    channels = [each.channel(number) for each in (connection, *connections) for number in (1, 3)]
    wait_for(lambda: len(request(nodes[0], "channels")) >= len(channels))
    for order in ("", "&sort=number&sort_reverse=true", "&sort=node"):
        whole = [each["name"] for each in request(nodes[0], f"channels?x{order}")]
        pages = [request(nodes[0], f"channels?page={page}&page_size=3{order}") for page in (1, 2)]
        assert [each["name"] for page in pages for each in page["items"]] == whole[:6]
        assert pages[0]["total_count"] == len(whole) >= 8
        assert all("message_stats" in each for page in pages for each in page["items"])  # it is all of each
    wait_for(lambda: len(mine(nodes[1], "channels", name)) == 2)
    [one, _] = mine(nodes[1], "channels", name)
    assert request(nodes[1], f"channels/{quote(one['name'], safe='')}")["number"] == one["number"] == 1
    shown = request(
        nodes[1], f"connections/{quote(one['connection_details']['name'], safe='')}/channels?page=1"
    )
    assert [each["number"] for each in shown["items"]] == [1, 3]
    for each in connections:
        each.close()


def viewed(node: ClusterNode, query: str) -> dict[str, Any]:
    """Return the first document of a view."""
    there = HTTPConnection("127.0.0.1", node.http_port, timeout=20)
    there.request("GET", f"/api/stream?view={query}", headers=GUEST)
    answer = there.getresponse()
    assert answer.status == 200
    while answer.readline() != b"event: view\n":
        pass
    document = json.loads(answer.readline().removeprefix(b"data: "))
    there.close()
    return document


def test_page_of_every_node_finds_clients_by_their_names(
    nodes: list[ClusterNode], connection: Any, name: str
) -> None:
    channel = connection.channel()
    channel.queue_declare(name, durable=True, arguments=QUORUM)
    channel.basic_consume(name, lambda *_: None)
    some = quote(name.upper()[:40])
    wait_for(
        lambda: all(name in [each["queue"]["name"] for each in request(node, "consumers")] for node in nodes)
    )
    for node in nodes:
        for view in (
            f"connections&name={some}",
            f"channels&name={some}",
            f"channels&use_regex=true&page=1&name={some}$",
        ):
            items = viewed(node, view)["items"]
            found = [each.get("connection_details", each)["user_provided_name"] for each in items]
            assert found == ([] if view.endswith("$") else [name]), view
        queue = f"queue&vhost=%2F&name={quote(name)}&client="
        [consumer] = viewed(node, queue + some)["consumer_details"]
        assert consumer["channel_details"]["user_provided_name"] == name
        assert viewed(node, queue + "nosuch")["consumer_details"] == []
        here = viewed(node, f"connections&node=n3&name={some}")
        there = viewed(node, f"connections&node=n1&name={some}")
        assert (len(here["items"]), len(there["items"])) == (1, 0)
    channel.queue_delete(name)


def test_connection_of_a_different_node_is_closed_by_name(
    nodes: list[ClusterNode], connection: Any, name: str
) -> None:
    [shown] = wait_for(lambda: mine(nodes[0], "connections", name))
    request(nodes[0], f"connections/{quote(shown['name'], safe='')}", "DELETE")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="Closed via management plugin"):
        connection.process_data_events(5)
    wait_for(lambda: not mine(nodes[0], "connections", name))


# --- users who are logged in with the page


def test_web_session_is_valid_at_every_node_until_the_logout(nodes: list[ClusterNode]) -> None:
    def request(node: ClusterNode, method: str, path: str, **headers: str) -> Any:
        connection = HTTPConnection("127.0.0.1", node.http_port, timeout=10)
        try:
            connection.request(
                method, path, body="username=guest&password=guest", headers={"Host": "lb", **headers}
            )
            answer = connection.getresponse()
            text = answer.read()
            return answer, json.loads(text) if text else None
        finally:
            connection.close()

    answer, shown = request(nodes[0], "POST", "/api/login")
    cookie = {"Cookie": answer.getheader("Set-Cookie").partition(";")[0]}
    for node in nodes:
        assert request(node, "GET", "/api/session", **cookie)[1] == shown
    csrf = {"X-CSRF-Token": shown["csrf_token"]}
    assert request(nodes[1], "DELETE", "/api/session", **cookie)[0].status == 403
    assert request(nodes[1], "DELETE", "/api/session", **cookie, **csrf)[0].status == 204
    for node in nodes:
        assert request(node, "GET", "/api/session", **cookie)[0].status == 401
