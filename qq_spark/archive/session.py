"""Spark's session for the commands of an archive, and Spark's errors in a line each."""

from __future__ import annotations

import os
import re
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

from qq_spark.archive.store import PACKAGES, ArchiveError
from qq_spark.java_output import errors_to, telling_line

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from pyspark.sql import SparkSession

_OURS = re.compile(r"^(?:\S+: )*qq_spark\.\S+?Error: (.+)$|^qq_spark\.errors\.Refusal: (.+)$", re.MULTILINE)


@contextmanager
def session(master: str, settings: Mapping[str, str]) -> Generator[SparkSession]:
    """Yield a session for the block. Raise ArchiveError if PySpark or Java is missing, or a job fails."""
    try:
        from py4j.protocol import Py4JError  # noqa: PLC0415 - only these commands need PySpark
        from pyspark.errors import PySparkException  # noqa: PLC0415 - the same
        from pyspark.sql import SparkSession  # noqa: PLC0415 - the same
    except ImportError:
        raise ArchiveError(f"this command needs PySpark: {PACKAGES}") from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master(master)
        .appName("qq archive")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
    )
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for name, value in settings.items():
        builder = builder.config(name, value)
    log = Path(gettempdir()) / f"qq-archive-{os.getpid()}.log"
    try:
        with errors_to(log):
            spark = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        raise ArchiveError(
            f"Spark does not start with master {master}: {reason(error)}; it needs Java 17 or newer, by JAVA_HOME or "
            f"PATH (see {log})"
        ) from None
    try:
        yield spark
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise ArchiveError(f"{reason(error)} (see {log})") from None
    else:
        log.unlink(missing_ok=True)
    finally:
        with suppress(Py4JError, OSError):
            spark.stop()


def reason(error: BaseException) -> str:
    """Return the line of an error of Spark that names the cause."""
    if found := _OURS.search(str(error)):
        return found[1] or found[2]
    return telling_line(error)
