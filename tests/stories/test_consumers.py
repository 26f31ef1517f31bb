"""Consumers when leaders change, nodes die and queues are deleted."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import pika
import pika.exceptions
import pytest

from qq.testing import LocalCluster
from tests.stories.clients import pika_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pika.adapters.blocking_connection import BlockingChannel

    from qq.testing import ClusterNode

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(90)]

PATIENCE_S = 10.0
QUEUE = "jobs"
HELD = 20


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[LocalCluster]:
    with LocalCluster(3, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> LocalCluster:
    """A cluster that all these tests share; each finds all nodes running, and no queue."""
    shared_cluster.restore()
    with pika_connection(shared_cluster.nodes[0]) as connection:
        connection.channel().queue_delete(QUEUE)
    return shared_cluster


class Consumer:
    """A pika consumer that never acknowledges."""

    def __init__(self, connection: pika.BlockingConnection, **arguments: object) -> None:
        self._connection = connection
        self.received: list[tuple[bytes, bool]] = []
        self.cancelled = False
        channel = connection.channel()
        channel.add_on_cancel_callback(self._cancel)
        channel.basic_consume(QUEUE, self._receive, arguments=arguments)

    def _receive(self, _channel: object, method: object, _properties: object, body: bytes) -> None:
        self.received.append((body, method.redelivered))

    def _cancel(self, _method: object) -> None:
        self.cancelled = True

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"{len(self.received)} received, cancelled: {self.cancelled}"
            self._connection.process_data_events(0.02)


@contextmanager
def connected(node: ClusterNode) -> Generator[pika.BlockingConnection]:
    """A connection to a node, which may be dead at the end."""
    connection = pika_connection(node)
    try:
        yield connection
    finally:
        with suppress(pika.exceptions.AMQPConnectionError):
            connection.close()


@contextmanager
def queue_at(node: ClusterNode) -> Generator[tuple[pika.BlockingConnection, BlockingChannel]]:
    """Connect, declare the queue, and give a channel with confirms."""
    with connected(node) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
        yield connection, channel


def publish(channel: BlockingChannel, count: int) -> list[bytes]:
    bodies = [b"%d" % number for number in range(count)]
    for body in bodies:
        channel.basic_publish("", QUEUE, body)
    return bodies


def test_consumer_is_cancelled_on_failover_only_on_request(cluster: LocalCluster) -> None:
    with queue_at(cluster.followers()[0]) as (connection, channel):
        fragile = Consumer(connection, **{"x-cancel-on-ha-failover": True})
        robust = Consumer(connection)
        cluster.leader().kill()
        fragile.until(lambda: fragile.cancelled)
        [body] = publish(channel, 1)
        robust.until(lambda: robust.received == [(body, False)])
        assert not robust.cancelled
        assert fragile.received == []


def test_deleted_queue_cancels_consumers_on_every_node(cluster: LocalCluster) -> None:
    with queue_at(cluster.nodes[0]) as (_, channel), ExitStack() as stack:
        consumers = [Consumer(stack.enter_context(connected(node))) for node in cluster.nodes]
        channel.queue_delete(QUEUE)
        for consumer in consumers:
            consumer.until(lambda consumer=consumer: consumer.cancelled)


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_messages_of_a_killed_nodes_consumer_are_redelivered(cluster: LocalCluster, role: str) -> None:
    killed = cluster.leader() if role == "leader" else cluster.followers()[0]
    [living, *_] = [node for node in cluster.nodes if node is not killed]
    with queue_at(living) as (connection, channel), connected(killed) as doomed:
        holder = Consumer(doomed)
        bodies = publish(channel, HELD)
        holder.until(lambda: len(holder.received) == HELD)
        heir = Consumer(connection)
        killed.kill()
        killed_s = time.monotonic()
        heir.until(lambda: heir.received == [(body, True) for body in bodies])
        print(f"came back after {time.monotonic() - killed_s:.2f} s")


def test_held_messages_are_redelivered_after_a_total_outage(
    cluster: LocalCluster,
) -> None:
    [lost, *survivors] = cluster.nodes
    with queue_at(lost) as (connection, channel):
        holder = Consumer(connection)
        bodies = publish(channel, HELD)
        holder.until(lambda: len(holder.received) == HELD)
        for node in cluster.nodes:
            node.kill()
    for node in survivors:
        node.start()
    survivors[0].wait_ready()
    with connected(survivors[0]) as connection:
        heir = Consumer(connection)
        heir.until(lambda: heir.received == [(body, True) for body in bodies])
