"""Command line of the simulator.

``python -m chaos.sim --seeds 1000 --first 0 --jobs 2`` runs many seeds; ``--seed N -v`` replays a single seed in
detail.

With ``--births`` the runs are short, and faults begin with the cluster. With ``--seed N --out DIR`` the simulator runs
the workloads of live runs and writes their history for ``python -m chaos check DIR``.

Prints a line for every 500 seeds. For each failed seed it prints the violation and the command that replays it exactly.
Exit status 1 if any seed failed.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from chaos.sim.recorded import OPTIONS, record
from chaos.sim.run import Outcome, draw_birth, draw_options, run_seed

REPORT_EVERY = 500
CHUNK_SEEDS = 4
WORKER_CHUNKS = 500
"""Chunks of seeds after which a worker process is replaced, so that memory does not fragment in a long run."""


def main() -> int:
    arguments = _arguments()
    if arguments.verbose:
        logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s", stream=sys.stdout)
    else:
        # The nodes' log lines about faults are useful in a replay only.
        logging.disable(logging.CRITICAL)
    if arguments.out is not None:
        return _record(arguments.seed or 0, arguments.nodes, arguments.out)
    if arguments.seed is not None:
        return _replay(arguments.seed, arguments.nodes, births=arguments.births)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    return _run_many(seeds, arguments.jobs, arguments.nodes, births=arguments.births)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m chaos.sim", description="Simulate the cluster under faults."
    )
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--nodes", type=int, choices=(3, 5), default=0, help="in place of what the seed says")
    parser.add_argument("--births", action="store_true", help="short runs, of clusters that have just begun")
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--out", type=Path, help="record the workloads of live runs, into this directory")
    parser.add_argument("-v", "--verbose", action="store_true", help="show what the nodes log")
    return parser.parse_args()


def _runs(nodes: int, *, births: bool) -> Callable[[int], Outcome]:
    return partial(run_seed, nodes=nodes, draw=draw_birth if births else draw_options)


def _replay(seed: int, nodes: int, *, births: bool) -> int:
    outcome = _runs(nodes, births=births)(seed)
    for field, value in outcome._asdict().items():
        print(f"{field:12} {value}")
    return 1 if outcome.violation else 0


def _record(seed: int, nodes: int, directory: Path) -> int:
    if (directory / "history").exists():
        print(f"{directory} has a run already", file=sys.stderr)
        return 2
    problems = record(seed, directory, replace(OPTIONS, nodes=nodes or OPTIONS.nodes))
    for problem in problems:
        print(f"PROBLEM: {problem}")
    print(f"judge it: python -m chaos check {directory}")
    return 1 if problems else 0


def _run_many(seeds: range, jobs: int, nodes: int, *, births: bool) -> int:
    started_s = time.monotonic()
    failed = 0
    totals: Counter[str] = Counter()
    fates: Counter[str] = Counter()
    outcomes = _outcomes(seeds, jobs, _runs(nodes, births=births))
    for number, outcome in enumerate(outcomes, start=1):
        if outcome.violation:
            failed += 1
            _report_failure(outcome, nodes, births=births)
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


def _report_failure(outcome: Outcome, nodes: int, *, births: bool) -> None:
    replay = f"python -m chaos.sim --seed {outcome.seed}" + (f" --nodes {nodes}" if nodes else "")
    replay += " --births" if births else ""
    print(f"FAILED seed {outcome.seed}: {outcome.violation}\n  replay: {replay} -v", flush=True)


if __name__ == "__main__":
    sys.exit(main())
