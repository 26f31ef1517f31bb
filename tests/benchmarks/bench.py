"""Measure the speed of a real three-node cluster, as a Markdown table: `make bench`.

Starts `qq up` on free ports in a temporary directory, drives it with `amqpload.c` (a load generator that costs little
CPU; compiled on first use) and prints medians. With `--rival HOST:PORT,...` every scenario also runs against the
cluster of a different broker right after ours, and the ratio is printed: on a noisy machine only the ratio within a
run means much.

    python tests/benchmarks/bench.py [--only REGEX] [--seconds 5] [--repeat 3] [--rival 127.0.0.1:5671,...]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
QUORUM = ["--arg", "x-queue-type=quorum"]
BASE_PORT = 6672
READY_WITHIN_S = 60
LOAD_TIMEOUT_S = 2 * 3600


class Scenario(NamedTuple):
    """A row: where the clients connect (positions in the list of endpoints, leader first) and amqpload's options."""

    name: str
    options: list[str]
    publishers_at: list[int]
    consumers_at: list[int]
    queues: int = 1


def scenarios(seconds: float) -> Iterator[Scenario]:
    timed = ["-t", str(seconds), "--warmup", "1.5"]
    yield Scenario(
        "confirm latency, window 1, 12 B, leader", ["-t", "4", "-w", "1", "-s", "12", "publish"], [0], [0]
    )
    yield Scenario(
        "confirm latency, window 1, 12 B, follower", ["-t", "4", "-w", "1", "-s", "12", "publish"], [1], [1]
    )
    for size in (12, 1024):
        for place, at in (("leader", 0), ("follower", 1)):
            for publishers in (1, 4):
                name = f"publish {size} B, {publishers} publisher(s), {place}"
                yield Scenario(name, [*timed, "-s", str(size), "-P", str(publishers), "publish"], [at], [at])
        both = [*timed, "-s", str(size)]
        yield Scenario(f"publish+consume {size} B, 1+1, leader", [*both, "both"], [0], [0])
        yield Scenario(f"publish+consume {size} B, 1+1, follower", [*both, "both"], [1], [1])
        yield Scenario(
            f"publish+consume {size} B, 2+2, leader", [*both, "-P", "2", "-C", "2", "both"], [0], [0]
        )
        spread = [*both, "-P", "4", "-C", "4", "both"]
        yield Scenario(
            f"publish+consume {size} B, 4+4 on 4 queues, spread", spread, [0, 1, 2], [0, 1, 2], queues=4
        )
    drain = ["-n", "200000", "--ack", "100", "consume"]
    yield Scenario("drain 200,000 x 12 B, leader", drain, [0], [0])


def amqpload() -> str:
    """Path of the load generator, compiled if need be."""
    return compiled("amqpload")


def compiled(name: str) -> str:
    """Path of a program in C of this directory, which is compiled if need be."""
    binary = HERE / "build" / name
    source = HERE / f"{name}.c"
    if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
        binary.parent.mkdir(exist_ok=True)
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-O2", "-pthread", "-o", str(binary), str(source)], check=True)
    return str(binary)


@contextmanager
def cluster(nodes: int) -> Iterator[tuple[list[str], list[int]]]:
    """A running cluster: its AMQP endpoints, the leader's first, and the pids."""
    with tempfile.TemporaryDirectory(prefix="qq-bench-") as directory:
        command = [sys.executable, "-m", "qq", "up", "--nodes", str(nodes), "--data-dir", directory]
        command += ["--base-port", str(BASE_PORT)]
        with (Path(directory) / "up.log").open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            description = wait_ready(process, Path(directory))
            yield endpoints(description), [node["pid"] for node in description["nodes"]]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=30)


def wait_ready(process: subprocess.Popen[bytes], directory: Path) -> dict[str, Any]:
    deadline = time.monotonic() + READY_WITHIN_S
    log = directory / "up.log"
    while "cluster ready" not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"the cluster did not start:\n{log.read_text()}")
        time.sleep(0.1)
    return json.loads((directory / "cluster.json").read_text())


def endpoints(description: dict[str, Any]) -> list[str]:
    leader = leader_of(description)
    nodes = sorted(description["nodes"], key=lambda node: (node["name"] != leader, node["name"]))
    return [f"127.0.0.1:{node['amqp_port']}" for node in nodes]


def leader_of(description: dict[str, Any]) -> str:
    token = b64encode(f"{description['user']}:{description['password']}".encode()).decode()
    url = f"http://127.0.0.1:{description['nodes'][0]['http_port']}/api/cluster"
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {token}"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return json.load(answer)["leader"]


def resident_bytes(pid: int) -> int:
    """Memory of a process; Linux only."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def load(at: list[str], *options: str, consumers_at: list[str] | None = None) -> dict[str, Any]:
    command = [amqpload(), "-H", ",".join(at), *QUORUM, *options]
    if consumers_at:
        command[3:3] = ["--con-at", ",".join(consumers_at)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LOAD_TIMEOUT_S, check=False)
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"ok": False, "error": done.stdout + done.stderr}


def run(scenario: Scenario, at: list[str]) -> dict[str, Any]:
    """Run a scenario once on a fresh queue, and return its figures."""
    queue = ["-q", "bench", "--queues", str(scenario.queues)]
    publishers = [at[position % len(at)] for position in scenario.publishers_at]
    consumers = [at[position % len(at)] for position in scenario.consumers_at]
    load(at[:1], *queue, "delete")
    declared = load(publishers if scenario.queues > 1 else at[:1], *queue, "declare")
    if not declared.get("ok"):
        return declared
    if scenario.options[-1] == "consume":
        filled = load(publishers, *queue, "-n", scenario.options[1], "-w", "4000", "-s", "12", "publish")
        if not filled.get("ok"):
            return filled
    result = load(publishers, *queue, *scenario.options, consumers_at=consumers)
    load(at[:1], *queue, "delete")
    return result


class Figures(NamedTuple):
    """Medians of the good runs of a scenario."""

    rate: float
    confirm_p50_ms: float
    confirm_p99_ms: float
    problem: str


def figures(results: list[dict[str, Any]]) -> Figures:
    good = [result for result in results if result.get("ok")]
    if not good:
        return Figures(0, 0, 0, str(results[0].get("error", "failed")))

    def median(values: list[float]) -> float:
        return statistics.median(values) if values else 0

    rates = [
        min(result[key] for key in ("publish_rate", "consume_rate") if result.get(key)) for result in good
    ]
    confirms = [result["confirm_us"] for result in good if result.get("confirm_us")]
    problem = ", ".join(
        key for key in ("lost", "duplicates", "misordered") if any(result.get(key) for result in good)
    )
    return Figures(
        median(rates),
        median([confirm["p50"] / 1000 for confirm in confirms]),
        median([confirm["p99"] / 1000 for confirm in confirms]),
        problem or ("" if len(good) == len(results) else f"{len(results) - len(good)} failed"),
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="regular expression: the scenarios to run")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument(
        "--rival", default="", help="endpoints of another broker's cluster, its queue leader's first"
    )
    options = parser.parse_args()
    rival = [endpoint for endpoint in options.rival.split(",") if endpoint]
    head = "| scenario | msg/s | confirm p50 ms | p99 ms |"
    print(head + (" rival msg/s | rival p50 ms | ratio |" if rival else "") + " notes |")
    print("|---" * (head.count("|") - 1 + (3 if rival else 0) + 1) + "|")
    failed = False
    with cluster(options.nodes) as (at, _pids):
        for scenario in scenarios(options.seconds):
            if not re.search(options.only, scenario.name):
                continue
            pairs = [
                (run(scenario, at), run(scenario, rival) if rival else {}) for _ in range(options.repeat)
            ]
            ours, theirs = figures([pair[0] for pair in pairs]), figures([pair[1] for pair in pairs])
            row = f"| {scenario.name} | {ours.rate:,.0f} | {ours.confirm_p50_ms:.2f} | {ours.confirm_p99_ms:.2f} |"
            if rival:
                ratio = ours.rate / theirs.rate if theirs.rate else 0
                row += f" {theirs.rate:,.0f} | {theirs.confirm_p50_ms:.2f} | {ratio:.2f} |"
            print(f"{row} {ours.problem} |", flush=True)
            failed = failed or bool(ours.problem)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
