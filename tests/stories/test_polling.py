"""Clients that poll an empty queue get their answers without an entry, and never miss a confirmed message."""

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


def entries_of_polls(node: ClusterNode, channel: BlockingChannel, queue: str) -> int:
    before = last_index(node)
    for _ in range(POLLS):
        assert channel.basic_get(queue)[0] is None
    return last_index(node) - before


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
