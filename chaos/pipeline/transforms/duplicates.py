"""The promises about duplicates: a second delivery is marked, and a deduplicated message comes once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from chaos import promises
from chaos.pipeline.transforms.messages import MESSAGE, columns, connected, is_first_delivery, violation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FOUND = ("queue", "id", "dedup", "last_unmarked_ns")


def duplicates(messages: DataFrame, rows: DataFrame) -> DataFrame:
    """Return violations: too many first deliveries, or a first delivery certainly sent after an earlier delivery."""
    too_many = messages.filter(promises.is_new_too_often(MESSAGE))
    single = messages.filter(promises.may_prove_late(MESSAGE))
    found = too_many.select(*_FOUND).unionByName(_late(single, rows))
    promise = F.when(F.col("dedup") == 1, "dedup_duplicate").otherwise("unmarked_duplicate")
    return violation(promise, found, "deliver", "last_unmarked_ns")


def _late(single: DataFrame, rows: DataFrame) -> DataFrame:
    """Return messages whose only first delivery was certainly sent after a different delivery of the same message."""
    deliveries = rows.filter(F.col("op") == "deliver").select(
        "queue", "id", "time_ns", "connection", is_first_delivery().alias("is_first")
    )
    seen = single.join(deliveries, ["queue", "id"])
    first = (
        seen.filter("is_first")
        .join(connected(rows), "connection", "left")
        .select("queue", "id", "connection", "connected_ns", "time_ns")
    )
    earlier = (
        seen.alias("seen")
        .join(first.alias("first"), ["queue", "id"])
        .filter(promises.was_sent_before(columns("seen"), columns("first")))
    )
    return earlier.select(*_FOUND).distinct()
