"""A row for each message and queue, with the facts that most promises need.

Invariant: only numbers are aggregated. Spark keeps numbers in place in its hash table; a text would make it sort
everything. So consumers, publishers and channels are 64-bit hashes here, which tell a few thousand apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from chaos import promises
from chaos.pipeline.transforms.rows import vanished

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CONSUMER = ("process", "connection", "channel", "consumer")
"""The columns that identify a consumer; it sees deliveries in the order in which the broker sent them."""


class _Columns:
    def __init__(self, frame: str) -> None:
        self._prefix = frame and f"{frame}."

    def __getattr__(self, name: str) -> Column:
        return F.col(self._prefix + name)


def columns(frame: str = "") -> Any:
    """Return facts for the rules of chaos/promises.py: the columns of a frame, qualified by its alias if needed."""
    return _Columns(frame)


MESSAGE = columns()
"""The facts of each row of `messages`."""


def is_first_delivery() -> Column:
    """Return whether a row delivers a message for the first time: neither redelivered nor a dead letter."""
    return (
        (F.col("op") == "deliver")
        & ~F.coalesce("redelivered", F.lit(False))
        & ~F.coalesce(F.size("deaths") > 0, F.lit(False))
    )


def messages(rows: DataFrame) -> DataFrame:
    """Return a row for each (queue, id) that was published to the queue or delivered from it.

    `invokes`, `oks`, `fails` count attempts to publish; the remaining attempts have an unknown outcome. `unmarked`
    counts first deliveries; if there is a single first delivery, `consumer` and `call` belong to it.
    """
    op, kind, time_ns = F.col("op"), F.col("type"), F.col("time_ns")
    invoke = (op == "publish") & (kind == "invoke")
    ok = (op == "publish") & (kind == "ok")
    fail = (op == "publish") & (kind == "fail")
    deliver = op == "deliver"
    first = is_first_delivery()
    return (
        rows.filter(op.isin("publish", "deliver", "ack", "nack", "reject") & F.col("id").isNotNull())
        .groupBy("queue", "id")
        .agg(
            _count(invoke).alias("invokes"),
            _count(ok).alias("oks"),
            _count(fail).alias("fails"),
            F.min(F.when(invoke, time_ns)).alias("invoked_ns"),
            F.max(F.when(invoke, time_ns)).alias("last_invoked_ns"),
            F.min(F.when(ok, time_ns)).alias("confirmed_ns"),
            F.max(F.when(invoke, F.xxhash64("publisher"))).alias("publisher"),
            F.max(F.when(invoke, F.xxhash64("connection", "channel"))).alias("publish_channel"),
            F.max(F.when(invoke, F.col("sequence"))).alias("sequence"),
            F.max(F.when(invoke, F.coalesce("attempt", F.lit(1)))).alias("attempt"),
            F.max(F.when(invoke, F.coalesce("priority", F.lit(0)))).alias("priority"),
            F.coalesce(F.max(F.when(invoke & F.col("dedup"), 1)), F.lit(0)).alias("dedup"),
            F.max(F.when(invoke, F.col("tx").isNotNull())).alias("in_tx"),
            _count(deliver).alias("deliveries"),
            F.min(F.when(deliver, time_ns)).alias("delivered_ns"),
            F.max(F.when(deliver, time_ns)).alias("last_delivered_ns"),
            F.max(F.when(deliver, F.col("delivery_count"))).alias("delivery_count"),
            _count(deliver & (F.size("deaths") > 0)).alias("dead_arrivals"),
            _count(first).alias("unmarked"),
            F.min(F.when(first, time_ns)).alias("unmarked_ns"),
            F.max(F.when(first, time_ns)).alias("last_unmarked_ns"),
            F.max(F.when(first, F.xxhash64(*CONSUMER))).alias("consumer"),
            F.max(F.when(first, F.col("call"))).alias("call"),
            _count(op == "ack").alias("acks"),
            _count(op == "reject").alias("rejects"),
        )
    )


def _count(condition: Column) -> Column:
    return F.count(F.when(condition, 1))


def fates(rows: DataFrame, queues: DataFrame, reach: DataFrame) -> DataFrame:
    """Return a row for each queue whose messages must have been seen by the end of the run.

    The queue and all queues that its dead letters reach must be drained, and must not drop messages over a limit. A
    purge or a delete may have taken any message published before `vanished_ns`.

    Further columns: `must_be_settled`, false if some process consumes without acknowledgements, so that messages are
    settled when they are sent; `is_limited`, whether a message that comes back too often dies; `has_target`, whether
    the queue dead-letters.
    """
    drops = F.col("target.max_length").isNotNull() & F.col("target.dead_letters_to").isNull()
    return (
        reach.alias("reach")
        .join(queues.alias("target"), F.col("reach.target") == F.col("target.queue"), "left")
        .join(vanished(rows).alias("vanished"), F.col("reach.target") == F.col("vanished.queue"), "left")
        .groupBy("reach.queue")
        .agg(
            F.min(F.coalesce("target.drained", F.lit(False))).alias("drained"),
            F.max(drops).alias("drops"),
            F.max("vanished_ns").alias("vanished_ns"),
        )
        .filter(F.col("drained") & ~F.col("drops"))
        .join(queues, "queue")
        .join(_answering(rows), "queue", "left")
        .select(
            "queue",
            "vanished_ns",
            F.coalesce("answers", F.lit(False)).alias("must_be_settled"),
            F.col("delivery_limit").isNotNull().alias("is_limited"),
            F.col("dead_letters_to").isNotNull().alias("has_target"),
        )
    )


def traceable(messages: DataFrame, fates: DataFrame) -> DataFrame:
    """Return the messages that, if they were in their queue, must have been seen by the end of the run.

    They were published there, or came as dead letters; then `invoked_ns` is the time of the publish elsewhere. Further
    column: `is_owed`, whether they were certainly in the queue.
    """
    published = messages.filter(F.col("invokes") > 0)
    dead = messages.filter((F.col("invokes") == 0) & (F.col("dead_arrivals") > 0))
    origins = published.select("id", "invoked_ns")
    return (
        published.unionByName(dead.drop("invoked_ns").join(origins, "id"))
        .withColumn("is_owed", promises.is_owed(MESSAGE))
        .join(F.broadcast(fates), "queue")
        .filter(F.col("vanished_ns").isNull() | (F.col("invoked_ns") > F.col("vanished_ns")))
        .drop("vanished_ns")
    )


def _answering(rows: DataFrame) -> DataFrame:
    """Return columns queue, answers: whether each process that got messages there answered any of them."""
    answers = F.max(F.col("op").isin("ack", "nack", "reject"))
    return (
        rows.filter(F.col("op").isin("deliver", "ack", "nack", "reject"))
        .groupBy("queue", "process")
        .agg(answers.alias("answers"))
        .groupBy("queue")
        .agg(F.min("answers").alias("answers"))
    )


def arrived_elsewhere(messages: DataFrame, reach: DataFrame) -> DataFrame:
    """Return columns queue, id of messages that were delivered from a dead-letter target of their queue."""
    is_unpublished = (F.col("invokes") == 0) & (F.col("deliveries") > 0)
    # A message in a circle also comes back to the queue that it was published to.
    away = messages.filter(is_unpublished | (F.col("dead_arrivals") > 0))
    return (
        away.select(F.col("queue").alias("target"), "id")
        .join(F.broadcast(reach.filter("queue <> target")), "target")
        .select("queue", "id")
    )


def connected(rows: DataFrame) -> DataFrame:
    """Return columns connection, connected_ns: when each connection was requested. Deliveries on it came later."""
    return (
        rows.filter((F.col("op") == "connect") & (F.col("type") == "invoke"))
        .groupBy("connection")
        .agg(F.min("time_ns").alias("connected_ns"))
    )


def requested(rows: DataFrame) -> DataFrame:
    """Return columns consumer (as in `messages`), requested_ns: when it was requested. Deliveries to it came later.

    This is the time of the request of its connection, or of its tag for the first time; null if the history has
    neither.
    """
    is_consume = (F.col("op") == "consume") & (F.col("type") == "invoke")
    consumed_ns, delivered_ns = F.col("consumed_ns"), F.col("delivered_ns")
    return (
        rows.filter((F.col("op") == "deliver") | is_consume)
        .groupBy(*CONSUMER)
        .agg(
            F.min(F.when(is_consume, F.col("time_ns"))).alias("consumed_ns"),
            F.min(F.when(~is_consume, F.col("time_ns"))).alias("delivered_ns"),
        )
        # A consumer with an earlier delivery existed before: the request in the history was a later request.
        .withColumn("consumed_ns", F.when(consumed_ns < delivered_ns, consumed_ns))
        .join(connected(rows), "connection", "left")
        .select(
            F.xxhash64(*CONSUMER).alias("consumer"),
            F.greatest("connected_ns", "consumed_ns").alias("requested_ns"),
        )
    )


def violation(promise: str | Column, found: DataFrame, op: str, time_ns: str) -> DataFrame:
    """Return violations in the columns of `schemas.VIOLATION`.

    Column `time_ns` of `found` has the time of the row to show.
    """
    name = F.lit(promise) if isinstance(promise, str) else promise
    return found.select(
        name.alias("promise"), "queue", "id", F.lit(op).alias("op"), F.col(time_ns).alias("time_ns")
    )
