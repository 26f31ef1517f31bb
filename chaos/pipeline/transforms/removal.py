"""The promise resurrected: purged and deleted messages stay away.

A message that was confirmed before the request is, at the request, in its queue or at a consumer, or was there. The
time when a delivery was sent is unknown, but it is after the request of its consumer. A basic.get on the channel of the
removal is sent after the removal's answer.

Invariant: a purge leaves the messages that consumers hold, and these may come again: after a purge only first
deliveries are proof.
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
    """Return columns queue, id, confirmed_ns of messages confirmed before a successful purge or delete."""
    last = _happened(rows).groupBy("queue").agg(F.max("invoked_ns").alias("removed_ns"))
    return (
        messages.filter(is_plain(MESSAGE))
        .join(F.broadcast(last), "queue")
        .filter("confirmed_ns < removed_ns")
        .select("queue", "id", "confirmed_ns")
    )


def _happened(rows: DataFrame) -> DataFrame:
    return removals(rows).filter("ended_ns is not null")


def resurrected(removed: DataFrame, rows: DataFrame, requested: DataFrame) -> DataFrame:
    """Return violations: deliveries sent after a removal that was requested after the confirm.

    Removals and deliveries have places on axes: the first axis has all of a queue, each further axis those of a
    channel. On each axis, a delivery was certainly sent after every removal before it.
    """
    channel = F.xxhash64("connection", "channel")
    everywhere = F.lit(0).cast("long")
    happened = _happened(rows)
    taken = [
        happened.select("queue", axis.alias("axis"), F.col("ended_ns").alias("place_ns"), "op", "invoked_ns")
        for axis in (everywhere, channel)
    ]
    deliveries = _deliveries(removed, rows, requested)
    of_delivery = ("id", "time_ns", "is_first", "confirmed_ns")
    by_request = deliveries.filter("requested_ns is not null").select(
        "queue", everywhere.alias("axis"), F.col("requested_ns").alias("place_ns"), *of_delivery
    )
    one_by_one = deliveries.filter("tag is null").select(
        "queue", channel.alias("axis"), F.col("time_ns").alias("place_ns"), *of_delivery
    )
    points = (
        taken[0]
        .unionByName(taken[1])
        .unionByName(by_request.unionByName(one_by_one), allowMissingColumns=True)
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


def _deliveries(removed: DataFrame, rows: DataFrame, requested: DataFrame) -> DataFrame:
    """Return the deliveries of removed messages, except dead letters, which were in a different queue meanwhile."""
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
        .join(requested, "consumer", "left")
    )
