"""Streaming queries whose drivers, executors and nodes die, and a judge of their output.

The query reads queues, writes each batch to a file, and copies it to a queue (stream_driver.py).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pika

from qq_spark import Access, Group, LeaseClient
from tests.docs.documents import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from qq.testing import LocalCluster

DRIVER = Path(__file__).with_name("stream_driver.py")
PATIENCE_S = 300
PYTHON_START = Path(__file__).with_name("python_start")
EXECUTORS = (b"CoarseGrainedExecutorBackend", b"pyspark.daemon", b"worker_daemon")
"""Words of the command lines of executors: with a local master, these are the workers of Python."""
TRAINING = -1
"""The number, in place of a seed, of the query that writes an archive of classes."""


class Drivers:
    """The driver of a query: a process, and its successors."""

    def __init__(self, directory: Path, *arguments: object, **environment: str) -> None:
        """`arguments` are a program and its arguments."""
        self.directory = directory
        self._arguments = arguments
        path = os.pathsep.join(map(str, (ROOT, PYTHON_START)))
        # A killed driver leaves its files.
        spark = {"PYTHONPATH": path, "SPARK_LOCAL_DIRS": str(directory)}
        self._environment = os.environ | spark | environment
        self._process: subprocess.Popen[bytes] | None = None
        self.restarts = 0
        """How often a driver that ends is started again."""

    def start(self, **environment: str) -> None:
        with (self.directory / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *map(str, self._arguments)],
                env=self._environment | environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill the driver, Java, and the workers."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def kill_executors(self) -> int:
        """Kill the executors, and return their number."""
        killed = 0
        for number, command in self._processes():
            if any(each in command for each in EXECUTORS):
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
                    killed += 1
        return killed

    def _processes(self) -> Iterator[tuple[int, bytes]]:
        """Yield number and command line of the processes of the driver and its executors."""
        assert self._process is not None
        for directory in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended
                session = int((directory / "stat").read_text().rpartition(")")[2].split()[3])
                if session == self._process.pid:
                    yield int(directory.name), (directory / "cmdline").read_bytes()

    def end(self) -> None:
        """Let the driver end."""
        assert self._process is not None
        (self.directory / "stop").touch()
        assert self._process.wait(PATIENCE_S) == 0, self.log()

    def wait_gone(self) -> None:
        """Wait until Java has ended, too."""
        end = time.monotonic() + PATIENCE_S
        while any(b"java" in command for _, command in self._processes()) and time.monotonic() < end:
            time.sleep(1)

    def wait(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert self._process is not None
            if self._process.poll() is not None:
                assert self.restarts > 0, self.log()
                self.restarts -= 1
                self.kill()
                self.start()
            assert time.monotonic() < end, self.log()
            time.sleep(0.1)

    def log(self) -> str:
        return (self.directory / "driver.log").read_text()[-4000:]


class Query:
    """A query that reads the queues of a pattern, and its output."""

    def __init__(self, cluster: LocalCluster, directory: Path, pattern: str, **options: object) -> None:
        self.access = Access(tuple(f"http://127.0.0.1:{node.http_port}" for node in cluster.nodes))
        self.copies = f"copies of {pattern}"
        self._directory = directory
        url = {"url": ",".join(self.access.urls)}
        source = url | {"queuePattern": pattern, "group": "pipeline", "partitions": 3, **options}
        sink = url | {"queue": self.copies, "sink": self.copies}
        self.arguments = directory, json.dumps(source), json.dumps(sink)
        """Arguments of the driver for this query."""

    def has_drained(self, queues: Iterable[str]) -> bool:
        """Return whether the query has read and committed all messages of some queues."""
        with LeaseClient(self.access) as client:
            return all(is_drained(client.group(queue, "pipeline")) for queue in queues)

    def batches(self) -> dict[int, list[str]]:
        """Return the attempts of each batch, with a line for each row."""
        found: defaultdict[int, list[str]] = defaultdict(list)
        for file in self._directory.glob("[0-9]*.[0-9]*"):
            found[int(file.stem)].append(file.read_text())
        return found

    def rows(self) -> list[dict[str, object]]:
        """Return the output: each batch once. Its attempts must be equal."""
        batches = self.batches()
        hashes = {
            number: {sha256(attempt.encode()).hexdigest() for attempt in attempts}
            for number, attempts in batches.items()
        }
        assert {number for number, found in hashes.items() if len(found) > 1} == set()
        assert sorted(batches) == list(range(len(batches)))
        return [json.loads(line) for number in batches for line in batches[number][0].splitlines()]


def drivers_of(directory: Path, *queries: Query) -> Drivers:
    """Return the drivers of some queries, with their log in `directory`."""
    arguments = [argument for query in queries for argument in query.arguments]
    return Drivers(directory, DRIVER, directory, *arguments)


def is_drained(group: Group | None) -> bool:
    return group is not None and group.committed >= 0 and group.ready == 0 and not group.leases


def declare(cluster: LocalCluster, *queues: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(cluster.urls[0])) as connection:
        for queue in queues:
            connection.channel().queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})


def drained(cluster: LocalCluster, queue: str) -> list[str]:
    """Take the bodies out of a queue."""
    with pika.BlockingConnection(pika.URLParameters(cluster.urls[0])) as connection:
        channel = connection.channel()
        found: list[str] = []
        for method, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=2):
            if method is None:
                return found
            found.append(body.decode())
    raise AssertionError("the consumer was cancelled")


class Publisher(threading.Thread):
    """Publishes to queues at random, in transactions. A transaction without an answer is not repeated."""

    def __init__(
        self, cluster: LocalCluster, queues: Sequence[str], bodies: Sequence[str], chance: random.Random
    ) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self._queues = queues
        self._bodies = bodies
        self._chance = random.Random(chance.random())
        self.committed: set[str] = set()
        self.in_doubt: set[str] = set()

    def run(self) -> None:
        bodies = list(self._bodies)
        while bodies:
            with suppress(pika.exceptions.AMQPError, OSError):
                url = self._chance.choice(self._cluster.urls)
                with pika.BlockingConnection(pika.URLParameters(url)) as connection:
                    channel = connection.channel()
                    channel.tx_select()
                    while bodies:
                        self._publish(channel, bodies)

    def _publish(self, channel: Any, bodies: list[str]) -> None:
        queue = self._chance.choice(self._queues)
        some = {bodies.pop() for _ in range(min(len(bodies), self._chance.randint(1, 40)))}
        self.in_doubt |= some
        for body in sorted(some):
            channel.basic_publish("", queue, body.encode())
        channel.tx_commit()
        self.in_doubt -= some
        self.committed |= some
        time.sleep(self._chance.random() * 0.2)


class Run(NamedTuple):
    """The counts of a run without a fault."""

    seed: int
    rows: int
    in_doubt: int
    """Rows of transactions without an answer."""
    batches: int
    repeated: int
    """Batches with several attempts."""
    kills: Mapping[str, int]

    def __str__(self) -> str:
        kills = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kills.items()))
        return (
            f"seed {self.seed}: {self.rows} rows ({self.in_doubt} in doubt), {self.batches} batches, "
            f"{self.repeated} repeated; killed: {kills}"
        )


class JudgedQuery(Query):
    """A query with the publishers of its queues."""

    def __init__(self, cluster: LocalCluster, directory: Path, seed: int, messages: int) -> None:
        """`messages` is the number of messages of the run."""
        directory.mkdir()
        super().__init__(cluster, directory, rf"orders-{seed}-\d", maxMessagesPerTrigger=messages // 8)
        self.seed = seed
        self.queues = [f"orders-{seed}-{number}" for number in range(2)]
        self._cluster = cluster
        self._publishers: list[Publisher] = []
        declare(cluster, *self.queues, self.copies)

    def publish(self, bodies: Sequence[str], chance: random.Random) -> None:
        """Start a publisher of some bodies."""
        self._publishers.append(Publisher(self._cluster, self.queues, bodies, chance))
        self._publishers[-1].start()

    def wait_published(self) -> None:
        self._publishers[-1].join(PATIENCE_S)

    def judge(self, kills: Mapping[str, int]) -> Run:
        """Check that the output and its copies are the confirmed messages, once each."""
        committed = {body for each in self._publishers for body in each.committed}
        in_doubt = {body for each in self._publishers for body in each.in_doubt}
        found = [str(row["body"]) for row in self.rows()]
        copies = drained(self._cluster, self.copies)
        assert sorted(found) == sorted(copies) == sorted(set(found))
        assert committed <= set(found) <= committed | in_doubt
        attempts = [len(each) for each in self.batches().values()]
        repeated = sum(count > 1 for count in attempts)
        return Run(self.seed, len(found), len(in_doubt & set(found)), len(attempts), repeated, kills)


def archived_classes(cluster: LocalCluster, directory: Path, master: str) -> dict[str, str]:
    """Return settings of drivers with which Java takes verified classes from an archive.

    A query writes the archive at its end. It halves the processor time of the starts of Java.
    """
    archive = directory / "classes.jsa"
    query = JudgedQuery(cluster, directory / "training", TRAINING, 100)
    drivers = drivers_of(directory, query)
    drivers.start(MASTER=master, DRIVER_JAVA_OPTIONS=f"-XX:ArchiveClassesAtExit={archive}")
    try:
        query.publish([str(number) for number in range(100)], random.Random(0))
        query.wait_published()
        drivers.wait(lambda: query.has_drained(query.queues))
        drivers.end()
        drivers.wait_gone()
    finally:
        drivers.kill()
    return dict.fromkeys(("DRIVER_JAVA_OPTIONS", "EXECUTOR_JAVA_OPTIONS"), f"-XX:SharedArchiveFile={archive}")


def run_killed_at_random(
    cluster: LocalCluster, directory: Path, seeds: range, messages: int = 1_000, **environment: str
) -> list[Run]:
    """Run a query for each seed while their parts die, and judge their output. The queries have a driver together."""
    chance = random.Random(seeds[0])
    queries = [JudgedQuery(cluster, directory / str(seed), seed, messages) for seed in seeds]
    drivers = drivers_of(directory, *queries)
    drivers.restarts = 10
    kills: Counter[str] = Counter()
    rounds = chance.randint(2, 3)
    try:
        drivers.start(**environment)
        for number in range(rounds):
            awaited = chance.choice(queries)
            begun = len(awaited.batches())
            for query in queries:
                query.publish([f"order {number}.{each}" for each in range(messages // rounds)], chance)
            drivers.wait(lambda awaited=awaited, begun=begun: len(awaited.batches()) > begun)
            for kind in chance.sample(("driver", "executor", "node"), chance.randint(1, 3)):
                time.sleep(chance.random() / 4)
                if kind == "driver":
                    drivers.kill()
                    drivers.start(**environment)
                elif kind == "executor":
                    drivers.wait(drivers.kill_executors)
                else:
                    chance.choice(cluster.nodes).kill()
                kills[kind] += 1
            time.sleep(chance.random() * 2)
            cluster.restore()
            for query in queries:
                query.wait_published()
        drivers.wait(lambda: all(query.has_drained(query.queues) for query in queries))
        drivers.end()
    finally:
        drivers.kill()
    return [query.judge(kills) for query in queries]
