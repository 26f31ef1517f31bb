"""Measure how long clients wait when the leader of a real cluster dies, and that a busy leader stays: a part of `make
bench`.

1. The leader is killed; or frozen, so that its sockets stay open; or its network is half open: all that it sends and
receives is lost, and no connection ends. 2. Busy loops take the processors from all healthy nodes. The leader must
stay.

In the first part a publisher at each follower works at a steady rate: the longest time in which a publisher had
messages in flight and got no confirm is the silence of that death. Prints Markdown tables with the aims, and fails if
an aim is missed.

It needs no privileges. The lossy links are those of `chaos/live`: through Toxiproxy, which is built with Go if it is
missing.

    python tests/benchmarks/failover.py [--repeat 5] [--busy 60]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from chaos.live.cluster import LiveCluster, ProxyStream
from chaos.live.toxiproxy import ToxiproxyError, find_server, install
from qq.errors import OperatingError
from qq.testing import ClusterNode, LocalCluster
from tests.benchmarks.bench import load
from tests.benchmarks.recovery import checked, endpoint, report

QUEUE = "failover"
KILLED_MS_MAX = 300.0
"""Aim: a process that is gone closes its sockets, which its peers see at once."""
SILENT_MS_MAX = 700.0
"""Aim: a silent process is suspected after five heartbeats of a tenth of a second, and an election follows."""
RATE = 500
"""Messages a second over all publishers."""
AROUND_S = 2.0
"""The load works for so long before the leader dies, and alone for the figure at rest."""
LOAD_S = 6.0
LOOPS = 4
CORES = 2
"""All nodes, the publisher and the loops share so many, however many there are."""


class Watched(NamedTuple):
    """The longest silences of confirms at a client, in milliseconds."""

    silent_ms: float
    """Around the death of the leader."""
    rest_ms: float
    """Right before the death."""


def silence_ms(at: list[str], seconds: float) -> float:
    """Return the longest wait for a confirm among publishers at these endpoints."""
    options = [
        "-q",
        QUEUE,
        "-P",
        str(len(at)),
        "-s",
        "12",
        "--rate",
        str(RATE),
        "-t",
        str(seconds),
        "publish",
    ]
    return checked(load(at, *options))["confirm_gap_ms"]


def watched(die: Callable[[], None], at: list[str]) -> Watched:
    """Let the leader die while clients publish at the endpoints of its followers."""
    rest_ms = silence_ms(at, AROUND_S)
    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(silence_ms, at, LOAD_S)
        time.sleep(AROUND_S)
        die()
        return Watched(running.result(), rest_ms)


def declare(at: str) -> None:
    checked(load([at], "-q", QUEUE, "declare"))


# Processes


def deaths(die: Callable[[ClusterNode], None], repeat: int) -> Iterator[Watched]:
    """Kill leaders one by one in this way, and start each again."""
    with LocalCluster(3) as cluster:
        declare(endpoint(cluster.urls[0]))
        for _ in range(repeat):
            leader, followers = cluster.leader(), cluster.followers()
            yield watched(partial(die, leader), [endpoint(node.url) for node in followers])
            cluster.restore()


# Networks


async def half_open(directory: Path, repeat: int) -> list[Watched]:
    """Cut leaders off one by one, and let each receive again; no connection ends at the cut."""
    seen: list[Watched] = []
    loop = asyncio.get_running_loop()
    async with LiveCluster(directory) as cluster:
        await asyncio.to_thread(declare, endpoint(cluster.direct["n1"]))
        for _ in range(repeat):
            leader = await cluster.leader()
            followers = [name for name in cluster.names if name != leader]
            ways = [
                way
                for name in followers
                for way in (*cluster.links(leader, name), *cluster.links(name, leader))
            ]
            ways += cluster.clients_of(leader)

            def cut(ways: list[ProxyStream] = ways) -> None:
                asyncio.run_coroutine_threadsafe(
                    cluster.hurt(ways, "cut", "timeout", timeout=0), loop
                ).result()

            at = [endpoint(cluster.direct[name]) for name in followers]
            seen.append(await asyncio.to_thread(watched, cut, at))
            await cluster.relieve()
            await cluster.wait_caught_up()
    return seen


def cut_off(repeat: int) -> list[Watched]:
    """Raises ToxiproxyError if it is not there and cannot be built."""
    try:
        find_server()
    except ToxiproxyError:
        install()
    with tempfile.TemporaryDirectory(prefix="qq-bench-") as directory:
        return asyncio.run(half_open(Path(directory), repeat))


def measure_deaths(repeat: int) -> Iterator[bool]:
    """Print the table of the first part. Which rows met every aim."""
    print(
        "| what befalls the leader | longest silence of confirms at a client of a follower, ms | the same at rest "
        "| aim | aims missed |"
    )
    print("|---" * 5 + "|", flush=True)
    ways: list[tuple[str, float, Callable[[], list[Watched]]]] = [
        ("its process is killed", KILLED_MS_MAX, lambda: list(deaths(ClusterNode.kill, repeat))),
        ("its process is frozen", SILENT_MS_MAX, lambda: list(deaths(ClusterNode.pause, repeat))),
        ("its network is half open", SILENT_MS_MAX, lambda: cut_off(repeat)),
    ]
    for name, silent_ms_max, die in ways:
        try:
            times = die()
        except OperatingError as error:
            yield report({str(error): False}, name, "", "", "")
            continue
        yield report(
            {"silence": max(each.silent_ms for each in times) <= silent_ms_max},
            name,
            " ".join(f"{each.silent_ms:.0f}" for each in times),
            " ".join(f"{each.rest_ms:.0f}" for each in times),
            f"at most {silent_ms_max:.0f}",
        )


# Busy processors


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run processes that loop without work."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def few_cores() -> Iterator[int]:
    """Restrict this thread and its children to `CORES` processors at most; return the number in use."""
    allowed = os.sched_getaffinity(0)
    used = sorted(allowed)[:CORES]
    os.sched_setaffinity(0, used)
    try:
        yield len(used)
    finally:
        os.sched_setaffinity(0, allowed)


def measure_busy(seconds: float) -> bool:
    """Print the table of the second part. Whether its aim was met."""
    print(
        "\n| what takes the processors | s | terms that began | longest silence of confirms, ms | aims missed |"
    )
    print("|---" * 5 + "|", flush=True)
    with few_cores() as cores, LocalCluster(3) as cluster:
        at = [endpoint(cluster.followers()[0].url)]
        declare(at[0])
        term_before = term(cluster)
        with busy_loops(LOOPS):
            silent_ms = silence_ms(at, seconds)
        began = term(cluster) - term_before
    return report(
        {"no election": not began},
        f"{LOOPS} busy loops on {cores} cores",
        f"{seconds:.0f}",
        str(began),
        f"{silent_ms:.0f}",
    )


def term(cluster: LocalCluster) -> int:
    """The highest term that a node is in."""
    return max(view["term"] or 0 for view in cluster.status()["nodes"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=5, help="deaths of each kind")
    parser.add_argument("--busy", type=float, default=60, help="seconds of busy loops")
    options = parser.parse_args()
    are_met = list(measure_deaths(options.repeat)) if options.repeat else []
    if options.busy:
        are_met.append(measure_busy(options.busy))
    sys.exit(not all(are_met))


if __name__ == "__main__":
    main()
