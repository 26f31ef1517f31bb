"""The promise tx_atomic: all of a transaction takes effect, or none of it.

Invariant: a message that was published more than once, or in more than a single transaction, is no proof.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from chaos.pipeline.transforms.messages import CONSUMER, MESSAGE, arrived_elsewhere, violation
from chaos.pipeline.transforms.rows import outcomes
from chaos.promises import copies

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def transactions(rows: DataFrame) -> DataFrame:
    """Return column tx: all transactions with a publish or an acknowledgement."""
    return rows.filter(F.col("tx").isNotNull()).select("tx").distinct()


def tx_atomic(
    parts: DataFrame,
    messages: DataFrame,
    traceable: DataFrame,
    rows: DataFrame,
    reach: DataFrame,
    requested: DataFrame,
) -> DataFrame:
    """Return violations: a part of a commit is missing, or a part of an uncommitted transaction took effect.

    With an unknown outcome, it is a violation if a part is there and a part is missing. An acknowledgement took effect
    if its message is never delivered again.
    """
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
        .unionByName(
            violation("tx_atomic", _taken_back(parts, messages, rows, requested), "deliver", "time_ns")
        )
        .unionByName(
            violation("tx_atomic", _taken(parts, messages, traceable, rows, reach), "ack", "time_ns")
        )
    )


def parts(messages: DataFrame, traceable: DataFrame, rows: DataFrame, reach: DataFrame) -> DataFrame:
    """Return publishes in transactions: columns tx, outcome, queue, id, invoked_ns, delivered_ns, seen, missing."""
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


def _acknowledgements(rows: DataFrame) -> DataFrame:
    return rows.filter((F.col("op") == "ack") & (F.col("type") == "invoke")).select(
        "tx", "queue", "id", "time_ns"
    )


def _taken_back(parts: DataFrame, messages: DataFrame, rows: DataFrame, requested: DataFrame) -> DataFrame:
    """Return columns queue, id, time_ns of redeliveries after a commit with their acknowledgement.

    Such a delivery went to a consumer that was requested after the commit. A commit of unknown outcome took effect when
    a message of it is seen.
    """
    seen = (
        parts.filter("outcome = 'unknown' and delivered_ns is not null")
        .groupBy("tx")
        .agg(F.min("delivered_ns").alias("ended_ns"))
    )
    committed = outcomes(rows).filter("outcome = 'ok'").select("tx", "ended_ns").unionByName(seen)
    settled = (
        _acknowledgements(rows)
        .join(committed, "tx")
        .join(messages.filter((F.col("invokes") > 0) & (copies(MESSAGE) == 1)), ["queue", "id"], "left_semi")
        .groupBy("queue", "id")
        .agg(F.min("ended_ns").alias("settled_ns"))
    )
    return (
        rows.filter(F.col("op") == "deliver")
        .join(settled, ["queue", "id"])
        .withColumn("consumer", F.xxhash64(*CONSUMER))
        .join(requested, "consumer")
        .filter("requested_ns > settled_ns")
        .select("queue", "id", "time_ns")
    )


def _taken(
    parts: DataFrame, messages: DataFrame, traceable: DataFrame, rows: DataFrame, reach: DataFrame
) -> DataFrame:
    """Return columns queue, id, time_ns of messages that only a void commit acknowledged, and that disappeared.

    A commit of unknown outcome is void if a message of it is missing, and no message of it is seen.
    """
    void = (
        parts.filter("outcome = 'unknown'")
        .groupBy("tx")
        .agg(F.max("seen").alias("any_seen"), F.max("missing").alias("any_missing"))
        .filter("any_missing and not any_seen")
        .select("tx")
    )
    by_void = (
        _acknowledgements(rows)
        .join(void, "tx")
        .groupBy("queue", "id")
        .agg(F.count("*").alias("void_acks"), F.min("time_ns").alias("time_ns"))
    )
    return (
        traceable.filter("is_owed and must_be_settled and not is_limited and rejects = 0")
        .filter(copies(MESSAGE) <= 1)
        .join(by_void, ["queue", "id"])
        # An acknowledgement in a transaction counts once in `messages.messages`; otherwise both its begin and its end
        # count.
        .filter("acks = void_acks")
        .join(arrived_elsewhere(messages, reach), ["queue", "id"], "left_anti")
        .select("queue", "id", "time_ns")
    )
