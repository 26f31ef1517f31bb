"""The promises lost and phantom: confirmed messages arrive, and arriving messages were published."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from chaos import promises
from chaos.pipeline.transforms.messages import MESSAGE, arrived_elsewhere, violation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def owed(traceable: DataFrame) -> DataFrame:
    """Return the messages of `messages.traceable` that were confirmed, or came as dead letters."""
    return traceable.filter("is_owed")


def lost(messages: DataFrame, traceable: DataFrame, reach: DataFrame) -> DataFrame:
    """Return violations: confirmed messages that disappeared from a drained queue.

    Such a message was never seen; or it was seen, never settled, and not seen again.
    """
    has_disappeared = promises.has_disappeared(MESSAGE, F.col("must_be_settled"), F.col("is_limited"))
    missing = (
        owed(traceable)
        .filter(has_disappeared)
        .join(arrived_elsewhere(messages, reach), ["queue", "id"], "left_anti")
        # In a transaction the time of the confirm is that of the commit, which is a separate row.
        .withColumn("shown_ns", F.when(F.col("in_tx"), F.col("invoked_ns")).otherwise(F.col("confirmed_ns")))
    )
    return violation("lost", missing.filter("invokes > 0"), "publish", "shown_ns").unionByName(
        violation("lost", missing.filter("invokes = 0"), "deliver", "last_delivered_ns")
    )


def phantom(messages: DataFrame, reach: DataFrame) -> DataFrame:
    """Return violations: delivered messages that were published neither there nor in a source of its dead letters."""
    found = messages.filter(promises.is_phantom(MESSAGE))
    reachable = (
        messages.filter(promises.may_be_there(MESSAGE))
        .join(F.broadcast(reach.filter("queue <> target")), "queue")
        .select(F.col("target").alias("queue"), "id")
    )
    unknown = found.filter("invokes = 0").join(reachable, ["queue", "id"], "left_anti")
    return violation("phantom", found.filter("invokes > 0").unionByName(unknown), "deliver", "delivered_ns")
