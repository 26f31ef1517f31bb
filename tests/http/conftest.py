"""A real node for the tests of the management API."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from qq.testing import ClusterNode, LocalCluster


@pytest.fixture(scope="module")
def real_node(until_left: Callable[[str, AbstractContextManager[Any]], Any]) -> ClusterNode:
    return until_left("node", LocalCluster(nodes=1)).nodes[0]
