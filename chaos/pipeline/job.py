"""Checks a run on Spark: `python -m chaos check DIR`.

Reads meta.json and history/ of a run directory, decides by the rules of chaos/judge whether a promise was broken, and
writes verdict.json and tables/.

Three steps spread over Spark (steps.py). Each line is parsed once, and its row goes to the bucket of its message. Each
bucket is judged, and its facts go to slices of time and buckets of transactions. Each of these is judged in turn. The
size of a partition does not depend on the size of the history or of a queue.

Invariant: a run that cannot be judged is not valid. Broken lines, missing rows, an empty recording and a failure of
Spark are errors of the verdict, each in a line. A run that deviated from its plan is not valid either.
"""

from __future__ import annotations

import argparse
import io
import json
import time
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from operator import itemgetter
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import functions

from chaos.judge import leases, priorities, readers, streams, timeline
from chaos.judge.clients import Clients
from chaos.judge.context import Context
from chaos.judge.event import FIELDS
from chaos.judge.findings import EXAMPLES
from chaos.judge.messages import Tables, slices_of
from chaos.judge.run import Run
from chaos.judge.scan import Digest
from chaos.judge.verdict import Promise, Verdict, describe, is_valid, promises
from chaos.pipeline import node_logs, steps
from chaos.pipeline.places import File, LocalPlace, Place, RemotePlace, shown
from chaos.pipeline.spark import FAILURES, LOCAL, QUICK, SparkError, brief, collect, session
from qq.errors import OperatingError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

QUICK_BYTES = 256 * 2**20
"""A smaller history is judged faster than Java's optimizing compiler warms up."""
PART_BYTES = 32 * 2**20
"""Bytes of history in a task's part of a file, in a bucket of messages, and in what a slice of time is made of."""
ROW_BYTES = 256
"""A usual row in a file."""
LOCAL_MASTER = "local["
"""Begin of the name of a master within this process."""
MERGED = 16
"""Tables that a task merges before the driver gets them."""

TABLES = {
    "throughput": {
        "second": pa.int64(), "node": pa.string(),
        **dict.fromkeys(("published", "confirmed", "delivered", "unknown"), pa.int64()),
    },
    "latency": {
        "second": pa.int64(), "kind": pa.string(), **dict.fromkeys(("p50", "p99", "max"), pa.float64()),
    },
    "unavailable": {"start": pa.float64(), "end": pa.float64(), "node": pa.string()},
    "faults": {
        **dict.fromkeys(("start", "end"), pa.float64()),
        **dict.fromkeys(("fault", "node", "outcome", "detail"), pa.string()),
        **dict.fromkeys(("outage", "node_outage", "recovery"), pa.float64()),
    },
    "leaders": {
        "start": pa.float64(), "end": pa.float64(), "node": pa.string(), "term": pa.int64(),
    },
    "log_lines": {
        "second": pa.float64(), "node": pa.string(), "level": pa.string(), "text": pa.string(),
    },
}  # fmt: skip
"""The report's tables and their columns."""


class CheckError(OperatingError):
    """The run cannot be judged."""


def check(directory: Path | str, master: str = LOCAL, settings: Mapping[str, str] | None = None) -> Verdict:
    """Judge a run; write verdict.json and tables/ into its directory, and return the verdict.

    `directory`: a path, or the URI of a directory that Spark can read. `settings`: of Spark.
    """
    started_s = time.monotonic()
    given = dict(settings or {})
    if "://" in str(directory):
        with session(master, Path(gettempdir()) / "chaos-spark.log", given) as spark:
            place = RemotePlace(str(directory), spark)
            return _written(place, _judged(place, spark, started_s))
    local = LocalPlace(Path(directory))
    try:
        _, files = _described(local)  # a run that cannot be judged needs no Spark
        suitable = settings_for(sum(file.size for file in files), master)
        with session(master, local.directory / "logs" / "spark.log", {**suitable, **given}) as spark:
            verdict = _judged(local, spark, started_s)
    except OperatingError as error:
        verdict = _failed(error, started_s)
    return _written(local, verdict) if local.directory.is_dir() else verdict


def settings_for(size_bytes: int, master: str) -> Mapping[str, str]:
    """Return the settings of Spark for a history of this size."""
    return QUICK if size_bytes < QUICK_BYTES and master.startswith(LOCAL_MASTER) else {}


def _judged(place: Place, spark: SparkSession, started_s: float) -> Verdict:
    try:
        run, files = _described(place)
        check_ = _Check(place, spark, run, files)
        try:
            return check_.verdict(started_s)
        except FAILURES as error:
            raise SparkError(f"the check failed in Spark: {brief(error)}") from error
    except OperatingError as error:
        return _failed(error, started_s)


def _failed(error: OperatingError, started_s: float) -> Verdict:
    return Verdict(valid=False, error=str(error), seconds=time.monotonic() - started_s)


def _written(place: Place, verdict: Verdict) -> Verdict:
    place.write("verdict.json", (json.dumps(asdict(verdict), indent=1) + "\n").encode())
    return verdict


def _described(place: Place) -> tuple[Run, Sequence[File]]:
    """Return the run of meta.json and the files of its history. Raises OperatingError if any is malformed."""
    files = place.history()
    try:
        run = Run.described(json.loads(place.read("meta.json")))
    except ValueError as error:
        raise CheckError(f"{place}/meta.json: {error}") from None
    except KeyError as error:
        raise CheckError(f"{place}/meta.json: {error.args[0]} is missing") from None
    if not files:
        raise CheckError(f"{place}/history: no history (*.jsonl, *.parquet)")
    return run, files


class _Check:
    """A check in progress."""

    def __init__(self, place: Place, spark: SparkSession, run: Run, files: Sequence[File]) -> None:
        self._place = place
        self._spark = spark
        self._context: SparkContext = spark.sparkContext
        self._run = run
        self._files = files
        self._kept: list[Any] = []
        size = sum(file.size for file in files)
        self._buckets = max(self._context.defaultParallelism, size // PART_BYTES)
        self._rows = max(size // self._buckets // ROW_BYTES, 1)
        """Rows of a bucket."""
        if not str(self._context.master).startswith(LOCAL_MASTER):
            _send_code(self._context)

    def verdict(self, started_s: float) -> Verdict:
        try:
            return self._verdict(started_s)
        finally:
            for kept in self._kept:
                kept.unpersist()

    def _verdict(self, started_s: float) -> Verdict:
        run = self._run
        blocks, digest = self._scanned()
        operations, total = _operations(digest)
        if not operations.get("publish", {}).get("ok") and not operations.get("deliver", {}).get("ok"):
            raise CheckError(
                f"{self._place}: recorded nothing: no confirmed publish and no delivery in {total} rows"
            )
        if run.rows not in {None, total}:
            raise CheckError(f"{self._place}: {total} rows, but {run.rows} were recorded")
        context = Context(run, Clients(digest), leases.Leases(digest.leases), timeline.gaps(digest, run))
        tables = self._findings(context, blocks, digest)
        found = promises(tables.findings, run)
        shown_tables = _tables(tables, digest, run, self._place)
        for name, rows in shown_tables.items():
            self._place.write(f"tables/{name}.parquet", _parquet(name, rows))
        return Verdict(
            valid=is_valid(found, run.problems),
            error=None,
            rows=total,
            seconds=time.monotonic() - started_s,
            operations=operations,
            promises=found,
            figures=_figures(tables, digest, run, found),
            problems=run.problems,
        )

    def _keep(self, made: Any) -> Any:
        """Compute a table once, in memory or on disk."""
        made.persist(StorageLevel.MEMORY_AND_DISK)
        self._kept.append(made)
        return made

    def _lines(self) -> tuple[Any, list[File]]:
        """Return the lines of all files, and the file of each of their parts."""
        parts: list[File] = []
        read: list[Any] = []
        for file in self._files:
            if file.is_lines:
                pieces = max(
                    min(self._context.defaultParallelism, file.size // 2**20), file.size // PART_BYTES, 1
                )
                lines = self._context.textFile(file.url, pieces, use_unicode=False)
            else:
                table = self._spark.read.parquet(file.url)
                # In the usual order of columns, because a wrong row is shown.
                row = functions.struct(*sorted(table.columns, key=_place_of_column))
                lines = table.select(functions.to_json(row)).rdd.map(itemgetter(0))
            parts += [file] * lines.getNumPartitions()
            read.append(lines)
        return self._context.union(read) if len(read) > 1 else read[0], parts

    def _scanned(self) -> tuple[Any, Digest]:
        """Scan the history: return the rows of messages in blocks by bucket, and all other facts. Raises CheckError."""
        lines, parts = self._lines()
        task = partial(
            steps.scan, self._run.started_ns, self._buckets, tuple(file.is_lines for file in parts)
        )
        scanned = self._keep(lines.mapPartitionsWithIndex(task))
        summaries: list[steps.Scanned] = sorted(
            collect(scanned.filter(steps.is_summary).values()), key=lambda summary: summary.part
        )
        _refuse_wrong(summaries, parts)
        digest = Digest()
        for summary in summaries:
            digest.add(summary.digest)
        return scanned.filter(steps.is_block).partitionBy(self._buckets, int), digest

    def _findings(self, context: Context, blocks: Any, digest: Digest) -> Tables:
        """Judge all messages, slices and transactions."""
        delivered: Counter[int] = Counter()
        for (second, _, op, _), count in digest.tally.items():
            if op == "deliver":
                delivered[second] += count
        bounds = slices_of(delivered.items(), self._run.started_ns, self._rows)
        tx_buckets = self._buckets if self._has_transactions(digest) else 1
        layout = steps.Layout(bounds, tx_buckets, EXAMPLES)
        shared = self._context.broadcast(context)
        judged = self._keep(blocks.mapPartitions(partial(steps.judge, shared, layout)))
        summaries = judged.filter(steps.is_summary).values()
        if self._buckets > MERGED:
            summaries = summaries.coalesce(self._buckets // MERGED).mapPartitions(steps.merged)
        (tables,) = steps.merged(collect(summaries))
        known = streams.Knowledge(context, tables)
        facts = judged.filter(steps.is_block).partitionBy(layout.partitions, int)
        carries = [streams.Carry()]
        if layout.slices > 1:
            facts = self._keep(facts)
            summed = dict(collect(facts.mapPartitionsWithIndex(partial(steps.carried, shared, layout))))
            carries = streams.carries([summed[number] for number in range(layout.slices)])
        task = partial(
            steps.finish,
            self._context.broadcast(known),
            self._context.broadcast(carries),
            layout,
        )
        shares: dict[str, priorities.Shares] = {}
        for rest in collect(facts.mapPartitionsWithIndex(task)):
            tables.findings.add(rest.findings)
            for queue, share in rest.shares.items():
                shares.setdefault(queue, priorities.Shares()).add(share)
        priorities.judge_shares(shares, tables.findings)
        streams.judge_lengths(context, tables.ready, tables.findings)
        readers.judge(context, tables.findings)
        return tables

    @staticmethod
    def _has_transactions(digest: Digest) -> bool:
        return any(op.startswith("tx_") for _, _, op, _ in digest.tally)


def _place_of_column(name: str) -> int:
    return FIELDS.index(name) if name in FIELDS else len(FIELDS)


def _send_code(context: SparkContext) -> None:
    """Send this harness to the executors, which need Python of the same version and nothing else."""
    root = Path(__file__).parents[2]
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        for pattern in CODE:
            for file in sorted(root.glob(pattern)):
                packed.writestr(str(file.relative_to(root)), file.read_bytes())
    name = Path(context._temp_dir) / "chaos_judge.zip"  # noqa: SLF001 -- Spark removes it with the context
    name.write_bytes(archive.getvalue())
    context.addPyFile(str(name))


CODE = (
    "chaos/__init__.py", "chaos/history.py", "chaos/promises.py", "chaos/judge/**/*.py",
    "chaos/pipeline/__init__.py", "chaos/pipeline/steps.py",
    "qq/__init__.py", "qq/errors.py", "qq/octets.py",
)  # fmt: skip
"""The files that a step needs."""


def _refuse_wrong(summaries: Sequence[steps.Scanned], parts: Sequence[File]) -> None:
    """Raise CheckError for the first line that is no row, or that is not later than the row before."""
    lines_before, last_ns = 0, 0
    for number, (summary, file) in enumerate(zip(summaries, parts, strict=True)):
        if number and parts[number - 1] is not file:
            lines_before, last_ns = 0, 0
        wrong = summary.wrong
        if summary.first is not None and file.is_lines and summary.first.time_ns <= last_ns:
            wrong = "time_ns does not rise", summary.first
        if wrong is not None:
            what, place = wrong
            line = str(lines_before + place.number) if file.is_lines else "?"
            raise CheckError(f"{file.name}:{line}: {what}: {shown(place.text)}")
        lines_before += summary.lines
        last_ns = max(last_ns, summary.last_ns)


def _operations(digest: Digest) -> tuple[dict[str, dict[str, int]], int]:
    """Return the number of each outcome by operation, and the number of all rows."""
    operations: dict[str, dict[str, int]] = {}
    for (_, _, op, type_), count in digest.tally.items():
        outcomes = operations.setdefault(op, {"ok": 0, "fail": 0, "unknown": 0})
        if type_ in outcomes:
            outcomes[type_] += count
    return dict(sorted(operations.items())), digest.tally.total()


def _tables(tables: Tables, digest: Digest, run: Run, place: Place) -> dict[str, list[dict[str, Any]]]:
    windows = timeline.unavailable(tables.timeline, digest, run)
    outages = timeline.unavailable(tables.timeline, digest, run, everywhere=True)
    leaders, lines = node_logs.leaders_and_lines(place.logs(), run)
    return {
        "throughput": timeline.throughput(digest.tally),
        "latency": [row for row in timeline.latency(tables.timeline) if row["second"] is not None],
        "unavailable": windows,
        "faults": timeline.faults(digest.clients, windows, outages, run),
        "leaders": leaders,
        "log_lines": lines,
    }


def _parquet(name: str, rows: Sequence[Mapping[str, Any]]) -> bytes:
    content = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=pa.schema(list(TABLES[name].items()))), content)
    return content.getvalue()


def _figures(tables: Tables, digest: Digest, run: Run, found: Sequence[Promise]) -> dict[str, float]:
    """Return the figures of the whole run, without undefined quantiles."""
    figures: dict[str, float] = {}
    for row in timeline.latency(tables.timeline):
        if row["second"] is None:
            figures |= {f"{row['kind']}_{name}_ms": row[name] for name in ("p50", "p99", "max")}
    for name, everywhere in (("unavailability", False), ("outage", True)):
        windows = timeline.unavailable(tables.timeline, digest, run, everywhere=everywhere)
        figures[f"longest_{name}_s"] = max((row["end"] - row["start"] for row in windows), default=0.0)
    observed = tables.timeline
    violations = {promise.name: promise.violations for promise in found}
    return figures | {
        "published": observed.published,
        "confirmed": observed.confirmed,
        "delivered": observed.delivered,
        "lost": violations["lost"],
        "duplicated": violations["unmarked_duplicate"] + violations["dedup_duplicate"],
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m chaos check", description="Decide whether a recorded run broke a promise."
    )
    parser.add_argument("directory", help="of the run: a path, or a URI that Spark can read")
    parser.add_argument("--master", default=LOCAL, help="where Spark runs (default: %(default)s)")
    parser.add_argument("--memory", help="of Spark's driver, such as 4g (default: 2g for a local master)")
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of Spark, such as spark.executor.memory=4g; as often as needed",
    )
    arguments = parser.parse_args(argv)
    settings = dict(setting.partition("=")[::2] for setting in arguments.conf)
    if arguments.memory:
        settings["spark.driver.memory"] = arguments.memory
    verdict = check(arguments.directory, arguments.master, settings)
    print(describe(verdict))
    return 0 if verdict.valid else 1
