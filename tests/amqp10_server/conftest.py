"""A real node for all tests of the AMQP 1.0 server, and clients of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any

import pika
import pytest

from chaos.fuzz.run import TROUBLE
from qq.testing import ClusterNode, LocalCluster
from tests.amqp10_server.lone_broker10 import LoneBroker10
from tests.amqp10_server.socket_client import SocketClient


@pytest.fixture(scope="module")
def shared_node(until_left: Callable[[str, AbstractContextManager[Any]], Any]) -> ClusterNode:
    return until_left("node", LocalCluster(nodes=1)).nodes[0]


@pytest.fixture
def node(shared_node: ClusterNode) -> Generator[ClusterNode]:
    """The node; the test fails if it brings the node down or a traceback into its log."""
    before = shared_node.log.stat().st_size
    yield shared_node
    assert shared_node.running
    with shared_node.log.open("rb") as log:
        log.seek(before)
        written = log.read().decode()
    assert not TROUBLE.search(written), written


@pytest.fixture
def channel(node: ClusterNode) -> Generator[Any]:
    """A channel of AMQP 0-9-1."""
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    yield connection.channel()
    if connection.is_open:
        connection.close()


@pytest.fixture
def client(node: ClusterNode) -> Generator[SocketClient]:
    """An open connection with a session on channel 0."""
    with SocketClient(node.amqp_port) as client:
        client.open()
        client.begin()
        yield client


@pytest.fixture
def queue(request: pytest.FixtureRequest, channel: Any) -> str:
    """A quorum queue that no other test uses."""
    name = re.sub(r"\W+", "-", request.node.name)[-80:] + f"-{os.getpid()}"
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
    return name


@pytest.fixture
def broker() -> Generator[LoneBroker10]:
    """A lone broker, for tests that look into its machine or change it behind the clients."""
    with LoneBroker10() as broker:
        yield broker
