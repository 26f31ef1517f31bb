"""Requests that change nothing are answered without an entry, and show all that was confirmed before."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pika.exceptions
import pytest

from qq.machine.protocol.versions import VERSIONS
from qq.testing import LocalCluster
from tests.stories.clients import pika_connection

if TYPE_CHECKING:
    from collections.abc import Generator

    from pika.adapters.blocking_connection import BlockingChannel

    from qq.testing import ClusterNode

Connect = Callable[["ClusterNode"], "BlockingChannel"]
POLLS = 50
VERSION_MAX_S = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[LocalCluster]:
    with LocalCluster(3, tmp_path_factory.mktemp("cluster")) as cluster:
        deadline_s = time.monotonic() + VERSION_MAX_S
        while cluster.leader().status()["version"] < VERSIONS[1]:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        yield cluster


@pytest.fixture(params=["leader", "follower"])
def node(cluster: LocalCluster, request: pytest.FixtureRequest) -> ClusterNode:
    return cluster.leader() if request.param == "leader" else cluster.followers()[0]


@pytest.fixture
def connect() -> Generator[Connect]:
    """Return a function that opens a channel at a node, and close its connections at the end."""
    with ExitStack() as connections:
        yield lambda node: connections.enter_context(pika_connection(node)).channel()


def declared(connect: Connect, node: ClusterNode, queue: str, **arguments: object) -> BlockingChannel:
    channel = connect(node)
    channel.queue_delete(queue)
    channel.queue_declare(queue, durable=True, arguments=arguments)
    return channel


def entries_of(node: ClusterNode, request: Callable[[], object]) -> int:
    """Return the number of entries that many repetitions of a request add to the log."""
    before = last_index(node)
    for _ in range(POLLS):
        request()
    return last_index(node) - before


def entries_of_polls(node: ClusterNode, channel: BlockingChannel, queue: str) -> int:
    def poll() -> None:
        assert channel.basic_get(queue)[0] is None

    return entries_of(node, poll)


def last_index(node: ClusterNode) -> int:
    [own] = [member for member in node.status()["nodes"] if member["name"] == node.name]
    return own["last_index"]


def test_polling_an_empty_queue_adds_no_entries(node: ClusterNode, connect: Connect) -> None:
    assert entries_of_polls(node, declared(connect, node, "polled"), "polled") < POLLS / 5


def test_polling_keeps_an_expiring_queue(node: ClusterNode, connect: Connect) -> None:
    """A get is a use of the queue (x-expires), so it needs an entry."""
    channel = declared(connect, node, "expiring", **{"x-expires": 60_000})
    assert entries_of_polls(node, channel, "expiring") >= POLLS


def test_get_finds_a_message_confirmed_at_a_peer(
    cluster: LocalCluster, node: ClusterNode, connect: Connect
) -> None:
    [other, *_] = [each for each in cluster.nodes if each is not node]
    channel = declared(connect, node, "shared")
    publisher = connect(other)
    publisher.confirm_delivery()
    for number in range(POLLS):
        assert channel.basic_get("shared", auto_ack=True)[0] is None
        publisher.basic_publish("", "shared", b"%d" % number)
        method, _, body = channel.basic_get("shared", auto_ack=True)
        assert method is not None
        assert body == b"%d" % number


def test_get_finds_unconfirmed_messages_of_its_own_channel(node: ClusterNode, connect: Connect) -> None:
    channel = declared(connect, node, "own")
    for _ in range(POLLS):
        assert channel.basic_get("own", auto_ack=True)[0] is None
        channel.basic_publish("", "own", b"")
        assert channel.basic_get("own", auto_ack=True)[0] is not None


def test_get_after_the_queue_is_deleted_elsewhere_is_refused(
    cluster: LocalCluster, node: ClusterNode, connect: Connect
) -> None:
    [other, *_] = [each for each in cluster.nodes if each is not node]
    channel = declared(connect, node, "deleted")
    assert channel.basic_get("deleted")[0] is None
    connect(other).queue_delete("deleted")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
        channel.basic_get("deleted")


# Declarations


def test_declaring_existing_objects_adds_no_entries(node: ClusterNode, connect: Connect) -> None:
    channel = declared(connect, node, "declared")

    def declare() -> None:
        channel.queue_declare("declared", durable=True)
        channel.queue_declare("declared", passive=True)
        channel.exchange_declare("declared", "topic", durable=True)
        channel.exchange_declare("declared", passive=True)
        channel.queue_bind("declared", "declared", "key")

    declare()
    assert entries_of(node, declare) < POLLS


def test_declared_queue_is_the_default_of_its_channel(node: ClusterNode, connect: Connect) -> None:
    """Also if the declaration has added no entry."""
    declared(connect, node, "first")
    channel = declared(connect, node, "second")
    for queue in ("first", "second", "first"):
        assert entries_of(node, lambda queue=queue: channel.queue_declare(queue, passive=True)) < POLLS / 5
        channel.queue_bind("", "amq.topic", f"to.{queue}")
        channel.basic_publish("amq.topic", f"to.{queue}", queue.encode())
        assert channel.basic_get("", auto_ack=True)[2] == queue.encode()
        channel.basic_publish("", queue, b"")
        assert channel.queue_purge("").method.message_count == 1
        [(_, _, body)] = consumed(channel, queue)
        assert body == b"consumed"
        channel.queue_unbind("", "amq.topic", f"to.{queue}")
    channel.queue_declare("second", passive=True)
    channel.queue_delete("")
    channel.queue_declare("first", passive=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
        channel.queue_declare("second", passive=True)


def consumed(channel: BlockingChannel, queue: str) -> list[tuple[object, ...]]:
    """Publish to a queue, and consume the message from the channel's default queue."""
    messages: list[tuple[object, ...]] = []
    tag = channel.basic_consume(
        "", lambda _, method, properties, body: messages.append((method, properties, body)), auto_ack=True
    )
    channel.basic_publish("", queue, b"consumed")
    while not messages:
        channel.connection.process_data_events(1.0)
    channel.basic_cancel(tag)
    return messages


def test_passive_declare_sees_changes_confirmed_at_a_peer(
    cluster: LocalCluster, node: ClusterNode, connect: Connect
) -> None:
    [other, *_] = [each for each in cluster.nodes if each is not node]
    elsewhere, channel = connect(other), connect(node)
    elsewhere.confirm_delivery()
    elsewhere.queue_delete("changed")
    for number in range(POLLS):
        if number % 10 == 0:
            elsewhere.queue_delete("changed")
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
                channel.queue_declare("changed", passive=True)
            channel = connect(node)
            elsewhere.queue_declare("changed", durable=True)
        elsewhere.basic_publish("", "changed", b"")
        count = channel.queue_declare("changed", passive=True).method.message_count
        assert count == 1 + number % 10


def test_passive_declare_counts_messages_of_its_own_channel(node: ClusterNode, connect: Connect) -> None:
    channel = declared(connect, node, "counted")
    for number in range(POLLS):
        assert channel.queue_declare("counted", passive=True).method.message_count == number
        channel.basic_publish("", "counted", b"")
