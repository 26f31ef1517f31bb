"""Bytes that are not AMQP, and clients that stop in the middle."""

from __future__ import annotations

import base64
import contextlib
import struct
import time
from collections.abc import Generator
from http.client import HTTPConnection
from typing import Any

import pytest
from pamqp import commands

from chaos.fuzz.run import TROUBLE
from qq.sessions.login import FIRST_DELAY_S
from qq.testing import ClusterNode, LocalCluster
from tests.harness.raw_client import HEADER, RawClient, frame_bytes, marshal, publish
from tests.harness.stopwatch import Stopwatch

Basic, Chan, Conn, Queue = commands.Basic, commands.Channel, commands.Connection, commands.Queue
HANDSHAKE_TIMEOUT_S = 2.0
CLOSE_GRACE_S = 3.0


def works(raw: RawClient) -> None:
    raw.call(1, Basic.Qos(prefetch_count=1), Basic.QosOk)


@pytest.fixture
def impatient_node(monkeypatch: pytest.MonkeyPatch) -> Generator[ClusterNode]:
    monkeypatch.setenv("QQ_LIMITS_HANDSHAKE_TIMEOUT_S", str(HANDSHAKE_TIMEOUT_S))
    with LocalCluster(nodes=1) as cluster:
        yield cluster.nodes[0]
        assert not TROUBLE.search(cluster.nodes[0].log.read_text())


def assert_dropped(client: RawClient, after_s: float, before_s: float) -> None:
    """The node ends the connection between these times; on a machine that is busy, later."""
    with Stopwatch() as watch:
        client.expect_end()
    assert after_s < watch.seconds < before_s * watch.slowness


def test_unfinished_handshake_is_dropped(impatient_node: ClusterNode) -> None:
    start_ok = marshal(0, RawClient.start_ok())
    tune_ok = marshal(0, Conn.TuneOk(10, 8192, 0))
    starts = [b"", b"AMQP", HEADER, HEADER + start_ok[:20], HEADER + start_ok, HEADER + start_ok + tune_ok]
    with Stopwatch() as watch, contextlib.ExitStack() as clients:
        halves = [clients.enter_context(RawClient(impatient_node.amqp_port, handshake=False)) for _ in starts]
        for client, start in zip(halves, starts, strict=True):
            client.write(start)
        for client in halves:
            client.socket.settimeout(HANDSHAKE_TIMEOUT_S + 30)
            with contextlib.suppress(ConnectionError):
                while client.socket.recv(65536):
                    pass
    assert HANDSHAKE_TIMEOUT_S - 0.5 < watch.seconds < (HANDSHAKE_TIMEOUT_S + 3) * watch.slowness
    with RawClient(impatient_node.amqp_port) as raw:
        raw.open_channel(1)
        works(raw)


def test_refused_login_without_a_reason_is_delayed(node: ClusterNode) -> None:
    with RawClient(node.amqp_port, handshake=False) as client:
        client.write(HEADER)
        client.expect(Conn.Start)
        client.send(0, client.start_ok("\0guest\0wrong", capabilities={}))
        assert_dropped(client, CLOSE_GRACE_S - 0.5, CLOSE_GRACE_S + 2)


def test_guesses_over_http_take_longer_and_longer(node: ClusterNode) -> None:
    def status(password: str) -> int:
        client = HTTPConnection("127.0.0.1", node.http_port, timeout=10, source_address=("127.9.9.9", 0))
        with contextlib.closing(client):
            credentials = base64.b64encode(f"guest:{password}".encode()).decode()
            client.request("GET", "/api/cluster", headers={"Authorization": f"Basic {credentials}"})
            return client.getresponse().status

    start_s = time.monotonic()
    assert [status("wrong") for _ in range(4)] == [401] * 4
    assert time.monotonic() - start_s > FIRST_DELAY_S * (1 + 2 + 4 + 8)
    with Stopwatch() as watch:
        assert status("guest") == 200
    assert watch.seconds < FIRST_DELAY_S * 8 * watch.slowness


def test_unfinished_frame_does_not_delay_a_second_client(
    node: ClusterNode, raw: RawClient, queue: str
) -> None:
    with RawClient(node.amqp_port) as half:
        half.open_channel(1)
        message = publish(1, queue, b"x" * 100_000)
        half.write(message[:50_000])
        works(raw)
        half.write(message[50_000:])
        works(half)


def test_client_that_ignores_connection_close_is_dropped(raw: RawClient) -> None:
    raw.send(1, Chan.Flow(active=False))
    raw.expect(Conn.Close)
    assert_dropped(raw, CLOSE_GRACE_S - 0.5, CLOSE_GRACE_S + 2)


def test_a_silent_client_that_promised_heartbeats_is_dropped(node: ClusterNode, queue: str) -> None:
    """Its unacknowledged messages are requeued."""
    with RawClient(node.amqp_port, heartbeat=1) as client:
        client.open_channel(1)
        client.call(1, Queue.Declare(queue=queue, exclusive=True), Queue.DeclareOk)
        assert_dropped(client, 1.9, 4)
    with RawClient(node.amqp_port) as client:
        client.open_channel(1)
        client.call(1, Queue.Declare(queue=queue, exclusive=True), Queue.DeclareOk)


NESTED = b""
for _ in range(3000):
    NESTED = b"\1aF" + struct.pack(">I", len(NESTED)) + NESTED


@pytest.mark.parametrize(
    "arguments",
    [
        NESTED,
        b"\1ad" + struct.pack(">d", float("nan")),
        b"\1ad" + struct.pack(">d", float("inf")),
        b"\1aD\xff\x7f\xff\xff\xff",
        b"\1aT" + b"\xff" * 8,
        b"\1al" + b"\x80" + b"\0" * 7,
        b"\1aS\0\0\0\2\xff\xff",
        b"\1ax\0\0\0\1\0",
        b"\1\xffV",
        b"\1aV\1aV",
        b"\0V",
        b"\1a?",
    ],
    ids=lambda value: repr(value[:12]),
)
def test_odd_arguments_are_accepted_or_refused(
    node: ClusterNode, raw: RawClient, queue: str, arguments: bytes
) -> None:
    table = struct.pack(">I", len(arguments)) + arguments
    name = bytes([len(queue)]) + queue.encode()
    methods: list[bytes] = [
        b"\0\x32\0\x0a\0\0" + name + b"\0" + table,
        b"\0\x28\0\x0a\0\0" + name + b"\6direct\0" + table,
        b"\0\x3c\0\x14\0\0" + name + b"\0\0" + table,
    ]
    for method in methods:
        with RawClient(node.amqp_port) as client:
            client.open_channel(1)
            client.write(frame_bytes(1, 1, method))
            _, answer = client.receive()
            taken: tuple[Any, ...] = (Queue.DeclareOk, commands.Exchange.DeclareOk, Basic.ConsumeOk)
            refused = isinstance(answer, Chan.Close | Conn.Close) and answer.reply_code in (404, 406, 502)
            assert refused or isinstance(answer, taken), answer
    works(raw)
