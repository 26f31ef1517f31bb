"""The client of leases beside real nodes: a read continues at a second node, and an error names its cause."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Self

import pika
import pytest

from qq.testing import LocalCluster
from qq_spark import Access, LeaseClient, Parts, QueueSourceError, Refusal
from qq_spark import client as module
from tests.qq_spark.broken_proxy import BrokenProxy

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

pytest.importorskip("pyarrow")
GROUP = ("orders", "g")


@pytest.fixture(scope="module")
def cluster() -> Generator[LocalCluster]:
    with LocalCluster(3) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Generator[LeaseClient]:
    """A client of a virtual host with 3,000 messages in the queue `orders`."""
    cluster.restore()
    with cluster.vhost() as vhost:
        with pika.BlockingConnection(pika.URLParameters(vhost.urls[0])) as connection:
            channel = connection.channel()
            channel.queue_declare("orders", durable=True, arguments={"x-queue-type": "quorum"})
            channel.tx_select()
            for number in range(3000):
                channel.basic_publish("", "orders", b"%d" % number)
            channel.tx_commit()
        with LeaseClient(Access(addresses(cluster), vhost=vhost.name)) as client:
            yield client


def addresses(cluster: LocalCluster) -> tuple[str, ...]:
    return tuple(f"http://127.0.0.1:{node.http_port}" for node in cluster.nodes)


def bodies(client: LeaseClient, number: int, parts: Sequence[Parts] = (Parts(),)) -> list[int]:
    batches = [batch for each in parts for batch in client.read(*GROUP, number, each, ["body"])]
    return [int(row["body"]) for batch in batches for row in batch.to_pylist()]


def test_import_needs_neither_broker_nor_spark_nor_arrow() -> None:
    code = (
        "import sys, qq_spark, qq_spark.options, qq_spark.planner\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'qq', 'cluster', 'pyspark', 'pyarrow'}))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_lease_is_the_same_at_each_node_and_in_parts(cluster: LocalCluster, client: LeaseClient) -> None:
    fence = client.take_over(*GROUP, "test").fence
    assert client.take(*GROUP, fence, 0, 1000, 10**9) == client.lease("orders", "g", 0)
    for url in addresses(cluster):
        with LeaseClient(client._access._replace(urls=(url,))) as at_node:
            assert bodies(at_node, 0) == list(range(1000))
    assert bodies(client, 0, [Parts(part, 7) for part in range(7)]) == list(range(1000))
    client.commit(*GROUP, fence, 0)
    client.commit(*GROUP, fence, 0)
    with pytest.raises(Refusal, match=r"lease 0 of group 'g' of queue 'orders' .* was committed"):
        client.lease("orders", "g", 0)


def test_requests_go_on_while_a_node_is_killed_or_paused(cluster: LocalCluster, client: LeaseClient) -> None:
    fence = client.take_over(*GROUP, "test").fence
    client.take(*GROUP, fence, 0, 1500, 10**9)
    cluster.leader().kill()
    client.take(*GROUP, fence, 1, 1500, 10**9)
    assert [*bodies(client, 0), *bodies(client, 1)] == list(range(3000))
    client.commit(*GROUP, fence, 1)
    assert client.group(*GROUP).leases == ()


def test_request_of_a_paused_leader_comes_too_late(
    cluster: LocalCluster, client: LeaseClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paused leader carries out its requests when it resumes: its successor has carried them out before."""
    monkeypatch.setattr(module, "_ANSWER_S", 1.0)
    fence = client.take_over(*GROUP, "test").fence
    leader = cluster.leader()
    urls = sorted(client._access.urls, key=lambda url: not url.endswith(f":{leader.http_port}"))
    leader.pause()
    try:
        with LeaseClient(client._access._replace(urls=tuple(urls))) as other:
            other.take(*GROUP, fence, 0, 1000, 10**9)
            other.release(*GROUP, fence, 0)
            other._next = 0
            other.take(*GROUP, fence, 1, 1500, 10**9)
            assert bodies(other, 1) == list(range(1500))
    finally:
        leader.resume()
    cluster.wait_caught_up()
    client.take(*GROUP, fence, 2, 10**6, 10**9)
    assert [(lease.number, lease.messages) for lease in client.group(*GROUP).leases] == [(1, 1500), (2, 1500)]
    client.commit(*GROUP, fence, 2)
    assert client.group(*GROUP).leases == ()


def test_read_that_breaks_off_goes_on_with_the_next_row(client: LeaseClient) -> None:
    fence = client.take_over(*GROUP, "test").fence
    client.take(*GROUP, fence, 0, 3000, 10**9)
    with BrokenProxy(client._access.urls[0], [2_000, 12_000, 24_000]) as proxy:
        with LeaseClient(client._access._replace(urls=(proxy.url,))) as broken:
            assert bodies(broken, 0) == list(range(3000))
        assert proxy.breaks == []


def test_second_owner_fences_the_first(client: LeaseClient) -> None:
    first = client.take_over(*GROUP, "first")
    client.take(*GROUP, first.fence, 0, 10, 10**9)
    second = client.take_over(*GROUP, "second")
    assert second.leases == client.group(*GROUP).leases
    with pytest.raises(
        Refusal, match=f"fence {first.fence} is stale: .* fence {second.fence}, owner 'second'"
    ):
        client.commit(*GROUP, first.fence, 0)


def test_errors_name_queue_user_and_node(client: LeaseClient) -> None:
    with pytest.raises(Refusal, match="no queue 'gone' in vhost"):
        client.take_over("gone", "g", "test")
    access = client._access._replace(user="ann")
    with (
        LeaseClient(access) as unknown,
        pytest.raises(Refusal, match="refuses user 'ann': login was refused"),
    ):
        unknown.queues()
    with pytest.raises(QueueSourceError, match=r"no node of http://127.0.0.1:1 answered in 0 s: .*refused"):
        LeaseClient(Access(("http://127.0.0.1:1",), retry_s=0)).queues()


def test_node_without_groups_is_named(client: LeaseClient) -> None:
    url = f"{client._access.urls[0]}/older"
    with (
        LeaseClient(client._access._replace(urls=(url,))) as older,
        pytest.raises(Refusal, match=r"/older knows neither groups"),
    ):
        older.take_over(*GROUP, "test")


class Stub(HTTPServer):
    """A node that gives these answers, each a status with its headers, and then the last for ever."""

    def __init__(self, *answers: tuple[int, dict[str, str]]) -> None:
        super().__init__(("127.0.0.1", 0), _StubHandler)
        self.answers = list(answers)
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Self:
        Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        super().__exit__(*error)


class _StubHandler(BaseHTTPRequestHandler):
    server: Stub

    def do_GET(self) -> None:
        answers = self.server.answers
        status, headers = answers.pop(0) if len(answers) > 1 else answers[0]
        self.server.requests.append(self.path)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(
            b'[{"name": "orders"}]' if status == 200 else b'{"reason": "no pyarrow: pip install"}'
        )

    def do_DELETE(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Keep requests out of the test's output."""


def test_read_goes_to_a_node_with_pyarrow(client: LeaseClient) -> None:
    fence = client.take_over(*GROUP, "test").fence
    client.take(*GROUP, fence, 0, 10, 10**9)
    with Stub((501, {})) as without:
        both = client._access._replace(urls=(without.url, client._access.urls[0]))
        with LeaseClient(both) as reader:
            assert bodies(reader, 0) == list(range(10))
        assert len(without.requests) == 1
        with (
            LeaseClient(both._replace(urls=(without.url, without.url + "/"))) as reader,
            pytest.raises(Refusal, match="no pyarrow: pip install"),
        ):
            bodies(reader, 0)


def test_busy_node_is_asked_again_after_its_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep, thread = time.sleep, threading.get_ident()
    monkeypatch.setattr(
        time, "sleep", lambda s: pauses.append(s) if threading.get_ident() == thread else sleep(s)
    )
    busy = (503, {"Retry-After": "2"})
    with Stub(busy, (429, {"Retry-After": "900"}), busy, (200, {})) as node:
        assert LeaseClient(Access((node.url,), retry_s=0)).queues() == ["orders"]
    assert [1 <= pauses[0] <= 2, 5 <= pauses[1] <= 10, 1 <= pauses[2] <= 2, len(pauses)] == [True] * 3 + [3]
    with Stub((503, {})) as node, pytest.raises(QueueSourceError, match=rf"in 0 s: {node.url}: .*503"):
        LeaseClient(Access((node.url,), retry_s=0)).queues()


def test_request_above_a_limit_stays_at_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Because the node knows how far the request has come, and the limit is that of the cluster."""
    monkeypatch.setattr(module, "_BUSY_PAUSE_MAX_S", 0.01)
    limited = (429, {"Retry-After": "1"})
    with Stub(limited, limited, (503, {}), (200, {})) as node, Stub(limited, (200, {})) as other:
        assert LeaseClient(Access((node.url, other.url), retry_s=9)).queues() == ["orders"]
        assert [len(node.requests), len(other.requests)] == [3, 2]


def test_repeated_end_of_a_group_finds_it_ended() -> None:
    with Stub((503, {"Retry-After": "0"}), (404, {})) as node:
        LeaseClient(Access((node.url,))).end_group("orders", "g", 1)
    with Stub((404, {})) as node, pytest.raises(Refusal):
        LeaseClient(Access((node.url,))).end_group("orders", "g", 1)


def test_lease_of_an_earlier_group_of_the_name_is_not_read(client: LeaseClient) -> None:
    """A task begins with the generation of its driver, and each node checks it."""
    former = client.take_over(*GROUP, "test")
    client.take(*GROUP, former.fence, 0, 10, 10**9)
    client.end_group(*GROUP, former.fence, release=True)
    present = client.take_over(*GROUP, "test")
    client.take(*GROUP, present.fence, 0, 10, 10**9)
    with LeaseClient(client._access) as task:
        assert next(task.read(*GROUP, 0, generation=present.generation)).num_rows == 10
        with pytest.raises(Refusal, match=f"generation {former.generation} of group 'g' .* was ended"):
            next(task.read(*GROUP, 0, generation=former.generation))


def test_connection_is_kept_after_a_read(cluster: LocalCluster, client: LeaseClient) -> None:
    fence = client.take_over(*GROUP, "test").fence
    client.take(*GROUP, fence, 0, 3000, 10**9)
    with LeaseClient(client._access._replace(urls=client._access.urls[:1], retry_s=0)) as reader:
        for _ in range(3):
            assert bodies(reader, 0) == list(range(3000))
            next(reader.read(*GROUP, 0))  # the rest is not read
            assert reader.group(*GROUP).fence == fence
