"""The Spark session of a check: started quietly, and what it says in a file."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from chaos.pipeline import java
from qq.errors import OperatingError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import StructType

LOCAL = "local[2]"
LOCAL_MEMORY = "2g"
"""Memory of the one process that does everything with a local master. What does not fit goes to disk."""
QUICK = {
    # Java's optimizing compiler, and Spark's generated code, pay off after some ten seconds.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # So does planning anew after each stage.
    "spark.sql.adaptive.enabled": "false",
}
"""Settings for a job that is short in any case."""
GONE = (Py4JNetworkError, ConnectionError, EOFError)
"""The errors that PySpark raises if there is no Java process any more."""
FAILURES = (PySparkException, Py4JError, *GONE)
"""Whatever PySpark raises if a job fails, or the process that runs it."""


class SparkError(OperatingError):
    """Spark does not start, or a job of it failed."""


@contextmanager
def session(master: str, log: Path, settings: dict[str, str] | None = None) -> Generator[SparkSession]:
    """A session for the time of the block: the one that this process has already, or a new one.

    Raises SparkError or JavaError, each a line. `log` gets all that Spark has to say.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    started = _start(master, log, settings or {})
    try:
        yield started
    finally:
        # A Java that has died cannot be asked to stop, and why the block failed is worth more.
        with suppress(Py4JError, OSError):
            started.stop()


# PySpark and Py4J log each error that they raise, with the whole trace, to standard error: Py4J as the root logger.
for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
    logging.getLogger(name).disabled = True
logging.getLogger().addFilter(lambda record: record.module != "java_gateway")


def _start(master: str, log: Path, settings: dict[str, str]) -> SparkSession:
    os.environ["JAVA_HOME"] = str(java.find())
    # The interpreter that runs this, also where Spark would look for another one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master(master)
        .appName("qq chaos check")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", LOCAL_MEMORY)
        .config("spark.sql.session.timeZone", "UTC")
    )
    if master.startswith("local"):
        # Nobody calls from outside, and the name of this machine need not lead to it.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config(
            "spark.driver.host", "127.0.0.1"
        )
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _errors_to(log):
        try:
            return builder.getOrCreate()
        except FAILURES as error:
            raise SparkError(
                f"Spark does not start with master {master}: {brief(error)} (see {log})"
            ) from error


@contextmanager
def _errors_to(log: Path) -> Generator[None]:
    """Standard error goes to a file: the Java process inherits it, and keeps it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def brief(error: BaseException) -> str:
    """The first line of what Spark raised, without the trace of its calls."""
    if isinstance(error, GONE):
        return "its Java process is gone"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    # Py4J says first that there was an error, and then which.
    return lines[1].removeprefix(": ") if lines[0].startswith("An error occurred") and lines[1:] else lines[0]


@contextmanager
def _sockets_left_open() -> Generator[None]:
    """PySpark leaves it to the garbage collector to close the sockets that results come through."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield


def frame_of(spark: SparkSession, rows: Sequence[Mapping[str, Any]], schema: StructType) -> DataFrame:
    """A few rows, with null for what they do not say.

    They are given as a table of Arrow: all else passes through Python processes of Spark, as often as it is read.
    """
    columns = {name: [row.get(name) for row in rows] for name in schema.names}
    return spark.createDataFrame(pa.table(columns, to_arrow_schema(schema)), schema)


def collect(frame: DataFrame) -> list[Row]:
    """Run a job for a few rows."""
    with _sockets_left_open():
        return frame.collect()


class Table(Protocol):
    """What is used of pyarrow.Table, which has no types."""

    def to_pylist(self) -> list[dict[str, Any]]: ...

    def filter(self, mask: object) -> Table: ...


def arrow(frame: DataFrame) -> Table:
    """Run a job for a small table."""
    with _sockets_left_open():
        return frame.toArrow()
