"""Runs of an archive on Spark: tasks read parts of leases from the nodes, and write files. The driver sees no rows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from qq_spark.archive.archiver import Archiver, Part, Taken, write_part
from qq_spark.archive.store import Archive, ArchiveError
from qq_spark.client import LeaseClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from qq_spark.archive.store import DataFile
    from qq_spark.client import Access


def on_spark(spark: SparkSession) -> Callable[[Sequence[Part]], list[DataFile]]:
    """Return the function that writes parts in tasks of Spark."""

    def execute(parts: Sequence[Part]) -> list[DataFile]:
        return spark.sparkContext.parallelize(parts, len(parts)).map(write_part).collect()

    return execute


def archive_queues(
    execute: Callable[[Sequence[Part]], Sequence[DataFile]],
    archive: Archive,
    access: Access,
    queues: Sequence[str],
    *,
    keep: bool,
) -> Iterator[Taken]:
    """Archive queues in turn, and yield the counts of each queue."""
    archive.create(access.vhost)
    with LeaseClient(access) as client:
        archiver = Archiver(archive, client, access, execute, keep=keep)
        for queue in queues:
            yield archiver.run(queue)


def named_queues(access: Access, names: Sequence[str], pattern: str | None) -> list[str]:
    """Return the queues of names and of a regular expression. Raise ArchiveError if the pattern matches no queue."""
    found = list(names)
    if pattern is not None:
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise ArchiveError(f"'{pattern}' is no regular expression: {error}") from None
        with LeaseClient(access) as client:
            found += sorted(queue for queue in client.queues() if compiled.fullmatch(queue))
        if not found:
            raise ArchiveError(f"no queue of the virtual host '{access.vhost}' has a name like '{pattern}'")
    return list(dict.fromkeys(found))
