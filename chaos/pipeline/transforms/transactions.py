"""All or nothing: the promise tx_atomic.

Not here: how rows of transactions are read for the other promises (rows.py).

Law: a message that was published more than once, or in more than one transaction, proves nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from chaos.pipeline.transforms.messages import arrived_elsewhere, connected, copies, violation
from chaos.pipeline.transforms.rows import outcomes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def transactions(rows: DataFrame) -> DataFrame:
    """Column tx: all that anything was published or acknowledged in."""
    return rows.filter(F.col("tx").isNotNull()).select("tx").distinct()


def tx_atomic(messages: DataFrame, traceable: DataFrame, rows: DataFrame, reach: DataFrame) -> DataFrame:
    """Of a commit something is missing, of what was not committed something is there; of an unknown outcome both."""
    parts = _parts(messages, traceable, rows, reach)
    arrived = parts.filter("seen").select("tx").distinct().withColumn("any_seen", F.lit(True))
    missing = (
        parts.filter("missing and outcome <> 'fail'")
        .join(arrived, "tx", "left")
        .filter("outcome = 'ok' or any_seen")
    )
    leaked = parts.filter("seen and outcome = 'fail' and delivered_ns is not null")
    return (
        violation("tx_atomic", missing, "publish", "invoked_ns")
        .unionByName(violation("tx_atomic", leaked, "deliver", "delivered_ns"))
        .unionByName(violation("tx_atomic", _taken_back(messages, rows), "deliver", "time_ns"))
    )


def _parts(messages: DataFrame, traceable: DataFrame, rows: DataFrame, reach: DataFrame) -> DataFrame:
    """What was published in transactions: columns tx, outcome, queue, id, invoked_ns, delivered_ns, seen, missing."""
    published = rows.filter(
        (F.col("op") == "publish") & (F.col("type") == "invoke") & F.col("tx").isNotNull()
    )
    true = F.lit(True)
    return (
        published.select("tx", "queue", "id")
        .join(outcomes(rows), "tx", "left")
        .join(messages.filter("invokes = 1"), ["queue", "id"])
        .join(
            arrived_elsewhere(messages, reach).distinct().withColumn("elsewhere", true),
            ["queue", "id"],
            "left",
        )
        .join(traceable.select("queue", "id", true.alias("traceable")), ["queue", "id"], "left")
        .withColumn("seen", (F.col("deliveries") > 0) | F.col("elsewhere").isNotNull())
        .withColumn("missing", ~F.col("seen") & F.col("traceable").isNotNull())
        .withColumn("outcome", F.coalesce("outcome", F.lit("fail")))
        .select("tx", "outcome", "queue", "id", "invoked_ns", "delivered_ns", "seen", "missing")
    )


def _taken_back(messages: DataFrame, rows: DataFrame) -> DataFrame:
    """Columns queue, id, time_ns: delivered on a connection that was asked for after a commit had acknowledged it."""
    committed = outcomes(rows).filter("outcome = 'ok'").select("tx", "ended_ns")
    settled = (
        rows.filter((F.col("op") == "ack") & (F.col("type") == "invoke") & F.col("tx").isNotNull())
        .join(committed, "tx")
        .join(messages.filter((F.col("invokes") > 0) & (copies() == 1)), ["queue", "id"], "left_semi")
        .groupBy("queue", "id")
        .agg(F.min("ended_ns").alias("settled_ns"))
    )
    return (
        rows.filter(F.col("op") == "deliver")
        .join(settled, ["queue", "id"])
        .join(connected(rows), "connection")
        .filter("connected_ns > settled_ns")
        .select("queue", "id", "time_ns")
    )
