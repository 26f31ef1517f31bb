"""The raw rows of a history: parsing, counting, and the outcomes of transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.types import StringType, StructType

from chaos.history import OPERATIONS, REQUIRED, TYPES
from chaos.pipeline.schemas import BLOCK, BROKEN, FILE, HISTORY, PLACE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FOREVER_NS = 2**63 - 1
IN_TRANSACTIONS = ("publish", "ack", "nack", "reject")


def parsed(lines: DataFrame) -> DataFrame:
    """Return rows of JSON Lines, with malformed lines marked as `BROKEN`.

    `lines` has the columns `value`, `file`, `block`, `place`.
    """
    schema = StructType([*HISTORY.fields]).add(BROKEN, StringType())
    text = F.col("value")
    json = F.from_json(text, schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BROKEN})
    rows = lines.filter(F.trim(text) != "").select(FILE, BLOCK, PLACE, "value", json.alias("row"))
    return _marked(
        rows.select("row.*", FILE, BLOCK, PLACE, "value"), text, _is_one_object() & _has_known_keys()
    )


def _is_one_object() -> Column:
    """Return whether a line is a single object.

    Parsing ignores text after the first object of a line, but not within a list.
    """
    return F.json_array_length(F.concat(F.lit("["), "value", F.lit(",0]"))) == 2


def _has_known_keys() -> Column:
    known = F.array(*(F.lit(name) for name in HISTORY.names))
    return F.size(F.array_except(F.json_object_keys("value"), known)) == 0


def checked(rows: DataFrame) -> DataFrame:
    """Return rows read from Parquet (columns of `HISTORY`, `file`) in the form of `parsed`."""
    nothing = F.lit(None)
    return _marked(
        rows.withColumns({BROKEN: nothing, BLOCK: nothing.cast("long"), PLACE: nothing.cast("long")}),
        F.to_json(F.struct(*HISTORY.names)),
        F.lit(True),
    )


def _marked(rows: DataFrame, text: Column, is_whole: Column) -> DataFrame:
    """Mark malformed rows as `BROKEN`; `text` is the text to show of them."""
    sound = is_whole & F.col(BROKEN).isNull() & F.col("type").isin(*TYPES) & F.col("op").isin(*OPERATIONS)
    for name in REQUIRED:
        sound &= F.col(name).isNotNull()
    sound &= F.coalesce(F.forall("deaths", _is_whole_death), F.lit(True))
    sound = F.coalesce(sound, F.lit(False))
    return rows.select(*HISTORY.names, FILE, BLOCK, PLACE, F.when(~sound, text).alias(BROKEN))


def _is_whole_death(death: Column) -> Column:
    return death["queue"].isNotNull() & death["reason"].isNotNull() & death["count"].isNotNull()


def falling(rows: DataFrame) -> DataFrame:
    """Return columns file, time_ns of rows that are not later than the row before, or the block of lines before."""
    lines = rows.filter(F.col(PLACE).isNotNull())
    before = F.lag("time_ns").over(Window.partitionBy(FILE, BLOCK).orderBy(PLACE))
    in_blocks = lines.withColumn("before_ns", before).filter("time_ns <= before_ns")
    blocks = lines.groupBy(FILE, BLOCK).agg(
        F.min("time_ns").alias("time_ns"), F.max("time_ns").alias("last_ns")
    )
    last = F.lag("last_ns").over(Window.partitionBy(FILE).orderBy(BLOCK))
    between = blocks.withColumn("before_ns", last).filter("time_ns <= before_ns")
    return in_blocks.select(FILE, "time_ns").unionByName(between.select(FILE, "time_ns"))


def tally(rows: DataFrame, started_ns: int) -> DataFrame:
    """Count the rows of each (second, node, op, type): a small table, even for a large history."""
    return rows.groupBy(second(F.col("time_ns"), started_ns).alias("second"), "node", "op", "type").count()


def second(time_ns: Column, started_ns: int) -> Column:
    return F.floor((time_ns - F.lit(started_ns)) / F.lit(1_000_000_000)).cast("int")


def with_ends_of_transactions(rows: DataFrame) -> DataFrame:
    """End each operation in a transaction as the transaction ended, at the same time.

    Without a commit no operation took effect, neither after a rollback nor after a lost connection. Rows about the end
    of a single publish or acknowledgement are left out, because the broker does not answer them.
    """
    is_part = F.coalesce(F.col("op").isin(*IN_TRANSACTIONS) & F.col("tx").isNotNull(), F.lit(False))
    parts = rows.filter(is_part & (F.col("type") == "invoke")).join(
        outcomes(rows).select("tx", "outcome", "ended_ns"), "tx", "left"
    )
    ended = parts.withColumn("type", F.coalesce("outcome", F.lit("fail"))).withColumn(
        "time_ns", F.coalesce("ended_ns", "time_ns")
    )
    # An acknowledgement counts by its row, so the rows of failed acknowledgements go.
    kept = ended.filter((F.col("op") == "publish") | (F.col("type") != "fail"))
    invokes = rows.filter(is_part & (F.col("type") == "invoke") & (F.col("op") == "publish"))
    return rows.filter(~is_part).unionByName(invokes).unionByName(kept.select(*rows.columns))


def outcomes(rows: DataFrame) -> DataFrame:
    """Return columns tx, outcome (ok, fail, unknown), ended_ns (null if unknown) of transactions with a commit."""
    return (
        rows.filter((F.col("op") == "tx_commit") & F.col("tx").isNotNull())
        .groupBy("tx")
        .agg(_time_of("ok").alias("ok_ns"), _time_of("fail").alias("fail_ns"))
        .select(
            "tx",
            F.when(F.col("ok_ns").isNotNull(), "ok")
            .when(F.col("fail_ns").isNotNull(), "fail")
            .otherwise("unknown")
            .alias("outcome"),
            F.coalesce("ok_ns", "fail_ns").alias("ended_ns"),
        )
    )


def _time_of(type_: str) -> Column:
    return F.max(F.when(F.col("type") == type_, F.col("time_ns")))


def removals(rows: DataFrame) -> DataFrame:
    """Return purges and deletes that did not fail.

    Columns: queue, op, connection, channel, invoked_ns, ended_ns (null if unknown).
    """
    return (
        rows.filter(F.col("op").isin("purge", "delete") & F.col("queue").isNotNull())
        .groupBy("process", "call", "queue", "op", "connection", "channel")
        .agg(
            _time_of("invoke").alias("invoked_ns"),
            _time_of("ok").alias("ended_ns"),
            F.max(F.col("type") == "fail").alias("failed"),
        )
        .filter(~F.col("failed"))
        .drop("process", "call", "failed")
    )


def vanished(rows: DataFrame) -> DataFrame:
    """Return columns queue, vanished_ns: until when a purge or a delete may have taken messages from the queue.

    A removal of unknown outcome may take effect at any later time.
    """
    until = F.max(F.coalesce("ended_ns", F.lit(FOREVER_NS)))
    return removals(rows).groupBy("queue").agg(until.alias("vanished_ns"))
