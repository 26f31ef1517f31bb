"""What a check of a small run finds and leaves behind; all that one may find: test_promises.py, test_tables.py."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pipeline_histories import History, Judged, Story
from pipeline_stories import (
    confirmed_and_never_seen,
    never_published,
    overtaken_on_a_channel,
    published_and_taken,
    unmarked_twice,
)
from pyspark.sql import SparkSession

from chaos.pipeline.job import check
from chaos.promises import PROMISES

# The first test waits for Spark and for the check.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

WRONG = {
    "lost": confirmed_and_never_seen,
    "phantom": never_published,
    "unmarked_duplicate": unmarked_twice,
    "order": overtaken_on_a_channel,
}
"""What breaks each promise about any queue."""


@pytest.fixture(scope="module")
def small(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    directory = tmp_path_factory.mktemp("run")
    history = History()
    published_and_taken(Story(history, "healthy"))
    planted = {name: tell(Story(history, name)) for name, tell in WRONG.items()}
    history.write(directory)
    return Judged(directory, check(directory), planted, len(history.rows))


@pytest.mark.parametrize("name", PROMISES)
def test_a_broken_promise_is_found_with_the_row_that_shows_it(small: Judged, name: str) -> None:
    [promise] = [promise for promise in small.verdict.promises if promise.name == name]
    assert promise.holds == (name not in WRONG)
    assert promise.examples == small.planted.get(name, {}).get(name, [])
    assert promise.violations == len(promise.examples)


def test_the_verdict_counts_and_is_in_a_file(small: Judged) -> None:
    verdict = small.verdict
    assert (verdict.valid, verdict.error, verdict.rows) == (False, None, small.rows)
    document = json.loads((small.directory / "verdict.json").read_text())
    assert [promise["name"] for promise in document["promises"]] == list(PROMISES)
    assert document["operations"]["publish"]["ok"] == verdict.operations["publish"]["ok"] > 0


def test_the_tables_of_the_report_are_written(small: Judged) -> None:
    assert {path.stem for path in Path(small.directory / "tables").iterdir()} == {
        "faults",
        "latency",
        "throughput",
        "unavailable",
    }
    throughput = pq.read_table(small.directory / "tables" / "throughput.parquet").to_pylist()
    assert {row["node"] for row in throughput} >= {"n1"}
