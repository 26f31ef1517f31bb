"""The promise single_active: a single consumer at a time gets messages.

The time when the broker sent a delivery is known only between two moments: after the message was published, and before
the delivery was seen. First deliveries of a publisher were also sent in the order of their numbers. Both are *points*
on an axis, with their earliest and latest possible place. Between two points of a consumer that are certainly apart,
that consumer was active all the time (its *tenure*). So no delivery to a different consumer may certainly lie between
them.

Invariant: deliveries may be late, so a reversed order of sight alone is no proof.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from chaos.pipeline.transforms.messages import CONSUMER, MESSAGE, is_first_delivery, violation
from chaos.promises import is_plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def single_active_deliveries(messages: DataFrame, rows: DataFrame, queues: DataFrame) -> DataFrame:
    """Return deliveries of queues with a single active consumer: the data of points, and `holder`, the consumer.

    A consumer that consumes again under its old tag is a new holder.
    """
    of_consumer = Window.partitionBy(*CONSUMER).orderBy("time_ns")
    consumes = F.count(F.when((F.col("op") == "consume") & (F.col("type") == "invoke"), 1))
    published = messages.filter("invokes > 0").select(
        "queue", "id", "invoked_ns", "publisher", "priority", "sequence", is_plain(MESSAGE).alias("is_plain")
    )
    return (
        rows.filter(F.col("op").isin("deliver", "consume"))
        .join(F.broadcast(queues.filter("single_active").select("queue")), "queue")
        .withColumn("holder", F.xxhash64(*CONSUMER, consumes.over(of_consumer)))
        .filter(F.col("op") == "deliver")
        .withColumn("is_first", is_first_delivery())
        .select("queue", "id", "time_ns", "holder", "is_first")
        .join(published, ["queue", "id"])
    )


def single_active(deliveries: DataFrame) -> DataFrame:
    """Return violations: deliveries within the tenure of a different consumer."""
    by_time = deliveries.select(
        "queue",
        F.lit(0).cast("long").alias("axis"),
        "holder",
        F.col("invoked_ns").alias("earliest"),
        F.col("time_ns").alias("latest"),
        "id",
        "time_ns",
    )
    by_number = deliveries.filter("is_first and is_plain").select(
        "queue",
        F.xxhash64("publisher", "priority").alias("axis"),
        "holder",
        F.col("sequence").alias("earliest"),
        F.col("sequence").alias("latest"),
        "id",
        "time_ns",
    )
    points = by_time.unionByName(by_number)
    tenures = (
        points.groupBy("queue", "axis", F.col("holder").alias("other"))
        .agg(F.min("latest").alias("since"), F.max("earliest").alias("until"))
        .filter("since < until")
    )
    within = (
        points.join(tenures, ["queue", "axis"])
        .filter("holder <> other and earliest > since and latest < until")
        .select("queue", "id", "time_ns")
        .distinct()
    )
    return violation("single_active", within, "deliver", "time_ns")
