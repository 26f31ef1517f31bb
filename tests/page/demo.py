"""A cluster that has something to show: queues, policies, dead letters, and clients that publish and consume."""

from __future__ import annotations

import json
import math
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pika
from aiohttp import encode_basic_auth

if TYPE_CHECKING:
    from collections.abc import Generator

    from qq.testing import ClusterNode, LocalCluster

QUORUM = {"x-queue-type": "quorum"}
REJECTED_EVERY = 7
WAVE_S = 11.0
"""In so many seconds, 2 pi times, the rate of publishing rises and falls."""


def api(node: ClusterNode, path: str, method: str = "GET", body: Any = None, user: str = "guest") -> Any:
    """Ask the management API."""
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"http://127.0.0.1:{node.http_port}/api/{path}", data, method=method)
    request.add_header("Authorization", encode_basic_auth(user, user))
    request.add_header("Content-Type", "application/json")
    with urlopen(request, timeout=30) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def fill(node: ClusterNode) -> None:
    """Declare exchanges, queues, a policy, users and virtual hosts."""
    for vhost in ("shop", "billing"):
        api(node, f"vhosts/{vhost}", "PUT", {"description": f"The {vhost}'s applications"})
    for name, tags in (("ada", "administrator"), ("mona", "monitoring"), ("worker", "")):
        api(node, f"users/{name}", "PUT", {"password": name, "tags": tags})
    api(node, "permissions/%2F/worker", "PUT", {"configure": "^worker", "write": ".*", "read": ".*"})
    api(node, "permissions/%2F/ada", "PUT", {"configure": ".*", "write": ".*", "read": ".*"})
    policy = {
        "pattern": "^orders\\.",
        "apply-to": "queues",
        "definition": {"max-length": 100000},
        "priority": 1,
    }
    api(node, "policies/%2F/long-orders", "PUT", policy)
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        channel = connection.channel()
        channel.exchange_declare("orders", "topic", durable=True)
        channel.exchange_declare("events", "fanout", durable=True)
        channel.exchange_declare("dead", "topic", durable=True)
        channel.exchange_bind("events", "orders", "orders.paid")
        for name in ("orders.new", "orders.paid", "orders.shipped"):
            dead = {"x-dead-letter-exchange": "dead", "x-dead-letter-routing-key": "orders"}
            channel.queue_declare(name, durable=True, arguments=QUORUM | dead)
            channel.queue_bind(name, "orders", name)
        for name in ("mail", "statistics", "search"):
            channel.queue_declare(name, durable=True, arguments=QUORUM)
            channel.queue_bind(name, "events")
        channel.queue_declare("dead-letters", durable=True, arguments=QUORUM)
        channel.queue_bind("dead-letters", "dead", "#")


@contextmanager
def traffic(cluster: LocalCluster, pause_s: float = 0.02) -> Generator[None]:
    """Publish and consume until this is left; every seventh order is rejected."""
    ended = threading.Event()
    with ExitStack() as stack:
        stack.callback(ended.set)
        nodes = cluster.nodes
        for number, name in enumerate(("orders.new", "orders.paid", "orders.shipped")):
            _run(stack, _publish, nodes[number % len(nodes)], name, pause_s * (number + 1), ended)
            _run(stack, _consume, nodes[(number + 1) % len(nodes)], name, ended)
        for number, name in enumerate(("mail", "search")):
            _run(stack, _consume, nodes[number % len(nodes)], name, ended)
        yield
        ended.set()


def _run(stack: ExitStack, work: Any, *arguments: Any) -> None:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    stack.callback(thread.join, 10)


def _connected(node: ClusterNode, name: str) -> pika.BlockingConnection:
    parameters = pika.URLParameters(node.url)
    parameters.client_properties = {"connection_name": name}
    return pika.BlockingConnection(parameters)


def _publish(node: ClusterNode, key: str, pause_s: float, ended: threading.Event) -> None:
    with _connected(node, f"{key} publisher") as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        number = 0
        while not ended.wait(pause_s * (1.2 + math.sin(time.monotonic() / WAVE_S))):
            number += 1
            body = json.dumps(
                {"order": number, "state": key.partition(".")[2], "total": number * 7 % 1000 / 10}
            )
            properties = pika.BasicProperties(
                content_type="application/json",
                delivery_mode=2,
                message_id=f"{key}-{number}",
                headers={"customer": f"c{number % 40}", "region": ("north", "south")[number % 2]},
            )
            channel.basic_publish("orders", key, body.encode(), properties)


def _consume(node: ClusterNode, name: str, ended: threading.Event) -> None:
    with _connected(node, f"{name} worker") as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=50)

        def take(channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
            time.sleep(0.005)
            if method.delivery_tag % REJECTED_EVERY == 0 and name.startswith("orders."):
                channel.basic_reject(method.delivery_tag, requeue=False)
            else:
                channel.basic_ack(method.delivery_tag)

        channel.basic_consume(name, take, consumer_tag=f"{quote(name)}-1")
        while not ended.is_set():
            connection.process_data_events(0.2)
