"""Messages of an archive or a queue as a data frame, with filters.

Invariant: only files of manifests are read, and a missing or cut file is an error before Spark starts a job.
"""

from __future__ import annotations

import json
import re
import uuid
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from qq_spark import register
from qq_spark.archive.archiver import FILE_COLUMNS
from qq_spark.client import LeaseClient

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from datetime import datetime

    from pyspark.sql import Column, DataFrame, SparkSession

    from qq_spark.archive.store import Archive, Contents, Manifest
    from qq_spark.client import Access

DEATHS = "array<struct<reason: string, queue: string, exchange: string, time: bigint, count: bigint>>"
"""The header x-death: the last death first."""


class Selection(NamedTuple):
    """Conditions of messages; all must hold."""

    queues: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    """Bounds of the time of a message: its timestamp, or when it was archived."""
    routing_key: str | None = None
    """A routing key, or a pattern of a topic exchange."""
    headers: Mapping[str, Any] | None = None
    reason: str | None = None
    """Reason of the last death."""


def archived_messages(spark: SparkSession, archive: Archive, selection: Selection) -> DataFrame:
    """Return the messages of an archive. Raise ArchiveError."""
    contents = archive.contents()
    return messages_of(spark, archive, contents, contents.finished(selection.queues), selection)


def messages_of(
    spark: SparkSession,
    archive: Archive,
    contents: Contents,
    manifests: Sequence[Manifest],
    selection: Selection,
) -> DataFrame:
    """Return the messages of some manifests. Raise ArchiveError if a file is missing or was cut."""
    archive.check_files(contents, manifests)
    names = [f"{each.directory}/{file.name}" for each in manifests for file in each.files]
    schema = ", ".join(f"{name} {kind}" for name, kind in FILE_COLUMNS.items())
    if not names:
        return spark.createDataFrame([], schema)
    frame = spark.read.schema(schema).parquet(*map(archive.uri, names))
    return selected(frame, selection)


@contextmanager
def snapshot_messages(
    spark: SparkSession, access: Access, queue: str, selection: Selection
) -> Generator[DataFrame]:
    """Yield the ready messages of a queue, which return to it at the end of the block."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - only jobs need it

    group = f"analysis-{uuid.uuid4().hex[:12]}"
    options = {
        "url": ",".join(access.urls),
        "user": access.user,
        "password": access.password,
        "vhost": access.vhost,
        "queue": queue,
        "group": group,
    }
    if access.ca_file is not None:
        options["caFile"] = access.ca_file
    register(spark)
    frame = spark.read.format("qq").options(**options).load().withColumn("archived", f.current_timestamp())
    try:
        yield selected(frame, selection)
    finally:
        with LeaseClient(access) as client:
            found = client.group(queue, group)
            if found is not None:
                client.end_group(queue, group, found.fence, release=True)


def selected(frame: DataFrame, selection: Selection) -> DataFrame:
    """Return the messages for which the conditions hold."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - only jobs need it

    conditions: list[Column] = []
    if selection.since is not None:
        conditions.append(message_time() >= f.lit(selection.since))
    if selection.until is not None:
        conditions.append(message_time() < f.lit(selection.until))
    if selection.routing_key is not None:
        conditions.append(f.col("routing_key").rlike(topic_pattern(selection.routing_key)))
    for name, value in (selection.headers or {}).items():
        text = value if isinstance(value, str) else json.dumps(value)
        conditions.append(header(name) == f.lit(text))
    if selection.reason is not None:
        conditions.append(last_death()["reason"] == f.lit(selection.reason))
    for condition in conditions:
        frame = frame.where(condition)
    return frame


def message_time() -> Column:
    from pyspark.sql import functions as f  # noqa: PLC0415 - only jobs need it

    return f.coalesce("timestamp", "archived")


def header(name: str) -> Column:
    """Return a header as text; values that are no texts as JSON."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - only jobs need it

    return f.from_json("headers", "map<string, string>").getItem(name)


def last_death() -> Column:
    """Return the first row of x-death, or null."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - only jobs need it

    return f.from_json(header("x-death"), DEATHS).getItem(0)


def topic_pattern(text: str) -> str:
    """Return the regular expression of a pattern of a topic exchange, which may be a plain routing key."""
    words = [word for word, group in groupby(text.split(".")) for _ in ([word] if word == "#" else group)]
    if words == ["#"]:
        return r"\A[\s\S]*\z"
    found = ""
    for place, word in enumerate(words):
        if word == "#":
            found += r"(?:\.[^.]*)*" if place else r"(?:[^.]*\.)*"
        else:
            follows = place > 0 and (place > 1 or words[0] != "#")
            found += (r"\." if follows else "") + ("[^.]*" if word == "*" else re.escape(word))
    return rf"\A{found}\z"
