"""A real node for all tests of the AMQP server, and clients of it."""

from __future__ import annotations

import os
import re
from collections.abc import Generator

import pytest

from qq.testing import ClusterNode
from tests.harness.raw_client import RawClient
from tests.harness.served_node import channel, node, shared_node

__all__ = ["channel", "node", "shared_node"]  # fixtures of all tests here


@pytest.fixture
def raw(node: ClusterNode) -> Generator[RawClient]:
    """An open connection without a client library between, channel 1 opened."""
    with RawClient(node.amqp_port) as client:
        client.open_channel(1)
        yield client


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue name that no other test uses."""
    return re.sub(r"\W+", "-", request.node.name)[-80:] + f"-{os.getpid()}"
