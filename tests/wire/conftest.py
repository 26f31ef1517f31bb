from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from qq.machine.protocol.versions import VERSIONS
from qq.testing import LocalCluster
from tests.wire.wire import set_up

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from qq.testing import ClusterNode

POLL_S, PATIENCE_S = 0.05, 20.0


@pytest.fixture(scope="module")
def node(until_left: Callable[[str, AbstractContextManager[Any]], Any]) -> ClusterNode:
    """A node at the newest version of the state, to which a new cluster goes over within its first second."""
    node = until_left("octets", LocalCluster(nodes=1)).nodes[0]
    deadline_s = time.monotonic() + PATIENCE_S
    while f"the cluster is at version {VERSIONS[1]} of the state" not in node.log.read_text():
        assert time.monotonic() < deadline_s
        time.sleep(POLL_S)
    set_up(node.http_port)
    return node
