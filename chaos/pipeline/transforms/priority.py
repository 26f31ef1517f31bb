"""The promise priority_ratio: while both kinds wait, two high messages are delivered for each normal message.

It checks first deliveries, in the order in which they were seen, for each queue separately. High messages wait at a
delivery if a later delivery is of a high message that was confirmed `IN_HAND` deliveries before: so that message was in
the queue when the broker chose, and not yet in a consumer's hands. The same holds for normal messages.

The statistic is the share of high messages among the deliveries when both kinds wait. It must be at least 2/3: if the
oldest high message is older than the oldest normal message, the high message comes first in any case. It must be at
most 2/3 if an older normal message waits; sequence numbers show that, for queues with a single publisher. `SHARE_MIN`
and `SHARE_MAX` are 2/3 with room for begin and end of each burst. Fewer than `EXAMINED_MIN` deliveries are not judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from chaos.pipeline.transforms.messages import violation
from chaos.pipeline.transforms.order import comparable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HIGH = 5
"""The lowest priority that is high."""
IN_HAND = 10
"""Messages; more than the consumers of such a queue hold together."""
EXAMINED_MIN = 100
SHARE_MIN, SHARE_MAX = 0.60, 0.74


def both_waiting(messages: DataFrame, queues: DataFrame) -> DataFrame:
    """Return deliveries when both kinds waited: columns queue, id, unmarked_ns, is_high, older_normal_waits."""
    later = Window.partitionBy("queue").orderBy(F.col("unmarked_ns").desc(), F.col("call").desc())
    after = later.rowsBetween(Window.unboundedPreceding, -1)
    from_here = later.rowsBetween(Window.unboundedPreceding, 0)
    high, normal = F.col("is_high"), ~F.col("is_high")
    chosen_ns = F.lead("unmarked_ns", IN_HAND).over(later)
    whole = Window.partitionBy("queue")
    one_publisher = F.min("publisher").over(whole) == F.max("publisher").over(whole)
    older = _least("sequence", normal).over(after) < _least("sequence", high).over(from_here)
    return (
        comparable(messages)
        .join(F.broadcast(queues.filter("priorities").select("queue")), "queue")
        .withColumn("is_high", F.col("priority") >= HIGH)
        .withColumn("high_waits", _least("confirmed_ns", high).over(after) < chosen_ns)
        .withColumn("normal_waits", _least("confirmed_ns", normal).over(after) < chosen_ns)
        .withColumn("older_normal_waits", one_publisher & older)
        .filter("high_waits and normal_waits")
        .select("queue", "id", "unmarked_ns", "is_high", "older_normal_waits")
    )


def _least(column: str, condition: Column) -> Column:
    return F.min(F.when(condition, F.col(column)))


def enough(both_waiting: DataFrame) -> DataFrame:
    """Return the deliveries of queues that have at least `EXAMINED_MIN` of them."""
    examined = both_waiting.groupBy("queue").count().filter(F.col("count") >= EXAMINED_MIN)
    return both_waiting.join(F.broadcast(examined), "queue", "left_semi")


def priority_ratio(both_waiting: DataFrame) -> DataFrame:
    """Return queues whose share is out of bounds; the row to show is the last checked delivery."""
    strict = F.when(F.col("older_normal_waits"), F.col("is_high").cast("double"))
    shares = both_waiting.groupBy("queue").agg(
        F.count("*").alias("examined"),
        F.avg(F.col("is_high").cast("double")).alias("share"),
        F.count(strict).alias("strictly_examined"),
        F.avg(strict).alias("strict_share"),
        F.max_by("id", "unmarked_ns").alias("id"),
        F.max("unmarked_ns").alias("unmarked_ns"),
    )
    too_few = (F.col("examined") >= EXAMINED_MIN) & (F.col("share") < SHARE_MIN)
    too_many = (F.col("strictly_examined") >= EXAMINED_MIN) & (F.col("strict_share") > SHARE_MAX)
    return violation("priority_ratio", shares.filter(too_few | too_many), "deliver", "unmarked_ns")
