"""Measure the rows of a history that the checker judges in a second: a part of `make bench`.

Writes a history in which every promise was kept, as JSON Lines, and judges it as `python -m chaos check` does. Prints a
Markdown table. Processor seconds are those of this process, of Spark's Java process and of all its workers; Spark's
start is apart.

    python tests/benchmarks/checker.py [--rows 2000000] [--master "local[2]"] [--repeat 1]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.pipeline.job import check, settings_for
from chaos.pipeline.spark import LOCAL, session
from chaos.workloads.world import QUORUM, QueuePlan

if TYPE_CHECKING:
    from collections.abc import Iterator

STARTED_NS = 1_700_000_000_000_000_000
ROWS_PER_MESSAGE = 5
"""Published, confirmed, delivered, acknowledged (two rows)."""
MESSAGES_PER_S = 5000
"""Of the run that the history is of."""
STEP_NS = 10**9 // MESSAGES_PER_S // ROWS_PER_MESSAGE
"""From row to row: the times of a file rise."""
NODES = 3
PUBLISHERS = 12
MIB = 2**20


def write_run(directory: Path, rows: int) -> int:
    """A run directory with at least so many rows; gives the size of the history in bytes."""
    history = directory / "history"
    history.mkdir(parents=True)
    messages = -(-rows // ROWS_PER_MESSAGE)
    file = history / "clients.jsonl"
    with file.open("w", encoding="utf-8") as lines:
        for number in range(messages):
            lines.write(message(number))
    queues = [QueuePlan(f"queue-{number}", QUORUM) for number in range(PUBLISHERS)]
    meta = {
        "format": 1,
        "started_ns": STARTED_NS,
        "rows": messages * ROWS_PER_MESSAGE,
        "ended_ns": STARTED_NS + (messages // MESSAGES_PER_S + 1) * 10**9,
        "queues": {queue.name: queue.described("confirm", drained=True) for queue in queues},
    }
    (directory / "meta.json").write_text(json.dumps(meta))
    return file.stat().st_size


def message(number: int) -> str:
    """All that happens to a message, a row a line."""
    client, node = number % PUBLISHERS, number % NODES + 1
    sequence = number // PUBLISHERS + 1
    begin_ns = STARTED_NS + number * (10**9 // MESSAGES_PER_S)
    publisher = f"confirm-pub-{client}"
    about = (
        f'"workload":"confirm","node":"n{node}","queue":"queue-{client}",'
        f'"id":"{publisher}:{sequence}","channel":1,"connection":'
    )
    origin = f'"publisher":"{publisher}","sequence":{sequence}'
    published = f'{about}"{publisher}#1","attempt":1,{origin}}}\n'
    consumer = f"confirm-con-{client}"
    taken = f'{about}"{consumer}#1","consumer":"{consumer}#1.1"'
    by_publisher, by_consumer = f'"process":"{publisher}","call"', f'"process":"{consumer}","call"'
    return (
        f'{{"time_ns":{begin_ns},{by_publisher}:{sequence},"type":"invoke","op":"publish",{published}'
        f'{{"time_ns":{begin_ns + STEP_NS},{by_publisher}:{sequence},"type":"ok","op":"publish",{published}'
        f'{{"time_ns":{begin_ns + 2 * STEP_NS},{by_consumer}:{2 * sequence},"type":"ok","op":"deliver",{taken},'
        f'"redelivered":false,"delivery_count":0,{origin}}}\n'
        f'{{"time_ns":{begin_ns + 3 * STEP_NS},{by_consumer}:{2 * sequence + 1},"type":"invoke","op":"ack",{taken}}}\n'
        f'{{"time_ns":{begin_ns + 4 * STEP_NS},{by_consumer}:{2 * sequence + 1},"type":"ok","op":"ack",{taken}}}\n'
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000, help="of the history")
    parser.add_argument("--master", default=LOCAL, help="where Spark runs")
    parser.add_argument("--repeat", type=int, default=1, help="so many checks of the same history")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "run"
        size_bytes = write_run(directory, arguments.rows)
        print(
            "| checker | rows | history, MiB | start, processor s | seconds | processor s | rows/processor s |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- |")
        before_s = processor_s(descendants())
        with session(
            arguments.master, Path(scratch) / "spark.log", dict(settings_for(size_bytes, arguments.master))
        ):
            start_s = processor_s(descendants()) - before_s
            for _ in range(arguments.repeat):
                begin_s, used_s = time.monotonic(), processor_s(descendants())
                verdict = check(directory, arguments.master)
                seconds, used_s = time.monotonic() - begin_s, processor_s(descendants()) - used_s
                if not verdict.valid:
                    print(verdict.error or [promise for promise in verdict.promises if not promise.holds])
                    return 1
                print(
                    f"| {arguments.master} | {verdict.rows:,} | {size_bytes / MIB:,.0f} | {start_s:.1f} "
                    f"| {seconds:.1f} | {used_s:.1f} | {verdict.rows / used_s:,.0f} |",
                    flush=True,
                )
    return 0


def descendants() -> set[int]:
    """Return this process and all below it."""
    parents = {pid: int(fields[1]) for pid, fields in _processes()}
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return ours


def processor_s(pids: set[int]) -> float:
    """Return the processor seconds of processes, and of their children that have ended."""
    used = sum(sum(map(int, fields[11:15])) for pid, fields in _processes() if pid in pids)
    return used / os.sysconf("SC_CLK_TCK")


def _processes() -> Iterator[tuple[int, list[str]]]:
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a process that has ended meanwhile
            yield int(file.parent.name), file.read_text().rsplit(")", 1)[1].split()


if __name__ == "__main__":
    sys.exit(main())
