"""The run as its clients saw it, second by second: throughput, latency, outages and recovery.

Times of the tables are seconds since the run began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from chaos.pipeline.transforms.rows import second

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NS = 1_000_000_000
UNAVAILABLE_NS = NS // 4
"""Nanoseconds; a shorter wait counts as latency."""
RETRY_NS = 2 * NS
"""Nanoseconds; a publisher that fails and tries again within this time was waiting in between."""
ONSET_NS = NS
"""Nanoseconds; a wait that begins this soon after the end of a fault counts as caused by the fault."""
HELD_BACK = "backlog"
"""The workload whose messages wait on purpose, so that the latency of their delivery is meaningless."""
ACCURACY = 1000
"""The rank of a quantile is off by at most a 1000th."""


def throughput(tally: DataFrame) -> DataFrame:
    """Return columns second, node, published, confirmed, delivered, unknown, counted from the rows of `rows.tally`."""
    return (
        tally.filter(F.col("op").isin("publish", "deliver") & F.col("node").isNotNull())
        .groupBy("second", "node")
        .agg(
            _sum("publish", "invoke").alias("published"),
            _sum("publish", "ok").alias("confirmed"),
            _sum("deliver", "ok").alias("delivered"),
            _sum("publish", "unknown").alias("unknown"),
        )
        .orderBy("second", "node")
    )


def _sum(op: str, type_: str) -> Column:
    matches = (F.col("op") == op) & (F.col("type") == type_)
    return F.sum(F.when(matches, F.col("count")).otherwise(0))


def latencies(messages: DataFrame, queues: DataFrame, started_ns: int) -> DataFrame:
    """Return columns second (when it began), kind (confirm, deliver), ms: each message once.

    Confirms are measured from the last attempt, deliveries from the first, because an application that publishes again
    waits for all of it. Confirms in transactions are left out, because they wait for the client's own commit.
    """
    published = messages.filter("invokes > 0")
    confirms = published.filter((F.col("oks") > 0) & ~F.col("in_tx")).select(
        second(F.col("last_invoked_ns"), started_ns).alias("second"),
        F.lit("confirm").alias("kind"),
        _ms(F.col("last_invoked_ns"), F.col("confirmed_ns")).alias("ms"),
    )
    held_back = queues.filter(F.col("workload") == HELD_BACK).select("queue")
    deliveries = (
        published.filter("deliveries > 0")
        .join(F.broadcast(held_back), "queue", "left_anti")
        .select(
            second(F.col("invoked_ns"), started_ns).alias("second"),
            F.lit("deliver").alias("kind"),
            _ms(F.col("invoked_ns"), F.col("delivered_ns")).alias("ms"),
        )
    )
    return confirms.unionByName(deliveries)


def _ms(since_ns: Column, until_ns: Column) -> Column:
    return (until_ns - since_ns) / 1e6


def latency(latencies: DataFrame) -> DataFrame:
    """Return columns second, kind, p50, p99, max; a null second means the whole run."""
    quantiles = F.percentile_approx("ms", F.array(F.lit(0.5), F.lit(0.99)), ACCURACY)
    return (
        latencies.rollup("kind", "second")
        .agg(quantiles.alias("quantiles"), F.max("ms").alias("max"))
        .filter(F.col("kind").isNotNull())
        .select(
            "second",
            "kind",
            F.col("quantiles")[0].alias("p50"),
            F.col("quantiles")[1].alias("p99"),
            "max",
        )
        .orderBy("second", "kind")
    )


def unavailable(rows: DataFrame, started_ns: int, ended_ns: int) -> DataFrame:
    """Return columns start, end, node of periods when publishers waited at a node without any confirm there.

    First come the gaps between confirms, found from the first and last confirm of short intervals. Then come the
    publishers' operations in the gaps, which are few.
    """
    gaps = _gaps(rows, started_ns, ended_ns)
    waits = _waits(_in_gaps(rows, gaps, started_ns))
    by_time = Window.partitionBy("node", "gap_from").orderBy("from", "to")
    before = F.max("to").over(by_time.rowsBetween(Window.unboundedPreceding, -1))
    is_new = F.coalesce(F.col("from") > before + RETRY_NS, F.lit(True))
    return (
        waits.withColumn("is_new", is_new.cast("int"))
        .withColumn("island", F.sum("is_new").over(by_time))
        .groupBy("node", "gap_from", "island")
        .agg(F.min("from").alias("from"), F.max("to").alias("to"))
        .filter(F.col("to") - F.col("from") >= UNAVAILABLE_NS)
        .select(_since("from", started_ns).alias("start"), _since("to", started_ns).alias("end"), "node")
    )


def everywhere(rows: DataFrame) -> DataFrame:
    """Return the rows with a single node name, so that `unavailable` finds outages of the whole cluster."""
    return rows.withColumn("node", F.when(F.col("node").isNotNull(), F.lit("everywhere")))


def _gaps(rows: DataFrame, started_ns: int, ended_ns: int) -> DataFrame:
    """Return columns node, gap_from, gap_to: between two confirms of a node, before its first or after its last."""
    confirmed = F.when((F.col("op") == "publish") & (F.col("type") == "ok"), F.col("time_ns"))
    ends = (
        rows.filter((F.col("op") == "publish") & F.col("node").isNotNull())
        .groupBy("node", F.floor(F.col("time_ns") / UNAVAILABLE_NS).alias("interval"))
        .agg(F.min(confirmed).alias("first_ns"), F.max(confirmed).alias("last_ns"))
    )
    edges = ends.select("node").distinct()
    marks = (
        ends.filter(F.col("first_ns").isNotNull())
        .select("node", "first_ns", "last_ns")
        .unionByName(
            edges.select("node", F.lit(started_ns).alias("first_ns"), F.lit(started_ns).alias("last_ns"))
        )
        .unionByName(
            edges.select("node", F.lit(ended_ns).alias("first_ns"), F.lit(ended_ns).alias("last_ns"))
        )
    )
    before = F.lag("last_ns").over(Window.partitionBy("node").orderBy("first_ns"))
    return (
        marks.withColumn("gap_from", before)
        .filter(F.col("first_ns") - F.col("gap_from") >= UNAVAILABLE_NS)
        .select("node", "gap_from", F.col("first_ns").alias("gap_to"))
    )


def _in_gaps(rows: DataFrame, gaps: DataFrame, started_ns: int) -> DataFrame:
    """Return the publishers' operations in a gap: publishing and connecting, and the confirm that ended it."""
    publishers = (
        rows.filter((F.col("op") == "publish") & (F.col("type") == "invoke")).select("process").distinct()
    )
    seconds = F.sequence(second(F.col("gap_from"), started_ns), second(F.col("gap_to"), started_ns))
    return (
        rows.filter(
            F.col("op").isin("publish", "connect") & F.col("type").isin("invoke", "ok", "fail", "unknown")
        )
        .withColumn("second", second(F.col("time_ns"), started_ns))
        .join(F.broadcast(gaps.withColumn("second", F.explode(seconds))), ["node", "second"])
        .filter((F.col("time_ns") > F.col("gap_from")) & (F.col("time_ns") <= F.col("gap_to")))
        .join(F.broadcast(publishers), "process")
    )


def _waits(in_gaps: DataFrame) -> DataFrame:
    """Return columns node, gap_from, from, to: the part of each call within the gap.

    A call that began before the gap has waited since the gap began; a call that ended after it has waited to its end.
    """
    invoked = F.min(F.when(F.col("type") == "invoke", F.col("time_ns")))
    ended = F.max(F.when(F.col("type") != "invoke", F.col("time_ns")))
    return (
        in_gaps.groupBy("node", "gap_from", "gap_to", "process", "call")
        .agg(invoked.alias("invoked_ns"), ended.alias("ended_ns"))
        .select(
            "node",
            "gap_from",
            F.coalesce("invoked_ns", "gap_from").alias("from"),
            F.coalesce("ended_ns", "gap_to").alias("to"),
        )
    )


def _since(column: str, started_ns: int) -> Column:
    return (F.col(column) - F.lit(started_ns)) / F.lit(float(NS))


def faults(
    rows: DataFrame, unavailable: DataFrame, outages: DataFrame, started_ns: int, ended_ns: int
) -> DataFrame:
    """Return columns start, end, fault, node, outcome, detail, outage, node_outage, recovery of each fault.

    `outage`: the longest time, since the fault's begin, when no publisher could publish through any node.
    `node_outage`: the same through some node. `recovery`: how long after its end publishers of some node still waited.
    Waits that began up to `ONSET_NS` after its end count too; 0 without any wait. `outages` are those of the whole
    cluster.

    `outcome` is that of the fault's end, `unknown` without an end. `detail` is the last detail: the end of a fault
    repeats the parameters and adds its results.
    """
    time_ns, type_, detail = F.col("time_ns"), F.col("type"), F.col("detail")
    spans = (
        # A fault that was left out has only an info row.
        rows.filter((F.col("op") == "fault") & F.col("fault").isNotNull() & (type_ != "info"))
        .groupBy("process", "call")
        .agg(
            F.min(time_ns).alias("from"),
            F.max(F.when(type_ != "invoke", time_ns)).alias("to"),
            F.first("fault").alias("fault"),
            F.first("node").alias("node"),
            F.coalesce(F.max(F.when(type_ != "invoke", type_)), F.lit("unknown")).alias("outcome"),
            F.max_by(detail, F.when(detail.isNotNull(), time_ns)).alias("detail"),
        )
        .withColumn("to", F.coalesce("to", F.lit(ended_ns)))
        .withColumn("start", _since("from", started_ns))
        .withColumn("end", _since("to", started_ns))
    )
    windows = _opened(outages, everywhere=True).unionByName(_opened(unavailable, everywhere=False))
    start, end, opened, closed = (F.col(name) for name in ("start", "end", "opened", "closed"))
    is_of_it = (closed > start) & (opened <= end + ONSET_NS / NS)
    lasted = closed - F.greatest(opened, start)
    return (
        spans.join(F.broadcast(windows), is_of_it, "left")
        .groupBy("process", "call", "start", "end", "fault", "node", "outcome", "detail")
        .agg(
            _longest(F.col("everywhere"), lasted).alias("outage"),
            _longest(~F.col("everywhere"), lasted).alias("node_outage"),
            _longest(~F.col("everywhere") & (closed > end), closed - end).alias("recovery"),
        )
        .drop("process", "call")
        .orderBy("start")
    )


def _opened(windows: DataFrame, *, everywhere: bool) -> DataFrame:
    return windows.select(
        F.col("start").alias("opened"), F.col("end").alias("closed"), F.lit(everywhere).alias("everywhere")
    )


def _longest(condition: Column, seconds: Column) -> Column:
    return F.coalesce(F.max(F.when(condition, seconds)), F.lit(0.0))
