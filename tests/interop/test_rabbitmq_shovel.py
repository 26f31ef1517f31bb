"""The shovel of RabbitMQ 4 with AMQP 1.0 at either end: messages go through a chain of shovels from queue to queue."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pika
import pytest

from qq.testing import LocalCluster
from tests.interop.queues import declare_queue
from tests.interop.rabbitmq_node import HOW, is_installed, rabbitmq_node

if TYPE_CHECKING:
    from pathlib import Path

    from qq.testing import ClusterNode

pytestmark = [
    pytest.mark.interop,
    pytest.mark.xdist_group("interop-suites"),
    pytest.mark.timeout(200),
    pytest.mark.skipif(not is_installed(), reason=HOW),
]

MESSAGES = 1000
ARRIVAL_S = 60.0
HERE = ["first", "second", "third", "fourth", "last"]
"""Queues of the cluster."""
RELAY = "relay"
"""A queue of RabbitMQ."""
PROPERTIES = pika.BasicProperties(
    content_type="text/plain", delivery_mode=2, priority=5, message_id="m-1", headers={"x": "y"}
)
SHOVELLED = pika.BasicProperties(
    delivery_mode=2, headers={"exchange": "", "routing_key": "fourth", "src-queue": "fourth"}
)
"""The properties that these shovels leave when each queue is RabbitMQ's own."""


def ends(cluster: LocalCluster, protocol: str, side: str, queue: str) -> dict[str, Any]:
    """Return a shovel's settings for an end in the cluster."""
    uris = [f"amqp://guest:guest@127.0.0.1:{node.amqp_port}" for node in cluster.nodes]
    if protocol == "amqp10":
        return {f"{side}-protocol": protocol, f"{side}-uri": uris, f"{side}-address": f"/queues/{queue}"}
    return {f"{side}-protocol": protocol, f"{side}-uri": uris, f"{side}-queue": queue}


def relay(side: str) -> dict[str, Any]:
    return {f"{side}-protocol": "amqp091", f"{side}-uri": "amqp://", f"{side}-queue": RELAY}


def chain(cluster: LocalCluster) -> dict[str, dict[str, Any]]:
    first, second, third, fourth, last = HERE
    options = {"ack-mode": "on-confirm", "reconnect-delay": 1}
    return {
        "to-rabbitmq": ends(cluster, "amqp10", "src", first) | relay("dest") | options,
        "from-rabbitmq": relay("src") | ends(cluster, "amqp10", "dest", second) | options,
        "between": ends(cluster, "amqp10", "src", second) | ends(cluster, "amqp10", "dest", third) | options,
        "to-091": ends(cluster, "amqp10", "src", third) | ends(cluster, "amqp091", "dest", fourth) | options,
        "to-10": ends(cluster, "amqp091", "src", fourth) | ends(cluster, "amqp10", "dest", last) | options,
    }


def publish(node: ClusterNode) -> None:
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(MESSAGES):
            channel.basic_publish("", HERE[0], str(number).encode(), PROPERTIES)


def received(node: ClusterNode, log: Path) -> list[tuple[pika.BasicProperties, int]]:
    """Consume the last queue until each number was there."""
    messages: list[tuple[pika.BasicProperties, int]] = []
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        channel = connection.channel()
        deadline = time.monotonic() + ARRIVAL_S
        for _, properties, body in channel.consume(HERE[-1], auto_ack=True, inactivity_timeout=1):
            if body is not None:
                messages.append((properties, int(body)))
            if len({number for _, number in messages}) == MESSAGES:
                return messages
            assert time.monotonic() < deadline, (
                f"{len(messages)} messages have come\n{log.read_text()[-5000:]}"
            )
    raise AssertionError


def test_shovel_moves_messages_in_order_over_both_protocols() -> None:
    with LocalCluster() as cluster:
        for queue in HERE:
            declare_queue(cluster.nodes[0], queue)
        with rabbitmq_node([RELAY], chain(cluster)) as log:
            publish(cluster.nodes[0])
            messages = received(cluster.nodes[1], log)
    assert [number for _, number in messages] == list(range(MESSAGES))
    assert all(properties == SHOVELLED for properties, _ in messages)


def test_shovel_loses_no_message_when_nodes_are_killed() -> None:
    with LocalCluster() as cluster:
        for queue in HERE:
            declare_queue(cluster.nodes[0], queue)
        with rabbitmq_node([RELAY], chain(cluster)) as log:
            publish(cluster.nodes[0])
            for node in cluster.nodes:
                node.kill()
                time.sleep(1)
                node.start()
                node.wait_ready()
            received(cluster.nodes[1], log)
