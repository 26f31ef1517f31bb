"""In which order a consumer saw messages.

Lives here: the promise order. Not here: which of two priorities comes first (priority.py).

Law: only first deliveries of messages that were published once and confirmed are compared, and only within a consumer.
What comes back is served first, what was published again may come late, and nobody knows the order across consumers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from chaos.pipeline.transforms.messages import is_plain, violation

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def comparable(messages: DataFrame) -> DataFrame:
    return messages.filter(is_plain() & (F.col("unmarked") == 1))


def order(messages: DataFrame) -> DataFrame:
    """Seen after a message of the same publisher and priority that must be behind it.

    A message is behind another if it was published later on the same channel, or after the other was confirmed.
    """
    stream = ("queue", "consumer", "publisher", "priority")
    overtaken = (_before("sequence", *stream, "publish_channel") > F.col("sequence")) | (
        _before("invoked_ns", *stream) > F.col("confirmed_ns")
    )
    late = comparable(messages).withColumn("overtaken", overtaken).filter("overtaken")
    return violation("order", late, "deliver", "unmarked_ns")


def _before(column: str, *partition: str) -> Column:
    """The largest value among what the consumer saw before."""
    seen = Window.partitionBy(*partition).orderBy("unmarked_ns", "call")
    return F.max(column).over(seen.rowsBetween(Window.unboundedPreceding, -1))
