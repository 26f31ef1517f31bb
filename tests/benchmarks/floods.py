"""Measure how long a light client waits while connections of a second user flood its node: a part of `make bench`.

Each method of AMQP 0-9-1 that a client may send, each other frame, and some mixtures are sent as fast as the leader of
a real three-node cluster reads them, without and with TLS. A light client with a user and a virtual host of its own is
connected to the same port, and waits for each of its answers. Waits count until a second after the flood has hung up.
Prints a Markdown table of the longest waits, by processor time of the node's main thread and by the clock. Ends with
status 1 if a wait takes more processor time than WAIT_CPU_S, or if the leader loses its office.

`--short` takes three minutes: 20 connections each, for a shorter time.

    python tests/benchmarks/floods.py [--only REGEX] [--connections 1,20,100] [--seconds 1.5] [--ports amqp,amqps]
                                      [--short]
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from itertools import product
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from chaos.fuzz.floods import (
    WAIT_CPU_S,
    clear,
    connect,
    flooding,
    kinds,
    make_tls,
    mixed,
    plan,
    prepare,
)
from chaos.fuzz.legal_run import Pulse
from qq.testing import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.fuzz.flooder import Plan
    from chaos.fuzz.floods import Tls

MIXTURES = 5
"""Mixed floods, with seeds from 1 on."""
PORTS = ("amqp", "amqps")
TITLES = ("flood", "port", "connections", "requests", "processor ms", "clock ms", "/livez ms", "missed")


class Options(NamedTuple):
    """The floods to measure."""

    only: str
    ports: Sequence[str]
    connections: Sequence[int]
    seconds: float
    after_s: float
    """Seconds that are measured after the flood has hung up."""


FULL = Options("", PORTS, (1, 20, 100), 1.5, 1.0)
SHORT = Options("", PORTS, (20,), 0.6, 0.2)


def run(options: Options) -> bool:
    """Print the table. Return whether an aim was missed."""
    print(f"| {' | '.join(TITLES)} |\n{'|---' * len(TITLES)}|")
    floods = kinds() | {f"mixed, seed {seed}": mixed(Random(seed)) for seed in range(1, MIXTURES + 1)}
    is_missed = False
    with tempfile.TemporaryDirectory(prefix="qq-floods-") as directory:
        tls = make_tls(Path(directory))
        with LocalCluster(3, Path(directory) / "cluster", tls.settings) as cluster:
            prepare(cluster.leader())
            for name, flood in floods.items():
                if re.search(options.only, name):
                    for port, count in product(options.ports, options.connections):
                        used = tls if port == "amqps" else None
                        missed = _measure(cluster, f"{name} | {port}", plan(flood, count), used, options)
                        is_missed = is_missed or missed
                    clear(cluster.leader())
    return is_missed


def _measure(cluster: LocalCluster, name: str, plan: Plan, tls: Tls | None, options: Options) -> bool:
    """Measure a flood and print its row. Return whether an aim was missed."""
    node = cluster.leader()
    light, pulse = connect(node, tls), Pulse(node)
    pulse.start()
    with flooding(node, plan, tls):
        waited = light.wait(options.seconds)
    waited = light.wait(options.after_s, waited)
    pulse.stop()
    light.close()
    missed = [f"at most {WAIT_CPU_S * 1000:.0f} ms"] if waited.cpu_s > WAIT_CPU_S else []
    if cluster.leader() is not node:
        missed.append("the leader lost its office")
    times = (waited.cpu_s, waited.clock_s, pulse.longest_s)
    shown = " | ".join(f"{time_s * 1000:.1f}" for time_s in times)
    print(f"| {name} | {plan.connections} | {waited.requests} | {shown} | {'; '.join(missed)} |", flush=True)
    return bool(missed)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="regular expression: the floods to measure")
    parser.add_argument("--ports", help="amqp, amqps, or both (the default)")
    parser.add_argument("--connections", help="connections of each flood")
    parser.add_argument("--seconds", type=float, help="duration of each flood")
    parser.add_argument("--short", action="store_true", help="20 connections each, and shorter")
    given = parser.parse_args()
    options = (SHORT if given.short else FULL)._replace(only=given.only)
    if given.ports:
        options = options._replace(ports=given.ports.split(","))
    if given.connections:
        options = options._replace(connections=[int(each) for each in given.connections.split(",")])
    if given.seconds:
        options = options._replace(seconds=given.seconds)
    return int(run(options))


if __name__ == "__main__":
    sys.exit(main())
