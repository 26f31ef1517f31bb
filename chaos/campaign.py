"""`python -m chaos campaign`: runs every fault alone, then all mixed, at 3 and at 5 nodes, and prints a table.

Invariant: a judged run is not repeated; an interrupted run begins anew.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from chaos.live.cluster import NODE_COUNTS
from chaos.live.command import NONE, parse_duration
from chaos.live.nemesis import ALL, GROUPS, NAMES, UPGRADE, chosen
from qq.errors import OperatingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_COLUMNS = (
    *("nodes", "faults", "for", "seed", "times", "operations", "confirmed", "lost", "invented", "duplicated"),
    *("other promises", "longest outage: everywhere, at a node", "confirm p50 / p99"),
)
_COUNTED_APART = {"lost", "phantom", "unmarked_duplicate", "dedup_duplicate"}


class Round(NamedTuple):
    """A run of the campaign."""

    nodes: int
    nemesis: str
    duration: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.nodes}-{self.nemesis}"


class _Documents(NamedTuple):
    """The two documents of a run: meta.json and verdict.json."""

    meta: dict[str, Any]
    verdict: dict[str, Any]


def main(argv: Sequence[str]) -> int:
    """Carry out the missing runs; return status 0 if all existing runs have passed."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        rounds = _rounds(arguments)
    except OperatingError as error:
        parser.error(str(error))
    arguments.out.mkdir(parents=True, exist_ok=True)
    for number, round_ in enumerate(rounds, start=1):
        print(f"{number} of {len(rounds)}: {round_.name}, {round_.duration}, seed {round_.seed}", flush=True)
        print(f"  {_carried_out(round_, arguments.out / round_.name, arguments.rate)}", flush=True)
    judged = {round_.name: _documents(arguments.out / round_.name) for round_ in rounds}
    print("\n".join(_table(judged)))
    return 0 if all(map(_passed, judged.values())) else 1


def _rounds(arguments: argparse.Namespace) -> list[Round]:
    """Return the requested runs. Raises OperatingError for an unknown fault or a malformed duration."""
    single = () if arguments.nemesis == NONE else chosen(arguments.nemesis.split(","))
    each: str = arguments.each
    lasting = dict.fromkeys(single, each)
    if arguments.mix != "0":
        lasting[ALL] = arguments.mix
    for duration in lasting.values():
        parse_duration(duration)
    return [
        Round(nodes, name, lasting[name], arguments.seed + position)
        for nodes in arguments.nodes
        for position, name in enumerate((*NAMES, ALL))
        if name in lasting
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chaos campaign",
        allow_abbrev=False,
        description="Run every fault for itself, then all of them mixed; what was judged before is not repeated.",
    )
    parser.add_argument("--nodes", type=_counts, default=NODE_COUNTS, help="3, 5 or 3,5 (default)")
    parser.add_argument(
        "--nemesis",
        default=f"{ALL},{UPGRADE}",
        help="only these faults, or groups of them; none: only the mix",
    )
    parser.add_argument("--each", default="5m", help="how long each fault lasts (default: %(default)s)")
    parser.add_argument("--mix", default="30m", help="how long all last, 0 for not (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the first fault; each has its own")
    parser.add_argument("--rate", type=float, default=300.0, help="messages a second (default: %(default)g)")
    parser.add_argument("--out", type=Path, default=Path("var/campaign"), help="default: %(default)s")
    return parser


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(map(int, text.split(",")))
    if not set(counts) <= set(NODE_COUNTS):
        raise ValueError
    return counts


def _carried_out(round_: Round, directory: Path, rate: float) -> str:
    """Carry out a run, unless it was judged already; return the last line that it printed."""
    log = directory.with_suffix(".log")
    if not (directory / "verdict.json").exists():
        shutil.rmtree(directory, ignore_errors=True)
        options = {
            "--nodes": round_.nodes,
            "--nemesis": round_.nemesis,
            "--for": round_.duration,
            "--seed": round_.seed,
            "--rate": f"{rate:g}",
            "--out": directory,
        }
        command = [sys.executable, "-m", "chaos", "run", *map(str, chain.from_iterable(options.items()))]
        with log.open("w", encoding="utf-8") as output:
            subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return next((line for line in reversed(lines) if not line.startswith("report:")), "it printed nothing")


def _documents(directory: Path) -> _Documents | None:
    """Return the documents of a run, or None if it was interrupted."""
    try:
        return _Documents(
            *(json.loads((directory / name).read_bytes()) for name in ("meta.json", "verdict.json"))
        )
    except FileNotFoundError:
        return None


def _passed(found: _Documents | None) -> bool:
    return found is not None and found.verdict["valid"] and not found.meta["problems"]


def _table(judged: Mapping[str, _Documents | None]) -> Iterator[str]:
    """Yield the lines of a Markdown table of runs, by their names."""
    yield f"| {' | '.join(_COLUMNS)} |"
    yield "|---" * len(_COLUMNS) + "|"
    for name, found in judged.items():
        cells = [name, "was not judged"] if found is None else _cells(*found)
        yield f"| {' | '.join(cells)} |"


def _cells(meta: dict[str, Any], verdict: dict[str, Any]) -> list[str]:
    faults = ALL if set(meta["nemesis"]) == set(GROUPS[ALL]) else ", ".join(meta["nemesis"])
    run = [str(meta["nodes"]), faults, f"{meta['seconds']:g}s", str(meta["seed"])]
    if verdict["error"] is not None:
        return [*run, verdict["error"]]
    broken = {promise["name"]: promise["violations"] for promise in verdict["promises"]}
    others = [f"{name}: {count}" for name, count in broken.items() if count and name not in _COUNTED_APART]
    if meta["problems"]:
        others.append(f"{len(meta['problems'])} problems")
    operations, figures = verdict["operations"], verdict["figures"]
    return [
        *run,
        str(operations.get("fault", {}).get("ok", 0)),
        f"{sum(sum(outcomes.values()) for outcomes in operations.values()):,}",
        f"{figures['confirmed']:,}",
        str(broken["lost"]),
        str(broken["phantom"]),
        str(broken["unmarked_duplicate"] + broken["dedup_duplicate"]),
        ", ".join(others) or "kept",
        f"{figures['longest_outage_s']:.1f} s, {figures['longest_unavailability_s']:.1f} s",
        f"{figures.get('confirm_p50_ms', 0):,.0f} / {figures.get('confirm_p99_ms', 0):,.0f} ms",
    ]
