"""Reads the nodes' own logs: the leader of each term, and the lines of the nodes with their times."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chaos.judge.run import Run

NS = 1_000_000_000
LINES_MAX = 2000
"""Lines shown, those about leaders first."""
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) ([A-Z]+) (.*)")
_LEADER = re.compile(r"leader of term (\d+): (\S+)")
_SHOWN = ("WARNING", "ERROR", "CRITICAL")
Table = list[dict[str, Any]]


class _Line(NamedTuple):
    time_ns: int
    node: str
    level: str
    text: str


def leaders_and_lines(logs: Iterable[tuple[str, bytes]], run: Run) -> tuple[Table, Table]:
    """Return the tables `leaders` and `log_lines`, from name and content of each log."""
    lines = sorted(line for node, content in logs for line in _lines(node, content))
    within = [line for line in lines if run.started_ns <= line.time_ns <= run.ended_ns]
    shown = [line for line in within if _LEADER.search(line.text)]
    shown += [line for line in within if line.level in _SHOWN and not _LEADER.search(line.text)]
    table = [
        {
            "second": (line.time_ns - run.started_ns) / NS,
            "node": line.node,
            "level": line.level,
            "text": line.text,
        }
        for line in sorted(shown[:LINES_MAX])
    ]
    return _leaders(lines, run), table


def _lines(node: str, content: bytes) -> Iterable[_Line]:
    for line in content.decode("utf-8", "replace").splitlines():
        if match := _LINE.match(line):
            # Nodes write the local time of this machine.
            time_s = datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()
            yield _Line(round(time_s * NS), node, match[2], match[3])


def _leaders(lines: Sequence[_Line], run: Run) -> Table:
    """Return columns start, end, node, term. A leader is known until a later term begins anywhere."""
    terms: dict[int, int] = {}
    """When a term was first heard of."""
    leaders: dict[int, tuple[int, str]] = {}
    for line in lines:
        if match := _LEADER.search(line.text):
            term = int(match[1])
            terms.setdefault(term, line.time_ns)
            if match[2] != "none":
                leaders.setdefault(term, (line.time_ns, match[2]))
    table: Table = []
    for term, (start_ns, node) in sorted(leaders.items()):
        end_ns = min([run.ended_ns, *(heard_ns for later, heard_ns in terms.items() if later > term)])
        start_ns = max(start_ns, run.started_ns)
        if start_ns < end_ns:
            start, end = ((time_ns - run.started_ns) / NS for time_ns in (start_ns, end_ns))
            table.append({"start": start, "end": end, "node": node, "term": term})
    return table
