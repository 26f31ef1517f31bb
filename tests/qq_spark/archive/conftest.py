"""A node whose queues are archived."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from chaos.pipeline.spark import QUICK, session
from qq.testing import LocalCluster
from qq_spark import Access

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def cluster(until_left: Callable[[str, AbstractContextManager[Any]], Any]) -> LocalCluster:
    return until_left("cluster", LocalCluster(1))


@pytest.fixture(scope="module")
def access(cluster: LocalCluster) -> Access:
    return Access((f"http://127.0.0.1:{cluster.nodes[0].http_port}",))


@pytest.fixture(scope="module")
def spark(
    until_left: Callable[[str, AbstractContextManager[Any]], Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> SparkSession:
    return until_left("spark", session("local[2]", tmp_path_factory.mktemp("spark") / "spark.log", QUICK))
