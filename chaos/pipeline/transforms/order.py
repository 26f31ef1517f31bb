"""In which order messages were sent to consumers.

Invariant: only first deliveries of messages that were published once and confirmed are compared: what comes back is
served first, what was published again may come late. And only within a consumer, or if one consumer was asked for after
the other had seen its message: else nobody knows which of the two was sent first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from chaos import promises
from chaos.pipeline.transforms.messages import MESSAGE, violation

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def comparable(messages: DataFrame) -> DataFrame:
    return messages.filter(promises.is_comparable(MESSAGE))


def order(messages: DataFrame, asked: DataFrame) -> DataFrame:
    """Violations: sent after a message of the same publisher and priority that must be behind it."""
    late = _late_at_a_consumer(messages).unionByName(_late_at_another(messages, asked))
    return violation("order", late, "deliver", "unmarked_ns").distinct()


def _late_at_a_consumer(messages: DataFrame) -> DataFrame:
    """Columns queue, id, unmarked_ns: a consumer had seen before what must be behind it."""
    stream = ("queue", "consumer", "publisher", "priority")
    overtaken = promises.is_overtaken(
        MESSAGE, _before("sequence", *stream, "publish_channel"), _before("invoked_ns", *stream)
    )
    late = comparable(messages).withColumn("overtaken", overtaken).filter("overtaken")
    return late.select("queue", "id", "unmarked_ns")


def _late_at_another(messages: DataFrame, asked: DataFrame) -> DataFrame:
    """The same: before the consumer that got it was asked for, some consumer had seen what was published after it.

    Each message has two places in time: where it was seen, and where its consumer was asked for.
    """
    stream = ("queue", "publisher", "priority")
    place = F.col("place_ns")
    sent = comparable(messages).join(asked, "consumer").withColumn("place_ns", F.col("asked_ns"))
    seen = comparable(messages).select(*stream, F.col("unmarked_ns").alias("place_ns"), "invoked_ns")
    before = Window.partitionBy(*stream).orderBy(place).rowsBetween(Window.unboundedPreceding, -1)
    return (
        seen.unionByName(
            sent.select(*stream, "place_ns", "id", "unmarked_ns", "confirmed_ns"), allowMissingColumns=True
        )
        .withColumn("seen_ns", F.max("invoked_ns").over(before))
        .filter("seen_ns > confirmed_ns")
        .select("queue", "id", "unmarked_ns")
    )


def _before(column: str, *partition: str) -> Column:
    """The largest value among what the consumer saw before."""
    seen = Window.partitionBy(*partition).orderBy("unmarked_ns", "call")
    return F.max(column).over(seen.rowsBetween(Window.unboundedPreceding, -1))
