"""Measure how long a light client waits while connections of a second user flood its node: a part of `make bench`.

Each method of AMQP 0-9-1 that a client may send, and each other frame, is sent as fast as the leader of a real
three-node cluster reads it. A light client with a user and a virtual host of its own is connected to the same node,
and waits for each of its answers. Waits count until a second after the flood has hung up. Prints a Markdown table of
the longest waits, by processor time of the node's main thread and by the clock. Ends with status 1 if a wait takes
more processor time than WAIT_CPU_S, or if the leader loses its office.

    python tests/benchmarks/floods.py [--only REGEX] [--connections 1,20,100] [--seconds 1.5]
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from chaos.fuzz.floods import WAIT_CPU_S, LightClient, clear, flooding, kinds, plan, prepare
from chaos.fuzz.legal_run import Pulse
from qq.testing import LocalCluster

AFTER_S = 1.0
"""Seconds that are measured after the flood has hung up."""


def run(only: str, connections: list[int], seconds: float) -> bool:
    """Print the table. Return whether an aim was missed."""
    titles = ["flood", "connections", "requests", "processor ms", "clock ms", "/livez ms", "missed"]
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    is_missed = False
    with (
        tempfile.TemporaryDirectory(prefix="qq-floods-") as directory,
        LocalCluster(3, Path(directory)) as cluster,
    ):
        node = cluster.leader()
        prepare(node)
        for name, flood in kinds().items():
            if not re.search(only, name):
                continue
            for count in connections:
                light, pulse = LightClient(node), Pulse(node)
                pulse.start()
                with flooding(node, plan(flood, count)):
                    waited = light.wait(seconds)
                waited = light.wait(AFTER_S, waited=waited)
                pulse.stop()
                light.close()
                missed = [f"at most {WAIT_CPU_S * 1000:.0f} ms"] if waited.cpu_s > WAIT_CPU_S else []
                if cluster.leader() is not node:
                    missed.append("the leader lost its office")
                    node = cluster.leader()
                shown = f"{waited.requests} | {waited.cpu_s * 1000:.1f} | {waited.clock_s * 1000:.0f}"
                print(
                    f"| {name} | {count} | {shown} | {pulse.longest_s * 1000:.0f} | {'; '.join(missed)} |",
                    flush=True,
                )
                is_missed = is_missed or bool(missed)
            clear(node)
    return is_missed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="regular expression: the floods to measure")
    parser.add_argument("--connections", default="1,20,100", help="connections of each flood")
    parser.add_argument("--seconds", type=float, default=1.5)
    options = parser.parse_args()
    return int(run(options.only, [int(each) for each in options.connections.split(",")], options.seconds))


if __name__ == "__main__":
    sys.exit(main())
