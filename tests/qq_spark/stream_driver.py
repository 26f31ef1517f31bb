"""The driver of a streaming query: `python stream_driver.py DIRECTORY SOURCE SINK`, with options of the format as JSON.

Each batch becomes a file of JSON lines in DIRECTORY, `BATCH.RUN`, in the order of its rows, and is published to the
sink. The first attempt of each first task fails after its rows were read. With the environment variable HOLD=N, batch N
waits for ever when its file is written. MASTER is Spark's master. The query ends when a file `stop` exists.
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

COLUMNS = "queue string, position bigint, body string"


def failing_once(rows: Iterator[Row]) -> Iterator[Row]:
    """Fail the first attempt of the first task, as if its executor had died."""
    context = TaskContext.get()
    assert context is not None
    yield from rows
    if context.partitionId() == 0 and context.attemptNumber() == 0:
        raise OSError("this attempt fails")


def main() -> None:
    directory, (options, sink) = Path(sys.argv[1]), map(json.loads, sys.argv[2:4])
    hold = int(os.environ.get("HOLD", "-1"))
    run = len(list(directory.glob("run-*")))
    (directory / f"run-{run}").touch()

    def write(frame: DataFrame, batch: int) -> None:
        rows = frame.rdd.mapPartitions(failing_once).collect()
        unfinished = directory / f"unfinished-{run}"
        unfinished.write_text("".join(f"{json.dumps(row.asDict())}\n" for row in rows))
        unfinished.rename(directory / f"{batch}.{run}")
        while batch == hold:
            time.sleep(1)
        frame.select("body").write.format("qq").mode("append").options(**sink, epoch=batch).save()

    with session(os.environ.get("MASTER", "local[2,4]"), directory / "spark.log", QUICK) as spark:
        qq_spark.register(spark)
        source = spark.readStream.format("qq").options(**options).schema(COLUMNS).load()
        query = (
            source.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(directory / "checkpoint"))
            .start()
        )
        while not (directory / "stop").exists():
            query.awaitTermination(0.2)
        query.stop()


if __name__ == "__main__":
    main()
