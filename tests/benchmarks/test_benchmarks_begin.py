"""Every benchmark can be called by `make bench`: its imports are there, and it knows its options."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OPTIONS = [
    "ARGS",
    "LATENCY",
    "PROTOCOLS",
    "ONE_AT_A_TIME",
    "BUDGET",
    "CALLS",
    "CODEC",
    "DEAREST",
    "HURT",
    "FLOODS",
    "CONNECTIONS",
    "WATCHING",
    "RECOVERY",
    "UPKEEP",
    "MEMBERS",
    "FAILOVER",
    "CHECKER",
    "DATA_FRAMES",
]


@pytest.mark.long
def test_make_bench_starts_every_benchmark() -> None:
    benchmarks = {file.name for file in HERE.glob("*.py") if not file.name.startswith("test_")}
    assert len(benchmarks) == len(OPTIONS)
    # The targets that set up the environment are up to date, because a test runs.
    command = ["make", "-o", "venv", "-o", "java", "bench", *(f"{option}=--help" for option in OPTIONS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {name for name in benchmarks if f"usage: {name}" in done.stdout} == benchmarks


def test_node_with_recorded_steps_starts() -> None:
    """The methods that it records exist under their names."""
    command = [sys.executable, HERE / "nodes" / "noting.py", ROOT, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
