"""Measure how long clients wait while the members of a real cluster change: a part of `make bench`.

1. Three nodes become five, and then three of which two are new; the leader is removed too. 2. Each of these three is
killed in turn, loses its disk, and is replaced by itself with a new directory. 3. A new node is added beside a
backlog, all of which must be sent to it.

During each change of the first two parts a publisher and a consumer work at every remaining node, at a steady rate:
their longest wait is the pause of that change. During the third, clients publish now and then. Prints Markdown tables
with the aims, and fails if an aim is missed.

    python tests/benchmarks/members.py [--repeat 3] [--backlog 10000000]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from qq.cli.local_files import PEER_PORT_OFFSET
from qq.testing import ClusterNode, LocalCluster
from tests.benchmarks.bench import load
from tests.benchmarks.recovery import checked, data_directory, disk_mib, endpoint, fill, report
from tests.benchmarks.upkeep import PROBES_AT_REST, Waits, probe, together

QUEUE = "members"
PAUSE_MS_MAX = 300.0
"""Aim: no client of a node that stays waits longer."""
P99_SHARE_MAX = 2.0
"""Aim: during a catch-up, confirms of clients take at most so much longer than before, at the 99th percentile."""
RATE = 500
"""Messages a second over all publishers."""
AROUND_S = 1.0
"""The load works for so long before a change begins, and at least as long after it has ended."""
LOAD_S = 25.0
CATCH_UP_S_MAX = 200.0
"""A new node is given up after so long. Beside clients it is fed slowly."""


def qq(node: ClusterNode, *arguments: str) -> None:
    """Call a command that has to succeed, and wait until it is done."""
    command = [sys.executable, "-m", "qq", *arguments, "--http", f"http://127.0.0.1:{node.http_port}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"qq {' '.join(arguments)}: {done.stderr}")


class Watched(NamedTuple):
    """A change, and its effect on clients of the remaining nodes."""

    took_s: float
    pause_ms: float
    """The longest from a message to its confirm or to its delivery."""
    rest_ms: float
    """The same right before, without a change."""
    lost: int
    duplicates: int


def watched(change: Callable[[], None], stay: list[ClusterNode]) -> Watched:
    """Make a change of the members while clients are at work at the nodes that stay."""
    places = [endpoint(node.url) for node in stay]
    clients = ["-P", str(len(places)), "-C", str(len(places))]
    options = ["-q", QUEUE, *clients, "-s", "12", "--rate", str(RATE), "-t", str(LOAD_S), "both"]
    at_rest = checked(load(places, *options))
    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(load, places, *options)
        time.sleep(AROUND_S)
        begun = time.monotonic()
        change()
        took_s = time.monotonic() - begun
        result = checked(running.result())
    if took_s > LOAD_S - 2 * AROUND_S:
        sys.exit(f"the change took {took_s:.0f} s, which is longer than the load")
    return Watched(took_s, waited_ms(result), waited_ms(at_rest), result["lost"], result["duplicates"])


def waited_ms(result: dict[str, Any]) -> float:
    return max(result[kind]["max"] for kind in ("confirm_us", "e2e_us")) / 1000


def add(cluster: LocalCluster, via: ClusterNode) -> None:
    node = cluster.add_node(CATCH_UP_S_MAX)
    qq(via, "member", "add", node.name, f"127.0.0.1:{node.amqp_port + PEER_PORT_OFFSET}")


def remove(cluster: LocalCluster, node: ClusterNode, via: ClusterNode) -> None:
    qq(via, "member", "remove", node.name)
    cluster.forget_node(node)


def lose_and_replace(node: ClusterNode, via: ClusterNode) -> None:
    """Kill a node, lose its disk, and start it again: its new directory is taken in by itself. Wait until it votes."""
    node.kill()
    shutil.rmtree(data_directory(node))
    node.start()
    qq(via, "member", "promote", node.name)


def changes() -> Iterator[tuple[str, Watched]]:
    """Each change of the first two parts, with its name."""
    with LocalCluster(3) as cluster:
        checked(load([endpoint(cluster.nodes[0].url)], "-q", QUEUE, "declare"))
        for _ in range(2):
            first = cluster.nodes[0]
            yield f"add to {len(cluster.nodes)}", watched(partial(add, cluster, first), list(cluster.nodes))
        for role in ("leader", "follower"):
            lost = cluster.leader() if role == "leader" else cluster.followers()[0]
            stay = [node for node in cluster.nodes if node is not lost]
            yield (
                f"remove the {role} of {len(cluster.nodes)}",
                watched(partial(remove, cluster, lost, stay[0]), stay),
            )
        for lost in [cluster.leader(), *cluster.followers()]:
            role = "leader" if cluster.leader() is lost else "follower"
            stay = [node for node in cluster.nodes if node is not lost]
            yield f"kill a {role}, and lose its disk", watched(partial(lose_and_replace, lost, stay[0]), stay)


def measure_changes(repeat: int) -> Iterator[bool]:
    """Print the table of the first two parts. Which rows met every aim."""
    print(
        "| change | s until it was done | longest wait of a client at a node that stays, ms | the same at rest | lost "
        "| delivered twice | aims missed |"
    )
    print("|---" * 7 + "|")
    seen: dict[str, list[Watched]] = {}
    for _ in range(repeat):
        for name, change in changes():
            seen.setdefault(name, []).append(change)
    for name, times in seen.items():
        lost, duplicates = sum(each.lost for each in times), sum(each.duplicates for each in times)
        yield report(
            {
                "pause": max(each.pause_ms for each in times) <= PAUSE_MS_MAX,
                "load": not (lost or duplicates),
            },
            name,
            " ".join(f"{each.took_s:.1f}" for each in times),
            " ".join(f"{each.pause_ms:.0f}" for each in times),
            " ".join(f"{each.rest_ms:.0f}" for each in times),
            str(lost),
            str(duplicates),
        )


def measure_catch_up(messages: int) -> bool:
    """Print the table of the third part. Whether every aim was met."""
    print(
        "\n| backlog | MiB on its disk | s until it votes | confirms of others, ms: p50 / p99 / max | the same "
        "meanwhile | aims missed |"
    )
    print("|---" * 6 + "|")
    with LocalCluster(3) as cluster:
        first = cluster.nodes[0]
        for queue in ("backlog", "probe"):
            checked(load([endpoint(first.url)], "-q", queue, "declare"))
        fill(cluster, "backlog", messages, ["-P", "4", "-w", "2000", "-s", "12"])
        other = cluster.followers()[0]
        at_rest = together([probe(other) for _ in range(PROBES_AT_REST)])
        begun = time.monotonic()
        probes: list[Waits] = []
        with ThreadPoolExecutor(1) as executor:
            running = executor.submit(add, cluster, first)
            while not running.done():
                probes.append(probe(other))
            running.result()
        seconds = time.monotonic() - begun
        meanwhile = together(probes)
        return report(
            {"others' p99": meanwhile.p99 <= P99_SHARE_MAX * at_rest.p99},
            f"{messages:,} x 12 B",
            f"{disk_mib(cluster.nodes[-1]):.0f}",
            f"{seconds:.1f}",
            str(at_rest),
            str(meanwhile),
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--backlog", type=int, default=10_000_000)
    options = parser.parse_args()
    are_met = list(measure_changes(options.repeat)) if options.repeat else []
    if options.backlog:
        are_met.append(measure_catch_up(options.backlog))
    sys.exit(not all(are_met))


if __name__ == "__main__":
    main()
