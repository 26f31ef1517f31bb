"""How often a message arrived: what comes again says so, and what is deduplicated comes once.

Lives here: the promises unmarked_duplicate and dedup_duplicate. Not here: dead letters (limits.py).

Law: two deliveries on different connections may be seen in another order than they were sent. So their times prove
something only on one connection, or if the connection of one did not exist yet when the other was seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from chaos.pipeline.transforms.messages import connected, copies, is_first_delivery, violation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def duplicates(messages: DataFrame, rows: DataFrame) -> DataFrame:
    """More first deliveries than messages; or a first delivery that was certainly sent after another one.

    A message that was published again because its outcome was unknown may be there several times, unless the broker was
    told to deduplicate it.
    """
    published = messages.filter(F.col("invokes") > F.col("fails"))
    too_many = published.filter(F.col("unmarked") > copies())
    single = published.filter((copies() == 1) & (F.col("unmarked") == 1) & (F.col("deliveries") > 1))
    columns = ("queue", "id", "dedup", "last_unmarked_ns")
    found = too_many.select(*columns).unionByName(_late(single, rows).select(*columns))
    promise = F.when(F.col("dedup"), "dedup_duplicate").otherwise("unmarked_duplicate")
    return violation(promise, found, "deliver", "last_unmarked_ns")


def _late(single: DataFrame, rows: DataFrame) -> DataFrame:
    """Those whose one first delivery came on a connection that was asked for after another delivery was seen."""
    deliveries = rows.filter(F.col("op") == "deliver").select(
        "queue", "id", "time_ns", "connection", is_first_delivery().alias("is_first")
    )
    seen = single.join(deliveries, ["queue", "id"])
    first = (
        seen.filter("is_first")
        .join(connected(rows), "connection", "left")
        .select("queue", "id", "connection", "connected_ns")
    )
    earlier = (
        seen.alias("seen")
        .join(first.alias("first"), ["queue", "id"])
        .filter(
            (F.col("seen.time_ns") < F.col("first.connected_ns"))
            | (
                (F.col("seen.connection") == F.col("first.connection"))
                & (F.col("seen.time_ns") < F.col("last_unmarked_ns"))
            )
        )
    )
    return earlier.select("queue", "id", "dedup", "last_unmarked_ns").distinct()
