"""The pytest fixture `qq_cluster`, for every project that has qq installed.

def test_orders(qq_cluster):
    connection = pika.BlockingConnection(pika.URLParameters(qq_cluster.urls[0]))

Lives here: the fixture. Not here: the cluster (testing.py), which is imported only by tests that use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from qq.testing import LocalCluster


@pytest.fixture
def qq_cluster() -> Generator[LocalCluster]:
    """Three nodes of a fresh cluster. See `qq.testing.LocalCluster`; make another fixture from it for other sizes."""
    from qq.testing import LocalCluster  # noqa: PLC0415 -- every pytest run loads this plugin, few need the broker

    with LocalCluster() as cluster:
        yield cluster
