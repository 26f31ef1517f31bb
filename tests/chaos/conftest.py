"""One Spark for all tests that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from chaos.pipeline.spark import LOCAL, QUICK, session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with session(LOCAL, tmp_path_factory.mktemp("spark") / "spark.log", QUICK) as started:
        yield started
