"""Measure how fast nodes restart with a large backlog, and their costs: a part of `make bench`.

Fills a queue with 12-byte messages through ordinary clients, kills nodes with SIGKILL and measures the time from
their start to a client's first message: of a single node, and of a cluster whose nodes were all killed. An empty
cluster gives the time of a plain start. Also measured: the waits of clients during a checkpoint; the time and size of
a backup (with linked files, and as a stream) and the waits meanwhile; the time of its restore; the rate of draining
the backlog. Prints a Markdown table with the missed aims of each row, and ends with status 1 if an aim was missed.

    python tests/benchmarks/recovery.py [--messages 10000000] [--singles 1000000] [--repeat 3]

`--messages` are published in batches of confirms; `--singles` one by one, each waiting for its confirm, by 256
publishers: the worst case for a state that is made of runs. Ten million of those take a quarter of an hour or more to
publish, so by default it is a tenth of that.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pika
import pika.exceptions

import qq.testing
from qq.cli.local.launch import SERVE_COMMAND
from qq.testing import ClusterNode, LocalCluster
from tests.benchmarks.bench import load, resident_bytes

QUEUE = "backlog"
FRESH_QUEUE = "fresh"
CHECKPOINTS = "*.checkpoint"
PATIENCE_S = 120.0
POLL_S = 0.005
DEAD_S = 2.0
"""Seconds for which a killed node stays away: its peers evict it, and requeue the messages that its clients held."""
MIB = 2**20
FILL_S_MAX = 3600
"""Enough for ten million messages with a confirm for each."""
MORE_S_MAX = 1.0
"""Aim: a start with the backlog takes at most so much longer than an empty start."""
MORE_MIB_MAX = 100.0
"""Aim: a node holds at most so much more memory with the backlog than without."""
DRAIN_SHARE_MIN = 0.9
"""Aim: the backlog is drained as fast as a queue that was just filled; so much of that, since runs differ."""
STALL_MS_MAX = 10.0
"""Aim: a checkpoint of the backlog delays clients by at most this, unless the machine delays them anyway."""
AROUND_CHECKPOINT_S = 3.0
QUESTIONS = 200
"""Requests between two checks for a checkpoint."""
PAIRS = 12
PAIR_MESSAGES = 200_000
"""A machine's speed differs from minute to minute: in so many places of the backlog the drain of a part is compared
with that of a queue that was just filled in the same way."""


class Start(NamedTuple):
    """Seconds from the start of the processes until a client has an answer."""

    one_node_s: float
    all_nodes_s: float


def has_answer(url: str, *, empty: bool) -> bool:
    """Return whether `basic.get` on this node returns a message, or get-empty if the queue is `empty`."""
    try:
        connection = pika.BlockingConnection(pika.URLParameters(url))
    except (pika.exceptions.AMQPError, OSError):
        return False
    try:
        method, _, _ = connection.channel().basic_get(QUEUE)
        return (method is None) is empty
    finally:
        connection.close()


def seconds_until(condition: Callable[[], bool]) -> float:
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > PATIENCE_S:
            sys.exit(f"nothing after {PATIENCE_S:.0f} s")
        time.sleep(POLL_S)
    return time.monotonic() - begun


def time_starts(cluster: LocalCluster, repeat: int, *, empty: bool) -> Start:
    """Medians."""
    one: list[float] = []
    everybody: list[float] = []
    for turn in range(repeat):
        number = turn % len(cluster.nodes)
        for killed, times in (([number], one), (list(range(len(cluster.nodes))), everybody)):
            times.append(time_start(cluster, killed, empty=empty))
            cluster.wait_caught_up()
    return Start(statistics.median(one), statistics.median(everybody))


def time_start(cluster: LocalCluster, numbers: list[int], *, empty: bool) -> float:
    """Kill these nodes, start them again at once, and return the seconds until the first answer of any of them."""
    for number in numbers:
        cluster.nodes[number].kill()
    time.sleep(DEAD_S)
    for number in numbers:
        cluster.nodes[number].start()
    urls = [cluster.urls[number] for number in numbers]
    return seconds_until(lambda: any(has_answer(url, empty=empty) for url in urls))


def endpoint(url: str) -> str:
    return f"{pika.URLParameters(url).host}:{pika.URLParameters(url).port}"


def memory_mib(cluster: LocalCluster) -> list[float]:
    """Resident memory of each node."""
    return [resident_bytes(node.pid) / MIB for node in cluster.nodes]


def data_files(node: ClusterNode, pattern: str = "*") -> dict[str, os.stat_result]:
    """Return the files in a node's data directory with their status, except files removed meanwhile."""
    found: dict[str, os.stat_result] = {}
    for file in data_directory(node).rglob(pattern):
        with suppress(FileNotFoundError):
            if file.is_file():
                found[str(file)] = file.stat()
    return found


def data_directory(node: ClusterNode) -> Path:
    return node.log.parent / "data"


def disk_mib(node: ClusterNode) -> float:
    return sum(file.st_size for file in data_files(node).values()) / MIB


def connect(node: ClusterNode) -> pika.BlockingConnection:
    """A connection that may be left alone."""
    parameters = pika.URLParameters(node.url)
    parameters.heartbeat = 0
    return pika.BlockingConnection(parameters)


def fill(cluster: LocalCluster, queue: str, messages: int, options: list[str]) -> None:
    """Publish so many messages through all the nodes."""
    at = [endpoint(url) for url in cluster.urls]
    publishers = ["-n", str(messages), "--max-time", str(FILL_S_MAX), *options]
    checked(load(at, "-q", queue, *publishers, "publish"))


def drain(cluster: LocalCluster, queue: str, messages: int) -> float:
    """Consume so many messages through the leader; messages per second."""
    at = [endpoint(cluster.urls[cluster.nodes.index(cluster.leader())])]
    consumed = checked(load(at, "-q", queue, "-n", str(messages), "--ack", "100", "consume"))
    return float(consumed["consume_rate"])


class Stall(NamedTuple):
    """The longest that a client waited for an answer that needs no log, milliseconds."""

    at_rest_ms: float
    at_checkpoint_ms: float


def watch_a_checkpoint(cluster: LocalCluster) -> Stall:
    """Ask a node all the time, from before its next checkpoint is begun until it has been there for a while."""
    node = cluster.followers()[0]
    known = data_files(node, CHECKPOINTS)
    requests: list[tuple[float, float]] = []
    connection = connect(node)
    channel = connection.channel()
    written_s = math.inf
    begun = time.monotonic()
    while time.time() < written_s + AROUND_CHECKPOINT_S:
        if time.monotonic() - begun > PATIENCE_S:
            sys.exit(f"no checkpoint in {PATIENCE_S:.0f} s")
        # A checkpoint needs new entries, and checking files at each request would lower the rate of requests.
        channel.basic_publish("", QUEUE, b"x" * 12)
        for _ in range(QUESTIONS):
            time.sleep(POLL_S / 5)
            before_s, before = time.time(), time.perf_counter()
            channel.flow(active=True)
            requests.append((before_s, (time.perf_counter() - before) * 1000))
        new = [file.st_mtime for name, file in data_files(node, CHECKPOINTS).items() if name not in known]
        written_s = max(new, default=math.inf)
    connection.close()
    near = [wait_ms for time_s, wait_ms in requests if abs(time_s - written_s) < AROUND_CHECKPOINT_S]
    rest = [wait_ms for time_s, wait_ms in requests if abs(time_s - written_s) >= AROUND_CHECKPOINT_S]
    # As many requests as there are near it: the longest of more requests would be longer.
    return Stall(max(rest[-len(near) :]), max(near))


class Backups(NamedTuple):
    """Seconds that the commands take, from their start to their end."""

    linked_s: float
    streamed_s: float
    restored_s: float
    size_mib: float
    busy_ms: float
    """The longest that a client waited for an answer that needs no log while a command checked the backup, which takes
    processor time and asks no node."""
    longest_ms: float
    """The same while the node gave a backup."""


def time_backups(cluster: LocalCluster) -> Backups:
    """Take two backups of a node at rest, and restore the first."""
    node = cluster.followers()[0]
    directory = node.log.parent.parent
    url = f"http://127.0.0.1:{node.http_port}"
    linked_s, linked_ms = watched(node, ["backup", str(directory / "backup"), "--http", url])
    _, busy_ms = watched(node, ["inspect", str(directory / "backup")])
    size = sum(file.stat().st_size for file in (directory / "backup").iterdir())
    with (directory / "backup.tar").open("wb") as archive:
        streamed_s, streamed_ms = watched(node, ["backup", "-", "--http", url], archive)
    (directory / "restored").mkdir()
    shutil.copy(node.log.parent / "node.toml", directory / "restored")
    config = directory / "restored" / "node.toml"
    restored_s, _ = watched(node, ["restore", str(directory / "backup"), "--config", str(config)])
    for left in ("backup", "restored"):
        shutil.rmtree(directory / left)
    (directory / "backup.tar").unlink()
    return Backups(linked_s, streamed_s, restored_s, size / MIB, busy_ms, max(linked_ms, streamed_ms))


def watched(node: ClusterNode, arguments: list[str], output: BinaryIO | None = None) -> tuple[float, float]:
    """Run a command, and ask the node all the time: seconds, and milliseconds of the longest wait for an answer."""
    connection = connect(node)
    channel = connection.channel()
    longest_ms = 0.0
    begun = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "qq", *arguments], stdout=output or subprocess.DEVNULL
    ) as command:
        while command.poll() is None:
            time.sleep(POLL_S / 5)
            before = time.perf_counter()
            channel.flow(active=True)
            longest_ms = max(longest_ms, (time.perf_counter() - before) * 1000)
    taken_s = time.monotonic() - begun
    connection.close()
    if command.returncode:
        sys.exit(f"qq {' '.join(arguments)} ended with status {command.returncode}")
    return taken_s, longest_ms


class Drain(NamedTuple):
    """Messages per second."""

    fresh: float
    backlog: float
    """The same number as of the fresh queue, right before or after that."""

    @property
    def share(self) -> float:
        return self.backlog / self.fresh


def drain_beside_fresh(cluster: LocalCluster, messages: int, options: list[str]) -> Drain:
    """Drain the backlog to its last part; the pair of rates with the median share."""
    stretch = messages // (PAIRS + 1)
    part = min(PAIR_MESSAGES, stretch)
    pairs: list[Drain] = []
    for number in range(PAIRS):
        fill(cluster, FRESH_QUEUE, part, options)
        rates: dict[str, float] = {}
        # The second drain competes with work of the nodes for the first, so the order alternates.
        for queue in (FRESH_QUEUE, QUEUE)[:: -1 if number % 2 else 1]:
            rates[queue] = drain(cluster, queue, part)
        pairs.append(Drain(rates[FRESH_QUEUE], rates[QUEUE]))
        if stretch > part:
            drain(cluster, QUEUE, stretch - part)
    return sorted(pairs, key=lambda pair: pair.share)[PAIRS // 2]


def checked(result: dict[str, Any]) -> dict[str, Any]:
    if not result.get("ok"):
        sys.exit(f"the load generator failed: {result}")
    return result


def report(aims: dict[str, bool], *cells: str) -> bool:
    """Print a row that ends with the missed aims. Return whether all aims are met."""
    missed = [aim for aim, is_met in aims.items() if not is_met]
    print(f"| {' | '.join(cells)} | {', '.join(missed) or 'none'} |", flush=True)
    return not missed


def run(name: str, messages: int, options: list[str], repeat: int) -> bool:
    """Fill, restart and drain; print a row. Return whether every aim was met."""
    qq.testing.SERVE_COMMAND = SERVE_COMMAND  # a complete start is measured
    with LocalCluster(3) as cluster:
        for queue in (QUEUE, FRESH_QUEUE):
            checked(load([endpoint(cluster.urls[0])], "-q", queue, "declare"))
        idle = time_starts(cluster, repeat, empty=True)
        idle_mib = memory_mib(cluster)
        fill(cluster, QUEUE, messages, options)
        full_mib = memory_mib(cluster)
        stall = watch_a_checkpoint(cluster)
        backups = time_backups(cluster)
        used_mib = statistics.mean(map(disk_mib, cluster.nodes))
        full = time_starts(cluster, repeat, empty=False)
        started_mib = memory_mib(cluster)
        drained = drain_beside_fresh(cluster, messages, options)
        grown = [after - before for after, before in zip(full_mib, idle_mib, strict=True)]
        restarted = [after - before for after, before in zip(started_mib, idle_mib, strict=True)]
        aims = {
            "one node": full.one_node_s - idle.one_node_s <= MORE_S_MAX,
            "all nodes": full.all_nodes_s - idle.all_nodes_s <= MORE_S_MAX,
            "memory": max(*grown, *restarted) <= MORE_MIB_MAX,
            "checkpoint": stall.at_checkpoint_ms <= max(STALL_MS_MAX, stall.at_rest_ms),
            "drain": drained.share >= DRAIN_SHARE_MIN,
        }
        return report(
            aims,
            name,
            f"{idle.one_node_s:.2f} / {full.one_node_s:.2f}",
            f"{idle.all_nodes_s:.2f} / {full.all_nodes_s:.2f}",
            f"{max(idle_mib):.0f}",
            f"+{max(grown):.0f} / +{max(restarted):.0f}",
            f"{used_mib:.0f}",
            f"{stall.at_rest_ms:.1f} / {stall.at_checkpoint_ms:.1f}",
            f"{backups.linked_s:.1f} / {backups.streamed_s:.1f} / {backups.restored_s:.1f}",
            f"{backups.size_mib:.0f}",
            f"{backups.busy_ms:.1f} / {backups.longest_ms:.1f}",
            f"{drained.fresh:,.0f} / {drained.backlog:,.0f}",
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--singles", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    print(
        "| backlog | one node: empty / full s | all nodes: empty / full s | idle MiB | more when filled / after a "
        "start | disk MiB a node | longest answer ms: at rest / near a checkpoint | backup s: linked / streamed / "
        "restored | backup MiB | longest answer ms: beside a check of it / while it is given | "
        "drain: fresh / backlog msg/s | aims missed |"
    )
    print("|---" * 12 + "|")
    rows = [
        (f"{options.messages:,} x 12 B", options.messages, ["-s", "12", "-P", "4", "-w", "4000"]),
        (f"{options.singles:,} x 12 B, one by one", options.singles, ["-s", "12", "-P", "256", "-w", "1"]),
    ]
    are_met = [run(*row, options.repeat) for row in rows if row[1]]
    sys.exit(not all(are_met))


if __name__ == "__main__":
    main()
