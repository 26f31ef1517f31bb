"""Fixtures of a real node for all tests of a server of AMQP, and of a client of AMQP 0-9-1."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any

import pika
import pytest

from chaos.fuzz.run import TROUBLE
from qq.machine.protocol.versions import VERSIONS
from qq.testing import ClusterNode, LocalCluster

POLL_S, PATIENCE_S = 0.05, 20.0


def wait_for_newest_version(node: ClusterNode) -> None:
    """Wait until the state has the newest version, to which a new cluster goes over within its first second."""
    deadline_s = time.monotonic() + PATIENCE_S
    while f"the cluster is at version {VERSIONS[1]} of the state" not in node.log.read_text():
        assert time.monotonic() < deadline_s
        time.sleep(POLL_S)


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
    """A channel of a pika connection of its own."""
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    yield connection.channel()
    if connection.is_open:
        connection.close()
