"""Whether what was confirmed arrived, and whether what arrived was published."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from chaos import promises
from chaos.pipeline.transforms.messages import MESSAGE, arrived_elsewhere, violation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def owed(traceable: DataFrame) -> DataFrame:
    """The messages of `messages.traceable` that were confirmed, or came as dead letters."""
    return traceable.filter("is_owed")


def lost(messages: DataFrame, traceable: DataFrame, reach: DataFrame) -> DataFrame:
    """Violations: owed and never seen; or seen, never settled, and not seen again though the queue was emptied."""
    gone = promises.is_gone(MESSAGE, F.col("must_be_settled"), F.col("is_limited"))
    missing = (
        owed(traceable)
        .filter(gone)
        .join(arrived_elsewhere(messages, reach), ["queue", "id"], "left_anti")
        # The time of a confirm in a transaction is that of the commit, which is another row.
        .withColumn("shown_ns", F.when(F.col("in_tx"), F.col("invoked_ns")).otherwise(F.col("confirmed_ns")))
    )
    return violation("lost", missing.filter("invokes > 0"), "publish", "shown_ns").unionByName(
        violation("lost", missing.filter("invokes = 0"), "deliver", "last_delivered_ns")
    )


def phantom(messages: DataFrame, reach: DataFrame) -> DataFrame:
    """Violations: delivered, and published neither there nor where it could have come from as a dead letter."""
    found = messages.filter(promises.is_phantom(MESSAGE))
    reachable = (
        messages.filter(promises.may_be_there(MESSAGE))
        .join(F.broadcast(reach.filter("queue <> target")), "queue")
        .select(F.col("target").alias("queue"), "id")
    )
    unknown = found.filter("invokes = 0").join(reachable, ["queue", "id"], "left_anti")
    return violation("phantom", found.filter("invokes > 0").unionByName(unknown), "deliver", "delivered_ns")
