"""Sinks over HTTP: a real node, which reads Arrow tables."""

from __future__ import annotations

import http.client
import json
import time
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import pika
import pytest

from qq.http.documents import sink_tables
from tests.http.fakes import MachineManagement
from tests.http.http_node import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from qq.testing import ClusterNode

pa: Any = pytest.importorskip("pyarrow")
NUMBERS = count()
GUEST = "Basic Z3Vlc3Q6Z3Vlc3Q="


class Answer(NamedTuple):
    status: int
    body: bytes
    retry_after: str | None

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        return self.json["reason"]


def table(bodies: list[Any], **columns: list[Any]) -> bytes:
    """Return an Arrow stream."""
    rows = pa.table({"body": bodies, **columns})
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, rows.schema) as writer:
        writer.write_table(rows)
    return stream.getvalue().to_pybytes()


class Writer:
    """A writer with a queue and a sink of the test's name."""

    def __init__(self, node: ClusterNode, name: str, channel: Any) -> None:
        self._node = node
        self.name = name
        self.channel = channel

    def request(self, method: str, name: str, body: Any = None, path: str = "/api/sinks/%2F") -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self._node.http_port, timeout=10)
        try:
            octets = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
            connection.request(method, path + name, octets, {"Authorization": GUEST})
            response = connection.getresponse()
            return Answer(response.status, response.read(), response.headers["Retry-After"])
        finally:
            connection.close()

    def everywhere(self) -> Any:
        """Return the sinks of all virtual hosts."""
        return self.request("GET", "", path="/api/sinks").json

    def open(self, **settings: Any) -> Answer:
        return self.request("PUT", f"/{self.name}", settings)

    def stage(
        self, rows: bytes, epoch: int = 0, attempt: str = "a", step: int = 0, query: str = ""
    ) -> Answer:
        path = f"/{self.name}/epochs/{epoch}/attempts/{attempt}?step={step}"
        return self.request("POST", f"{path}&routing_key={self.name}{query}", rows)

    def commit(self, epoch: int = 0, **attempts: int) -> Answer:
        return self.request("POST", f"/{self.name}/epochs/{epoch}", {"attempts": attempts})

    def bodies(self) -> list[bytes]:
        return [body for _, body in self.messages()]

    def messages(self) -> list[tuple[pika.BasicProperties, bytes]]:
        found = []
        while (got := self.channel.basic_get(self.name, auto_ack=True))[0] is not None:
            found.append((got[1], got[2]))
        return found


@pytest.fixture
def writer(real_node: ClusterNode) -> Generator[Writer]:
    connection = pika.BlockingConnection(pika.URLParameters(real_node.url))
    channel: Any = connection.channel()
    name = f"sink-{next(NUMBERS)}"
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
    writer = Writer(real_node, name, channel)
    assert writer.open().status == 201
    yield writer
    connection.close()


def test_epoch_is_visible_after_its_commit_and_once(writer: Writer) -> None:
    assert writer.stage(table([b"a", b"b"])).json == {"committed": False, "steps": 1}
    assert writer.stage(table([b"a", b"b"])).json == {"committed": False, "steps": 1}
    assert writer.stage(table(["c"]), step=1).json == {"committed": False, "steps": 2}
    assert writer.stage(table([b"loser"]), attempt="b").status == 200
    shown = writer.request("GET", f"/{writer.name}").json
    assert shown.items() >= {"committed": None, "attempts": 2, "messages_staged": 4, "user": "guest"}.items()
    assert shown["bytes_staged"] > 4
    assert 0 <= shown["idle_ms"] < 10_000
    everywhere = writer.everywhere()
    assert [sink["messages_staged"] for sink in everywhere if sink["name"] == writer.name] == [4]
    assert writer.bodies() == []
    assert writer.commit(a=2).status == writer.commit(a=2).status == writer.commit(b=1).status == 204
    assert writer.stage(table([b"late"]), attempt="c").json == {"committed": True, "steps": None}
    assert writer.bodies() == [b"a", b"b", b"c"]
    shown = writer.request("GET", f"/{writer.name}").json
    assert shown.items() >= {"committed": 0, "attempts": 0, "messages_staged": 0}.items()
    del shown["idle_ms"]
    assert any(sink.items() >= shown.items() for sink in writer.request("GET", "").json)
    assert writer.request("DELETE", f"/{writer.name}").status == 204
    assert writer.request("DELETE", f"/{writer.name}").status == 404


def test_columns_become_properties_and_headers(writer: Writer) -> None:
    columns = {
        "content_type": ["text/plain", None],
        "message_id": ["m", None],
        "type": ["t", None],
        "priority": pa.array([7, None], pa.int32()),
        "expiration": ["60000", None],
        "timestamp": pa.array([1_700_000_000_000_000, None], pa.timestamp("us", "UTC")),
        "delivery_mode": pa.array([1, None], pa.int8()),
        "headers": pa.array([[("n", "1"), ("ü", "x")], None], pa.map_(pa.string(), pa.string())),
        "delay": [None, 1],
        "exchange": ["amq.direct", None],
    }
    writer.channel.queue_bind(writer.name, "amq.direct", writer.name)
    assert writer.stage(table([b"", b"x" * 300_000], **columns)).status == 200
    assert writer.commit(a=2).status == 204
    found = writer.messages()
    deadline_s = time.monotonic() + 5
    while len(found) < 2:
        assert time.monotonic() < deadline_s
        found += writer.messages()
    (first, empty), (second, large) = found
    assert empty == b""
    assert (first.content_type, first.message_id, first.type) == ("text/plain", "m", "t")
    assert (first.priority, first.expiration, first.timestamp) == (7, "60000", 1_700_000_000)
    assert (first.delivery_mode, first.headers) == (1, {"n": "1", "ü": "x"})
    assert large == b"x" * 300_000
    assert (second.delivery_mode, second.headers) == (2, {"x-delay": -1})


def test_headers_may_be_json(writer: Writer) -> None:
    headers = {"n": 1, "list": [True, None], "table": {"a": "b"}}
    assert writer.stage(table(["x"], headers=[json.dumps(headers)])).status == 200
    assert writer.commit(a=1).status == 204
    [(properties, _)] = writer.messages()
    assert properties.headers == headers


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"body": [1]}, "column 'body' has type int64, which it cannot have"),
        ({"body": [None, b"x"]}, "column 'body' has no value in row 0"),
        ({"colour": ["red"]}, "column 'colour' is unknown or there twice; the columns are body, exchange, "),
        ({"priority": ["high"]}, "column 'priority' has type string, which it cannot have"),
        (
            {"priority": [256]},
            "column 'priority' does not fit in row 0: is 256, which this property cannot have",
        ),
        ({"headers": ["{"]}, "column 'headers' does not fit in row 0: "),
        ({"headers": ["[]"]}, "column 'headers' does not fit in row 0: is no JSON object"),
        ({"message_id": ["x" * 256]}, "column 'message_id' does not fit in row 0: has more than 255 bytes"),
        ({"delay": [-1]}, "column 'delay' does not fit in row 0: is negative"),
        ({"routing_key": ["x" * 256]}, "column 'routing_key' has more than 255 bytes in row 0"),
    ],
)
def test_column_that_does_not_fit_is_named(writer: Writer, columns: dict[str, Any], reason: str) -> None:
    answer = writer.stage(
        table(**({"bodies": columns["body"]} if "body" in columns else {"bodies": ["x"], **columns}))
    )
    assert answer.status == 400
    assert answer.reason.startswith(reason)
    assert writer.request("GET", f"/{writer.name}").json["attempts"] == 0


def test_refusals_name_the_mistake(writer: Writer) -> None:
    assert writer.stage(b"no stream").reason.startswith("the body is no Arrow stream")
    assert writer.stage(table(["x"], expiration=["soon"])).reason.startswith("invalid expiration 'soon'")
    nowhere = writer.stage(table(["x"], routing_key=["nowhere"]), attempt="n")
    assert (nowhere.status, nowhere.reason) == (
        412,
        "messages with routing key 'nowhere' reach no queue from exchange '' in vhost '/'",
    )
    missing = writer.stage(table(["x"], exchange=["missing"]), attempt="m")
    assert (missing.status, missing.reason) == (404, "no exchange 'missing' in vhost '/'")
    assert writer.stage(table(["x"]), attempt="late", step=3).status == 412
    assert (
        writer.commit(a=1).reason
        == f"attempt 'a' at epoch 0 of sink '{writer.name}' in vhost '/' is not stored"
    )
    assert writer.request("POST", "/none/epochs/0", {"attempts": {}}).status == 404
    writer.channel.queue_declare("full", durable=True, arguments=FULL)
    assert writer.stage(table(["x", "y"], routing_key=["full", "full"])).status == 200
    answer = writer.commit(a=1)
    assert (answer.status, answer.reason.partition(" for ")[0]) == (
        412,
        "queue 'full' in vhost '/' is too full",
    )
    assert writer.request("POST", "?routing_key=full", table(["x", "y"])).status == 412
    assert writer.request("POST", "?routing_key=full", table(["x"])).status == 204


FULL = {"x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "reject-publish"}


def test_epoch_leaves_room_for_the_next(writer: Writer) -> None:
    for epoch, status in ((2**63 - 1, 400), (2**63 - 2, 204)):
        writer.stage(table(["x"]), epoch)
        assert writer.commit(epoch, a=1).status == status
    assert writer.bodies() == [b"x"]


def test_message_above_2_mib_is_stored_in_fragments(writer: Writer) -> None:
    large = bytes(range(256)) * 40_000  # 10 MB
    rows = [b"first", b"x" * 2_500_000, b"third"]
    assert writer.stage(table(rows)).json["steps"] == 3  # the large message is a step by itself
    for _ in range(2):
        assert writer.stage(table([large], message_id=["m"]), step=3).json["steps"] == 4
    assert writer.stage(table([b"lost" * 1_000_000]), attempt="b").status == 200
    assert writer.request("GET", f"/{writer.name}").json["bytes_staged"] > 16_000_000
    assert writer.commit(a=4).status == 204
    assert writer.request("POST", f"?routing_key={writer.name}", table([large[::-1]])).status == 204
    found = writer.messages()
    assert [body for _, body in found] == [*rows, large, large[::-1]]
    assert found[3][0].message_id == "m"


def test_large_request_has_a_single_message_up_to_a_limit(writer: Writer) -> None:
    answer = writer.stage(table([b"x" * 3_000_000] * 2))
    assert (answer.status, answer.reason.partition(";")[2]) == (413, " above 4194304 bytes it must have one")
    answer = writer.stage(table([b"x" * (16 * 1024 * 1024 + 1)]))
    assert answer.status == 400
    assert answer.reason == "column 'body' has 16777217 bytes in row 0, above message_bytes (16777216)"
    assert writer.request("GET", f"/{writer.name}").json["attempts"] == 0


def test_table_is_published_without_a_sink(writer: Writer) -> None:
    sinks = [sink["name"] for sink in writer.request("GET", "").json]
    rows = table(["a", "b"], routing_key=[writer.name, None])
    assert writer.request("POST", f"?routing_key={writer.name}", rows).status == 204
    assert writer.bodies() == [b"a", b"b"]
    assert writer.request("POST", "", table([])).status in (204, 400)
    assert [sink["name"] for sink in writer.request("GET", "").json] == sinks


@pytest.fixture
def limit(writer: Writer) -> Generator[Callable[[str, int], None]]:
    """Sets a limit of publishing of the virtual host."""
    names, path = set(), "/api/vhost-limits/%2F/"

    def put(name: str, value: int) -> None:
        names.add(name)
        assert writer.request("PUT", name, {"value": value}, path).status == 204

    yield put
    for name in names:
        assert writer.request("DELETE", name, path=path).status == 204


def test_limit_of_publishing_slows_a_sink(writer: Writer, limit: Callable[[str, int], None]) -> None:
    limit("max-publishes-per-second", 100)
    time.sleep(1.0)
    rows = [b"%d" % row for row in range(400)]
    began_s = time.monotonic()
    assert writer.stage(table(rows)).json["steps"] == 1  # 100 were saved up
    assert 2.5 < time.monotonic() - began_s < 10
    assert writer.commit(a=1).status == 204
    assert writer.bodies() == rows


@pytest.mark.parametrize("name", ["max-publishes-per-second", "max-publish-bytes-per-second"])
def test_request_above_a_limit_ends_after_repetitions(
    writer: Writer, limit: Callable[[str, int], None], name: str
) -> None:
    rows = [b"%01000d" % row for row in range(150)]  # two steps
    limit(name, 15 if name == "max-publishes-per-second" else 15_000)
    answers = []
    began_s = time.monotonic()
    while not answers or answers[-1].status == 429:
        answers.append(writer.stage(table(rows)))
        if answers[-1].status == 429:
            assert "a limit of publishing of vhost '/' or of user 'guest' is used up" in answers[-1].reason
            assert answers[-1].retry_after == "1"
            time.sleep(1)
    assert answers[-1].json["steps"] == 2
    assert len(answers) > 1
    assert 8 < time.monotonic() - began_s < 30
    assert writer.request("GET", f"/{writer.name}").json["messages_staged"] == 150


def test_table_above_a_limit_is_published_once(writer: Writer, limit: Callable[[str, int], None]) -> None:
    limit("max-publishes-per-second", 10)
    query, rows = f"?routing_key={writer.name}", table([b"%d" % row for row in range(80)])
    statuses = []
    while not statuses or statuses[-1] == 429:
        assert writer.bodies() == []
        statuses.append(writer.request("POST", query, rows).status)
    assert statuses[-1] == 204
    assert set(statuses) == {429, 204}
    assert len(writer.bodies()) == 80


def test_alarm_stops_writers_of_sinks() -> None:
    node = Node(MachineManagement())
    node.management.broker.alarm = "low on memory"
    for path in ("s/epochs/0/attempts/a", ""):
        answer = node.api(f"sinks/%2F/{path}".rstrip("/"), "POST", data=table(["x"], routing_key=["q"]))
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert answer.json["reason"] == "publishers must wait: low on memory; not carried out"


def test_steps_are_divided_by_bytes_and_keys(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_tables, "KNOWN_MAX", 2)
    number = 3_000
    rows = [b"%d" % row for row in range(number)]
    assert writer.stage(table(rows)).json["steps"] == 3
    assert writer.stage(table([b"x" * 100_000] * 5), step=3).json["steps"] == 6
    assert writer.commit(a=6).status == 204
    found = writer.bodies()
    assert found[:number] == rows
    assert len(found) == number + 5
