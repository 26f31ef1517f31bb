"""A real node for all tests of the AMQP 1.0 server, and clients of it."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from typing import Any

import pytest

from qq.testing import ClusterNode
from tests.amqp10_server.lone_broker10 import LoneBroker10
from tests.amqp10_server.socket_client import SocketClient
from tests.harness.served_node import channel, node, shared_node

__all__ = ["channel", "node", "shared_node"]  # fixtures of all tests here


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
