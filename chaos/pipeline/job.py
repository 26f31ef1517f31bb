"""Checks a run: `python -m chaos check DIR`.

Reads meta.json and history/ of a run directory, decides whether a promise was broken, and writes verdict.json and
tables/.

Invariant: a run that cannot be judged is not valid. Broken lines, missing rows, an empty recording and a failure of
Spark are errors of the verdict, each in a line. A run that deviated from its plan is not valid either.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial, reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from chaos.history import SUFFIX
from chaos.pipeline.schemas import BLOCK, BROKEN, FILE, HISTORY, PLACE, QUEUES, REACH
from chaos.pipeline.spark import (
    FAILURES,
    LOCAL,
    QUICK,
    SparkError,
    Table,
    arrow,
    brief,
    collect,
    frame_of,
    session,
)
from chaos.pipeline.transforms import timeline
from chaos.pipeline.transforms.arrival import lost, owed, phantom
from chaos.pipeline.transforms.duplicates import duplicates
from chaos.pipeline.transforms.limits import dead_letter, delivery_limit, limited
from chaos.pipeline.transforms.messages import fates, messages, requested, traceable
from chaos.pipeline.transforms.order import comparable, order
from chaos.pipeline.transforms.priority import both_waiting, enough, priority_ratio
from chaos.pipeline.transforms.removal import removed, resurrected
from chaos.pipeline.transforms.rows import checked, falling, parsed, tally, with_ends_of_transactions
from chaos.pipeline.transforms.single_active import single_active, single_active_deliveries
from chaos.pipeline.transforms.transactions import parts, transactions, tx_atomic
from chaos.promises import PROMISES
from qq.errors import OperatingError

FORMAT = 1
EXAMPLES = 20
"""Rows shown for each broken promise."""
QUICK_BYTES = 256 * 2**20
"""A smaller history is judged faster than Spark warms up, and fits into memory."""
PARTITION_BYTES = 64 * 2**20
"""Bytes of history per shuffle partition; a partition must fit into memory as a hash table."""
SHOWN = 100
"""Characters shown of a broken line."""

Tables = Mapping[str, Table]
"""The report's tables, by name."""


class CheckError(OperatingError):
    """The run cannot be judged."""


@dataclass(frozen=True, slots=True)
class Promise:
    name: str
    holds: bool
    checked: int
    """Number of messages, deliveries or transactions that were checked."""
    violations: int
    examples: list[dict[str, Any]]
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The content of verdict.json."""

    valid: bool
    error: str | None
    rows: int = 0
    seconds: float = 0.0
    operations: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    promises: Sequence[Promise] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    problems: Sequence[str] = ()
    """Deviations of the run from its plan."""
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Run:
    """The description of the run in meta.json."""

    started_ns: int
    ended_ns: int
    queues: Mapping[str, Mapping[str, Any]]
    problems: Sequence[str] = ()
    rows: int | None = None
    """Number of recorded rows; None if meta.json does not have it."""

    def described(self) -> list[Mapping[str, Any]]:
        """Return the queues in the columns of `QUEUES`."""
        return [{**queue, "queue": name} for name, queue in self.queues.items()]

    def any_queue(self, key: str) -> bool:
        """Return whether any queue has this property."""
        return any(queue.get(key) not in {None, False} for queue in self.queues.values())

    def reach(self) -> Iterator[Mapping[str, str]]:
        """Yield the columns of `REACH`: a queue, and each queue that its messages may reach."""
        for queue in self.queues:
            seen: list[str] = []
            target: str | None = queue
            while target is not None and target not in seen:
                seen.append(target)
                target = self.queues.get(target, {}).get("dead_letters_to")
            yield from ({"queue": queue, "target": target} for target in seen)


class Evidence(NamedTuple):
    """The rows that were checked for a promise, and the violations among them."""

    examined: DataFrame
    violations: DataFrame


def check(directory: Path, master: str = LOCAL) -> Verdict:
    """Judge a run; write verdict.json and tables/ into its directory, and return the verdict."""
    started_s = time.monotonic()
    try:
        if not directory.is_dir():
            raise CheckError(f"{directory}: no such directory")
        verdict = _check(directory, master, started_s)
    except OperatingError as error:
        verdict = Verdict(valid=False, error=str(error), seconds=time.monotonic() - started_s)
    if directory.is_dir():
        (directory / "verdict.json").write_text(
            json.dumps(asdict(verdict), indent=1) + "\n", encoding="utf-8"
        )
    return verdict


def _check(directory: Path, master: str, started_s: float) -> Verdict:
    run = read_run(directory)
    files = history_files(directory)
    size = sum(file.stat().st_size for file in files)
    is_small = size < QUICK_BYTES and master.startswith("local")
    with (
        session(master, directory / "logs" / "spark.log", QUICK if is_small else {}) as spark,
        TemporaryDirectory(dir=directory, prefix="check-") as scratch,
    ):
        partitions = max(spark.sparkContext.defaultParallelism, size // PARTITION_BYTES)
        spark.conf.set("spark.sql.shuffle.partitions", partitions)
        try:
            keep = _in_memory if is_small else partial(_in_files, Path(scratch))
            return _Check(directory, spark, run, keep).verdict(files, started_s)
        except FAILURES as error:
            raise SparkError(f"the check failed in Spark: {brief(error)}") from error


def read_run(directory: Path) -> Run:
    """Read meta.json. Raises CheckError if it is missing or malformed."""
    file = directory / "meta.json"
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
        return Run(
            meta["started_ns"], meta["ended_ns"], meta["queues"], meta.get("problems", ()), meta.get("rows")
        )
    except OSError as error:
        raise CheckError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise CheckError(f"{file}: {error}") from None
    except KeyError as error:
        raise CheckError(f"{file}: {error.args[0]} is missing") from None


def history_files(directory: Path) -> list[Path]:
    """Return the history's files. Raises CheckError if there are no files, or if the last line of a file is cut."""
    history = directory / "history"
    files = sorted([*history.glob(f"*{SUFFIX}"), *history.glob("*.parquet")])
    if not files:
        raise CheckError(f"{history}: no history (*{SUFFIX}, *.parquet)")
    for file in files:
        if file.suffix == SUFFIX and file.stat().st_size and not _ends_with_a_line(file):
            number, line = _last_line(file)
            raise CheckError(f"{file}:{number}: cut in the middle: {_shown(line)}")
    return files


def _ends_with_a_line(file: Path) -> bool:
    with file.open("rb") as content:
        content.seek(-1, 2)
        return content.read() == b"\n"


def _last_line(file: Path) -> tuple[int, str]:
    number, line = 0, b""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):  # noqa: B007 (the last ones are what is wanted)
            pass
    return number, line.decode("utf-8", "replace")


def _shown(line: str) -> str:
    line = line.strip()
    return line if len(line) <= SHOWN else line[:SHOWN] + "…"


def read_rows(spark: SparkSession, files: Sequence[Path]) -> DataFrame:
    """Read the history into the columns of `HISTORY`, `FILE`, `BLOCK`, `PLACE` and `BROKEN`."""
    file = F.col("_metadata.file_path").alias(FILE)
    block = F.col("_metadata.file_block_start").alias(BLOCK)
    place = F.monotonically_increasing_id().alias(PLACE)
    read: list[DataFrame] = []
    if lines := [str(file) for file in files if file.suffix == SUFFIX]:
        read.append(parsed(spark.read.text(lines, lineSep="\n").select(file, block, place, "value")))
    if tables := [str(file) for file in files if file.suffix == ".parquet"]:
        read.append(checked(spark.read.schema(HISTORY).parquet(*tables).select(file, *HISTORY.names)))
    return reduce(DataFrame.unionByName, read)


def _in_memory(_name: str, frame: DataFrame) -> DataFrame:
    """Compute a table in memory, for a single local process; writing a file would take longer."""
    return frame.localCheckpoint()


def _in_files(directory: Path, name: str, frame: DataFrame) -> DataFrame:
    """Compute a table into files, so that it survives the loss of any executor."""
    place = str(directory / name)
    frame.write.parquet(place)
    return frame.sparkSession.read.schema(frame.schema).parquet(place)


class _Check:
    """A check in progress. Tables that are needed more than once are computed once, and kept."""

    def __init__(
        self, directory: Path, spark: SparkSession, run: Run, keep: Callable[[str, DataFrame], DataFrame]
    ) -> None:
        self._directory = directory
        self._spark = spark
        self._run = run
        self._kept = keep
        self._queues = frame_of(spark, run.described(), QUEUES)
        self._reach = frame_of(spark, list(run.reach()), REACH)

    def verdict(self, files: Sequence[Path], started_s: float) -> Verdict:
        everything = self._kept("rows", read_rows(self._spark, files))
        _refuse_broken(everything)
        _refuse_falling(everything)
        rows = everything.drop(FILE, BLOCK, PLACE, BROKEN)
        counts = self._kept("counts", tally(rows, self._run.started_ns))
        operations, total = _operations(counts)
        if not operations.get("publish", {}).get("ok") and not operations.get("deliver", {}).get("ok"):
            raise CheckError(
                f"{self._directory}: recorded nothing: no confirmed publish and no delivery in {total} rows"
            )
        if self._run.rows not in {None, total}:
            raise CheckError(f"{self._directory}: {total} rows, but {self._run.rows} were recorded")
        about = self._kept("messages", messages(with_ends_of_transactions(rows)))
        promises = self._promises(self._evidence(about, rows, operations), rows)
        outages = self._kept(
            "outages",
            timeline.unavailable(timeline.everywhere(rows), self._run.started_ns, self._run.ended_ns),
        )
        tables = self._tables(about, rows, counts, outages)
        _write(self._directory / "tables", tables)
        return Verdict(
            valid=all(promise.holds for promise in promises) and not self._run.problems,
            error=None,
            rows=total,
            seconds=time.monotonic() - started_s,
            operations=operations,
            promises=promises,
            figures=_figures(about, tables, arrow(outages), promises),
            problems=self._run.problems,
        )

    def _evidence(
        self, about: DataFrame, rows: DataFrame, operations: Mapping[str, Any]
    ) -> dict[str, Evidence]:
        """Return the evidence for each promise that the run can show evidence for."""
        queues, reach, run = self._queues, self._reach, self._run
        due = self._kept("due", traceable(about, self._kept("fates", fates(rows, queues, reach))))
        delivered = about.filter("deliveries > 0")
        consumers = self._kept("requested", requested(rows))
        again = self._kept("duplicates", duplicates(about, rows))
        evidence = {
            "lost": Evidence(owed(due), lost(about, due, reach)),
            "phantom": Evidence(delivered, phantom(about, reach)),
            "unmarked_duplicate": Evidence(
                delivered.filter("dedup = 0"), again.filter("promise = 'unmarked_duplicate'")
            ),
            "order": Evidence(comparable(about), order(about, consumers)),
        }
        if operations.keys() & {"purge", "delete"}:
            removals = self._kept("removed", removed(about, rows))
            evidence["resurrected"] = Evidence(removals, resurrected(removals, rows, consumers))
        if operations.keys() & {"tx_commit", "tx_rollback"}:
            published = self._kept("parts", parts(about, due, rows, reach))
            evidence["tx_atomic"] = Evidence(
                transactions(rows), tx_atomic(published, about, due, rows, reach, consumers)
            )
        if run.any_queue("dedup"):
            evidence["dedup_duplicate"] = Evidence(
                delivered.filter("dedup = 1"), again.filter("promise = 'dedup_duplicate'")
            )
        if run.any_queue("delivery_limit"):
            evidence["delivery_limit"] = Evidence(limited(rows, queues), delivery_limit(about, rows, queues))
        if run.any_queue("priorities"):
            waiting = both_waiting(about, queues)
            evidence["priority_ratio"] = Evidence(enough(waiting), priority_ratio(waiting))
        if run.any_queue("single_active"):
            deliveries = single_active_deliveries(about, rows, queues)
            evidence["single_active"] = Evidence(deliveries, single_active(deliveries))
        if run.any_queue("dead_letters_to"):
            evidence["dead_letter"] = Evidence(
                about.filter("dead_arrivals > 0"), dead_letter(about, due, rows, reach)
            )
        return evidence

    def _promises(self, evidence: Mapping[str, Evidence], rows: DataFrame) -> list[Promise]:
        examined = [
            found.examined.agg(F.lit(name).alias("promise"), F.count("*").alias("count"))
            for name, found in evidence.items()
        ]
        checked = _by_promise(reduce(DataFrame.unionByName, examined))
        violations = self._kept(
            "violations", reduce(DataFrame.unionByName, (found.violations for found in evidence.values()))
        )
        broken = _by_promise(violations.groupBy("promise").count())
        examples = _examples(violations, rows) if broken else {}
        return [
            Promise(
                name,
                name not in broken,
                checked.get(name, 0),
                broken.get(name, 0),
                examples.get(name, []),
                text,
            )
            for name, text in PROMISES.items()
        ]

    def _tables(self, about: DataFrame, rows: DataFrame, counts: DataFrame, outages: DataFrame) -> Tables:
        started_ns, ended_ns = self._run.started_ns, self._run.ended_ns
        windows = self._kept("unavailable", timeline.unavailable(rows, started_ns, ended_ns))
        frames = {
            "throughput": timeline.throughput(counts),
            "latency": timeline.latency(timeline.latencies(about, self._queues, started_ns)),
            "unavailable": windows.orderBy("start", "node"),
            "faults": timeline.faults(rows, windows, outages, started_ns, ended_ns),
        }
        return {name: arrow(frame) for name, frame in frames.items()}


def _operations(counts: DataFrame) -> tuple[dict[str, dict[str, int]], int]:
    """Return the number of each outcome by operation, and the number of all rows."""
    counted = collect(counts.groupBy("op", "type").agg(F.sum("count").alias("count")))
    operations = {row["op"]: {"ok": 0, "fail": 0, "unknown": 0} for row in counted}
    for op, type_, count in counted:
        if type_ in operations[op]:
            operations[op][type_] = count
    return dict(sorted(operations.items())), sum(row["count"] for row in counted)


def _refuse_broken(rows: DataFrame) -> None:
    for place, line in collect(rows.filter(F.col(BROKEN).isNotNull()).select(FILE, BROKEN).limit(1)):
        file = _path(place)
        raise CheckError(f"{file}:{_number(file, line)}: no row of a history: {_shown(line)}")


def _refuse_falling(rows: DataFrame) -> None:
    for (place,) in collect(falling(rows).select(FILE).limit(1)):
        file = _path(place)
        number, line = _first_that_falls(file)
        raise CheckError(f"{file}:{number}: time_ns does not rise: {_shown(line)}")


def _path(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


def _first_that_falls(file: Path) -> tuple[int, str]:
    last_ns = 0
    with file.open(encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            time_ns = json.loads(line)["time_ns"]
            if time_ns <= last_ns:
                return number, line
            last_ns = time_ns
    raise CheckError(f"{file}: has changed while it was read")


def _number(file: Path, line: str) -> int | str:
    if file.suffix != SUFFIX:
        return "?"
    with file.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        return next((number for number, text in enumerate(lines, 1) if text.rstrip("\n") == line), "?")


def _by_promise(counts: DataFrame) -> dict[str, int]:
    return {row["promise"]: row["count"] for row in collect(counts)}


def _examples(violations: DataFrame, rows: DataFrame) -> dict[str, list[dict[str, Any]]]:
    """Return the first rows of each broken promise, by its name."""
    place = F.row_number().over(Window.partitionBy("promise").orderBy("time_ns", "queue", "id"))
    first = violations.withColumn("place", place).filter(F.col("place") <= EXAMPLES).drop("place")
    shown = rows.join(F.broadcast(first), ["queue", "id", "op", "time_ns"]).orderBy("time_ns")
    examples: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for found in collect(shown):
        row = found.asDict(recursive=True)
        examples[row.pop("promise")].append({key: value for key, value in row.items() if value is not None})
    return examples


def _figures(
    about: DataFrame, tables: Tables, outages: Table, promises: Sequence[Promise]
) -> dict[str, float]:
    """Return the figures of the whole run, without undefined quantiles. `outages` are those of the whole cluster."""
    figures: dict[str, float] = {}
    for whole in tables["latency"].filter(pc.field("second").is_null()).to_pylist():
        for name in ("p50", "p99", "max"):
            figures[f"{whole['kind']}_{name}_ms"] = whole[name]
    for name, windows in (("unavailability", tables["unavailable"]), ("outage", outages)):
        longest_s = max((row["end"] - row["start"] for row in windows.to_pylist()), default=0.0)
        figures[f"longest_{name}_s"] = longest_s
    (totals,) = collect(
        about.agg(
            F.count_if(F.expr("invokes > 0")).alias("published"),
            F.count_if(F.expr("oks > 0")).alias("confirmed"),
            F.count_if(F.expr("deliveries > 0")).alias("delivered"),
        )
    )
    violations = {promise.name: promise.violations for promise in promises}
    return figures | {
        **totals.asDict(),
        "lost": violations["lost"],
        "duplicated": violations["unmarked_duplicate"] + violations["dedup_duplicate"],
    }


def _write(directory: Path, tables: Tables) -> None:
    directory.mkdir(exist_ok=True)
    for name, table in tables.items():
        rows = table.filter(pc.field("second").is_valid()) if name == "latency" else table
        pq.write_table(rows, directory / f"{name}.parquet")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m chaos check", description="Decide whether a recorded run broke a promise."
    )
    parser.add_argument("directory", type=Path, help="of the run")
    parser.add_argument("--master", default=LOCAL, help="where Spark runs (default: %(default)s)")
    arguments = parser.parse_args(argv)
    verdict = check(arguments.directory, arguments.master)
    print(describe(verdict))
    return 0 if verdict.valid else 1


def describe(verdict: Verdict) -> str:
    """Return a table of the promises, and the verdict in a line."""
    if verdict.error is not None:
        return f"INVALID: {verdict.error}"
    lines = [f"{'promise':<20} {'checked':>10} {'violations':>10}"]
    lines += [
        f"{promise.name:<20} {promise.checked:>10} {promise.violations:>10}" + _remark(promise)
        for promise in verdict.promises
    ]
    return "\n".join([*lines, f"{_outcome(verdict)} ({verdict.rows} rows in {verdict.seconds:.1f} s)"])


def _remark(promise: Promise) -> str:
    if not promise.holds:
        return f"   BROKEN: {promise.text}; first: {promise.examples[0]}"
    return "" if promise.checked else "   nothing to check"


def _outcome(verdict: Verdict) -> str:
    broken = [promise.name for promise in verdict.promises if not promise.holds]
    wrong = [f"broken: {', '.join(broken)}"] if broken else []
    if verdict.problems:
        wrong.append(f"problems of the run: {'; '.join(verdict.problems)}")
    return f"INVALID: {'; '.join(wrong)}" if wrong else "VALID: every promise was kept"
