"""The promise order: messages of a publisher are sent to consumers in the order of their publishing.

Invariant: only first deliveries of messages that were published once and confirmed are compared, because returned
messages are served first and repeated publishes may come late. They are compared within a consumer, or if a consumer
was requested after a different consumer had seen its message: otherwise the order of sending is unknown.
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


def order(messages: DataFrame, requested: DataFrame) -> DataFrame:
    """Return violations: messages sent after a message of the same publisher and priority that must be behind them."""
    late = _late_at_a_consumer(messages).unionByName(_late_at_another(messages, requested))
    return violation("order", late, "deliver", "unmarked_ns").distinct()


def _late_at_a_consumer(messages: DataFrame) -> DataFrame:
    """Return columns queue, id, unmarked_ns of messages whose consumer had already seen a message behind them."""
    stream = ("queue", "consumer", "publisher", "priority")
    overtaken = promises.is_overtaken(
        MESSAGE, _before("sequence", *stream, "publish_channel"), _before("invoked_ns", *stream)
    )
    late = comparable(messages).withColumn("overtaken", overtaken).filter("overtaken")
    return late.select("queue", "id", "unmarked_ns")


def _late_at_another(messages: DataFrame, requested: DataFrame) -> DataFrame:
    """Return the same columns, for messages overtaken at a consumer that was requested later.

    Before that consumer was requested, some consumer had seen a message that was published after the confirm. Each
    message has two places in time: when it was seen, and when its consumer was requested.
    """
    stream = ("queue", "publisher", "priority")
    place = F.col("place_ns")
    sent = comparable(messages).join(requested, "consumer").withColumn("place_ns", F.col("requested_ns"))
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
    """Return the largest value among the consumer's earlier deliveries."""
    seen = Window.partitionBy(*partition).orderBy("unmarked_ns", "call")
    return F.max(column).over(seen.rowsBetween(Window.unboundedPreceding, -1))
