from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from chaos.judge.verdict import Verdict
from chaos.pipeline.job import check
from tests.chaos.judge.histories import History, Story
from tests.chaos.judge.stories.collection import add_stories
from tests.chaos.pipeline.timeline import add_timeline


class Checked(NamedTuple):
    """A run that was checked."""

    directory: Path
    verdict: Verdict
    rows: int


@pytest.fixture(scope="session")
def checked(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Checked:
    """The verdict on a history with the stories of all tests, and the timeline's."""
    directory = tmp_path_factory.mktemp("run")
    history = History()
    add_stories(history)
    add_timeline(history)
    history.write(directory)
    return Checked(directory, check(directory), len(history.rows))


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
