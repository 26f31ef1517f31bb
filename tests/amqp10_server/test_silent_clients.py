"""Clients that send nothing: heartbeats, the node's patience, the time of a handshake."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from qq.amqp10.connection import AMQP_HEADER, SASL_HEADER
from qq.amqp10.performatives import CloseFrame, ErrorReply, OpenFrame
from qq.testing import ClusterNode, LocalCluster
from tests.amqp10.amqp10_wire import frame
from tests.amqp10_server.socket_client import SocketClient
from tests.harness.served_node import wait_for_newest_version

LIMITS = {"client_heartbeat_s": 1, "handshake_timeout_s": 0.5}
HEARTBEAT = b"\x00\x00\x00\x08\x02\x00\x00\x00"


@pytest.fixture
def impatient(until_left: Callable[[str, AbstractContextManager[Any]], Any]) -> ClusterNode:
    """A node that expects a frame each second, and serves AMQP 1.0."""
    node = until_left("impatient", LocalCluster(nodes=1, settings={"limits": LIMITS})).nodes[0]
    wait_for_newest_version(node)
    return node


def test_silent_client_is_told_why_its_connection_ends(impatient: ClusterNode) -> None:
    with SocketClient(impatient.amqp_port) as client:
        assert client.open().idle_time_out == 500
        error = client.until(CloseFrame).error
    text = "no frame received from client within idle timeout threshold"
    assert error == ErrorReply("amqp:resource-limit-exceeded", text)


def test_heartbeats_of_a_client_keep_its_connection(impatient: ClusterNode) -> None:
    with SocketClient(impatient.amqp_port) as client:
        client.open()
        for _ in range(8):
            time.sleep(0.4)
            client.write(HEARTBEAT)
        client.begin()


def test_node_sends_heartbeats_as_often_as_the_client_asks(node: ClusterNode) -> None:
    with SocketClient(node.amqp_port) as client:
        client.open(idle_time_out=1000)
        begin_s = time.monotonic()
        assert client.read_octets(24) == HEARTBEAT * 3
        # The first may come at once, and each of the others half a second after the one before, about.
        assert 0.5 < time.monotonic() - begin_s < 5.0


def test_idle_time_below_a_second_is_refused(node: ClusterNode) -> None:
    with SocketClient(node.amqp_port) as client:
        client.log_in()
        client.write(AMQP_HEADER + frame(OpenFrame("hasty", "vhost:/", idle_time_out=900)))
        assert client.read_octets(8) == AMQP_HEADER
        error = client.until(CloseFrame).error
    assert error is not None
    assert error.condition == "amqp:not-allowed"


@pytest.mark.parametrize("sent", [b"", SASL_HEADER], ids=["nothing", "header"])
def test_handshake_has_a_time_limit(impatient: ClusterNode, sent: bytes) -> None:
    with SocketClient(impatient.amqp_port) as client:
        client.write(sent)
        begin_s = time.monotonic()
        client.read_octets(1000)  # until the end of the stream
        assert time.monotonic() - begin_s < 5
