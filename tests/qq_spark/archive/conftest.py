"""A node whose queues are archived."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from qq.testing import LocalCluster
from qq_spark import Access
from tests.qq_spark.agreement import wait_for_groups

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


@pytest.fixture(scope="module")
def cluster(until_left: Callable[[str, AbstractContextManager[Any]], Any]) -> LocalCluster:
    found = until_left("cluster", LocalCluster(1))
    wait_for_groups(found)
    return found


@pytest.fixture(scope="module")
def access(cluster: LocalCluster) -> Access:
    return Access((f"http://127.0.0.1:{cluster.nodes[0].http_port}",))
