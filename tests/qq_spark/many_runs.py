"""Runs of a query whose driver, executors and nodes are killed at random: `python -m tests.qq_spark.many_runs`.

Each run must give all confirmed messages once each, in batches whose repetitions are equal. A run is repeated by its
seed, except for the moments of the kills.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from qq.testing import LocalCluster
from tests.qq_spark.pipeline import run_killed_at_random


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill the parts of streaming queries at random.")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run")
    parser.add_argument("--messages", type=int, default=1_000, help="messages of a run")
    parser.add_argument(
        "--master", default="local[2,4]", help="such as local-cluster[2,1,1024] for executors of their own"
    )
    parser.add_argument(
        "--seconds", type=float, default=0, help="begin no run after this time; 0 is without end"
    )
    options = parser.parse_args()
    begun, passed = time.monotonic(), 0
    with LocalCluster(3) as cluster:
        while passed < options.runs and not (options.seconds and time.monotonic() > begun + options.seconds):
            started, seed = time.monotonic(), options.seed + passed
            directory = Path(mkdtemp(prefix="qq-spark-"))
            print(f"seed {seed}: ", end="", flush=True)
            try:
                run = run_killed_at_random(cluster, directory, seed, options.messages, MASTER=options.master)
            except BaseException:
                print(f"FAILED after {passed} runs that passed, see {directory}")
                raise
            print(f"{run}; {time.monotonic() - started:.0f} s", flush=True)
            rmtree(directory)
            passed += 1
    print(f"{passed} runs passed")


if __name__ == "__main__":
    main()
