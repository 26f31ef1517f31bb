"""Damaged clients for a minute or a night: ``python -m chaos.fuzz --seconds 60 --seed 1``.

Prints a line for each seed and, if something that must hold does not, what it was and the command that does the same
again. Exit status 1 if so.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import count

from chaos.fuzz.run import run_seed

CLIENTS = 5_000
"""Of one seed, each with a node of its own."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long")
    parser.add_argument("--seed", type=int, default=1, help="the first seed; each has a node of its own")
    arguments = parser.parse_args()
    until_s = time.monotonic() + arguments.seconds
    for seed in count(arguments.seed):
        outcome = run_seed(seed, CLIENTS, until_s)
        told = ", ".join(f"{what}: {times}" for what, times in sorted(outcome.told.items()))
        print(f"seed {seed}: {outcome.clients} clients, {outcome.growth_mib:+} MiB; told {told}", flush=True)
        if outcome.violation:
            print(f"  VIOLATION {outcome.violation}")
            print(f"  python -m chaos.fuzz --seconds 3600 --seed {seed}")
            return 1
        if time.monotonic() > until_s:
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
