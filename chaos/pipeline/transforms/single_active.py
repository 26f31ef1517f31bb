"""Only one consumer at a time gets anything: the promise single_active.

When the broker sent a delivery is not known, only between which two moments: not before the message was published, and
not after the delivery was seen. Of first deliveries of one publisher it is also known in which order they were sent:
that of their numbers. Both are *points* on an axis, with the earliest and the latest place that they may have. Between
two points of one consumer that are certainly apart, that consumer was the active one all the time (it has a *tenure*),
and no other one may have got anything that certainly lies between them.

Invariant: deliveries may be late, so where they are seen in the other order alone proves nothing.
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
    """Deliveries of queues with a single active consumer: what points need, and `holder`, who got it.

    A consumer that consumes again under its old tag is another holder.
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
    """Deliveries within the tenure of somebody else."""
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
