"""Measure the upkeep of nodes and its effect on clients: disk space given back, and the catch-up of a node.

1. A steady load of published and consumed messages, beside a message that is never acknowledged: the disk use of the
nodes over time, and its bound (`log/housekeeping.py`). For hours: `--seconds 14400`. With `--rate 0` publishers
outrun consumers for a while, and the bound counts the backlog too. 2. A node with an empty disk joins a cluster with
a backlog, all of which is sent to it: the time of that, the memory that it costs the leader, and the waits of other
clients for confirms meanwhile.

Prints Markdown tables with the aims, and fails if an aim is missed. A part of `make bench`.

    python tests/benchmarks/upkeep.py [--seconds 120] [--rate 30000] [--backlog 1000000]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, Thread
from typing import NamedTuple

from cluster.log.housekeeping import HousekeepingSettings
from qq.testing import ClusterError, ClusterNode, LocalCluster
from tests.benchmarks.bench import load, resident_bytes
from tests.benchmarks.recovery import (
    CHECKPOINTS,
    DEAD_S,
    MIB,
    checked,
    connect,
    data_directory,
    data_files,
    disk_mib,
    endpoint,
    fill,
    report,
)

MESSAGE_BYTES = 1024
QUEUES = ["-q", "churn", "--queues", "4"]
CHURN = ["-P", "4", "-C", "4", "-s", str(MESSAGE_BYTES)]
FRAMES_BYTES = 128
"""A stored message is its content frames, and has a share in the headers of its record."""
PARTS = 8
"""The time is shown in so many parts; the first two of them fill the log that is kept in any case."""
FLAT_SHARE_MAX = 1.1
"""Aim: the disk use of the second half is at most this share of that of the first half, without the queued messages."""
CHURNED = 400_000
"""Messages that come and go behind the backlog, so that the log does not reach back to its beginning."""
PROBE_S = 1.0
PROBE = ["-t", str(PROBE_S), "--rate", "200", "-w", "1000", "-s", "12", "publish"]
PROBES_AT_REST = 5
LEADER_MIB_MAX = 32.0
"""Aim: to send a snapshot costs the leader no more, however large that is."""
MORE_P50_MS_MAX = 10.0
MORE_P99_MS_MAX = 100.0
"""Aims: confirms of other clients take at most so much longer, on a machine whose disk and cores all nodes share."""


@contextmanager
def unacknowledged_message(cluster: LocalCluster) -> Generator[None]:
    connection = connect(cluster.nodes[0])
    channel = connection.channel()
    channel.queue_declare("stuck", durable=True, arguments={"x-queue-type": "quorum"})
    channel.confirm_delivery()
    channel.basic_publish("", "stuck", b"from yesterday")
    channel.basic_get("stuck")
    try:
        yield
    finally:
        connection.close()


def measure_disk(seconds: float, rate: int) -> bool:
    """Print the row of the first part. Whether every aim was met."""
    with LocalCluster(3) as cluster, ThreadPoolExecutor(1) as executor, unacknowledged_message(cluster):
        at = [endpoint(url) for url in cluster.urls]
        checked(load(at, *QUEUES, "declare"))
        timed = ["-t", str(seconds), "--max-time", str(seconds + 60)]
        paced = ["--rate", str(rate)] if rate else []
        churn = executor.submit(load, at, *QUEUES, *CHURN, *timed, *paced, "both")
        begun = time.monotonic()
        most_mib = [0.0] * PARTS
        messages_max = 0
        while not churn.done():
            part = int((time.monotonic() - begun) / seconds * PARTS)
            if part < PARTS:
                most_mib[part] = max(most_mib[part], *map(disk_mib, cluster.nodes))
            messages_max = max(messages_max, sum(queue["messages"] for queue in cluster.nodes[0].queues()))
            time.sleep(0.2)
        result = checked(churn.result())
        settings = HousekeepingSettings()
        written = [file.st_size for node in cluster.nodes for file in data_files(node, CHECKPOINTS).values()]
        checkpoint = max(written, default=0)
        live = messages_max * (MESSAGE_BYTES + FRAMES_BYTES)
        between = max(settings.checkpoint_bytes, checkpoint)
        bound = (
            2.25 * live
            + max(settings.retained_bytes, 2 * between)
            + between
            + 4 * settings.segment_bytes
            + 3 * checkpoint
        )
        before, after = max(most_mib[: PARTS // 2]), max(most_mib[PARTS // 2 :])
        published = result["confirmed"]
        print(
            "| published and consumed | MiB | disk MiB a node, most in each eighth of the time | MiB in queues | bound "
            "| aims missed |"
        )
        print("|---" * 6 + "|")
        return report(
            {
                "bound": max(most_mib) <= bound / MIB,
                "flat": after <= FLAT_SHARE_MAX * before + 2.25 * live / MIB,
                "load": not (result["lost"] or result["duplicates"] or result["misordered"]),
            },
            f"{published:,} x {MESSAGE_BYTES} B in {seconds:,.0f} s",
            f"{published * MESSAGE_BYTES / MIB:,.0f}",
            " ".join(f"{part:.0f}" for part in most_mib),
            f"{live / MIB:.0f}",
            f"{bound / MIB:.0f}",
        )


class Waits(NamedTuple):
    """How long a client waited for confirms, milliseconds."""

    p50: float
    p99: float
    most: float

    def __str__(self) -> str:
        return " / ".join(f"{wait:.1f}" for wait in self)


def probe(node: ClusterNode) -> Waits:
    """A client that publishes now and then, for a short while."""
    confirms = checked(load([endpoint(node.url)], "-q", "probe", *PROBE))["confirm_us"]
    return Waits(confirms["p50"] / 1000, confirms["p99"] / 1000, confirms["max"] / 1000)


def together(probes: list[Waits]) -> Waits:
    return Waits(
        statistics.median(waits.p50 for waits in probes),
        statistics.median(waits.p99 for waits in probes),
        max(waits.most for waits in probes),
    )


class MemoryWatch(Thread):
    """The most memory that a process holds from now on until it is asked."""

    def __init__(self, node: ClusterNode) -> None:
        super().__init__(daemon=True)
        self._pid = node.pid
        self._done = Event()
        self._most = 0
        self.start()

    def run(self) -> None:
        while not self._done.wait(0.02):
            self._most = max(self._most, resident_bytes(self._pid))

    def mib(self) -> float:
        self._done.set()
        self.join()
        return self._most / MIB


def takes_full_part(node: ClusterNode) -> bool:
    """Whether a node that had lost everything has all of it again."""
    try:
        views = node.status()["nodes"]
    except ClusterError:
        return False
    return any(view["name"] == node.name and view["standing"] == "voter" for view in views)


def measure_catch_up(messages: int, *, by_snapshot: bool) -> bool:
    """Print a row of the second part. Whether every aim was met."""
    with LocalCluster(3) as cluster:
        at = [endpoint(url) for url in cluster.urls]
        for queue in ("backlog", "probe"):
            checked(load(at[:1], "-q", queue, "declare"))
        fill(cluster, "backlog", messages, ["-P", "4", "-w", "2000", "-s", str(MESSAGE_BYTES)])
        if by_snapshot:
            checked(load(at, "-q", "probe", "-n", str(CHURNED), *CHURN, "both"))
        leader = cluster.leader()
        emptied, other = cluster.followers()
        emptied.kill()
        shutil.rmtree(data_directory(emptied))
        time.sleep(DEAD_S)
        at_rest = together([probe(other) for _ in range(PROBES_AT_REST)])
        before_mib = resident_bytes(leader.pid) / MIB
        watch = MemoryWatch(leader)
        begun = time.monotonic()
        emptied.start()
        probes: list[Waits] = []
        while not takes_full_part(emptied):
            probes.append(probe(other))
        seconds = time.monotonic() - begun
        more_mib = watch.mib() - before_mib
        meanwhile = together(probes)
        return report(
            {
                "leader's memory": more_mib <= LEADER_MIB_MAX,
                "others' p50": meanwhile.p50 - at_rest.p50 <= MORE_P50_MS_MAX,
                "others' p99": meanwhile.p99 - at_rest.p99 <= MORE_P99_MS_MAX,
            },
            f"{messages:,} x {MESSAGE_BYTES} B, {'snapshot' if by_snapshot else 'entries'}",
            f"{disk_mib(emptied):.0f}",
            f"{seconds:.1f}",
            f"{before_mib:.0f} +{more_mib:.0f}",
            str(at_rest),
            str(meanwhile),
        )


def catch_ups(messages: int) -> Generator[bool]:
    """Print the table of the second part. Which rows met every aim."""
    print(
        "\n| backlog, and how it is sent | MiB on its disk | s until it is a voter | leader's MiB | confirms of "
        "others, ms: p50 / p99 / max | the same meanwhile | aims missed |"
    )
    print("|---" * 7 + "|")
    for by_snapshot in (False, True):
        yield measure_catch_up(messages, by_snapshot=by_snapshot)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--rate", type=int, default=30_000, help="messages per second; 0 is as many as go")
    parser.add_argument("--backlog", type=int, default=1_000_000)
    options = parser.parse_args()
    are_met = [
        *([measure_disk(options.seconds, options.rate)] if options.seconds else []),
        *(catch_ups(options.backlog) if options.backlog else []),
    ]
    sys.exit(not all(are_met))


if __name__ == "__main__":
    main()
