"""A real node for the tests of what operators see of it."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from qq.testing import ClusterNode, LocalCluster


@pytest.fixture(scope="session")
def real_node() -> Generator[ClusterNode]:
    with LocalCluster(nodes=1) as cluster:
        yield cluster.nodes[0]
