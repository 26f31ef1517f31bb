"""A real node, for what the files of a deployment say of it."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from qq.testing import ClusterNode, LocalCluster


@pytest.fixture(scope="session")
def node() -> Generator[ClusterNode]:
    with LocalCluster(nodes=1) as cluster:
        yield cluster.nodes[0]
