"""The driver of streaming queries: `python stream_driver.py DIRECTORY PLACE SOURCE SINK ...`.

Each query has three arguments: its directory, and as JSON the options of the format. Each batch becomes a file of JSON
lines in PLACE, `BATCH.RUN`, in the order of its rows, and is published to the sink. The first attempt of each first
task fails after its rows were read. With the environment variable HOLD=N, batch N waits for ever when its file is
written. MASTER is Spark's master, DRIVER_JAVA_OPTIONS and EXECUTOR_JAVA_OPTIONS are further options of Java. The
queries end when a file DIRECTORY/stop exists.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext

import qq_spark
from chaos.pipeline.spark import QUICK, session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, Row
    from pyspark.sql.streaming import StreamingQuery

COLUMNS = "queue string, position bigint, body string"


def failing_once(rows: Iterator[Row]) -> Iterator[Row]:
    """Fail the first attempt of the first task, as if its executor had died."""
    context = TaskContext.get()
    assert context is not None
    yield from rows
    if context.partitionId() == 0 and context.attemptNumber() == 0:
        raise OSError("this attempt fails")


class CopyingQuery:
    """A query that writes its batches to files and copies them to the sink."""

    def __init__(self, directory: Path, sink: dict[str, str]) -> None:
        self._directory = directory
        self._sink = sink
        self._run = len(list(directory.glob("run-*")))
        (directory / f"run-{self._run}").touch()

    def start(self, rows: DataFrame) -> StreamingQuery:
        place = str(self._directory / "checkpoint")
        return rows.writeStream.foreachBatch(self._write).option("checkpointLocation", place).start()

    def _write(self, frame: DataFrame, batch: int) -> None:
        rows = frame.rdd.mapPartitions(failing_once).collect()
        unfinished = self._directory / f"unfinished-{self._run}"
        unfinished.write_text("".join(f"{json.dumps(row.asDict())}\n" for row in rows))
        unfinished.rename(self._directory / f"{batch}.{self._run}")
        while batch == int(os.environ.get("HOLD", "-1")):
            time.sleep(1)
        frame.select("body").write.format("qq").mode("append").options(**self._sink, epoch=batch).save()


def main() -> None:
    directory, arguments = Path(sys.argv[1]), iter(sys.argv[2:])
    settings = QUICK | {"spark.python.daemon.module": "tests.qq_spark.worker_daemon"}
    for process in ("driver", "executor"):
        options = os.environ.get(f"{process.upper()}_JAVA_OPTIONS", "")
        settings[f"spark.{process}.extraJavaOptions"] += f" {options}"
    with session(os.environ.get("MASTER", "local[2,4]"), directory / "spark.log", settings) as spark:
        qq_spark.register(spark)
        queries = [
            CopyingQuery(Path(place), json.loads(sink)).start(
                spark.readStream.format("qq").options(**json.loads(source)).schema(COLUMNS).load()
            )
            for place, source, sink in zip(arguments, arguments, arguments, strict=True)
        ]
        while not (directory / "stop").exists():
            for query in queries:
                query.awaitTermination(0.2)
        for query in queries:
            query.stop()


if __name__ == "__main__":
    main()
