"""Floods of unauthenticated connections against the process of a node with few files: it lives, and serves its
clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest
from aiohttp import ClientSession, encode_basic_auth

from qq import testing
from qq.cli.local.launch import SERVE_COMMAND
from qq.cli.local_files import PEER_PORT_OFFSET
from qq.config import NodeLimits
from qq.errors import StartError
from qq.node.memory_watch import MEMORY_CHECK_INTERVAL_S
from qq.process.descriptors import LEAST, OWN, Shares, shares_of
from qq.testing import ClusterNode, LocalCluster

# All need the same cluster.
pytestmark = pytest.mark.xdist_group("strangers")

HALF_A_REQUEST = b"GET /livez HTTP/1.1\r\nHost: x\r\n"
HALF_A_LOGIN = b"AMQP\0\0\x09"
FLOOD = 1050
FILES = 1024
MEMORY = 8 << 30


@contextlib.contextmanager
def few_files(files: int) -> Generator[None]:
    """Nodes that are started meanwhile may have so many files open, and cannot change that."""
    with pytest.MonkeyPatch.context() as patched:
        command = ["/bin/sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *SERVE_COMMAND]
        patched.setattr(testing, "SERVE_COMMAND", command)
        yield


@pytest.fixture(scope="module")
def cluster() -> Generator[LocalCluster]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with few_files(FILES), LocalCluster(nodes=3) as cluster:
        yield cluster
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect(port: int, first: bytes) -> socket.socket:
    """Open an unauthenticated connection from an address without clients; test_reconnect_storm.py has a shared
    address.
    """
    client = socket.create_connection(("127.0.0.1", port), 10, ("127.0.0.2", 0))
    with contextlib.suppress(ConnectionError):
        client.sendall(first)
    return client


@contextlib.contextmanager
def flood(port: int, first: bytes) -> Generator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(connect(port, first)) for _ in range(FLOOD)]


def http_port(node: ClusterNode) -> int:
    return node.http_port


def amqp_port(node: ClusterNode) -> int:
    return node.amqp_port


def peer_port(node: ClusterNode) -> int:
    return node.amqp_port + PEER_PORT_OFFSET


def round_trip(node: ClusterNode) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    channel = connection.channel()
    channel.queue_declare("q")
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"m")
    assert channel.basic_get("q", auto_ack=True)[2] == b"m"
    connection.close()


def files_of(node: ClusterNode) -> int:
    return len(list(Path(f"/proc/{node.pid}/fd").iterdir()))


@pytest.mark.parametrize(
    ("port", "first"),
    [
        (http_port, HALF_A_REQUEST),
        (http_port, b""),
        (amqp_port, HALF_A_LOGIN),
        (amqp_port, b"AMQP\0\0\x09\x01"),
        (peer_port, b""),
    ],
    ids=["half a request", "silence over HTTP", "half a header", "no login", "silent peers"],
)
def test_node_and_its_clients_survive_a_connection_flood(
    cluster: LocalCluster, port: Callable[[ClusterNode], int], first: bytes
) -> None:
    with contextlib.ExitStack() as stack:
        channels = [pika.BlockingConnection(pika.URLParameters(node.url)).channel() for node in cluster.nodes]
        for node in cluster.nodes:
            stack.enter_context(flood(port(node), first))
        for node in cluster.nodes:
            assert files_of(node) < FILES - OWN / 4
            assert node._get("/livez") == {"status": "ok"}
            assert node._get("/healthz") == {"status": "ok"}
            assert "rabbitmq_identity_info" in metrics(node)
            round_trip(node)
        time.sleep(1.1 * MEMORY_CHECK_INTERVAL_S)
        for channel in channels:
            channel.queue_declare("q", passive=True)
            channel.connection.close()
    for node in cluster.nodes:
        assert node.running
        assert "Traceback" not in node.log.read_text()
    round_trip(cluster.nodes[0])


def metrics(node: ClusterNode) -> str:
    async def request() -> str:
        async with (
            ClientSession() as session,
            session.get(f"http://127.0.0.1:{node.http_port}/metrics") as answer,
        ):
            return await answer.text()

    return asyncio.run(request())


def test_valid_logins_are_answered_while_100_clients_fail(cluster: LocalCluster) -> None:
    """100 clients that log in again and again with an old password, and as many over HTTP."""
    node, is_over = cluster.nodes[0], threading.Event()
    failures: list[float] = []

    def fail_over_amqp(number: int) -> None:
        while not is_over.is_set():
            began_s = time.monotonic()
            credentials = pika.PlainCredentials("guest", f"wrong {number}")
            parameters = pika.ConnectionParameters(
                "127.0.0.1",
                node.amqp_port,
                credentials=credentials,
                socket_timeout=15,
                blocked_connection_timeout=15,
            )
            with contextlib.suppress(pika.exceptions.AMQPError, OSError):
                pika.BlockingConnection(parameters)
            failures.append(time.monotonic() - began_s)

    threads = [threading.Thread(target=fail_over_amqp, args=[number]) for number in range(100)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            round_trip(node)
            assert node._get("/api/whoami")["name"] == "guest"
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert len(failures) >= 100


def test_too_many_failed_logins_over_http_are_throttled(cluster: LocalCluster) -> None:
    node = cluster.nodes[1]
    url = f"http://127.0.0.1:{node.http_port}/api/whoami"

    async def story() -> list[tuple[int, str | None]]:
        async with ClientSession() as session:

            async def request(password: str) -> tuple[int, str | None]:
                headers = {"Authorization": encode_basic_auth("guest", password)}
                async with session.get(url, headers=headers) as answer:
                    return answer.status, answer.headers.get("Retry-After")

            for _ in range(3):
                await request("wrong")
            # Each failure makes the next answer take longer, up to 5 s.
            requests = [asyncio.create_task(request(f"wrong {number}")) for number in range(60)]
            await asyncio.sleep(0.5)
            assert (await request("guest"))[0] == 200
            return await asyncio.gather(*requests)

    answers: Any = asyncio.run(story())
    assert {status for status, _ in answers} == {401, 429}
    assert all((retry_after is not None) is (status == 429) for status, retry_after in answers)


def test_node_with_too_few_file_descriptors_does_not_start(tmp_path: Path) -> None:
    with contextlib.suppress(testing.ClusterError), few_files(LEAST - 1), LocalCluster(1, tmp_path):
        pass
    *_, last = (tmp_path / "n1" / "log").read_text().splitlines()
    assert last == (
        f"qq serve: the process may have {LEAST - 1} files open (ulimit -n), and a node needs {LEAST} at least"
    )


@pytest.mark.parametrize("files", [LEAST, 257, 1024, 4096, 65_536, 1_048_576])
def test_all_connections_together_leave_a_node_its_own_files(files: int) -> None:
    for limits in (
        NodeLimits(),
        NodeLimits(connection_max=10**7, http_connection_max=10**7, strangers_max=10**7),
        NodeLimits(connection_max=1, http_connection_max=1, strangers_max=1),
    ):
        clients, _, unauthenticated, http = shares_of(files, MEMORY, limits)
        assert clients + 2 * http <= files - OWN
        assert min(clients, unauthenticated, http) > 0
        assert unauthenticated <= clients


def test_the_shares_of_usual_limits() -> None:
    assert shares_of(1024, MEMORY, NodeLimits()) == Shares(clients=666, logged_in=666, strangers=333, http=83)
    assert shares_of(65_536, MEMORY, NodeLimits()) == Shares(
        clients=63_296, logged_in=63_296, strangers=4096, http=1024
    )
    assert shares_of(1024, MEMORY, NodeLimits(connection_max=40)).logged_in == 40
    assert shares_of(1024, MEMORY, NodeLimits(connection_max=4000)).logged_in == 666
    with pytest.raises(StartError):
        shares_of(LEAST - 1, MEMORY, NodeLimits())
