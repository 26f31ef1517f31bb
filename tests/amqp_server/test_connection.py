"""How many and how much, and the ends of connections and channels in every order."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import pytest
from pamqp import commands, header

from qq.amqp.connection import Settings
from qq.amqp_server.channel.channel import _HANDLERS
from qq.client_sockets import closing
from qq.errors import ReplyCode
from qq.machine.protocol.effects import ConnectionForced
from qq.sessions.ports import Connection
from qq.testing import LocalCluster
from tests.harness.lone_broker import LoneBroker
from tests.harness.raw_client import HEADER, RawClient, frame_bytes, marshal, publish
from tests.harness.stopwatch import Stopwatch

Basic, Chan, Conn, Queue = commands.Basic, commands.Channel, commands.Connection, commands.Queue
BYE = Chan.Close(200, "bye", 0, 0)
CONNECTION_BYE = Conn.Close(200, "bye", 0, 0)


@pytest.fixture
def broker() -> Generator[LoneBroker]:
    with LoneBroker() as broker:
        yield broker


@pytest.fixture
def client(broker: LoneBroker) -> Generator[RawClient]:
    with RawClient(broker.amqp_port) as client:
        client.open_channel(1)
        yield client


def works(client: RawClient, channel: int = 1) -> None:
    client.call(channel, Queue.Declare(queue="works"), Queue.DeclareOk)


def expect_no_frame(client: RawClient, seconds: float = 0.2) -> None:
    with pytest.raises(TimeoutError):
        client.receive(seconds)


# Limits


def test_node_accepts_connections_up_to_its_limit() -> None:
    with LoneBroker(connection_max=2) as broker:
        first, second = RawClient(broker.amqp_port), RawClient(broker.amqp_port)
        with first, second:
            with RawClient(broker.amqp_port, handshake=False) as third:
                third.write(HEADER)
                third.expect(Conn.Start)
                third.send(0, third.start_ok())
                third.expect(Conn.Tune)
                third.send(0, Conn.TuneOk(2047, 131_072, 0), Conn.Open("/"))
                third.expect_close(
                    530, "NOT_ALLOWED - connection refused: node connection limit (2) is reached"
                )
                third.send(0, Conn.CloseOk())
                third.expect_end()
            first.open_channel(1)
            works(first)
            first.close()
            while len(broker.broker.connections) > 1:
                broker.pass_some_time()
            with RawClient(broker.amqp_port) as fourth:
                fourth.open_channel(1)
                works(fourth)


def test_tuning_without_limits() -> None:
    with LoneBroker(Settings(channel_max=0, heartbeat_s=0)) as broker:
        with RawClient(broker.amqp_port, handshake=False) as client:
            client.write(HEADER)
            client.expect(Conn.Start)
            client.send(0, client.start_ok())
            assert dict(client.expect(Conn.Tune)) == {"channel_max": 0, "frame_max": 131_072, "heartbeat": 0}
        with RawClient(broker.amqp_port, channel_max=0) as client:
            client.send(65_535, Chan.Open())
            client.expect(Chan.OpenOk, 65_535)
            works(client, 65_535)


def test_tune_limits_and_product_are_configurable(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "LIMITS_CHANNEL_MAX": "100",
        "LIMITS_FRAME_MAX": "16384",
        "LIMITS_CLIENT_HEARTBEAT_S": "7",
        "LIMITS_CONNECTION_MAX": "1",
        "LIMITS_HANDSHAKE_TIMEOUT_S": "0.5",
        "PRODUCT_NAME": "Other",
        "PRODUCT_VERSION": "9.8.7",
        "CLUSTER_NAME": "blue",
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"QQ_{name}", value)
    with LocalCluster(nodes=1) as cluster:
        [node] = cluster.nodes
        with RawClient(node.amqp_port, handshake=False) as client:
            client.write(HEADER)
            properties = client.expect(Conn.Start).server_properties
            shown = [properties[name] for name in ("product", "version", "cluster_name")]
            assert shown == ["Other", "9.8.7", "blue"]
            client.send(0, client.start_ok())
            tune = {"channel_max": 100, "frame_max": 16_384, "heartbeat": 7}
            assert dict(client.expect(Conn.Tune)) == tune
            with Stopwatch() as watch:
                client.expect_end()
            assert watch.seconds < 3 * watch.slowness
        with (
            RawClient(node.amqp_port, channel_max=100, frame_max=16_384),
            RawClient(node.amqp_port, handshake=False) as second,
        ):
            second.write(HEADER)
            second.expect(Conn.Start)
            ahead = (second.start_ok(), Conn.TuneOk(100, 16_384, 0), Conn.Open("/"))
            second.send(0, *ahead)
            second.expect(Conn.Tune)
            text = "NOT_ALLOWED - connection refused: node connection limit (1) is reached"
            second.expect_close(530, text)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            b"\x16\x03\x01\2\0\1\0\1\xfc\3",
            "not AMQP 0-9-1, but TLS: b'\\x16\\x03\\x01\\x02\\x00\\x01\\x00\\x01'",
        ),
        (b"GET / HTTP/1.1\r\n", "not AMQP 0-9-1: b'GET / HT'"),
        (b"AMQP\0\1\0\0", "not AMQP 0-9-1: b'AMQP\\x00\\x01\\x00\\x00'"),
    ],
)
def test_foreign_protocol_is_named_in_the_log(
    broker: LoneBroker, caplog: pytest.LogCaptureFixture, data: bytes, text: str
) -> None:
    with RawClient(broker.amqp_port, handshake=False) as client:
        client.write(data)
        assert client.socket.recv(100) == HEADER
        client.expect_end()
    [line] = [record.getMessage() for record in caplog.records if "not AMQP" in record.getMessage()]
    assert re.fullmatch(rf"connection from 127\.0\.0\.1:\d+: {re.escape(text)}", line)


def test_a_client_that_sends_everything_ahead_is_served(broker: LoneBroker) -> None:
    with RawClient(broker.amqp_port, handshake=False) as client:
        ahead = [client.start_ok(), Conn.TuneOk(10, 8192, 0), Conn.Open("/")]
        client.write(HEADER + b"".join(marshal(0, frame) for frame in ahead) + marshal(1, Chan.Open()))
        for answer in (Conn.Start, Conn.Tune, Conn.OpenOk, Chan.OpenOk):
            client.expect(answer)
        works(client)


# The limit of a frame


def test_deliveries_are_cut_to_the_frames_of_the_consumer(broker: LoneBroker, client: RawClient) -> None:
    body = bytes(range(256)) * 400
    works(client)
    client.write(publish(1, "works", body))
    with RawClient(broker.amqp_port, frame_max=8192) as consumer:
        consumer.open_channel(1)
        consumer.send(1, Basic.Get(queue="works"))
        consumer.expect(Basic.GetOk)
        assert consumer.expect(header.ContentHeader).body_size == len(body)
        parts: list[bytes] = []
        while sum(map(len, parts)) < len(body):
            _, part = consumer.receive()
            parts.append(part.value)
        assert b"".join(parts) == body
        assert {len(part) for part in parts[:-1]} == {8192 - 8}


def test_headers_above_the_consumers_frame_limit_are_sent_whole(
    broker: LoneBroker, client: RawClient
) -> None:
    """They cannot be cut; RabbitMQ does the same."""
    table = b"".join(b"\5h%04dS\0\0\1\0" % number + b"x" * 256 for number in range(200))
    properties = b"\x20\0" + len(table).to_bytes(4, "big") + table
    works(client)
    client.write(publish(1, "works", b"body", properties=properties))
    with RawClient(broker.amqp_port, frame_max=8192) as consumer:
        consumer.open_channel(1)
        consumer.send(1, Basic.Get(queue="works"))
        _, content, body = consumer.expect_message()
        assert len(content.properties.headers) == 200
        assert body == b"body"


# Operators


def close(connection: Connection, text: str, code: ReplyCode = ReplyCode.CONNECTION_FORCED) -> None:
    """Close a connection as the log does for an operator."""
    connection.force_close(ConnectionForced("n1", connection.id, code, text))


def test_an_operator_closes_a_connection(broker: LoneBroker, client: RawClient) -> None:
    [connection] = broker.broker.connections.values()
    broker.call(close, connection, "vhost '/' is deleted")
    client.expect_close(320, "CONNECTION_FORCED - vhost '/' is deleted")
    client.send(0, Conn.CloseOk())
    client.expect_end()


def test_operator_closes_a_connection_with_a_given_code(broker: LoneBroker, client: RawClient) -> None:
    [connection] = broker.broker.connections.values()
    broker.call(close, connection, "enough", ReplyCode.NOT_ALLOWED)
    client.expect_close(530, "NOT_ALLOWED - enough")


def test_an_operator_closes_a_connection_that_is_not_read(broker: LoneBroker) -> None:
    with RawClient(broker.amqp_port, more_capabilities=["connection.blocked"]) as client:
        client.open_channel(1)
        client.write(publish(1, "q", b"m"))
        broker.alarm("low on memory")
        client.expect(Conn.Blocked)
        client.write(publish(1, "q", b"m") * 100)
        [connection] = broker.broker.connections.values()
        broker.call(close, connection, "Closed via management plugin")
        client.expect_close(320, "CONNECTION_FORCED - Closed via management plugin")
        client.send(0, Conn.CloseOk())
        client.expect_end()


def test_an_operator_closes_a_connection_that_is_not_open_yet(broker: LoneBroker) -> None:
    with RawClient(broker.amqp_port, handshake=False) as client:
        client.write(HEADER)
        client.expect(Conn.Start)
        [connection] = broker.broker.connections.values()
        broker.call(close, connection, "bye")
        client.expect_end()


def test_an_operator_closes_a_connection_that_is_closing(broker: LoneBroker, client: RawClient) -> None:
    [connection] = broker.broker.connections.values()
    broker.call(close, connection, "once")
    broker.call(close, connection, "twice")
    client.expect_close(320, "CONNECTION_FORCED - once")
    client.expect_end()


# Channels that close


def test_channel_number_is_reused_many_times(client: RawClient) -> None:
    works(client)
    for _ in range(200):
        client.send(1, BYE)
        client.expect(Chan.CloseOk, 1)
        client.send(1, Chan.Open(), Queue.Declare(queue="works"))
        client.expect(Chan.OpenOk, 1)
        client.expect(Queue.DeclareOk, 1)


def test_a_channel_number_is_used_again_behind_close_ok(client: RawClient) -> None:
    for _ in range(50):
        client.send(1, Queue.Declare(queue="none", passive=True))
        client.expect(Chan.Close, 1)
        client.send(1, Chan.CloseOk(), Chan.Open(), Queue.Declare(queue="works"))
        client.expect(Chan.OpenOk, 1)
        client.expect(Queue.DeclareOk, 1)


def test_channel_without_close_ok_stays_closed_alone(client: RawClient) -> None:
    client.open_channel(2)
    client.send(1, Queue.Declare(queue="none", passive=True))
    client.expect(Chan.Close, 1)
    client.write(publish(1, "works", b"m") + marshal(1, Queue.Declare(queue="works")))
    expect_no_frame(client)
    works(client, 2)
    client.close()


def test_channel_closes_after_the_answer_it_waits_for(broker: LoneBroker, client: RawClient) -> None:
    broker.group.holding = True
    client.send(1, Queue.Declare(queue="works"), BYE)
    expect_no_frame(client)
    broker.call(broker.group.release)
    client.expect(Queue.DeclareOk, 1)
    client.expect(Chan.CloseOk, 1)


def test_both_close_a_channel_at_once(broker: LoneBroker, client: RawClient) -> None:
    broker.group.holding = True
    client.send(1, Queue.Declare(queue="none", passive=True), BYE)
    expect_no_frame(client)
    broker.call(broker.group.release)
    client.expect(Chan.Close, 1)
    client.expect(Chan.CloseOk, 1)
    client.send(1, Chan.CloseOk(), Chan.Open())
    client.expect(Chan.OpenOk, 1)
    works(client)


HALF_A_MESSAGE = (
    frame_bytes(1, 1, b"\0\x3c\0\x28\0\0\0\5works\0"),
    frame_bytes(2, 1, b"\0\x3c\0\0" + (10).to_bytes(8, "big") + b"\0\0"),
    frame_bytes(3, 1, b"half"),
)


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_a_channel_cannot_be_closed_in_the_middle_of_a_message(client: RawClient, frames: int) -> None:
    client.write(b"".join(HALF_A_MESSAGE[:frames]) + marshal(1, BYE))
    due = "content header for class 60" if frames == 1 else "content body"
    got = "non content header" if frames == 1 else "non content body"
    client.expect_close(505, f"UNEXPECTED_FRAME - expected {due}, got {got} frame instead")


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_a_connection_can_be_closed_in_the_middle_of_a_message(client: RawClient, frames: int) -> None:
    client.write(b"".join(HALF_A_MESSAGE[:frames]) + marshal(0, CONNECTION_BYE))
    client.expect(Conn.CloseOk, 0)
    client.part()


# Connections that close


def test_internal_error_in_a_held_method_ends_its_connection(
    broker: LoneBroker, client: RawClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("of ours")

    monkeypatch.setitem(_HANDLERS, "Basic.Qos", fail)
    with RawClient(broker.amqp_port) as other:
        other.open_channel(1)
        broker.group.holding = True
        client.send(1, Queue.Declare(queue="works"), Basic.Qos(prefetch_count=1))
        expect_no_frame(client)
        broker.call(broker.group.release)
        client.expect(Queue.DeclareOk, 1)
        client.expect_close(541, "INTERNAL_ERROR - an unexpected error in the broker")
        works(other)
    assert "RuntimeError: of ours" in caplog.text


def test_connection_closes_without_waiting_for_its_channels(broker: LoneBroker, client: RawClient) -> None:
    broker.group.holding = True
    client.send(1, Queue.Declare(queue="works"))
    client.send(0, CONNECTION_BYE)
    client.expect(Conn.CloseOk, 0)
    client.part()
    broker.call(broker.group.release)


def test_behind_close_ok_the_socket_is_the_clients_to_close(
    broker: LoneBroker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "CLOSE_GRACE_S", 60.0)
    client.send(0, CONNECTION_BYE)
    client.expect(Conn.CloseOk, 0)
    broker.pass_some_time()
    assert not broker.machine.catalog.connections
    client.write(b"rubbish")
    expect_no_frame(client)
    client.part()


def test_client_that_keeps_its_socket_after_close_ok_is_dropped(
    client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "CLOSE_GRACE_S", 0.5)
    client.send(0, CONNECTION_BYE)
    client.expect(Conn.CloseOk, 0)
    with Stopwatch() as watch:
        client.expect_end()
    assert 0.4 < watch.seconds < 2 * watch.slowness


@pytest.mark.parametrize(
    "answers",
    [
        (CONNECTION_BYE, Conn.CloseOk()),
        (Conn.CloseOk(), CONNECTION_BYE),
        (CONNECTION_BYE, CONNECTION_BYE, Conn.CloseOk()),
    ],
)
def test_both_close_the_connection_in_any_order(
    broker: LoneBroker, client: RawClient, answers: tuple[Any, ...]
) -> None:
    [connection] = broker.broker.connections.values()
    broker.call(close, connection, "shutdown")
    client.expect(Conn.Close, 0)
    client.send(0, *answers)
    with Stopwatch() as watch:
        client.expect_end()
    assert watch.seconds < 2 * watch.slowness


def test_frames_after_a_connection_close_are_ignored(client: RawClient) -> None:
    client.send(0, CONNECTION_BYE)
    client.write(publish(1, "works", b"m") + marshal(7, BYE) + b"rubbish" * 1000)
    client.expect(Conn.CloseOk, 0)
    client.part()
