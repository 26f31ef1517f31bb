"""A Spark session for all tests that need Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from chaos.pipeline.spark import LOCAL, QUICK, session  # noqa: PLC0415 - pyspark takes long to import

    with session(LOCAL, tmp_path_factory.mktemp("spark") / "spark.log", QUICK) as started:
        yield started
