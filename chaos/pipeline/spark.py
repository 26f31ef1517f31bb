"""The Spark session of a check: started quietly, with its log in a file."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from chaos.pipeline import java
from qq.errors import OperatingError
from qq_spark.java_output import errors_to, telling_line

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from pyspark import RDD

T = TypeVar("T")

LOCAL = "local[2]"
LOCAL_MEMORY = "2g"
"""Memory of the single process of a local master; larger data goes to disk."""
QUICK = {
    # Java's optimizing compiler and Spark's generated code pay off after some ten seconds.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # So does planning anew after each stage.
    "spark.sql.adaptive.enabled": "false",
}
"""Settings for a short job."""
GONE = (Py4JNetworkError, ConnectionError, EOFError)
"""The errors that PySpark raises when its Java process has ended."""
FAILURES = (PySparkException, Py4JError, *GONE)
"""The errors that PySpark raises when a job or its process fails."""


class SparkError(OperatingError):
    """Spark does not start, or a job of it failed."""


@contextmanager
def session(master: str, log: Path, settings: dict[str, str] | None = None) -> Generator[SparkSession]:
    """Yield a session for the block: the existing session of this process, or a new session.

    Raises SparkError or JavaError, each in a line. `log` gets all output of Spark.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    started = _start(master, log, settings or {})
    try:
        yield started
    finally:
        # A dead Java process cannot be asked to stop, and the error of the block matters more.
        with suppress(Py4JError, OSError):
            started.stop()


# PySpark and Py4J log each error that they raise, with the whole trace, to standard error: Py4J as the root logger.
for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
    logging.getLogger(name).disabled = True
logging.getLogger().addFilter(lambda record: record.module != "java_gateway")


def _start(master: str, log: Path, settings: dict[str, str]) -> SparkSession:
    os.environ["JAVA_HOME"] = str(java.find())
    # The interpreter that runs this, even if Spark would choose a different interpreter.
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
        # No remote process connects, and the name of this machine may not resolve to it.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config(
            "spark.driver.host", "127.0.0.1"
        )
    for key, value in settings.items():
        builder = builder.config(key, value)
    with errors_to(log):
        try:
            return builder.getOrCreate()
        except FAILURES as error:
            raise SparkError(
                f"Spark does not start with master {master}: {brief(error)} (see {log})"
            ) from error


def brief(error: BaseException) -> str:
    """Return the first line of Spark's error, without the trace of its calls."""
    if isinstance(error, GONE):
        return "its Java process is gone"
    return telling_line(error)


def collect(table: RDD[T]) -> list[T]:
    """Run a job and return its few rows."""
    with warnings.catch_warnings():
        # PySpark leaves the sockets of results to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        return table.collect()
