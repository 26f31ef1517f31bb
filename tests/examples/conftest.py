"""A cluster for all examples: they are run as a user runs them, as processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from qq.testing import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager


@pytest.fixture(scope="module")
def shared_cluster(until_left: Callable[[str, AbstractContextManager[Any]], Any]) -> LocalCluster:
    return until_left("cluster", LocalCluster(nodes=3))


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> Generator[LocalCluster]:
    """The shared cluster, repaired after each test."""
    yield shared_cluster
    for node in shared_cluster.nodes:
        if not node.running:
            node.start()
    shared_cluster.wait_caught_up()
