"""The driver of a query from queue to queue: `python sink_driver.py DIRECTORY SOURCE SINK`, with options as JSON.

The first attempt of each first task fails after its rows were written. The query ends when a file `stop` exists.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

import qq_spark
from chaos.pipeline.spark import QUICK, session
from qq_spark.options import writer_options
from qq_spark.sink import AttemptMessage, QueueStreamWriter
from qq_spark.source import QueueSource

if TYPE_CHECKING:
    from collections.abc import Iterator


class FailingWriter(QueueStreamWriter):
    """Fails the first attempt of the first task, as if its executor had died after its last row."""

    def write(self, iterator: Iterator[Any]) -> AttemptMessage:
        message = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            raise OSError("this attempt fails")
        return message


class FailingSink(QueueSource):
    """The format `failing`."""

    @classmethod
    def name(cls) -> str:
        return "failing"

    def streamWriter(self, schema: Any, overwrite: bool) -> FailingWriter:  # noqa: N802 - Spark's name
        return FailingWriter(writer_options(self.options, is_stream=True))


def main() -> None:
    directory = Path(sys.argv[1])
    source, sink = map(json.loads, sys.argv[2:4])
    with session("local[2,4]", directory / "spark.log", QUICK) as spark:
        qq_spark.register(spark)
        spark.dataSource.register(FailingSink)
        rows = spark.readStream.format("qq").options(**source).schema("body string, position bigint").load()
        query = (
            rows.selectExpr("body", "map('position', position) headers")
            .writeStream.format("failing")
            .options(**sink)
            .option("checkpointLocation", str(directory / "checkpoint"))
            .start()
        )
        while not (directory / "stop").exists():
            query.awaitTermination(0.2)
        query.stop()


if __name__ == "__main__":
    main()
