"""Delay queues of real clients survive an outage: dead letters leave them before they expire."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable

import pika
import pika.exceptions
import pytest

from qq.machine.protocol.versions import VERSIONS
from qq.testing import ClusterNode, LocalCluster

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(120)]

TTL_MS, EXPIRES_MS = 500, 1_500
OUTAGE_S = 4.0
PATIENCE_S = 30.0
MESSAGES = 5


@pytest.fixture(scope="module")
def cluster() -> Generator[LocalCluster]:
    with LocalCluster(3) as cluster:
        # A new cluster goes over to the newest version of the state within its first second.
        newest = f"the cluster is at version {VERSIONS[1]} of the state"
        until(lambda: all(newest in node.log.read_text() for node in cluster.nodes), 0.05)
        yield cluster


def freeze(nodes: Iterable[ClusterNode]) -> None:
    for node in nodes:
        node.pause()
    time.sleep(OUTAGE_S)
    for node in nodes:
        node.resume()


def freeze_all(cluster: LocalCluster) -> None:
    freeze(cluster.nodes)


def freeze_a_majority(cluster: LocalCluster) -> None:
    freeze(cluster.followers())


def freeze_the_leader_and_a_follower(cluster: LocalCluster) -> None:
    freeze([cluster.leader(), cluster.followers()[0]])


def kill_all(cluster: LocalCluster) -> None:
    for node in cluster.nodes:
        node.kill()
    time.sleep(OUTAGE_S)
    for node in cluster.nodes:
        node.start()


def count(cluster: LocalCluster, queue: str) -> int | None:
    """Return the number of messages in a queue, once a node answers; None if the queue is missing."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            with pika.BlockingConnection(pika.URLParameters(cluster.nodes[0].url)) as connection:
                return connection.channel().queue_declare(queue, passive=True).method.message_count
        except pika.exceptions.ChannelClosedByBroker:
            return None
        except pika.exceptions.AMQPError:
            assert time.monotonic() < end_s
            time.sleep(0.1)


def until(holds: Callable[[], bool], every_s: float) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(every_s)


@pytest.mark.parametrize(
    "goes_out", [freeze_all, freeze_a_majority, freeze_the_leader_and_a_follower, kill_all]
)
def test_a_delay_queue_dead_letters_its_messages_after_an_outage(
    cluster: LocalCluster, goes_out: Callable[[LocalCluster], None]
) -> None:
    work, delay = f"work {goes_out.__name__}", f"delay {goes_out.__name__}"
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": work}
    with pika.BlockingConnection(pika.URLParameters(cluster.nodes[0].url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(work, durable=True)
        arguments = {"x-message-ttl": TTL_MS, "x-expires": EXPIRES_MS, **dead}
        channel.queue_declare(delay, durable=True, arguments=arguments)
        for _ in range(MESSAGES):
            channel.basic_publish("", delay, b"", pika.BasicProperties(delivery_mode=2))
    goes_out(cluster)
    until(lambda: count(cluster, work) == MESSAGES, 0.2)
    # To ask for the queue is to use it.
    until(lambda: count(cluster, delay) is None, 2 * EXPIRES_MS / 1000)
