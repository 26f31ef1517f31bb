"""connection.blocked and connection.unblocked, against a broker with an alarm set by the test."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Generator
from typing import Any

import pika
import pytest
from pamqp import commands

from qq.amqp.encoding import HEARTBEAT
from qq.process import memory
from qq.testing import LocalCluster
from tests.harness.lone_broker import LoneBroker
from tests.harness.raw_client import RawClient, marshal, publish

Basic, Connection, Queue = commands.Basic, commands.Connection, commands.Queue
LOW = "low on disk"


@pytest.fixture
def broker() -> Generator[LoneBroker]:
    with LoneBroker() as broker:
        yield broker


class Client(RawClient):
    """A client with a channel, which supports connection.blocked."""

    def __init__(self, broker: LoneBroker, **options: Any) -> None:
        super().__init__(broker.amqp_port, **{"more_capabilities": ["connection.blocked"]} | options)
        self.open_channel(1)

    def expect_no_frame(self) -> None:
        with pytest.raises(TimeoutError):
            self.receive(0.2)


def declared(client: Client, name: str = "q") -> int:
    return client.call(1, Queue.Declare(queue=name), Queue.DeclareOk).message_count


def test_publisher_is_blocked_and_not_read_until_the_alarm_ends(
    broker: LoneBroker,
) -> None:
    with Client(broker) as client:
        declared(client)
        client.write(publish(1, "q", b"before"))
        declared(client)
        broker.alarm(LOW)
        assert client.expect(Connection.Blocked, 0).reason == LOW
        client.write(publish(1, "q", b"meanwhile") + marshal(1, Queue.Declare(queue="q")))
        client.expect_no_frame()
        broker.alarm(None)
        client.expect(Connection.Unblocked, 0)
        assert client.expect(Queue.DeclareOk).message_count == 2


def test_consumer_is_not_blocked(broker: LoneBroker) -> None:
    with Client(broker) as client, Client(broker) as publisher:
        declared(client)
        publisher.write(publish(1, "q", b"1") + publish(1, "q", b"2"))
        declared(publisher)
        broker.alarm(LOW)
        publisher.expect(Connection.Blocked, 0)
        client.call(1, Basic.Qos(prefetch_count=1), Basic.QosOk)
        client.call(1, Basic.Consume(queue="q"), Basic.ConsumeOk)
        for number, body in enumerate((b"1", b"2"), 1):
            assert client.expect_message()[2] == body
            client.send(1, Basic.Ack(number))
        broker.alarm(None)
        publisher.expect(Connection.Unblocked, 0)
        assert declared(client) == 0


def test_first_publish_during_an_alarm_blocks_the_connection(broker: LoneBroker) -> None:
    broker.alarm(LOW)
    with Client(broker) as client:
        declared(client)
        client.write(publish(1, "q", b"first"))
        client.expect(Connection.Blocked, 0)
        client.send(1, Queue.Declare(queue="q"))
        client.expect_no_frame()
        broker.alarm(None)
        client.expect(Connection.Unblocked, 0)
        assert client.expect(Queue.DeclareOk).message_count == 1


def test_first_partial_message_during_an_alarm_blocks(
    broker: LoneBroker,
) -> None:
    """Many clients that each sent most of a large message once filled the memory that the alarm was about."""
    broker.alarm(LOW)
    with Client(broker) as client:
        declared(client)
        message = publish(1, "q", bytes(200_000))
        client.write(message[:-1])
        client.expect(Connection.Blocked, 0)
        client.write(message[-1:] + marshal(1, Queue.Declare(queue="q")))
        client.expect_no_frame()
        broker.alarm(None)
        client.expect(Connection.Unblocked, 0)
        assert client.expect(Queue.DeclareOk).message_count == 1


def test_client_without_the_capability_is_not_notified_nor_read(broker: LoneBroker) -> None:
    with Client(broker, more_capabilities=[]) as client:
        declared(client)
        client.write(publish(1, "q", b"before"))
        declared(client)
        broker.alarm(LOW)
        client.send(1, Queue.Declare(queue="q"))
        client.expect_no_frame()
        broker.alarm(None)
        client.expect(Queue.DeclareOk)


def test_each_alarm_is_reported_once(broker: LoneBroker) -> None:
    with Client(broker) as client:
        declared(client)
        client.write(publish(1, "q", b"m"))
        declared(client)
        for _ in range(3):
            broker.alarm(LOW)
            broker.alarm(LOW)
            client.expect(Connection.Blocked, 0)
            broker.alarm(None)
            broker.alarm(None)
            client.expect(Connection.Unblocked, 0)
        declared(client)


def test_heartbeats_continue_while_a_client_is_blocked(broker: LoneBroker) -> None:
    with Client(broker, heartbeat=1) as client:
        declared(client)
        client.write(publish(1, "q", b"m"))
        declared(client)
        broker.alarm(LOW)
        client.expect(Connection.Blocked, 0)
        end_s = time.monotonic() + 4
        received = b""
        while time.monotonic() < end_s:
            received += client.socket.recv(1000)
        assert received.count(HEARTBEAT) >= 3
        broker.alarm(None)
        client.expect(Connection.Unblocked, 0)
        declared(client)


def test_blocked_connection_is_closed_when_the_node_stops(broker: LoneBroker) -> None:
    with Client(broker) as client:
        client.write(publish(1, "q", b"m"))
        broker.alarm(LOW)
        client.expect(Connection.Blocked, 0)
        [connection] = broker.broker.connections.values()
        broker.call(lambda: connection.shut_down("the node stops"))
        broker.alarm(None)
        client.expect(Connection.Close, 0)
        client.send(0, Connection.CloseOk())
        client.expect_end()


def test_pika_calls_back(broker: LoneBroker) -> None:
    received: list[str] = []
    url = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/"
    connection = pika.BlockingConnection(pika.URLParameters(url))
    connection.add_on_connection_blocked_callback(lambda _, method: received.append(method.method.reason))
    connection.add_on_connection_unblocked_callback(lambda *_: received.append("go on"))
    channel = connection.channel()
    channel.queue_declare("q")
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"before")
    for sign in (LOW, "go on"):
        broker.alarm(LOW if sign == LOW else None)
        end_s = time.monotonic() + 5
        while sign not in received and time.monotonic() < end_s:
            connection.process_data_events(0.05)
    assert received == [LOW, "go on"]
    channel.basic_publish("", "q", b"after")
    assert channel.queue_declare("q", passive=True).method.message_count == 2
    connection.close()


def test_node_low_on_disk_blocks_publishers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QQ_LIMITS_DISK_FREE_LIMIT_BYTES", str(2**60))
    with (
        LocalCluster(nodes=1) as cluster,
        RawClient(cluster.nodes[0].amqp_port, more_capabilities=["connection.blocked"]) as client,
    ):
        client.open_channel(1)
        client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
        client.write(publish(1, "q", b"m"))
        assert client.expect(Connection.Blocked, 0).reason == LOW
        [node] = cluster.status()["nodes"]
        assert node["alarm"] is True
        assert 0 < node["disk_free_bytes"] < 2**60


BARELY_A_MESSAGE = 1.01 * 2**24 / memory.available_bytes()
"""The smallest share of the memory that may be the limit, about: the octets of a message."""


@pytest.mark.parametrize(
    ("limits", "reason", "resource"),
    [
        ({"MEMORY_HIGH_WATERMARK_BYTES": 2**24}, "low on memory", "memory_used"),
        ({"MEMORY_HIGH_WATERMARK": BARELY_A_MESSAGE}, "low on memory", "memory_used"),
        (
            {"MEMORY_HIGH_WATERMARK_BYTES": 2**24, "DISK_FREE_LIMIT_BYTES": 2**60},
            "low on memory & disk",
            "free_disk_space",
        ),
    ],
)
def test_node_low_on_memory_blocks_publishers(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, float], reason: str, resource: str
) -> None:
    for name, limit in limits.items():
        monkeypatch.setenv(f"QQ_LIMITS_{name}", str(limit))
    with (
        LocalCluster(nodes=1) as cluster,
        RawClient(cluster.nodes[0].amqp_port, more_capabilities=["connection.blocked"]) as client,
    ):
        [node] = cluster.nodes
        client.open_channel(1)
        client.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
        client.write(publish(1, "q", b"m"))
        assert client.expect(Connection.Blocked, 0).reason == reason
        assert cluster.status()["nodes"][0]["alarm"] is True
        with urllib.request.urlopen(f"http://127.0.0.1:{node.http_port}/metrics") as metrics:
            assert f"rabbitmq_alarms_{resource}_watermark 1.0" in metrics.read().decode()


def test_second_alarm_is_not_reported_and_both_must_end(broker: LoneBroker) -> None:
    with Client(broker) as client:
        client.write(publish(1, "q", b"m"))
        declared(client)
        broker.alarm("low on memory")
        assert client.expect(Connection.Blocked, 0).reason == "low on memory"
        broker.alarm("low on memory & disk")
        broker.alarm("low on disk")
        client.send(1, Queue.Declare(queue="q"))
        client.expect_no_frame()
        broker.alarm(None)
        client.expect(Connection.Unblocked, 0)
        client.expect(Queue.DeclareOk)
