"""The story in a golden directory, and its state as a client sees it afterwards.

Invariant: the state does not depend on the time: no message expires, no queue is removed.
"""

from __future__ import annotations

import json
import urllib.request
from base64 import b64encode
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pika

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

    from qq.testing import ClusterNode

SETTINGS = {"limits": {"segment_bytes": 100_000, "checkpoint_entries": 150, "checkpoint_bytes": 200_000}}
"""Small, so that there is a checkpoint and more than one segment."""
EXCHANGE_TYPES = ("direct", "fanout", "headers", "topic", "x-consistent-hash", "x-modulus-hash", "x-random")
QUEUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "quorum": {"x-queue-type": "quorum", "x-delivery-limit": 7},
    "ranked": {"x-max-priority": 5},
    "short": {"x-max-length": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    "brief": {"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    "full": {"x-max-length": 1, "x-overflow": "reject-publish"},
    "alone": {"x-single-active-consumer": True},
    "dead": {},
    "held": {},
    "many": {},
}
FILLING = 400
"""Messages published to `many`, of which every tenth stays."""
DEAD = 7
"""Four of six above the limit of `short`, a rejected message, and two expired messages."""
PATIENCE_S = 5.0
PROPERTIES = pika.BasicProperties(
    content_type="text/plain",
    content_encoding="utf-8",
    delivery_mode=2,
    priority=3,
    correlation_id="correlation",
    reply_to="reply",
    message_id="id",
    timestamp=1_700_000_000,
    type="type",
    user_id="guest",
    app_id="app",
    headers={
        "text": "ä",
        "octets": b"\x00\xff",
        "yes": True,
        "small": -1,
        "large": 2**40,
        "fraction": Decimal("1.25"),
        "moment": datetime(2026, 1, 1, tzinfo=UTC),
        "nothing": None,
        "list": [1, "two", [3]],
        "table": {"a": {"b": 1}},
    },
)
PERSISTENT = pika.BasicProperties(delivery_mode=2)
DEFINITIONS: dict[str, Any] = {
    "users": [
        {
            "name": "ann",
            "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": ["management"],
            "limits": {"max-channels": 7},
        }
    ],
    "vhosts": [{"name": "v", "metadata": {"description": "another", "tags": ["t"]}}],
    "permissions": [
        {"user": "ann", "vhost": "v", "configure": "^a", "write": ".*", "read": ""},
        {"user": "guest", "vhost": "v", "configure": ".*", "write": ".*", "read": ".*"},
    ],
    "topic_permissions": [
        {"user": "ann", "vhost": "v", "exchange": "amq.topic", "write": "^a", "read": ".*"}
    ],
    "parameters": [
        {"value": {"max-queues": 5}, "vhost": "v", "component": "vhost-limits", "name": "limits"},
        {
            "value": {
                "pattern": "^ra",
                "definition": {"max-length": 90},
                "priority": 1,
                "apply-to": "queues",
            },
            "vhost": "/",
            "component": "operator_policy",
            "name": "operators",
        },
    ],
    "policies": [
        {
            "vhost": "/",
            "name": "policy",
            "pattern": "^(plain|ranked)$",
            "apply-to": "queues",
            "definition": {"max-length": 100},
            "priority": 2,
        }
    ],
    "queues": [
        {"name": name, "vhost": "/", "durable": True, "auto_delete": False, "arguments": arguments}
        for name, arguments in QUEUES.items()
    ]
    + [{"name": "there", "vhost": "v", "durable": True, "auto_delete": False, "arguments": {}}],
    "exchanges": [
        {"name": f"of-{kind}", "vhost": "/", "type": kind, "durable": True, "auto_delete": False}
        | {"internal": False, "arguments": {"alternate-exchange": "of-fanout"}}
        for kind in EXCHANGE_TYPES
    ]
    + [
        {"name": "late", "vhost": "/", "type": "x-delayed-message", "durable": True, "auto_delete": False}
        | {"internal": False, "arguments": {"x-delayed-type": "direct"}}
    ],
    "bindings": [
        {"source": f"of-{kind}", "vhost": "/", "destination": "plain", "destination_type": "queue"}
        | {"routing_key": key, "arguments": arguments}
        for kind, key, arguments in (
            ("direct", "key", {}),
            ("fanout", "", {}),
            ("headers", "", {"x-match": "any", "text": "ä"}),
            ("topic", "a.*.#", {}),
            ("x-consistent-hash", "1", {}),
            ("x-modulus-hash", "", {}),
            ("x-random", "", {}),
        )
    ]
    + [
        {"source": "of-topic", "vhost": "/", "destination": "of-direct", "destination_type": "exchange"}
        | {"routing_key": "#.key", "arguments": {}}
    ],
}
SHOWN_OF_QUEUES = (
    "vhost",
    "name",
    "type",
    "durable",
    "auto_delete",
    "exclusive",
    "arguments",
    "policy",
    "operator_policy",
    "consumers",
    "messages",
    "messages_ready",
    "messages_unacknowledged",
    "message_bytes",
)
NOT_OF_THE_CLUSTER = ("rabbit_version", "rabbitmq_version", "product_name", "product_version")


def live_first_part(node: ClusterNode) -> None:
    """Write the part that a checkpoint holds in the end."""
    _request(node, "/api/definitions", DEFINITIONS)
    with _connection(node) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        _publish_to_all(channel, "first")
        for number in range(FILLING):
            channel.basic_publish("", "many", b"%05d" % number + b"." * 300, PERSISTENT)
        for number in range(FILLING):
            method, _, _ = channel.basic_get("many")
            if number % 10:
                channel.basic_ack(method.delivery_tag)


def live_second_part(node: ClusterNode) -> pika.BlockingConnection:
    """Write the part in the log after the checkpoint. The connection holds messages; it must end with the node."""
    connection = _connection(node)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("mine", exclusive=True)
    _publish_to_all(channel, "second")
    for number in range(6):
        channel.basic_publish("", "held", b"held %d" % number, PERSISTENT)
    held = [channel.basic_get("held")[0].delivery_tag for _ in range(4)]
    channel.basic_nack(held[1], requeue=True)
    rejected, _, _ = channel.basic_get("short")
    channel.basic_reject(rejected.delivery_tag, requeue=False)
    channel.basic_get("quorum")
    with _connection(node, "v") as other:
        there = other.channel()
        there.confirm_delivery()
        there.basic_publish("", "there", b"in v", PERSISTENT)
    return connection


def is_settled(node: ClusterNode) -> bool:
    """Return whether all expiring messages have expired and all dead letters have arrived."""
    counts = {queue["name"]: queue["messages"] for queue in _request(node, "/api/queues")}
    return counts["brief"] == 0 and counts["dead"] == DEAD


def seen(node: ClusterNode) -> dict[str, Any]:
    """Everything, as JSON can hold it. The messages are looked at and put back."""
    definitions = _request(node, "/api/definitions")
    queues = _request(node, "/api/queues")
    found = {
        "definitions": {key: value for key, value in definitions.items() if key not in NOT_OF_THE_CLUSTER},
        "queues": [{key: queue.get(key) for key in SHOWN_OF_QUEUES} for queue in queues],
        "messages": {f"{queue['vhost']} {queue['name']}": _messages(node, queue) for queue in queues},
    }
    return json.loads(json.dumps(found, default=repr))


def _publish_to_all(channel: BlockingChannel, name: str) -> None:
    for kind in EXCHANGE_TYPES:
        channel.basic_publish(f"of-{kind}", "a.b.key", f"{name} of {kind}".encode(), PROPERTIES)
    for priority in (1, 5, 3):
        ranked = pika.BasicProperties(delivery_mode=2, priority=priority)
        channel.basic_publish("", "ranked", f"{name} {priority}".encode(), ranked)
    for queue in ("quorum", "alone", "short", "short", "short", "brief"):
        channel.basic_publish("", queue, f"{name} to {queue}".encode(), PROPERTIES)


def _messages(node: ClusterNode, queue: dict[str, Any]) -> list[Any]:
    with _connection(node, queue["vhost"]) as connection:
        found: list[Any] = []
        # They are consumed because a queue with a single active consumer takes no basic.get.
        deliveries = connection.channel().consume(queue["name"], inactivity_timeout=PATIENCE_S)
        for _, (method, properties, body) in zip(range(queue["messages"]), deliveries, strict=False):
            if method is None:
                break
            fields = {key: value for key, value in vars(properties).items() if value is not None}
            found.append(
                [
                    body.decode(),
                    method.exchange,
                    method.routing_key,
                    method.redelivered,
                    sorted(fields.items()),
                ]
            )
        return found


def _connection(node: ClusterNode, vhost: str = "/") -> pika.BlockingConnection:
    parameters = pika.URLParameters(node.url)
    parameters.virtual_host = vhost
    return pika.BlockingConnection(parameters)


def _request(node: ClusterNode, path: str, document: Any = None) -> Any:
    """Get the document at a path, or post a document there."""
    request = urllib.request.Request(f"http://127.0.0.1:{node.http_port}{path}")
    request.add_header("Authorization", "Basic " + b64encode(b"guest:guest").decode())
    if document is not None:
        request.data = json.dumps(document).encode()
        request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request) as response:
        return json.loads(response.read() or b"null")
