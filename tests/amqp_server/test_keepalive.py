"""TCP keepalive on the ports of a node, as the kernel shows it."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from qq.config import NodeLimits
from qq.testing import ClusterNode

KEEPALIVE_TIMER = 2
"""The field `tr` of /proc/net/tcp."""
TICKS_PER_S = 100


def timer_of(client: socket.socket) -> tuple[int, int]:
    """The timer of the node's socket: its kind, and the ticks that are left."""
    ends = [client.getpeername()[1], client.getsockname()[1]]
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        columns = line.split()
        if [int(end.partition(":")[2], 16) for end in columns[1:3]] == ends:
            kind, _, ticks = columns[5].partition(":")
            return int(kind, 16), int(ticks, 16)
    return 0, 0


@pytest.mark.parametrize("port", ["amqp_port", "http_port"])
def test_kernel_probes_a_silent_client(node: ClusterNode, port: str) -> None:
    with socket.create_connection(("127.0.0.1", getattr(node, port))) as client:
        until = time.monotonic() + 10
        while timer_of(client)[0] != KEEPALIVE_TIMER and time.monotonic() < until:
            time.sleep(0.05)
        kind, ticks = timer_of(client)
    assert kind == KEEPALIVE_TIMER
    assert 0 <= ticks <= NodeLimits().client_keepalive_idle_s * TICKS_PER_S
