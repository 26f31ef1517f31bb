"""Groups and leases over HTTP: a real node, whose messages come back as Arrow tables."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import time
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import pika
import pytest

from cluster.configuration.configuration import Versions
from qq.http.endpoints import leases
from qq.machine.protocol.commands import DeclareQueue, OpenGroup
from qq.management.changes import version_wait
from tests.http.fakes import MachineManagement
from tests.http.http_node import Node

if TYPE_CHECKING:
    from collections.abc import Generator

    from qq.testing import ClusterNode

pa: Any = pytest.importorskip("pyarrow")
GUEST = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: http.client.HTTPMessage

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def table(self) -> Any:
        assert self.status == 200, self.body
        return pa.ipc.open_stream(self.body).read_all()


class Reader:
    """A reader of a queue, with a group `g`."""

    def __init__(self, node: ClusterNode, queue: str, channel: Any) -> None:
        self.port = node.http_port
        self.queue = queue
        self.channel = channel

    def get(self, path: str, method: str = "GET", **body: Any) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, json.dumps(body) if body else None, GUEST)
            response = connection.getresponse()
            return Answer(response.status, response.read(), response.headers)
        finally:
            connection.close()

    def request(self, path: str, method: str = "GET", **body: Any) -> Answer:
        return self.get(f"/api/queues/%2F/{quote(self.queue, safe='')}{path}", method, **body)

    def publish(self, *bodies: bytes, **properties: Any) -> None:
        for body in bodies:
            self.channel.basic_publish("", self.queue, body, pika.BasicProperties(**properties))

    def open(self, fence: int = 1, **settings: Any) -> Answer:
        return self.request("/groups/g", "PUT", fence=fence, **settings)

    def lease(self, number: int, fence: int = 1, **bounds: Any) -> Answer:
        return self.request(f"/groups/g/leases/{number}", "PUT", fence=fence, **bounds)

    def read(self, number: int, query: str = "") -> Any:
        return self.request(f"/groups/g/leases/{number}/messages{query}").table

    def bodies(self, number: int) -> list[bytes]:
        return self.read(number)["body"].to_pylist()


@pytest.fixture
def reader(real_node: ClusterNode, request: pytest.FixtureRequest) -> Generator[Reader]:
    connection = pika.BlockingConnection(pika.URLParameters(real_node.url))
    channel: Any = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare(request.node.name, durable=True, arguments={"x-queue-type": "quorum"})
    reader = Reader(real_node, request.node.name, channel)
    yield reader
    connection.close()


def test_lease_is_taken_read_and_committed(reader: Reader) -> None:
    reader.publish(b"a", b"b", b"c")
    assert reader.open(owner="driver").status == 201
    assert reader.open(owner="driver").status == 200
    taken = reader.lease(0, max_messages=2)
    assert taken.status == 200
    assert {key: taken.json[key] for key in ("lease", "messages")} == {"lease": 0, "messages": 2}
    assert reader.lease(0, max_messages=9).json == taken.json == reader.request("/groups/g/leases/0").json
    assert reader.lease(1).json["messages"] == 1
    assert reader.lease(2).status == 204
    assert reader.bodies(0) == reader.bodies(0) == [b"a", b"b"]
    assert reader.request("/groups/g/commit", "POST", fence=1, up_to=0).status == 204
    assert reader.request("/groups/g/commit", "POST", fence=1, up_to=0).status == 204
    assert reader.request("/groups/g/leases/1?fence=1", "DELETE").status == 204
    group = reader.request("/groups/g").json
    assert group.items() >= {"committed": 0, "last_lease": 1, "leases": [], "messages_leased": 0}.items()
    assert group["lag"]["messages"] == 1
    [row] = reader.request("/groups").json
    changing = ("idle_ms", "lag")
    assert row == {name: group[name] for name in row if name not in changing} | {
        name: row[name] for name in changing
    }
    assert group.keys() - row.keys() == {"leases"}
    assert reader.request("/groups/g?fence=1", "DELETE").status == 204
    assert reader.request("/groups").json == []


def test_queue_shows_leased_messages_apart(reader: Reader) -> None:
    reader.publish(b"abc", b"d")
    reader.open()
    reader.lease(0, max_messages=1)
    shown = reader.request("").json
    counts = {"messages": 2, "messages_ready": 1, "messages_leased": 1, "messages_unacknowledged": 0}
    assert shown.items() >= counts.items()
    assert shown["message_bytes_leased"] == reader.request("/groups/g").json["bytes_leased"] > 0
    assert reader.request("/contents", "DELETE").status == 204
    assert reader.request("").json["messages"] == 1


def test_columns_equal_the_delivery_to_a_consumer(reader: Reader) -> None:
    headers = {"x-publisher-id": "p", "x-publish-seq": 7, "n": 1, "table": {"list": [1, "ü"]}}
    reader.publish(
        b"\xff\x00", headers=headers, timestamp=1_700_000_000, message_id="m", content_type="text/plain"
    )
    reader.publish(b"")
    reader.open()
    reader.lease(0)
    first, second = reader.read(0).to_pylist()
    assert first["body"] == b"\xff\x00"
    assert json.loads(first["headers"]) == headers
    assert (
        json.loads(first["properties"]).items() >= {"message_id": "m", "content_type": "text/plain"}.items()
    )
    assert first["timestamp"].isoformat() == "2023-11-14T22:13:20+00:00"
    assert (first["publisher_id"], first["publish_seq"]) == ("p", 7)
    assert (first["queue"], first["exchange"], first["routing_key"]) == (reader.queue, "", reader.queue)
    assert b"x-publisher-id" in first["octets"]
    assert [first["row"], second["row"]] == [0, 1]
    assert second["position"] == first["position"] + 1
    assert (second["body"], second["headers"], second["timestamp"], second["publish_seq"]) == (
        b"",
        None,
        None,
        None,
    )
    some = reader.read(0, "?columns=headers,row")
    assert some.column_names == ["row", "headers"]
    assert some.num_rows == 2


def test_redelivered_messages_are_marked(reader: Reader) -> None:
    reader.publish(b"again")
    method, _, _ = reader.channel.basic_get(reader.queue)
    reader.channel.basic_nack(method.delivery_tag)
    reader.open()
    reader.lease(0)
    [row] = reader.read(0).to_pylist()
    assert (row["redelivered"], row["deliveries"]) == (True, 1)
    assert json.loads(row["headers"]) == {"x-delivery-count": 1}


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 64])
def test_parts_have_each_message_once(reader: Reader, parts: int) -> None:
    sizes = [1, 50_000, 3, 3, 3, 3_000_000, 1, 1, 900, 900, 900, 5]
    bodies = [b"%d" % number + b"x" * size for number, size in enumerate(sizes)]
    reader.publish(*bodies)
    reader.open()
    reader.lease(0)
    whole = reader.read(0)
    assert whole["body"].to_pylist() == bodies
    found = [reader.read(0, f"?part={part}&of={parts}") for part in range(parts)]
    assert pa.concat_tables(found).equals(whole)
    assert found[-1].equals(reader.read(0, f"?part={parts - 1}&of={parts}"))


def test_lease_of_little_bytes_has_a_large_message(reader: Reader) -> None:
    reader.publish(b"x" * 5_000_000, b"y")
    reader.open()
    assert reader.lease(0, max_bytes=1).json["messages"] == 1
    assert reader.bodies(0) == [b"x" * 5_000_000]


def test_requests_for_an_ended_generation_are_refused(reader: Reader) -> None:
    reader.publish(b"a", b"b")
    former = reader.open().json["generation"]
    assert reader.lease(0, max_messages=1, generation=former).status == 200
    assert reader.request(f"/groups/g?fence=1&release=true&generation={former}", "DELETE").status == 204
    present = reader.open().json["generation"]
    assert present > former
    assert reader.lease(0, max_messages=1, generation=present).status == 200
    refused = [
        reader.lease(1, generation=former),
        reader.request("/groups/g/commit", "POST", fence=1, up_to=0, generation=former),
        reader.request(f"/groups/g/leases/0?fence=1&generation={former}", "DELETE"),
        reader.request(f"/groups/g/leases/0?generation={former}"),
        reader.request(f"/groups/g/leases/0/messages?generation={former}"),
    ]
    for answer in refused:
        assert (answer.status, answer.json["error"]) == (409, "conflict"), answer.body
        assert f"generation {former} of group 'g' of queue" in answer.json["reason"]
    assert reader.request(f"/groups/g?fence=1&release=true&generation={former}", "DELETE").status == 204
    assert [lease["lease"] for lease in reader.request("/groups/g").json["leases"]] == [0]
    assert reader.request("/groups/g/leases/0?fence=1&generation=x", "DELETE").status == 400
    assert reader.read(0, f"?generation={present}").num_rows == 1
    end = f"/groups/g?fence=1&release=true&generation={present}"
    assert reader.request(end, "DELETE").status == 204


def test_takeover_ends_the_rights_of_the_former_owner(reader: Reader) -> None:
    reader.publish(b"a", b"b")
    reader.open(owner="old")
    reader.lease(0, max_messages=1)
    assert reader.open(fence=2, owner="new").json.items() >= {"fence": 2, "owner": "new"}.items()
    stale = "fence 1 is stale: group 'g' of queue '{}' in vhost '/' is open with fence 2, owner 'new'"
    for answer in (
        reader.lease(1),
        reader.open(),
        reader.request("/groups/g/commit", "POST", fence=1, up_to=0),
        reader.request("/groups/g/leases/0?fence=1", "DELETE"),
        reader.request("/groups/g?fence=1&release=true", "DELETE"),
    ):
        assert answer.status == 409
        assert answer.json == {"error": "conflict", "reason": stale.format(reader.queue)}
    assert reader.bodies(0) == [b"a"]
    assert reader.open(fence=2, owner="other").status == 412


@pytest.mark.parametrize(
    ("path", "method", "body", "status", "reason"),
    [
        ("/groups/h", "GET", {}, 404, "no group 'h' of queue"),
        ("/groups/h?fence=1", "DELETE", {}, 404, "no group 'h' of queue"),
        ("/groups/h/leases/1", "PUT", {"fence": 1}, 404, "no group 'h' of queue"),
        ("/groups/h/leases/1/messages", "GET", {}, 404, "no group 'h' of queue"),
        ("/groups/g/leases/8", "GET", {}, 404, "no lease 8 of group 'g'"),
        ("/groups/g/leases/8/messages", "GET", {}, 404, "no lease 8 of group 'g'"),
        ("/groups/g/leases/8?fence=1", "DELETE", {}, 404, "no lease 8 of group 'g'"),
        ("/groups/g/leases/8", "DELETE", {}, 400, "key_missing: fence"),
        ("/groups/g/commit", "POST", {"fence": 1, "up_to": 8}, 404, "no lease 8 of group 'g'"),
        ("/groups/g/commit", "POST", {"fence": 1}, 400, "key_missing: up_to"),
        ("/groups/g/leases/-1", "PUT", {"fence": 1}, 400, "a lease has a whole number"),
        ("/groups/g/leases/1", "PUT", {"fence": 1, "max_messages": 0}, 400, "max_messages should be a whole number"),
        ("/groups/g/leases/1", "PUT", {"fence": 1, "most": 0}, 400, "a lease has no 'most'"),
        ("/groups/g", "PUT", {"fence": -1}, 400, "fence should be a whole number"),
        ("/groups/g", "PUT", {"fence": 1, "order": "best"}, 400, "order should be ready or arrival"),
        ("/groups/g?fence=1", "DELETE", {}, 412, "has 1 open lease: commit or release them first"),
        ("/groups/g/leases/0/messages?part=2&of=2", "GET", {}, 400, "part must be a whole number below"),
        ("/groups/g/leases/0/messages?of=5", "GET", {}, 400, "`part` and `of` belong together"),
        ("/groups/g/leases/0/messages?part=0", "GET", {}, 400, "`part` and `of` belong together"),
        (f"/groups/g/leases/{2**63 - 1}", "PUT", {"fence": 1}, 400, "a whole number from 0 to 9223372036854775806"),
        ("/groups/g/leases/0/messages?columns=row,x", "GET", {}, 400, "there is no column 'x'"),
    ],
)  # fmt: skip
def test_bad_requests_name_their_fault(
    reader: Reader, path: str, method: str, body: dict[str, Any], status: int, reason: str
) -> None:
    reader.publish(b"a")
    reader.open()
    reader.lease(0)
    answer = reader.request(path, method, **body)
    assert answer.status == status, answer.body
    assert reason in answer.json["reason"]


def test_readers_need_permissions(reader: Reader, real_node: ClusterNode) -> None:
    def as_user(method: str, path: str, **body: Any) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", real_node.http_port, timeout=10)
        login = {"Authorization": "Basic cmVhZGVyOnJlYWRlcg=="}
        connection.request(method, f"/api/queues/%2F/{reader.queue}/groups/g{path}", json.dumps(body), login)
        status = connection.getresponse().status
        connection.close()
        return status

    def admin(path: str, **body: Any) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", real_node.http_port, timeout=10)
        connection.request("PUT", f"/api/{path}", json.dumps(body), GUEST)
        assert connection.getresponse().status in (201, 204)
        connection.close()

    reader.publish(b"a")
    admin("users/reader", password="reader", tags="management")
    admin("permissions/%2F/reader", configure="", write="", read=".*")
    assert as_user("PUT", "", fence=1) == 401
    reader.open()
    assert as_user("PUT", "/leases/0", fence=1) == 200
    assert as_user("GET", "/leases/0/messages") == 200
    assert as_user("DELETE", "?fence=1&release=true") == 401
    admin("permissions/%2F/reader", configure=".*", write="", read="")
    for method, path in (
        ("GET", ""),
        ("GET", "/leases/0"),
        ("GET", "/leases/0/messages"),
        ("DELETE", "/leases/0?fence=1"),
    ):
        assert as_user(method, path) == 401
    assert as_user("PUT", "/leases/1", fence=1) == 401
    assert as_user("POST", "/commit", fence=1, up_to=0) == 401
    assert as_user("DELETE", "?fence=1&release=true") == 204


def test_node_without_pyarrow_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def missing() -> None:
        raise ImportError

    monkeypatch.setattr(leases, "load_pyarrow", missing)
    node = Node(MachineManagement())
    node.management.make(DeclareQueue(1, 1, "q", False, True, False, False, False, {}))
    node.management.make(OpenGroup("/", "q", "g", 1, "", "guest", "ready", False, 0))
    answer = node.api("queues/%2F/q/groups/g/leases/0/messages")
    assert answer.status == 501
    assert "pip install 'qq-broker[arrow]'" in answer.json["reason"]


@pytest.fixture
def at_version_11() -> Node[MachineManagement]:
    node = Node(MachineManagement())
    node.management.machine.raise_to(11)
    node.management.make(DeclareQueue(1, 1, "q", False, True, False, False, False, {}))
    return node


def test_groups_are_refused_while_a_node_lacks_version_12(at_version_11: Node[MachineManagement]) -> None:
    at_version_11.management.group.versions_of = lambda name: Versions(7, 11 if name == "n3" else 12)
    for path, things in (("queues/%2F/q/groups/g", "groups"), ("sinks/%2F/s", "sinks")):
        answer = at_version_11.api(path, "PUT", json={"fence": 1} if things == "groups" else {})
        assert answer.status == 400
        assert answer.json["reason"] == (
            f"{things} need version 12 of the state, and the cluster has version 11: node 'n3' runs an older release; "
            "start this release there; not carried out"
        )


@pytest.mark.parametrize(
    ("path", "body"), [("queues/%2F/q/groups/g", {"fence": 1}), ("sinks/%2F/s", {"expires_ms": 0})]
)
def test_request_waits_until_a_new_cluster_has_groups_and_sinks(
    at_version_11: Node[MachineManagement], monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, int]
) -> None:
    async def agreed(_: float) -> None:
        at_version_11.management.machine.raise_to(12)

    monkeypatch.setattr(version_wait, "WAIT_S", 0.0)
    answer = at_version_11.api(path, "PUT", json=body)
    assert answer.status == 503
    assert "has not agreed on it yet: it has version 11; not carried out" in answer.json["reason"]
    monkeypatch.setattr(version_wait, "WAIT_S", 60.0)
    steps = SimpleNamespace(sleep=agreed, get_running_loop=asyncio.get_running_loop)
    monkeypatch.setattr(version_wait, "asyncio", steps)
    assert at_version_11.api(path, "PUT", json=body).status == 201


def test_groups_of_all_queues_are_searched_and_sorted(reader: Reader) -> None:
    reader.publish(b"a", b"bcd")
    reader.open(fence=7, owner="job")
    reader.lease(0, fence=7, max_messages=1)
    reader.request("/groups/h", "PUT", fence=0)
    rows = reader.get(f"/api/groups?page=1&name={reader.queue}").json["items"]
    assert [(row["queue"], row["name"], row["fence"]) for row in rows] == [
        (reader.queue, "g", 7),
        (reader.queue, "h", 0),
    ]
    first = rows[0]
    shown = {"vhost": "/", "owner": "job", "open_leases": 1, "messages_leased": 1, "last_lease": 0}
    assert first.items() >= shown.items()
    assert first["lag"]["messages"] == 2
    assert 0 <= first["idle_ms"] < 60_000
    assert 0 <= first["lag"]["age_ms"] < 60_000
    assert "leases" not in first
    order = f"page=1&name={reader.queue}&sort=messages_leased&sort_reverse=true"
    rows = reader.get(f"/api/groups/%2F?columns=name,lag.messages&{order}").json["items"]
    assert rows[0] == {"name": "g", "lag": {"messages": 2}}
    assert reader.get("/api/groups/gone").status == 404


def test_streams_of_a_user_are_limited(reader: Reader) -> None:
    reader.publish(*[b"x" * 200_000] * 50)
    reader.open()
    reader.lease(0)
    path = f"/api/queues/%2F/{quote(reader.queue, safe='')}/groups/g/leases/0/messages"
    with ExitStack() as cleanup:
        for _ in range(8):
            sock = cleanup.enter_context(socket.create_connection(("127.0.0.1", reader.port)))
            sock.sendall(
                f"GET {path} HTTP/1.1\r\nHost: n\r\nAuthorization: {GUEST['Authorization']}\r\n\r\n".encode()
            )
            assert sock.recv(12) == b"HTTP/1.1 200"
        refused = reader.request("/groups/g/leases/0/messages")
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        assert refused.json["reason"] == "8 streams of leases are under way, 8 of 'guest' (lease_stream_max)"
    deadline_s = time.monotonic() + 10
    while reader.request("/groups/g/leases/0/messages").status == 503:
        assert time.monotonic() < deadline_s
