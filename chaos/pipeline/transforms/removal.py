"""Whether what a purge or a delete took stays away: the promise resurrected.

A message that was confirmed before the request is in its queue by then, or a consumer has it, or it was there. When a
delivery was sent is not known, only that it was not before its consumer was asked for; and what a client gets one by
one on the channel on which it made the request is sent after the answer to that.

Invariant: a purge leaves what consumers hold, and that may come again: after a purge only first deliveries prove
something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from chaos.pipeline.transforms.messages import CONSUMER, MESSAGE, is_first_delivery, violation
from chaos.pipeline.transforms.rows import removals
from chaos.promises import is_plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def removed(messages: DataFrame, rows: DataFrame) -> DataFrame:
    """Columns queue, id, confirmed_ns: confirmed before a purge or a delete that happened."""
    last = _happened(rows).groupBy("queue").agg(F.max("invoked_ns").alias("removed_ns"))
    return (
        messages.filter(is_plain(MESSAGE))
        .join(F.broadcast(last), "queue")
        .filter("confirmed_ns < removed_ns")
        .select("queue", "id", "confirmed_ns")
    )


def _happened(rows: DataFrame) -> DataFrame:
    return removals(rows).filter("ended_ns is not null")


def resurrected(removed: DataFrame, rows: DataFrame, asked: DataFrame) -> DataFrame:
    """Delivered although the delivery was sent after a removal that was asked for after the confirm.

    Removals and deliveries have places on axes: on the first one there are all of a queue, on each further one those of
    a channel. On both, a delivery was certainly sent after what has a place before it.
    """
    channel = F.xxhash64("connection", "channel")
    everywhere = F.lit(0).cast("long")
    happened = _happened(rows)
    taken = [
        happened.select("queue", axis.alias("axis"), F.col("ended_ns").alias("place_ns"), "op", "invoked_ns")
        for axis in (everywhere, channel)
    ]
    deliveries = _deliveries(removed, rows, asked)
    of_delivery = ("id", "time_ns", "is_first", "confirmed_ns")
    by_asking = deliveries.filter("asked_ns is not null").select(
        "queue", everywhere.alias("axis"), F.col("asked_ns").alias("place_ns"), *of_delivery
    )
    one_by_one = deliveries.filter("tag is null").select(
        "queue", channel.alias("axis"), F.col("time_ns").alias("place_ns"), *of_delivery
    )
    points = (
        taken[0]
        .unionByName(taken[1])
        .unionByName(by_asking.unionByName(one_by_one), allowMissingColumns=True)
    )
    before = (
        Window.partitionBy("queue", "axis").orderBy("place_ns").rowsBetween(Window.unboundedPreceding, -1)
    )
    found = (
        points.withColumn("removed_ns", F.max("invoked_ns").over(before))
        .withColumn("deleted_ns", F.max(F.when(F.col("op") == "delete", F.col("invoked_ns"))).over(before))
        .filter("confirmed_ns < deleted_ns or (is_first and confirmed_ns < removed_ns)")
        .groupBy("queue", "id")
        .agg(F.min("time_ns").alias("first_ns"))
    )
    return violation("resurrected", found, "deliver", "first_ns")


def _deliveries(removed: DataFrame, rows: DataFrame, asked: DataFrame) -> DataFrame:
    """Deliveries of removed messages, except as dead letters: those that come back were elsewhere meanwhile."""
    is_dead_letter = F.coalesce(F.size("deaths") > 0, F.lit(False))
    return (
        rows.filter((F.col("op") == "deliver") & ~is_dead_letter)
        .select(
            *("queue", "id", "time_ns", "connection", "channel"),
            F.col("consumer").alias("tag"),
            F.xxhash64(*CONSUMER).alias("consumer"),
            is_first_delivery().alias("is_first"),
        )
        .join(removed, ["queue", "id"])
        .join(asked, "consumer", "left")
    )
