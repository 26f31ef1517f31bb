"""Command line of the fuzzer, for a minute or a night: ``python -m chaos.fuzz --seconds 60 --seed 1``.

Without `--legal`, damaged clients attack a single node. With it, hostile clients send legal requests to a cluster of
three, beside honest publishers. With `--floods`, connections flood the leader of three nodes beside a light client.

Prints a line for each seed and, after a violation, the violation and the command that repeats it. Exit status 1 after a
violation.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import count
from typing import TYPE_CHECKING

from chaos.fuzz.flood_runs import run_floods
from chaos.fuzz.legal import KINDS
from chaos.fuzz.legal_run import run_siege
from chaos.fuzz.run import run_seed

if TYPE_CHECKING:
    from collections import Counter

CLIENTS = 5_000
"""Clients per seed, at most; each seed has a node of its own."""
ACTS = 300
"""Acts of legal clients per seed, at most."""
ROUNDS = 20
"""Rounds of floods per seed, at most."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m chaos.fuzz", description="Clients that do harm, for a minute or a night."
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long")
    parser.add_argument("--seed", type=int, default=1, help="the first seed; each has nodes of its own")
    parser.add_argument("--legal", action="store_true", help="what they send is legal")
    parser.add_argument("--floods", action="store_true", help="they flood a node beside a light client")
    parser.add_argument("--nodes", type=int, choices=(1, 3, 5), default=3, help="with --legal: how many")
    parser.add_argument(
        "--only", choices=list(KINDS), default="", help="with --legal: this kind of act alone"
    )
    arguments = parser.parse_args()
    until_s = time.monotonic() + arguments.seconds
    for seed in count(arguments.seed):
        if arguments.floods:
            violation = _floods(seed, until_s)
        elif arguments.legal:
            violation = _legal(seed, arguments.nodes, arguments.only, until_s)
        else:
            violation = _damaged(seed, until_s)
        if violation:
            legal = f" --legal --nodes {arguments.nodes}" if arguments.legal else ""
            floods = " --floods" if arguments.floods else ""
            only = f" --only {arguments.only}" if arguments.only else ""
            print(f"  VIOLATION {violation}")
            print(f"  python -m chaos.fuzz --seconds 3600 --seed {seed}{legal}{only}{floods}")
            return 1
        if time.monotonic() > until_s:
            return 0
    return 0


def _damaged(seed: int, until_s: float) -> str:
    outcome = run_seed(seed, CLIENTS, until_s)
    print(
        f"seed {seed}: {outcome.clients} clients, {outcome.growth_mib:+} MiB; closed {_listed(outcome.closes)}",
        flush=True,
    )
    return outcome.violation


def _legal(seed: int, nodes: int, only: str, until_s: float) -> str:
    outcome = run_siege(seed, nodes=nodes, acts=ACTS, until_s=until_s, only=only)
    print(
        f"seed {seed}: {outcome.acts} acts, {outcome.confirmed} honest confirms, the longest after "
        f"{outcome.longest_confirm_s:.2f} s; /livez after {outcome.longest_livez_s:.2f} s at most; "
        f"{outcome.compared} states compared; answered {_listed(outcome.answers)}",
        flush=True,
    )
    return outcome.violation


def _floods(seed: int, until_s: float) -> str:
    outcome = run_floods(seed, rounds=ROUNDS, until_s=until_s)
    waited = outcome.waited
    print(
        f"seed {seed}: {outcome.rounds} rounds, {waited.requests} light requests, the longest "
        f"{waited.cpu_s * 1000:.0f} "
        f"ms of the processor and {waited.clock_s:.2f} s; /livez after {outcome.longest_livez_s:.2f} s at most",
        flush=True,
    )
    return outcome.violation


def _listed(closes: Counter[str]) -> str:
    return ", ".join(f"{what}: {times}" for what, times in sorted(closes.items()))


if __name__ == "__main__":
    sys.exit(main())
