"""Routing keys and names of headers may be any octets: every layer carries them, and HTTP shows them as valid JSON."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qq.machine.protocol.versions import VERSIONS
from tests.wire.exchanges import (
    HEADERS_OF_LATIN,
    LATIN,
    SELECT,
    bind,
    consume,
    delete,
    get,
    publish,
    queue_declare,
    quorum,
    reject,
    with_latin,
)
from tests.wire.wire import VHOST, Exchange, Peer, ask, call, long, open_on, part, set_up, short, u16

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.queues.nodes_here import ClusterHere, NodeHere

octets = st.binary(max_size=255)
names = st.binary(min_size=1, max_size=255).filter(
    lambda name: name[:2] != b"x-" and name not in (b"CC", b"BCC")
)


@pytest.fixture(scope="module")
def peers(checked_cluster: ClusterHere) -> Iterator[tuple[Peer, Peer]]:
    """Clients of two nodes, with a queue for all messages of `amq.topic`."""
    checked_cluster.wait_until(
        lambda: all(_version(node) == VERSIONS[1] for node in checked_cluster.nodes) or None
    )
    set_up(checked_cluster.nodes[0].http_port)
    one_port, two_port = (node.config.address.amqp_port for node in checked_cluster.nodes[:2])
    with Peer(one_port) as one, Peer(two_port) as two:
        for peer in (one, two):
            open_on(peer, Exchange(()))
        for octets in (
            SELECT,
            quorum("q"),
            bind("q", "amq.topic", "#"),
        ):
            one.write(octets)
            one.take(1, 10.0)
        two.write(consume("q", "tag", no_ack=True))
        two.take(1, 10.0)
        yield one, two


def _version(node: NodeHere) -> int:
    return node.node.broker.machine.version if node.node else 0


def table_with(name: bytes, value: bytes) -> bytes:
    return long(short(name) + value)


@given(octets, names, names)
def test_octets_reach_a_consumer_at_a_second_node_unchanged(
    peers: tuple[Peer, Peer], key: bytes, name: bytes, inner: bytes
) -> None:
    publisher, consumer = peers
    properties = b"\x20\0" + table_with(name, b"F" + table_with(inner, b"t\1"))
    publisher.write(publish(key, b"m", properties, exchange="amq.topic"))
    delivered, header, _ = map(part, consumer.take(3, 10.0))
    assert delivered is not None
    assert header is not None
    assert delivered.payload.endswith(short("amq.topic") + short(key))
    assert header.payload[12:] == properties
    publisher.take(1, 10.0)


@given(octets, octets, names)
def test_octets_survive_a_dead_lettering(
    peers: tuple[Peer, Peer], key: bytes, dead_key: bytes, name: bytes
) -> None:
    publisher, consumer = peers
    queue = "dying-key"
    replaces = {"x-dead-letter-exchange": "amq.topic", "x-dead-letter-routing-key": b"S" + long(dead_key)}
    publisher.write(quorum(queue, replaces))
    publisher.write(bind(queue, "amq.fanout"))
    publisher.write(publish(key, b"m", b"\x20\0" + table_with(name, b"t\1"), exchange="amq.fanout"))
    publisher.take(3, 10.0)
    publisher.write(get(queue))
    (tag,) = struct.unpack_from(">Q", publisher.take(3, 10.0)[0], 11)
    publisher.write(reject(tag, requeue=False))
    delivered, header, _ = map(part, consumer.take(3, 10.0))
    assert delivered is not None
    assert header is not None
    assert delivered.payload.endswith(short("amq.topic") + short(dead_key))
    assert short(name) + b"t\1" in header.payload
    assert short("routing-keys") + b"A" + long(b"S" + long(key)) in header.payload
    publisher.write(delete(queue))
    publisher.take(1, 10.0)


PATHS = (
    *("queues", "exchanges", "bindings", "consumers", "connections", "channels", "definitions", "nodes"),
    *(f"{of}/{VHOST}" for of in ("queues", "exchanges", "bindings", "consumers", "definitions")),
    *(
        f"queues/{VHOST}/shown",
        f"queues/{VHOST}/shown/bindings",
        f"queues/{VHOST}/shown/browse?offset=0&count=9",
    ),
    f"exchanges/{VHOST}/x-shown",
)


def test_octets_are_valid_json_in_every_answer(checked_cluster: ClusterHere) -> None:
    node = checked_cluster.nodes[0]
    with Peer(node.config.address.amqp_port) as client:
        open_on(client, Exchange(()))
        for octets in (
            queue_declare("shown", with_latin({"v": b"S" + long(LATIN)}), durable=True),
            call("exchange.declare", u16(0), short("x-shown"), short("direct"), b"\0", with_latin({})),
            call(
                "queue.bind", u16(0), short("shown") + short("amq.headers") + short(""), b"\0", with_latin({})
            ),
            call("basic.consume", u16(0), short("shown"), short("tag"), b"\0", with_latin({})),
            SELECT,
        ):
            client.write(octets)
            assert len(client.take(1, 10.0)) == 1
        for _ in range(2):
            client.write(
                publish(b"shown", b"m", HEADERS_OF_LATIN) + publish(LATIN, b"m", exchange="amq.topic")
            )
            client.take(None, 1.0, 0.2)
        for path in PATHS:
            _encode(ask(node.http_port, "GET", path))
    request = {"count": 9, "ackmode": "ack_requeue_true", "encoding": "auto"}
    got = ask(node.http_port, "POST", f"queues/{VHOST}/shown/get", request)
    assert "caf\ufffd" in _encode(got)


def _encode(answer: Any) -> str:
    """Return the text of an answer. Raises UnicodeEncodeError for octets in it that are not UTF-8."""
    text = json.dumps(answer, ensure_ascii=False)
    text.encode()
    return text
