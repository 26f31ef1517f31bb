from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chaos.pipeline.job import check
from tests.chaos.pipeline.histories import History, Judged, Story
from tests.chaos.pipeline.stories import add_stories
from tests.chaos.pipeline.timeline import add_timeline


@pytest.fixture(scope="session")
def judged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """The verdict on a history with the stories of all tests; each story has its own queues."""
    directory = tmp_path_factory.mktemp("run")
    history = History()
    planted = add_stories(history)
    add_timeline(history)
    history.write(directory)
    return Judged(directory, check(directory), planted, len(history.rows))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Directory of a small run that kept every promise."""
    history = History()
    story = Story(history, "story")
    story.queue()
    for number in (1, 2, 3):
        story.publish(number)
        story.take(number)
    history.write(tmp_path / "run")
    return tmp_path / "run"
