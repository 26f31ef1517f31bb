"""Command line of the simulator.

``python -m chaos.sim --seeds 1000 --first 0 --jobs 2`` runs many seeds; ``--seed N -v`` replays a single seed in
detail.

With ``--births`` the runs are short, and faults begin with the cluster. With ``--leases`` readers lease messages in
each run, with ``--links`` clients set the credit of consumers, and with ``--amqp10`` clients of AMQP 1.0 and 0-9-1 use
the same queues. With ``--seed N --out DIR`` the simulator runs the
workloads of live runs and writes their history for ``python -m chaos check DIR``.

Prints a line for every 500 seeds. For each failed seed it prints the violation and the command that replays it exactly.
Exit status 1 if any seed failed.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from chaos.sim.recorded import OPTIONS, record
from chaos.sim.run import Outcome, draw_amqp10, draw_birth, draw_leases, draw_links, draw_options, run_seed
from chaos.workloads.world import MIXED, PROTOCOLS, Protocol, protocols_of

REPORT_EVERY = 500
CHUNK_SEEDS = 4
WORKER_CHUNKS = 500
"""Chunks of seeds after which a worker process is replaced, so that memory does not fragment in a long run."""
KINDS = {
    "births": (draw_birth, "short runs, of clusters that have just begun"),
    "leases": (draw_leases, "runs in which readers lease messages"),
    "links": (draw_links, "runs in which clients set the credit of consumers"),
    "amqp10": (draw_amqp10, "runs in which clients of AMQP 1.0 and 0-9-1 use the same queues"),
}
"""How the options of a run of this kind are drawn, and its description."""


class Runs(NamedTuple):
    """The kind of all runs; `nodes` is 0 if the seed decides."""

    nodes: int
    kind: str | None

    def run(self, seed: int) -> Outcome:
        draw = draw_options if self.kind is None else KINDS[self.kind][0]
        return run_seed(seed, nodes=self.nodes, draw=draw)

    def replay(self, seed: int) -> str:
        """Return the command that repeats a run."""
        options = [f"--nodes {self.nodes}"] if self.nodes else []
        if self.kind is not None:
            options.append(f"--{self.kind}")
        return " ".join(("replay: python -m chaos.sim", f"--seed {seed}", *options, "-v"))


def main() -> int:
    arguments = _arguments()
    if arguments.verbose:
        logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s", stream=sys.stdout)
    else:
        # The nodes' log lines about faults are useful in a replay only.
        logging.disable(logging.CRITICAL)
    if arguments.out is not None:
        protocols = protocols_of(arguments.protocol)
        return _record(arguments.seed or 0, arguments.nodes, protocols, arguments.out)
    runs = Runs(arguments.nodes, arguments.kind)
    if arguments.seed is not None:
        return _replay(arguments.seed, runs)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    return _run_many(seeds, arguments.jobs, runs)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m chaos.sim", description="Simulate the cluster under faults."
    )
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--nodes", type=int, choices=(3, 5), default=0, help="in place of what the seed says")
    kinds = parser.add_mutually_exclusive_group()
    for kind, (_, text) in KINDS.items():
        kinds.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind, help=text)
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--out", type=Path, help="record the workloads of live runs, into this directory")
    parser.add_argument(
        "--protocol", choices=(*PROTOCOLS, MIXED), default=MIXED, help="with --out: AMQP of the clients"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show what the nodes log")
    return parser.parse_args()


def _replay(seed: int, runs: Runs) -> int:
    outcome = runs.run(seed)
    for field, value in outcome._asdict().items():
        print(f"{field:12} {value}")
    return 1 if outcome.violation else 0


def _record(seed: int, nodes: int, protocols: Sequence[Protocol], directory: Path) -> int:
    if (directory / "history").exists():
        print(f"{directory} has a run already", file=sys.stderr)
        return 2
    options = replace(OPTIONS, nodes=nodes or OPTIONS.nodes)
    problems = record(seed, directory, options, protocols=protocols)
    for problem in problems:
        print(f"PROBLEM: {problem}")
    print(f"judge it: python -m chaos check {directory}")
    return 1 if problems else 0


def _run_many(seeds: range, jobs: int, runs: Runs) -> int:
    started_s = time.monotonic()
    failed = 0
    totals: Counter[str] = Counter()
    fates: Counter[str] = Counter()
    for number, outcome in enumerate(_outcomes(seeds, jobs, runs.run), start=1):
        if outcome.violation:
            failed += 1
            print(
                f"FAILED seed {outcome.seed}: {outcome.violation}\n  {runs.replay(outcome.seed)}", flush=True
            )
        totals.update(
            virtual_s=int(outcome.virtual_s),
            entries=outcome.entries,
            confirms=outcome.confirms,
            reads=outcome.reads,
            replies=outcome.replies,
            elections=outcome.elections,
            installs=outcome.installs,
            repairs=outcome.repairs,
            compacted=outcome.compacted,
            faults=sum(outcome.faults.values()),
        )
        fates.update(outcome.fates)
        if number % REPORT_EVERY == 0 or number == len(seeds):
            rate = number / (time.monotonic() - started_s)
            sums = ", ".join(f"{total} {name}" for name, total in totals.items())
            print(f"{number} seeds, {failed} failed, {rate:.1f}/s: {sums}", flush=True)
            print("  messages: " + ", ".join(f"{fates[fate]} {fate}" for fate in sorted(fates)), flush=True)
    return 1 if failed else 0


def _outcomes(seeds: range, jobs: int, work: Callable[[int], Outcome]) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(work, seeds)
        return
    with get_context("fork").Pool(jobs, maxtasksperchild=WORKER_CHUNKS) as pool:
        yield from pool.imap_unordered(work, seeds, chunksize=CHUNK_SEEDS)


if __name__ == "__main__":
    sys.exit(main())
