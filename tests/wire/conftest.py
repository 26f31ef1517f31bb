from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from qq.testing import LocalCluster
from tests.harness.served_node import wait_for_newest_version
from tests.wire.wire import set_up

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from qq.testing import ClusterNode


@pytest.fixture(scope="module")
def node(until_left: Callable[[str, AbstractContextManager[Any]], Any]) -> ClusterNode:
    """A node at the newest version of the state."""
    node = until_left("octets", LocalCluster(nodes=1)).nodes[0]
    wait_for_newest_version(node)
    set_up(node.http_port)
    return node
