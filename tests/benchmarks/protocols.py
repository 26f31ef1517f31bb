"""Measure AMQP 1.0 beside AMQP 0-9-1 on a real three-node cluster, with aims: a part of `make bench`.

Each row runs the same load over AMQP 0-9-1 and over 1.0, in turn. In some rows the second load publishes over one
protocol and consumes over the other, so nodes convert messages. With `--rival HOST:PORT,...` the cluster of a different
broker gets the same load over 1.0. Figures are medians of all turns; a ratio is the median of the ratios of each turn.
"Processor" is the ratio of messages per second of the nodes' processor time, in the best turn of each: other load of
the machine changes it less.

    python tests/benchmarks/protocols.py [--only REGEX] [--seconds 1.5] [--repeat 3] [--rival 127.0.0.1:5671,...]
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from typing import TYPE_CHECKING, NamedTuple

from tests.benchmarks.bench import cluster, load

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

WARM_UP_S = 0.5
QUEUE = ["-q", "protocols"]
PUBLISH_10, CONSUME_10 = ["--pub-10"], ["--con-10"]
UNIQUE = ["--message-ids"]
SETTLED = {"publish": ["-w", "0"], "consume": ["--ack", "0", "--prefetch", "0"]}
BACKLOGS = {12: 1_200_000, 1024: 120_000}
"""By size: messages that are consumed, or published settled, which ends when the connection has closed. So many take a
second, about, beside which the beginning and the end of the connection count little."""
FULL_CREDIT = ["--prefetch", "8000", "--ack", "800"]
"""Of rows that only consume. With the usual 1,000, which a row has, consumers wait for the log most of the time."""
RIVAL_SHARE = 30
"""The rival gets a backlog divided by this number, because it is slower."""


class Row(NamedTuple):
    """A load over both protocols, and its aims."""

    name: str
    mode: str
    """Of amqpload: `publish`, `consume` or `both`."""
    at: int
    """Position of the node in the list of endpoints, leader first."""
    options: list[str]
    least: float = 0.8
    """Least ratio of the rates of 1.0 and 0-9-1."""
    most_wait: float = 0.0
    """Greatest ratio of the median waits for a confirm instead. 0: the rates count."""
    of_rival: float = 0.0
    """Least ratio of the rates of 1.0 here and at the rival."""
    over_10: Sequence[str] = (*PUBLISH_10, *CONSUME_10)
    """Which clients of the second column speak 1.0."""


class Figures(NamedTuple):
    """Messages a second, the median wait for a confirm, and microseconds of the nodes' processors per message."""

    rate: float
    wait_ms: float
    processor_us: float


class Failure(Exception):
    """A run without figures; the text is the reason."""


def rows(seconds: float) -> Iterator[Row]:
    timed = ["-t", str(seconds), "--warmup", str(WARM_UP_S)]
    for size, of_rival in ((12, 8.0), (1024, 5.0)):
        of, backlog = ["-s", str(size)], ["-n", str(BACKLOGS[size])]
        for at, place in enumerate(("leader", "follower")):
            for mode in ("publish", "consume", "both"):
                name = f"{mode} {size} B, {place}"
                amount = [*backlog, *FULL_CREDIT] if mode == "consume" else timed
                yield Row(name, mode, at, [*of, *amount], of_rival=of_rival)
                yield Row(f"{name}, unique ids", mode, at, [*of, *amount, *UNIQUE], of_rival=of_rival)
                if mode in SETTLED and at == 0:
                    options = [*of, *backlog, *SETTLED[mode]]
                    yield Row(f"{name}, settled", mode, at, options, of_rival=of_rival)
            yield Row(f"consume {size} B, {place}, credit 1,000", "consume", at, [*of, *backlog])
            one = [*of, *timed, "-w", "1"]
            yield Row(f"publish {size} B, {place}, window 1", "publish", at, one, most_wait=1.05)
        for name, over_10 in (("1.0 to 0-9-1", PUBLISH_10), ("0-9-1 to 1.0", CONSUME_10)):
            name = f"both {size} B, leader, {name}"
            yield Row(name, "both", 0, [*of, *timed], least=0.6, over_10=over_10)
            yield Row(f"{name}, unique ids", "both", 0, [*of, *timed, *UNIQUE], least=0.4, over_10=over_10)


def measure(row: Row, at: list[str], pids: list[int], over_10: Sequence[str], share: int = 1) -> Figures:
    """Run a load on a fresh queue. A backlog is divided by `share`."""
    options = list(row.options)
    if "-n" in options:
        count = options.index("-n") + 1
        options[count] = str(int(options[count]) // share)
    through = [at[row.at % len(at)]]
    watch = ["--watch", ",".join(map(str, pids))] if pids else []
    good(load(at[:1], *QUEUE, "delete"))
    good(load(at[:1], *QUEUE, "declare"))
    if row.mode == "consume":
        good(load(through, *QUEUE, *options, *over_10, "publish"))
    result = good(load(through, *QUEUE, *options, *watch, *over_10, row.mode))
    good(load(at[:1], *QUEUE, "delete"))
    return figures(result, row)


def good(result: dict[str, Any]) -> dict[str, Any]:
    if not result.get("ok"):
        raise Failure(str(result.get("error", "failed")))
    if wrong := [key for key in ("lost", "duplicates", "misordered", "nacked") if result.get(key)]:
        raise Failure(", ".join(wrong))
    return result


def figures(result: dict[str, Any], row: Row) -> Figures:
    if row.mode == "publish" and not result["window"]:
        rate = result["confirmed"] / result["secs"]
    else:
        rate = min(result[key] for key in ("publish_rate", "consume_rate") if key in result)
    messages = result["received"] if row.mode == "consume" else result["confirmed"]
    processor_s = sum(node["cpu_pct"] for node in result.get("watch", ())) / 100 * result["secs"]
    wait_ms = result["confirm_us"]["p50"] / 1000 if "confirm_us" in result else 0.0
    return Figures(rate, wait_ms, processor_s / messages * 1e6)


def judged(row: Row, turns: list[tuple[Figures, Figures]], rival: list[Figures]) -> tuple[str, bool]:
    """Return the cells of a row, and whether an aim is missed."""

    def ratio(field: str) -> float:
        pairs = [(getattr(over_091, field), getattr(over_10, field)) for over_091, over_10 in turns]
        return statistics.median(second / first if first else 0.0 for first, second in pairs)

    median_091, median_10 = (
        Figures(*map(statistics.median, zip(*of, strict=True))) for of in zip(*turns, strict=True)
    )
    if row.most_wait:
        found, missed = ratio("wait_ms"), ratio("wait_ms") > row.most_wait
        both = f"{median_091.wait_ms:.2f} ms | {median_10.wait_ms:.2f} ms | {found:.2f} | ≤ {row.most_wait}"
    else:
        found, missed = ratio("rate"), ratio("rate") < row.least
        both = f"{median_091.rate:,.0f} | {median_10.rate:,.0f} | {found:.2f} | ≥ {row.least}"
    least_091, least_10 = (min(figures.processor_us for figures in of) for of in zip(*turns, strict=True))
    cells = f"{both} | {least_091 / least_10:.2f}"
    if rival:
        times = statistics.median(mine.rate / its.rate for (_, mine), its in zip(turns, rival, strict=False))
        missed = missed or times < row.of_rival
        cells += (
            f" | {statistics.median(each.rate for each in rival):,.0f} | {times:.1f} | ≥ {row.of_rival:.0f}"
        )
    else:
        cells += " | | | "
    return cells, missed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="regular expression: the rows to run")
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument(
        "--rival", default="", help="endpoints of another broker's cluster, its queue leader's first"
    )
    options = parser.parse_args()
    rival = [endpoint for endpoint in options.rival.split(",") if endpoint]
    titles = [
        "load",
        "0-9-1 msg/s",
        "1.0 msg/s",
        "ratio",
        "aim",
        "processor",
        "rival 1.0",
        "times",
        "aim",
        "",
    ]
    print(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|")
    is_missed = False
    with cluster(options.nodes) as (at, pids):
        for row in rows(options.seconds):
            if not re.search(options.only, row.name):
                continue
            turns: list[tuple[Figures, Figures]] = []
            of_rival: list[Figures] = []
            try:
                for _ in range(options.repeat):
                    turns.append((measure(row, at, pids, ()), measure(row, at, pids, row.over_10)))
                    if rival and row.of_rival:
                        of_rival.append(measure(row, rival, [], row.over_10, RIVAL_SHARE))
            except Failure as failure:
                cells, missed = f"failed: {failure}" + " |" * 7, True
            else:
                cells, missed = judged(row, turns, of_rival)
            print(f"| {row.name} | {cells} | {'MISSED' if missed else 'met'} |", flush=True)
            is_missed = is_missed or missed
    return 1 if is_missed else 0


if __name__ == "__main__":
    sys.exit(main())
