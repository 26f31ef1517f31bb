"""Measure how Spark reads, writes and archives queues: a part of `make bench`.

For comparison, a consumer of AMQP in Python collects bodies, as a user would without Spark.
Rows per processor second count the processors of the three nodes; for the archive, those of Spark, too. The driver's
memory is the most that Java and Python had. Ten million messages take `--rows 10000000`.

    python tests/benchmarks/data_frames.py [--rows 2000000] [--size 256] [--master "local[2]"] [--only REGEX]
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pika
from pyspark.sql import SparkSession

import qq_spark
from qq.testing import LocalCluster
from qq_spark import Access
from qq_spark.archive.job import archive_queues, on_spark
from qq_spark.archive.store import Archive
from tests.benchmarks.bench import load
from tests.benchmarks.checker import descendants, processor_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

AMQP = "consumer of AMQP in Python"
QUEUE, COPIES = "data-frames", "data-frames.copies"
WINDOW = 4000
AMQP_ROWS_MAX = 100_000
"""Messages that the consumer of AMQP takes, at most: it is slow, and its rate does not depend on them."""
PREFETCH = 1000
BATCH_ROWS, BATCH_BYTES = 500_000, 2**28
WARM_UP_ROWS = 10_000
SOURCE_MIN, SINK_MIN = 100_000, 50_000
"""Least rows per processor second of the nodes."""
ARCHIVE_MIN = 10_000_000 / 180 / 4
"""Least rows per processor second of all: ten million messages in three minutes of four processors."""
OF_AMQP_MIN = 4.0
DRIVER_BYTES_MAX = 2**30


class Measured(NamedTuple):
    """A job, and its costs."""

    rows: int
    seconds: float
    nodes_s: float
    """Processor seconds of the nodes."""
    all_s: float
    """Processor seconds of the nodes, of this process, of Spark's Java process and of its workers. All of them run at
    the end."""


class Bench:
    """A cluster, a session of Spark, and a queue of messages."""

    def __init__(self, cluster: LocalCluster, spark: SparkSession, rows: int, size: int) -> None:
        self.rows = rows
        self._spark = spark
        self._size = size
        self._urls = [node.url for node in cluster.nodes]
        self._at = [f"127.0.0.1:{node.amqp_port}" for node in cluster.nodes]
        self.http = [f"http://127.0.0.1:{node.http_port}" for node in cluster.nodes]
        self._pids = {node.pid for node in cluster.nodes}

    def fill(self, rows: int) -> None:
        """Let the queue hold so many messages, and no other."""
        self._load("delete")
        self._load("declare")
        if rows:
            self._load("-n", str(rows), "-s", str(self._size), "-w", str(WINDOW), "publish")

    def warm_up(self) -> None:
        """Let Spark start its workers and compile its code."""
        self.fill(self.rows)
        self.read()

    def _load(self, *options: str) -> None:
        result = load(self._at[:1], "-q", QUEUE, *options)
        if not result.get("ok"):
            sys.exit(str(result.get("error", "failed")))

    def measured(self, work: Callable[[], int]) -> Measured:
        begin_s, nodes_s, all_s = time.monotonic(), processor_s(self._pids), processor_s(descendants())
        rows = work()
        seconds = time.monotonic() - begin_s
        return Measured(rows, seconds, processor_s(self._pids) - nodes_s, processor_s(descendants()) - all_s)

    def consume(self) -> int:
        """Take bodies by AMQP."""
        wanted = min(self.rows, AMQP_ROWS_MAX)
        taken: list[bytes] = []
        with pika.BlockingConnection(pika.URLParameters(self._urls[0])) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=PREFETCH)
            for method, _, body in channel.consume(QUEUE):
                taken.append(body)
                if len(taken) % (PREFETCH // 2) == 0 or len(taken) == wanted:
                    channel.basic_ack(method.delivery_tag, multiple=True)
                if len(taken) == wanted:
                    break
            channel.cancel()
        return len(taken)

    def read(self) -> int:
        """Read a snapshot, all columns of it."""
        frame = self._source(self._spark.read, maxMessages=self.rows)
        frame.write.format("noop").mode("overwrite").save()
        return self.rows

    def stream(self) -> int:
        """Read and settle all messages by a stream."""
        with tempfile.TemporaryDirectory() as checkpoint:
            frame = self._source(
                self._spark.readStream,
                group="bench",
                maxMessagesPerTrigger=BATCH_ROWS,
                maxBytesPerTrigger=BATCH_BYTES,
            )
            writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
            writer.trigger(availableNow=True).start().awaitTermination()
        return self.rows

    def _source(self, reader: Any, **options: Any) -> Any:
        return (
            reader.format("qq").options(url=",".join(self.http), queue=QUEUE, partitions=2, **options).load()
        )

    def write(self) -> int:
        """Publish rows exactly once."""
        with pika.BlockingConnection(pika.URLParameters(self._urls[0])) as connection:
            channel = connection.channel()
            channel.queue_delete(COPIES)
            channel.queue_declare(COPIES, durable=True, arguments={"x-queue-type": "quorum"})
        rows = self._spark.range(self.rows).selectExpr(
            f"CAST(lpad(CAST(id AS string), {self._size}, '0') AS binary) AS body"
        )
        writer = rows.write.format("qq").mode("append")
        writer.options(url=",".join(self.http), queue=COPIES).save()
        return self.rows

    def archive(self) -> int:
        """Move all messages into an archive."""
        with tempfile.TemporaryDirectory() as directory:
            taken = archive_queues(
                on_spark(self._spark), Archive(directory), Access(tuple(self.http)), [QUEUE], keep=False
            )
            return sum(each.messages for each in taken)


@contextmanager
def session(master: str) -> Iterator[SparkSession]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    qq_spark.register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def driver_bytes() -> int:
    """Return the most memory that this process and its Java process have had."""
    most = 0
    for pid in descendants():
        with suppress(OSError):  # it has ended meanwhile
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            if pid == os.getpid() or name == "java":
                status = Path(f"/proc/{pid}/status").read_text()
                most += 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])
    return most


class Job(NamedTuple):
    """A row of the table, and its aims."""

    name: str
    work: Callable[[], int]
    needs: int
    """Messages in the queue before."""
    least: float = 0
    """Least rows per processor second."""
    counts_all: bool = False
    """Whether the processor seconds of Spark count, too."""
    of_amqp: float = 0
    """Least ratio of its rate and that of the consumer of AMQP."""


def jobs(bench: Bench) -> list[Job]:
    rows = bench.rows
    return [
        Job(AMQP, bench.consume, min(rows, AMQP_ROWS_MAX)),
        Job("read a snapshot", bench.read, rows, SOURCE_MIN, of_amqp=OF_AMQP_MIN),
        Job("read a stream", bench.stream, rows, SOURCE_MIN, of_amqp=OF_AMQP_MIN),
        Job("write exactly once", bench.write, 0, SINK_MIN),
        Job("archive", bench.archive, rows, ARCHIVE_MIN, counts_all=True),
    ]


def run(job: Job, bench: Bench, amqp_rate: float) -> tuple[str, float, bool]:
    """Do a job. Return its row, its rate, and whether an aim is missed."""
    bench.fill(job.needs)
    found = bench.measured(job.work)
    rate = found.rows / found.seconds
    per_s = found.rows / (found.all_s if job.counts_all else found.nodes_s)
    aim, is_missed = f"≥ {job.least:,.0f}", per_s < job.least
    if job.of_amqp and amqp_rate:
        aim += f"; {rate / amqp_rate:.1f} times AMQP ≥ {job.of_amqp:.0f}"
        is_missed = is_missed or rate < job.of_amqp * amqp_rate
    cells = f"{found.rows:,} | {found.seconds:.1f} | {rate:,.0f} | {per_s:,.0f} | {aim}"
    return f"| {job.name} | {cells} | {verdict(is_missed)} |", rate, is_missed


def verdict(is_missed: bool) -> str:
    return "MISSED" if is_missed else "met"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=256, help="octets of a body")
    parser.add_argument("--master", default="local[2]", help="where Spark runs")
    parser.add_argument("--only", default="", help="regular expression: the jobs to run")
    arguments = parser.parse_args()
    print("| job | rows | seconds | rows/s | rows/processor s | aim | |\n|---|---|---|---|---|---|---|")
    are_missed, amqp_rate = False, 0.0
    with LocalCluster(3) as cluster, session(arguments.master) as spark:
        Bench(cluster, spark, WARM_UP_ROWS, arguments.size).warm_up()
        bench = Bench(cluster, spark, arguments.rows, arguments.size)
        for job in jobs(bench):
            if re.search(arguments.only, job.name):
                row, rate, is_missed = run(job, bench, amqp_rate)
                print(row, flush=True)
                amqp_rate = rate if job.name == AMQP else amqp_rate
                are_missed |= is_missed
        memory = driver_bytes()
        is_missed = memory > DRIVER_BYTES_MAX
        print(f"| memory of the driver | | | | {memory / 2**20:,.0f} MiB | < 1,024 | {verdict(is_missed)} |")
    return 1 if are_missed or is_missed else 0


if __name__ == "__main__":
    sys.exit(main())
