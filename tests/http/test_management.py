"""The management API of a real node: from a client's message to RabbitMQ's JSON, and from JSON to the queue."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pika.exceptions
import pytest
from aiohttp import encode_basic_auth
from multidict import CIMultiDict, CIMultiDictProxy

from qq import testing
from qq.testing import ClusterNode, LocalCluster
from tests.http.http_node import Answer

QUORUM = {"x-queue-type": "quorum"}
GUEST = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}


@pytest.fixture
def channel(real_node: ClusterNode) -> Generator[Any]:
    with channel_of(real_node) as channel:
        yield channel


class channel_of:  # noqa: N801  # reads as a function
    """A channel in confirm mode of a connection of its own."""

    def __init__(self, node: ClusterNode) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(node.url))

    def __enter__(self) -> Any:
        channel: Any = self._connection.channel()
        channel.confirm_delivery()
        return channel

    def __exit__(self, *_: object) -> None:
        self._connection.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return request.node.name


def request(
    node: ClusterNode,
    path: str,
    method: str = "GET",
    body: Any = None,
    timeout_s: float = 10,
    headers: dict[str, str] | None = None,
) -> Answer:
    connection = HTTPConnection("127.0.0.1", node.http_port, timeout=timeout_s)
    try:
        sent = None if body is None else json.dumps(body)
        connection.request(method, f"/api/{path}", sent, GUEST | (headers or {}))
        response = connection.getresponse()
        got: CIMultiDict[str] = CIMultiDict(response.getheaders())
        return Answer(response.status, CIMultiDictProxy(got), response.read().decode())
    finally:
        connection.close()


def queue_of(node: ClusterNode, name: str) -> dict[str, Any]:
    return request(node, f"queues/%2F/{name}").json


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- reads


def test_a_queue_shows_where_its_messages_are(real_node: ClusterNode, channel: Any, name: str) -> None:
    channel.queue_declare(name, durable=True, arguments=QUORUM | {"x-delivery-limit": 7})
    for _ in range(5):
        channel.basic_publish("", name, b"12345678")
    channel.basic_publish("", name, b"later", pika.BasicProperties(headers={"x-delay": 3_600_000}))
    tags = [channel.basic_get(name)[0].delivery_tag for _ in range(2)]
    channel.basic_ack(tags[0])
    eventually(lambda: queue_of(real_node, name)["messages_unacknowledged"] == 1)
    queue = queue_of(real_node, name)
    assert {key: queue[key] for key in queue if key.startswith("messages") and "details" not in key} == {
        "messages": 5,
        "messages_persistent": 5,
        "messages_ram": 0,
        "messages_ready": 3,
        "messages_unacknowledged": 1,
        "messages_delayed": 1,
        "messages_dlx": 0,
        "messages_leased": 0,
    }
    assert queue["message_bytes_ready"] == 3 * queue["message_bytes_unacknowledged"] > 3 * 8
    assert (queue["type"], queue["state"], queue["delivery_limit"]) == ("quorum", "running", 7)
    assert queue["leader"] == queue["node"] == "n1"
    assert queue["members"] == queue["online"] == ["n1"]
    stats = queue["message_stats"]
    counted = {key: stats[key] for key in ("publish", "deliver", "get", "deliver_get", "ack")}
    assert counted == {"publish": 6, "deliver": 0, "get": 2, "deliver_get": 2, "ack": 1}
    listed = [each for each in request(real_node, "queues").json if each["name"] == name]
    assert [each["messages"] for each in listed] == [5]


def test_queue_shows_its_dead_lettered_messages(real_node: ClusterNode, channel: Any, name: str) -> None:
    channel.queue_declare(name, durable=True, arguments=QUORUM | {"x-max-length": 1})
    for _ in range(3):
        channel.basic_publish("", name, b"m")
    assert queue_of(real_node, name)["message_stats"]["died"] == {"maxlen": 2}


def test_consumer_shows_its_settings(real_node: ClusterNode, channel: Any, name: str) -> None:
    channel.queue_declare(name, durable=True, arguments=QUORUM)
    channel.basic_qos(prefetch_count=13)
    channel.basic_consume(name, print, consumer_tag="mine", arguments={"x-priority": 3})
    channel.basic_consume(name, print, consumer_tag="automatic", auto_ack=True)
    shown = {
        each["consumer_tag"]: each
        for each in request(real_node, "consumers/%2F").json
        if each["queue"]["name"] == name
    }
    mine, automatic = shown["mine"], shown["automatic"]
    assert mine["arguments"] == {"x-priority": 3}
    assert (mine["prefetch_count"], mine["ack_required"]) == (13, True)
    assert (automatic["prefetch_count"], automatic["ack_required"]) == (0, False)
    assert (mine["active"], mine["activity_status"]) == (True, "up")
    details = mine["channel_details"]
    assert (details["node"], details["number"], details["user"]) == ("n1", 1, "guest")
    assert details["connection_name"].endswith(f" -> 127.0.0.1:{real_node.amqp_port}")
    assert details["name"] == f"{details['connection_name']} (1)"
    assert queue_of(real_node, name)["consumers"] == 2
    channel.basic_cancel("mine")
    assert queue_of(real_node, name)["consumers"] == 1


def test_single_active_consumer_is_shown_as_active(real_node: ClusterNode, channel: Any, name: str) -> None:
    channel.queue_declare(name, durable=True, arguments=QUORUM | {"x-single-active-consumer": True})
    assert queue_of(real_node, name)["single_active_consumer_tag"] is None
    channel.basic_consume(name, print, consumer_tag="first")
    channel.basic_consume(name, print, consumer_tag="second")

    def shown() -> dict[str, tuple[bool, str]]:
        return {
            each["consumer_tag"]: (each["active"], each["activity_status"])
            for each in request(real_node, "consumers").json
            if each["queue"]["name"] == name
        }

    assert shown() == {"first": (True, "single_active"), "second": (False, "waiting")}
    assert queue_of(real_node, name)["single_active_consumer_tag"] == "first"
    channel.basic_cancel("first")
    assert shown() == {"second": (True, "single_active")}
    assert queue_of(real_node, name)["single_active_consumer_tag"] == "second"


def test_consumer_capacity_and_rates_are_updated(real_node: ClusterNode, channel: Any, name: str) -> None:
    channel.queue_declare(name, durable=True, arguments=QUORUM)
    assert queue_of(real_node, name)["consumer_capacity"] == 0
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(name, print)
    assert queue_of(real_node, name)["consumer_capacity"] == 1
    # The consumer does not acknowledge: from now on, messages wait.
    deadline = time.monotonic() + 30
    queue: dict[str, Any] = {}
    while not queue or not queue["message_stats"]["publish_details"]["rate"]:
        assert time.monotonic() < deadline
        for _ in range(10):
            channel.basic_publish("", name, b"m")
        channel.connection.process_data_events(0.2)
        queue = queue_of(real_node, name)
    assert queue["consumer_capacity"] < 0.5
    assert queue["consumer_utilisation"] == queue["consumer_capacity"]


# --- changes


def test_policy_is_effective_from_its_answer_to_its_deletion(
    real_node: ClusterNode, channel: Any, name: str
) -> None:
    channel.queue_declare(name, durable=True, arguments=QUORUM)
    for number in range(5):
        channel.basic_publish("", name, b"%d" % number)
    policy = {
        "pattern": f"^{name}$",
        "definition": {"max-length": 3},
        "apply-to": "quorum_queues",
        "priority": 5,
    }
    assert request(real_node, f"policies/%2F/{name}", "PUT", policy).status == 201
    queue = queue_of(real_node, name)
    assert (queue["messages"], queue["policy"]) == (3, name)
    assert queue["effective_policy_definition"] == {"max-length": 3}
    shown = policy | {"vhost": "/", "name": name}
    assert request(real_node, f"policies/%2F/{name}").json == shown
    assert shown in request(real_node, "policies").json

    operators = {"pattern": f"^{name}$", "definition": {"max-length": 2}, "apply-to": "queues"}
    assert request(real_node, f"operator-policies/%2F/{name}", "PUT", operators).status == 201
    queue = queue_of(real_node, name)
    assert (queue["messages"], queue["operator_policy"]) == (2, name)
    assert queue["effective_policy_definition"] == {"max-length": 2}

    for kind in ("policies", "operator-policies"):
        assert request(real_node, f"{kind}/%2F/{name}", "DELETE").status == 204
        assert request(real_node, f"{kind}/%2F/{name}", "DELETE").status == 404
    queue = queue_of(real_node, name)
    assert (queue["policy"], queue["operator_policy"], queue["effective_policy_definition"]) == (
        None,
        None,
        {},
    )


def test_invalid_policy_changes_no_state(real_node: ClusterNode, name: str) -> None:
    policy = {"pattern": ".*", "definition": {"max-priority": 3}}
    answer = request(real_node, f"policies/%2F/{name}", "PUT", policy)
    assert (answer.status, answer.json["error"]) == (400, "bad_request")
    assert "are not recognised policy settings" in answer.json["reason"]
    assert request(real_node, f"policies/%2F/{name}").status == 404


def test_the_bounds_of_deduplication_hold(real_node: ClusterNode, channel: Any, name: str) -> None:
    path = "global-parameters/publisher-deduplication"
    before = request(real_node, path).json["value"]
    assert before == {"limit": 100_000, "age_ms": 7 * 24 * 3600 * 1000}
    channel.queue_declare(name, durable=True, arguments=QUORUM)

    def publish(publisher: str, sequence: int, channel: Any = channel) -> None:
        headers = {"x-publisher-id": f"{name}-{publisher}", "x-publish-seq": sequence}
        channel.basic_publish("", name, b"m", pika.BasicProperties(headers=headers))

    publish("a", 1)
    publish("a", 1)
    assert queue_of(real_node, name)["messages"] == 1
    assert request(real_node, path, "PUT", {"value": {"limit": 1000}}).status == 204
    assert request(real_node, path).json["value"] == {"limit": 1000, "age_ms": before["age_ms"]}
    unconfirmed = channel.connection.channel()
    for number in range(1000):
        publish(f"b{number}", 1, unconfirmed)
    unconfirmed.confirm_delivery()
    publish("a", 1, unconfirmed)  # further messages have taken its place
    assert queue_of(real_node, name)["messages"] == 1002
    assert request(real_node, path, "PUT", {"value": before}).status == 204


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that are started now give a change up after 2 s."""
    program = (
        "import sys; from qq import cli; from qq.management.changes import request_session; "
        "request_session.CHANGE_TIMEOUT_S = 2.0; sys.exit(cli.main())"
    )
    monkeypatch.setattr(testing, "SERVE_COMMAND", (sys.executable, "-c", program, "serve"))


@pytest.mark.usefixtures("impatient")
def test_change_without_a_majority_is_503_and_may_be_made_later() -> None:
    with LocalCluster(nodes=3) as cluster:
        node, *followers = cluster.nodes
        policy = {"pattern": "x", "definition": {"max-length": 3}}
        assert request(node, "policies/%2F/p", "PUT", policy).status == 201
        for other in followers:
            other.kill()
        policy["definition"] = {"max-length": 4}
        answer = request(node, "policies/%2F/p", "PUT", policy, timeout_s=30)
        assert (answer.status, answer.json["error"]) == (503, "service_unavailable")
        silent = f"no majority: {', '.join(other.name for other in followers)} do not answer"
        assert answer.json["reason"] == f"{silent}; outcome unknown: it may still be carried out"
        # Its existence is unknown, so it is not made either.
        answer = request(node, "policies/%2F/q", "PUT", policy, timeout_s=30)
        assert (answer.status, answer.json["reason"]) == (503, f"{silent}; not carried out")
        assert node.queues() == []
        for other in followers:
            other.start()
        cluster.wait_caught_up()
        for each in cluster.nodes:
            eventually(lambda: request(each, "policies/%2F/p").json["definition"] == {"max-length": 4})  # noqa: B023
            assert request(each, "policies/%2F/q").status == 404


# --- virtual hosts and users


Connect = Callable[..., Any]


@pytest.fixture
def connect() -> Generator[Connect]:
    """Opens connections, and closes at the end those that the broker has not closed."""
    opened: list[Any] = []

    def connect(node: ClusterNode, user: str, password: str, vhost: str = "/") -> Any:
        parameters = pika.ConnectionParameters(
            "127.0.0.1",
            node.amqp_port,
            vhost,
            pika.PlainCredentials(user, password),
            client_properties={"connection_name": "mine"},
        )
        opened.append(pika.BlockingConnection(parameters))
        return opened[-1]

    yield connect
    for connection in opened:
        if connection.is_open:
            connection.close()


def permit(node: ClusterNode, user: str, vhost: str) -> None:
    permissions = {"configure": ".*", "write": ".*", "read": ".*"}
    assert request(node, f"permissions/{vhost}/{user}", "PUT", permissions).status in (201, 204)


def test_client_uses_a_virtual_host_created_over_http(
    real_node: ClusterNode, connect: Connect, name: str
) -> None:
    assert request(real_node, f"vhosts/{name}", "PUT", {"default_queue_type": "quorum"}).status == 201
    assert request(real_node, f"users/{name}", "PUT", {"password": "pw", "tags": ""}).status == 201
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="access to vhost"):
        connect(real_node, name, "pw", name)
    permit(real_node, name, name)
    channel = connect(real_node, name, "pw", name).channel()
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"hello")
    queue = request(real_node, f"queues/{name}/q").json
    assert (queue["type"], queue["vhost"]) == ("quorum", name)
    eventually(lambda: request(real_node, f"queues/{name}/q").json["messages"] == 1)
    assert request(real_node, "queues/%2F/q").status == 404
    assert request(real_node, f"queues/{name}/q/browse").json[0]["payload"] == "hello"
    body = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    assert [each["payload"] for each in request(real_node, f"queues/{name}/q/get", "POST", body).json] == [
        "hello"
    ]
    assert request(real_node, f"queues/{name}/q").json["messages"] == 0
    assert request(real_node, f"vhosts/{name}", "DELETE").status == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=f"vhost '{name}' is deleted"):
        channel.basic_get("q")
    assert request(real_node, f"queues/{name}").status == 404


def test_limit_is_effective_from_its_answer(real_node: ClusterNode, connect: Connect, name: str) -> None:
    request(real_node, f"users/{name}", "PUT", {"password": "pw", "tags": ""})
    permit(real_node, name, "%2F")
    assert request(real_node, f"user-limits/{name}/max-connections", "PUT", {"value": 1}).status == 204
    first = connect(real_node, name, "pw")
    with pytest.raises(
        pika.exceptions.ProbableAccessDeniedError, match=r"user connection limit \(1\) is reached"
    ):
        connect(real_node, name, "pw")
    first.close()
    connect(real_node, name, "pw").close()
    assert request(real_node, f"users/{name}", "DELETE").status == 204
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(real_node, name, "pw")


def test_a_connection_is_shown_and_closed_with_a_reason(
    real_node: ClusterNode, connect: Connect, name: str
) -> None:
    request(real_node, f"users/{name}", "PUT", {"password": "pw", "tags": ""})
    permit(real_node, name, "%2F")
    connection = connect(real_node, name, "pw")
    connection.channel()
    [shown] = request(real_node, f"connections/username/{name}").json
    assert (shown["node"], shown["vhost"], shown["state"]) == ("n1", "/", "running")
    assert (shown["channels"], shown["client_properties"]["connection_name"]) == (1, "mine")
    assert shown["name"] == f"{shown['peer_host']}:{shown['peer_port']} -> 127.0.0.1:{real_node.amqp_port}"
    path = f"connections/{quote(shown['name'], safe='')}"
    assert request(real_node, path).json["name"] == shown["name"]
    assert request(real_node, path, "DELETE", headers={"X-Reason": "for a test"}).status == 204
    with pytest.raises(
        pika.exceptions.ConnectionClosedByBroker, match="CONNECTION_FORCED - for a test"
    ) as closed:
        connection.process_data_events(5)
    assert closed.value.reply_code == 320
    eventually(lambda: request(real_node, path).status == 404)


def test_definitions_of_a_node_are_imported_into_a_new_cluster(
    real_node: ClusterNode, connect: Connect, name: str
) -> None:
    assert request(real_node, f"vhosts/{name}", "PUT").status == 201
    request(real_node, f"queues/{name}/q", "PUT", {"arguments": QUORUM})
    request(real_node, f"exchanges/{name}/x", "PUT", {"type": "fanout"})
    assert request(real_node, f"bindings/{name}/e/x/q/q", "POST", {}).status == 201
    request(real_node, f"users/{name}", "PUT", {"password": "pw", "tags": "management"})
    permit(real_node, name, name)
    written = request(real_node, "definitions").json
    with LocalCluster(nodes=1) as cluster:
        [node] = cluster.nodes
        assert request(node, "definitions", "POST", written).status == 204
        again = request(node, "definitions").json
        assert {key: again[key] for key in again} == written
        assert request(node, "definitions", "POST", written).status == 204
        channel = connect(node, name, "pw", name).channel()
        channel.confirm_delivery()
        channel.basic_publish("x", "", b"m", mandatory=True)
        assert channel.basic_get("q")[2] == b"m"
        channel.connection.close()


def test_change_at_a_node_is_effective_at_all_nodes(connect: Connect) -> None:
    with LocalCluster(nodes=3) as cluster:
        first, _, third = cluster.nodes
        assert request(first, "vhosts/v", "PUT").status == 201
        assert request(first, "users/ann", "PUT", {"password": "pw", "tags": ""}).status == 201
        permit(first, "ann", "v")
        connection = connect(third, "ann", "pw", "v")
        connection.channel().queue_declare("q", durable=True)
        eventually(lambda: bool(request(first, "connections/username/ann").json))
        [shown] = request(first, "connections/username/ann").json
        assert (shown["node"], shown["peer_host"], shown["port"]) == ("n3", "127.0.0.1", third.amqp_port)
        assert request(first, f"connections/{quote(shown['name'], safe='')}", "DELETE").status == 204
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="Closed via management plugin"):
            connection.process_data_events(5)
        connection = connect(third, "ann", "pw", "v")
        assert request(first, "users/ann", "DELETE").status == 204
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="user 'ann' is deleted"):
            connection.process_data_events(5)


# --- browse


def test_browsing_leaves_messages_in_the_queue(real_node: ClusterNode, channel: Any, name: str) -> None:
    channel.queue_declare(name, durable=True, arguments=QUORUM)
    for number in range(120):
        channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(headers={"n": number}))
    found: list[dict[str, Any]] = []
    while page := request(real_node, f"queues/%2F/{name}/browse?offset={len(found)}").json:
        found += page
    assert [each["payload"] for each in found] == [str(number) for number in range(120)]
    assert [each["properties"]["headers"] for each in found] == [{"n": number} for number in range(120)]
    assert [each["offset"] for each in found] == list(range(120))
    assert queue_of(real_node, name)["messages_ready"] == 120
    assert channel.basic_get(name, auto_ack=True)[0].redelivered is False


def test_browsing_reads_bodies_that_are_only_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QQ_LIMITS_CACHE_BYTES", "1000")
    with LocalCluster(nodes=1, directory=tmp_path) as cluster:
        [node] = cluster.nodes
        with channel_of(node) as channel:
            channel.queue_declare("q", durable=True, arguments=QUORUM)
            for number in range(50):
                channel.basic_publish("", "q", b"%03d" % number * 1000)
        answer = request(node, "queues/%2F/q/browse?truncate=3")
        assert [each["payload"] for each in answer.json] == [f"{number:03}" for number in range(50)]
        assert {each["payload_bytes"] for each in answer.json} == {3000}


def test_browsing_a_queue_while_it_is_consumed_keeps_the_order(
    real_node: ClusterNode, channel: Any, name: str
) -> None:
    channel.queue_declare(name, durable=True, arguments=QUORUM)
    for number in range(500):
        channel.basic_publish("", name, b"%d" % number)

    def consume() -> None:
        with channel_of(real_node) as other:
            for _ in zip(range(500), other.consume(name, auto_ack=True), strict=False):
                pass

    consumer = threading.Thread(target=consume)
    consumer.start()
    while consumer.is_alive():
        page = [
            int(each["payload"]) for each in request(real_node, f"queues/%2F/{name}/browse?count=1000").json
        ]
        assert page == sorted(set(page))
    consumer.join()
    assert request(real_node, f"queues/%2F/{name}/browse").json == []


# --- the node itself


def test_node_shows_its_own_ports_and_figures(real_node: ClusterNode, channel: Any) -> None:
    [shown] = request(real_node, "nodes").json
    assert shown["os_pid"] == str(real_node.pid)
    assert (shown["running"], shown["sockets_used"] >= 1, shown["io_sync_count"] >= 1) == (True, True, True)
    eventually(lambda: request(real_node, "overview").json["object_totals"]["channels"] >= 1)
    overview = request(real_node, "overview").json
    ports = {each["protocol"]: each["port"] for each in overview["listeners"]}
    assert ports.keys() == {"amqp", "clustering", "http"}
    assert (ports["amqp"], ports["http"]) == (real_node.amqp_port, real_node.http_port)
    for check in (
        f"port-listener/{real_node.amqp_port}",
        "protocol-listener/amqp091",
        "ready-to-serve-clients",
    ):
        assert request(real_node, f"health/checks/{check}").status == 200
    settings = request(real_node, "config/effective").text
    assert f"name = {real_node.name}\n" in settings
    assert "secret_file" in settings
    assert "default_password" not in settings
    protocols = [each["protocol"] for each in request(real_node, f"auth/attempts/{real_node.name}").json]
    assert protocols == ["amqp091", "http"]


def test_clients_receive_the_configured_cluster_name(real_node: ClusterNode) -> None:
    def log_text() -> str:
        with channel_of(real_node) as channel:
            return channel.connection._impl.server_properties["cluster_name"]

    first = log_text()
    assert request(real_node, "cluster-name", "PUT", {"name": "blue"}).status == 204
    assert (first, log_text()) == (request(real_node, "cluster").json["cluster"], "blue")
    assert request(real_node, "global-parameters/cluster_name", "DELETE").status == 204
    assert log_text() == first


def test_refused_login_is_logged_with_user_and_address(real_node: ClusterNode) -> None:
    for user in ("intruder", "guest"):
        wrong = {"Authorization": encode_basic_auth(user, "hidden-word")}
        assert request(real_node, "whoami", headers=wrong).status == 401
    form = {"username": "by-form", "password": "hidden-word"}
    assert (
        request(real_node, "login", "POST", form, headers={"Content-Type": "application/json"}).status == 401
    )
    log = real_node.log.read_text()
    for user in ("intruder", "guest", "by-form"):
        assert f"login of user '{user}' from 127.0.0.1 (HTTP) refused\n" in log
    assert "hidden-word" not in log


def test_accepting_thread_of_a_node_answers_health_checks(real_node: ClusterNode) -> None:
    with closing(HTTPConnection("127.0.0.1", real_node.http_port, timeout=10)) as connection:
        for path in ("/livez", "/healthz"):
            connection.request("GET", path)
            response = connection.getresponse()
            assert (response.status, response.read()) == (200, b'{"status": "ok"}')
            assert response.headers["Connection"] == "close"  # the event loop would keep it
