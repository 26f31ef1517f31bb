"""Kills the driver, the executors and the nodes of queries at random: `python -m tests.qq_spark.many_runs`.

Each run must give all confirmed messages once each, and each repetition of a batch must equal the batch. A run is
repeated by its seed, except for the moments of the kills.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, mkdtemp

from qq.testing import LocalCluster
from tests.qq_spark.pipeline import archived_classes, run_killed_at_random

WITHOUT_ARCHIVE = 2
"""Runs that take less processor time than an archive of classes, which speeds up all later starts of Java."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill the parts of streaming queries at random.")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run")
    parser.add_argument("--together", type=int, default=1, help="runs whose queries have a driver together")
    parser.add_argument("--messages", type=int, default=1_000, help="messages of a run")
    parser.add_argument(
        "--master", default="local[2,4]", help="such as local-cluster[2,1,1024] for executors of their own"
    )
    parser.add_argument(
        "--seconds", type=float, default=0, help="begin no run after this time; 0 is without end"
    )
    options = parser.parse_args()
    begun, passed, environment = time.monotonic(), 0, {"MASTER": options.master}
    with LocalCluster(3) as cluster, TemporaryDirectory(prefix="qq-spark-") as shared:
        if options.runs > WITHOUT_ARCHIVE:
            environment |= archived_classes(cluster, Path(shared), options.master)
        while passed < options.runs and not (options.seconds and time.monotonic() > begun + options.seconds):
            started, first = time.monotonic(), options.seed + passed
            seeds = range(first, first + min(options.together, options.runs - passed))
            directory = Path(mkdtemp(prefix="qq-spark-"))
            try:
                runs = run_killed_at_random(cluster, directory, seeds, options.messages, **environment)
            except BaseException:
                print(f"seed {first}: FAILED after {passed} runs that passed, see {directory}")
                raise
            for run in runs:
                print(run)
            print(f"{time.monotonic() - started:.0f} s", flush=True)
            rmtree(directory)
            passed += len(runs)
    print(f"{passed} runs passed")


if __name__ == "__main__":
    main()
