"""Measure the latency of a real three-node cluster, alone, under light load and beside floods: a part of `make
bench`.

Each scenario runs on fresh queues, against `qq up` and, with `--rival HOST:PORT,...`, right after that against the
cluster of a different broker. The aim stands beside each figure that can be judged: some aims are shares of the
rival's figures, and one is a multiple of the latency of the same client alone. The load generator is that of
bench.py.

    python tests/benchmarks/latency.py [--only REGEX] [--seconds 5] [--repeat 3] [--queues 1000] [--rival ...]
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tests.benchmarks.bench import QUORUM, amqpload, cluster, load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

FLOOD_WARM_UP_S = 1.5
KIB, MIB = 2**10, 2**20
ALONE = "window 1, 12 B, leader"
BIG = ["-s", str(16 * MIB)]
GETS = 10_000
GETTERS = 20
DEPTH = 50
"""Gets that are sent ahead of their answers where they are pipelined."""
MANY = 1000
"""Connections that publish a message a second each."""
CONNECTING_S = 6
"""Seconds for them to connect, and to publish the messages that are late by then."""


class Measured(NamedTuple):
    """Figures of a run, or medians of several: latency in milliseconds, and operations a second."""

    p50_ms: float
    p99_ms: float
    per_s: float

    def __str__(self) -> str:
        return f"{self.p50_ms:.2f} | {self.p99_ms:.2f} | {self.per_s:,.0f}"


class Failure(Exception):
    """A run without a figure; the text is the reason."""


class Scenario(NamedTuple):
    """Name, options and aim of a measurement."""

    name: str
    measure: Callable[[list[str]], Measured]
    p50_of_rival: float | None = None
    p99_of_rival: float | None = None
    p99_of_alone: float | None = None
    p99_max_ms: float | None = None
    per_s_min: float | None = None

    def misses(self, ours: Measured, theirs: Measured | None, alone: Measured | None) -> list[str]:
        """The aims that are missed, of those that can be judged."""
        judged = [(self.p99_max_ms, ours.p99_ms, "p99 at most {:.0f} ms")]
        if theirs is not None:
            judged += [
                (
                    _times(self.p50_of_rival, theirs.p50_ms),
                    ours.p50_ms,
                    "p50 at most {:.2f} ms (the rival's share)",
                ),
                (
                    _times(self.p99_of_rival, theirs.p99_ms),
                    ours.p99_ms,
                    "p99 at most {:.2f} ms (the rival's share)",
                ),
            ]
        if alone is not None:
            judged.append(
                (_times(self.p99_of_alone, alone.p99_ms), ours.p99_ms, "p99 at most {:.2f} ms (of alone)")
            )
        missed = [text.format(most) for most, found, text in judged if most is not None and found > most]
        if self.per_s_min is not None and ours.per_s < self.per_s_min:
            missed.append(f"at least {self.per_s_min:,.0f}/s")
        return missed


def _times(share: float | None, figure: float) -> float | None:
    return None if share is None else share * figure


def scenarios(seconds: float, queues: int) -> list[Scenario]:
    timed = ["-t", str(seconds), "--warmup", "1"]
    one = [*timed, "-w", "1", "-s", "12", "publish"]
    thousand = [*timed, "--rate", "1000", "-s", str(KIB), "--ack", "1", "both"]
    five = [*timed, "--rate", "5000", "-s", str(KIB), "--ack", "1", "-P", "10", "-C", "10", "both"]
    many = ["-t", str(seconds + CONNECTING_S), "--warmup", str(CONNECTING_S), "--rate", str(MANY)]
    many += ["-s", str(KIB), "-P", str(MANY), "-w", "10", "publish"]
    flood = ["-s", str(KIB), "-P", "4", "-w", "1000"]
    return [
        Scenario(ALONE, partial(loaded, one, at=0), p50_of_rival=0.6, p99_of_rival=0.6),
        Scenario("window 1, 12 B, follower", partial(loaded, one, at=1), 0.75, 0.75),
        Scenario("1,000/s of 1 KiB to delivery, leader", partial(loaded, thousand, at=0), 0.5, 0.5),
        Scenario("1,000/s of 1 KiB to delivery, follower", partial(loaded, thousand, at=1), 0.5, 0.5),
        Scenario(
            "5,000/s of 1 KiB, 10 queues, 20 connections, spread",
            partial(loaded, five, at=None, queues=10),
            p99_of_rival=0.5,
        ),
        Scenario(
            "window 1, 12 B, beside four that flood with 1 KiB",
            partial(beside, flood, one),
            p99_of_rival=0.5,
            p99_of_alone=3,
        ),
        Scenario(
            "window 1, 12 B, beside one with 16 MiB", partial(beside, [*BIG, "-w", "1"], one), p99_max_ms=50
        ),
        Scenario("1 MiB, window 4", partial(loaded, [*timed, "-s", str(MIB), "-w", "4", "publish"], at=0)),
        Scenario(
            f"{MANY:,} connections, each 1/s of 1 KiB, spread", partial(loaded, many, at=None), p99_max_ms=20
        ),
        Scenario("basic.get and ack, one after the other", partial(gotten, 1, 1)),
        Scenario(
            f"basic.get and ack, {GETTERS} connections, {DEPTH} ahead",
            partial(gotten, GETTERS, DEPTH),
            per_s_min=10_000,
        ),
        Scenario(f"{queues:,} queues declared, 1 connection", partial(declared, queues, 1), per_s_min=1000),
        Scenario(
            f"{queues:,} queues declared, 20 connections", partial(declared, queues, 20), per_s_min=5000
        ),
    ]


# Measurements


def loaded(options: list[str], endpoints: list[str], *, at: int | None, queues: int = 1) -> Measured:
    """Run a load through one node or all: from publish to delivery if it consumes, else to the confirm."""
    through = endpoints if at is None else [endpoints[at % len(endpoints)]]
    with fresh(endpoints, "latency", queues) as queue:
        result = good(load(through, *queue, *options))
    return measured(result, "e2e_us" if options[-1] == "both" else "confirm_us", "publish_rate")


def beside(subjects: list[str], options: list[str], endpoints: list[str]) -> Measured:
    """Run a load through the leader while a flood publishes to a queue of its own."""
    with fresh(endpoints, "flood", 1) as queue, flooded(endpoints[:1], [*queue, *subjects]):
        return loaded(options, endpoints, at=0)


def gotten(getters: int, depth: int, endpoints: list[str]) -> Measured:
    count = GETS if getters > 1 else GETS // 5
    with fresh(endpoints, "latency", 1) as queue:
        good(load(endpoints[:1], *queue, "-n", str(count), "-w", "1000", "-s", "12", "publish"))
        shares = ["-n", str(count), "-P", str(getters), "--depth", str(depth)]
        result = good(load(endpoints[:1], *queue, *shares, "get"))
    if result["received"] != count:
        raise Failure(f"{result['received']} of {count} messages were there")
    return measured(result, "call_us", "rate")


def declared(count: int, connections: int, endpoints: list[str]) -> Measured:
    queue = ["-q", "declared", "--queues", str(count), "-P"]
    good(load(endpoints[:1], *queue, "20", "delete"))
    try:
        return measured(good(load(endpoints[:1], *queue, str(connections), "declare")), "call_us", "rate")
    finally:
        good(load(endpoints[:1], *queue, "20", "delete"))


@contextmanager
def fresh(endpoints: list[str], name: str, count: int) -> Iterator[list[str]]:
    """Provide empty queues, and yield the options that name them. Several queues are declared at all nodes in turn."""
    queue = ["-q", name, "--queues", str(count)]
    round_the_nodes = ["-P", str(min(count, len(endpoints)))]
    good(load(endpoints[:1], *queue, "delete"))
    good(load(endpoints, *queue, *round_the_nodes, "declare"))
    try:
        yield queue
    finally:
        good(load(endpoints[:1], *queue, "delete"))


@contextmanager
def flooded(at: list[str], options: list[str]) -> Iterator[None]:
    command = [amqpload(), "-H", ",".join(at), *QUORUM, "-t", "600", *options, "publish"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(FLOOD_WARM_UP_S)
        yield
        if process.poll() is not None:
            raise Failure("the flood ended")
    finally:
        process.kill()
        process.wait()


def good(result: dict[str, Any]) -> dict[str, Any]:
    if not result.get("ok"):
        raise Failure(str(result.get("error", "failed")))
    return result


def measured(result: dict[str, Any], waited: str, rate: str) -> Measured:
    return Measured(result[waited]["p50"] / 1000, result[waited]["p99"] / 1000, result[rate])


# The table


def median(runs: list[Measured]) -> Measured:
    return Measured(*map(statistics.median, zip(*runs, strict=True)))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="regular expression: the scenarios to run")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--queues", type=int, default=1000, help="how many are declared")
    parser.add_argument(
        "--rival", default="", help="endpoints of another broker's cluster, its queue leader's first"
    )
    options = parser.parse_args()
    rival = [endpoint for endpoint in options.rival.split(",") if endpoint]
    titles = ["waiting", "p50 ms", "p99 ms", "1/s", *(["rival p50", "p99", "1/s"] if rival else []), "missed"]
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    alone: Measured | None = None
    is_missed = False
    with cluster(3) as (at, _pids):
        for scenario in scenarios(options.seconds, options.queues):
            if not re.search(options.only, scenario.name):
                continue
            try:
                runs = [
                    [scenario.measure(endpoints) for endpoints in ((at, rival) if rival else (at,))]
                    for _ in range(options.repeat)
                ]
            except Failure as failure:
                missed = [f"failed: {failure}"]
                shown = " | ".join([""] * (len(titles) - 2))
            else:
                found = [median(list(of_one)) for of_one in zip(*runs, strict=True)]
                if scenario.name == ALONE:
                    alone = found[0]
                missed = scenario.misses(found[0], found[1] if rival else None, alone)
                shown = " | ".join(map(str, found))
            print(f"| {scenario.name} | {shown} | {'; '.join(missed)} |", flush=True)
            is_missed = is_missed or bool(missed)
    return 1 if is_missed else 0


if __name__ == "__main__":
    sys.exit(main())
