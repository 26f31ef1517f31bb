"""The promises delivery_limit and dead_letter: the end of a message in its queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from chaos.pipeline.transforms.messages import MESSAGE, arrived_elsewhere, violation
from chaos.promises import copies

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def limited(rows: DataFrame, queues: DataFrame) -> DataFrame:
    """Return the deliveries of queues that have a delivery limit."""
    limits = queues.filter("delivery_limit is not null").select("queue", "delivery_limit")
    return rows.filter(F.col("op") == "deliver").join(F.broadcast(limits), "queue")


def delivery_limit(messages: DataFrame, rows: DataFrame, queues: DataFrame) -> DataFrame:
    """Return violations: a delivery with a count above the limit, or more deliveries than the limit allows."""
    counted = violation(
        "delivery_limit",
        limited(rows, queues).filter("delivery_count > delivery_limit"),
        "deliver",
        "time_ns",
    )
    limits = queues.filter("delivery_limit is not null").select("queue", "delivery_limit")
    # A dead letter that returns starts counting anew.
    too_many = (
        messages.filter("invokes > 0 and dead_arrivals = 0")
        .join(F.broadcast(limits), "queue")
        .filter(F.col("deliveries") > copies(MESSAGE) * (F.col("delivery_limit") + 1))
    )
    return counted.unionByName(
        violation("delivery_limit", too_many, "deliver", "last_delivered_ns")
    ).distinct()


def dead_letter(messages: DataFrame, traceable: DataFrame, rows: DataFrame, reach: DataFrame) -> DataFrame:
    """Return violations: a dead letter that arrived more than once, or not at all, or without its death.

    A message that was seen and never settled has died if its queue was drained: it was rejected, or it came back too
    often. Acknowledged messages are left out, because the acknowledgement may or may not have arrived. That holds for
    each queue on the message's way.
    """
    missing = (
        traceable.filter("is_owed and has_target and must_be_settled")
        .filter(
            (F.col("deliveries") > 0) & (F.col("acks") == 0) & ((F.col("rejects") > 0) | F.col("is_limited"))
        )
        .join(arrived_elsewhere(messages, reach), ["queue", "id"], "left_anti")
    )
    return (
        violation("dead_letter", missing, "deliver", "last_delivered_ns")
        .unionByName(violation("dead_letter", _arrived_twice(messages, rows), "deliver", "last_ns"))
        .unionByName(
            violation("dead_letter", _dead_letters_without_rejection(messages, rows), "deliver", "first_ns")
        )
        .distinct()
    )


def _arrived_twice(messages: DataFrame, rows: DataFrame) -> DataFrame:
    """Return columns queue, id, last_ns of dead letters with more first deliveries than publishes.

    A message that goes round in a circle arrives at each queue again, with more deaths each time.
    """
    deaths = F.aggregate("deaths", F.lit(0).cast("long"), lambda total, death: total + death["count"])
    repeated = (
        rows.filter(
            (F.col("op") == "deliver") & (F.size("deaths") > 0) & ~F.coalesce("redelivered", F.lit(False))
        )
        .groupBy("queue", "id", deaths.alias("died"))
        .agg(F.count("*").alias("arrivals"), F.max("time_ns").alias("last_ns"))
        .filter("arrivals > 1")
    )
    published = messages.filter("invokes > 0").select("id", copies(MESSAGE).alias("copies"))
    return repeated.join(published, "id").filter("arrivals > copies")


def _dead_letters_without_rejection(messages: DataFrame, rows: DataFrame) -> DataFrame:
    """Return columns queue, id, first_ns of dead letters that claim a rejection which no consumer made."""
    deaths = (
        rows.filter((F.col("op") == "deliver") & (F.size("deaths") > 0))
        .select("queue", "id", "time_ns", F.explode("deaths").alias("death"))
        .filter("death.reason = 'rejected'")
        .select("queue", "id", "time_ns", F.col("death.queue").alias("died_in"))
    )
    rejected = messages.filter("rejects > 0").select(F.col("queue").alias("died_in"), "id")
    return (
        deaths.join(rejected, ["died_in", "id"], "left_anti")
        .groupBy("queue", "id")
        .agg(F.min("time_ns").alias("first_ns"))
    )
