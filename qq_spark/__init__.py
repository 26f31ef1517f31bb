"""Queues as data frames of Spark, and clients that lease and store messages over HTTP.

`register(spark)` makes the format `qq` known to a Spark session, for reading and writing. `LeaseClient` opens groups,
takes leases and reads them as Arrow batches, without Spark. `SinkClient` stores Arrow batches and commits epochs. The
package is independent of the broker. It imports PySpark and pyarrow only when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq_spark.client import Access, Group, Lease, LeaseClient, Parts
from qq_spark.errors import QueueSourceError, Refusal
from qq_spark.sink_client import SinkClient

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Access",
    "Group",
    "Lease",
    "LeaseClient",
    "Parts",
    "QueueSourceError",
    "Refusal",
    "SinkClient",
    "register",
]


def register(spark: SparkSession) -> None:
    """Make the format `qq` known to a session."""
    from qq_spark.source import QueueSource  # noqa: PLC0415 - it imports PySpark

    spark.dataSource.register(QueueSource)
