from __future__ import annotations

from collections.abc import Iterator

import pytest
from pipeline_histories import History, Judged
from pipeline_stories import told
from pipeline_timeline import tell_timeline
from pyspark.sql import SparkSession

from chaos.pipeline.job import check
from chaos.pipeline.session import LOCAL, QUICK, session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with session(LOCAL, tmp_path_factory.mktemp("spark") / "spark.log", QUICK) as started:
        yield started


@pytest.fixture(scope="session")
def judged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """One check of one history in which everything happens that any test asks for: each has its own queues."""
    directory = tmp_path_factory.mktemp("run")
    history = History()
    planted = told(history)
    tell_timeline(history)
    history.write(directory)
    return Judged(directory, check(directory), planted, len(history.rows))
