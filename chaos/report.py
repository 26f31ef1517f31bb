"""Writes `report.html` of a run: a self-contained file with the verdict on top and the evidence below.

Invariant: all recorded data is escaped text; only this module's own words are HTML. The page loads no other resources.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import plotly.io
import pyarrow as pa
import pyarrow.parquet as pq
from plotly.offline import get_plotlyjs

from chaos.history import FIELD_TYPES, SUFFIX
from chaos.timeline import Row, Tables, fault_colours, figure
from qq.errors import OperatingError

FORMAT = 1
"""The only version of meta.json and verdict.json that is read."""
MESSAGE_ROWS_MAX = 100
"""Rows shown of a message, at most; more rows would not be easier to read."""
OBSERVED_MAX = 5
"""Violations of a cause that are described in words, at most."""
NANOSECONDS = 1_000_000_000
ROW_COLUMNS = tuple(name for name in FIELD_TYPES if name != "time_ns")
"""Columns of the history in the order of display, after the time; columns added by the check follow."""
UNITS = {"ms": "ms", "s": "s"}
"""The unit of a figure, by the end of its name."""
_COSTS = ("out everywhere, s", "out at a node, s", "recovery, s")
"""Headings of a fault's costs: columns outage, node_outage and recovery of the check's table."""
_COSTS_TEXT = (
    "Out: the longest time, since the fault began, in which nobody could publish through any node, or through some "
    "node, which may have been dead or cut off. Recovery: how long publishers of some node still waited after the "
    "fault had been made good; a node that was wiped or damaged has everything again by then."
)
_ID = re.compile(r'"id": ?"([^"]*)"')


class ReportError(OperatingError):
    """The directory has no data for a report."""


class _Html(str):
    """Text that is HTML already and must not be escaped."""

    __slots__ = ()


class _Run(NamedTuple):
    directory: Path
    meta: dict[str, Any]
    verdict: dict[str, Any]
    tables: Tables

    def seconds(self, time_ns: int) -> float:
        """Return the seconds since the run began."""
        return (time_ns - self.meta["started_ns"]) / NANOSECONDS


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report of the named directory, and print its path."""
    parser = argparse.ArgumentParser(prog="python -m chaos report", description="Write DIR/report.html.")
    parser.add_argument("directory", type=Path, metavar="DIR", help="of a run that was checked")
    options = parser.parse_args(arguments)
    try:
        print(write(options.directory))
    except ReportError as error:
        print(f"chaos report: {error}", file=sys.stderr)
        return 1
    return 0


def write(directory: Path) -> Path:
    """Write `report.html` into the directory of a checked run and return its path. Raises ReportError."""
    run = _Run(
        directory,
        _document(directory / "meta.json", "it is not the directory of a run"),
        _document(directory / "verdict.json", f"run `python -m chaos check {directory}` first"),
        Tables(*(_table_rows(directory / "tables" / f"{name}.parquet") for name in Tables._fields)),
    )
    report = directory / "report.html"
    report.write_text(_page(run), encoding="utf-8")
    return report


# The files of a run


def _document(path: Path, remedy: str) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ReportError(f"{path} is missing: {remedy}") from None
    except (OSError, ValueError) as error:
        raise ReportError(f"{path} cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise ReportError(f"{path} is not an object")
    if document.get("format") != FORMAT:
        raise ReportError(f"{path}: format {document.get('format')} is unknown; this is {FORMAT}")
    return document


def _table_rows(path: Path) -> list[Row]:
    """Read a table; a missing table is empty, because a check that failed early wrote no tables."""
    if not path.exists():
        return []
    try:
        return pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowInvalid) as error:
        raise ReportError(f"{path} cannot be read: {error}") from None


def _messages(directory: Path, wanted: set[str]) -> dict[str, list[Row]]:
    """Return the rows of these messages, in order of time."""
    history = directory / "history"
    found: defaultdict[str, list[Row]] = defaultdict(list)
    for file in history.glob(f"*{SUFFIX}"):
        for row in _rows_in_lines(file, wanted):
            found[row["id"]].append(row)
    for file in history.glob("*.parquet"):
        for row in pq.read_table(file, filters=[("id", "in", wanted)]).to_pylist():
            found[row["id"]].append(row)
    return {name: sorted(rows, key=lambda row: row["time_ns"]) for name, rows in found.items()}


def _rows_in_lines(file: Path, wanted: set[str]) -> Iterator[Row]:
    """Yield the rows of the wanted messages in a file; the check has already reported malformed lines."""
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            # A history has millions of rows: only those of these messages are worth parsing.
            match = _ID.search(line)
            if match is not None and match[1] in wanted:
                with suppress(ValueError):
                    yield json.loads(line)


# The page


def _page(run: _Run) -> str:
    title = f"Chaos run, seed {run.meta['seed']}"
    parts = [
        _verdict(run),
        _facts(run),
        *_problem_section(run),
        _section("Promises", _promises(run)),
        _section("Figures", _Html(f'<div class="side">{_figures(run)}{_operations(run)}</div>')),
        _section("Timeline", _timeline(run)),
        _section("Faults", _faults(run)),
        *_offending(run),
    ]
    return _PAGE.format(title=escape(title), style=_STYLE, plotly=get_plotlyjs(), body="\n".join(parts))


def _section(title: str, content: _Html) -> _Html:
    return _Html(f"<section><h2>{escape(title)}</h2>{content}</section>")


def _verdict(run: _Run) -> _Html:
    verdict = run.verdict
    broken = [promise["name"] for promise in verdict["promises"] if not promise["holds"]]
    if broken:
        style, label, text = "broken", "BROKEN", f"promises that did not hold: {', '.join(broken)}"
    elif verdict["valid"] and not _problems(run):
        checked = sum(promise["checked"] > 0 for promise in verdict["promises"])
        style, label, text = "holds", "VALID", f"all {checked} promises that could be checked held"
    elif unjudged := [promise["name"] for promise in verdict["promises"] if promise.get("owed_by")]:
        style, label, text = "unknown", "INVALID", f"promises that were not judged: {', '.join(unjudged)}"
    else:
        style, label, text = "unknown", "INVALID", "nothing is proved"
    error = f"<p>{_text(verdict['error'])}</p>" if verdict["error"] else ""
    return _Html(
        f'<header class="{style}"><h1>{label}</h1><p>{escape(text)}</p>{error}'
        f"<p>seed {run.meta['seed']:d} · {_text(run.meta['nodes'])} nodes · "
        f"{_text(run.meta['seconds'])} s · {_text(verdict['rows'])} rows of history</p></header>"
    )


def _facts(run: _Run) -> _Html:
    meta = run.meta
    began = datetime.fromtimestamp(meta["started_ns"] / NANOSECONDS, UTC)
    facts: dict[str, Any] = {
        "repeat it with": _Html(f"<code>{escape(meta['command'])}</code>"),
        "began": f"{began:%Y-%m-%d %H:%M:%S} UTC",
        "nemesis": ", ".join(meta["nemesis"]) or None,
        "workloads": ", ".join(meta["workloads"]) or None,
        "versions": ", ".join(f"{name} {version}" for name, version in meta["versions"].items()) or None,
        "checked in": f"{run.verdict['seconds']:.1f} s",
    }
    shown = "".join(f"<dt>{escape(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts.items())
    return _Html(f"<dl>{shown}</dl>")


def _problems(run: _Run) -> list[str]:
    """Return the run's deviations from its plan."""
    return run.meta.get("problems", [])


def _problem_section(run: _Run) -> Iterator[_Html]:
    if problems := _problems(run):
        listed = "".join(f"<li>{escape(problem)}</li>" for problem in problems)
        yield _section("Problems of the run", _Html(f"<ul>{listed}</ul>"))


def _promises(run: _Run) -> _Html:
    rows = []
    for promise in run.verdict["promises"]:
        name: Any = promise["name"]
        if promise["examples"]:
            name = _Html(f'<a href="#{_anchor(promise)}">{escape(name)}</a>')
        if not promise["holds"]:
            state = _Html('<b class="bad">✘ broken</b>')
        elif promise["checked"]:
            state = _Html('<b class="good">✔ held</b>')
        elif promise.get("owed_by"):
            text = f"✘ not judged, although it ran: {', '.join(promise['owed_by'])}"
            state = _Html(f'<b class="bad">{escape(text)}</b>')
        else:
            state = _Html('<span class="dim">not judged</span>')
        rows.append((name, state, promise["checked"], promise["violations"], promise["text"]))
    return _table(("promise", "", "checked", "violations", "meaning"), rows)


def _figures(run: _Run) -> _Html:
    rows = []
    for name, value in run.verdict["figures"].items():
        title, _, unit = name.rpartition("_")
        label = title if unit in UNITS else name
        rows.append((label.replace("_", " "), value, UNITS.get(unit, "")))
    return _table(("figure", "value", "unit"), rows)


def _operations(run: _Run) -> _Html:
    outcomes = ("ok", "fail", "unknown")
    rows = [
        (name, *(counts.get(outcome, 0) for outcome in outcomes))
        for name, counts in run.verdict["operations"].items()
    ]
    return _table(("operation", *outcomes), rows)


def _timeline(run: _Run) -> _Html:
    if not any(run.tables):
        return _Html('<p class="dim">Nothing was recorded that could be drawn.</p>')
    drawn = figure(run.tables, run.seconds(run.meta["heal_ns"]))
    html = plotly.io.to_html(
        drawn,
        full_html=False,
        include_plotlyjs=False,
        div_id="timeline",
        config={"displaylogo": False, "responsive": True},
    )
    return _Html(html)


def _faults(run: _Run) -> _Html:
    colours = fault_colours(run.tables.faults)
    rows = [
        (
            _Html(
                f'<span class="chip" style="background:{colours[row["fault"]]}"></span>{_text(row["fault"])}'
            ),
            row["node"],
            round(row["start"], 1),
            round(row["end"] - row["start"], 1),
            _outcome(row["outcome"]),
            row["outage"],
            row["node_outage"],
            row["recovery"],
            row["detail"],
        )
        for row in sorted(run.tables.faults, key=lambda row: row["start"])
    ]
    head = ("fault", "nodes", "began, s", "lasted, s", "outcome", *_COSTS, "detail")
    return _Html(f'<p class="dim">{escape(_COSTS_TEXT)}</p>{_table(head, rows)}')


def _outcome(outcome: str) -> _Html:
    return _Html(_text(outcome) if outcome == "ok" else f'<b class="bad">{_text(outcome)}</b>')


# Offending operations


def _offending(run: _Run) -> Iterator[_Html]:
    """Yield a section for each promise with examples, with a part for each message in these examples."""
    promises = [promise for promise in run.verdict["promises"] if promise["examples"]]
    wanted = {row["id"] for promise in promises for row in promise["examples"] if row.get("id")}
    messages = _messages(run.directory, wanted)
    for promise in promises:
        examples = promise["examples"]
        names = dict.fromkeys(row["id"] for row in examples if row.get("id"))
        anchors = {name: f"{_anchor(promise)}-{number}" for number, name in enumerate(names, 1)}
        parts = [
            _summary(promise),
            _causes(promise),
            _rows(run, examples, links=anchors),
            *(
                _message(run, name, anchor, messages.get(name, []), examples)
                for name, anchor in anchors.items()
            ),
        ]
        yield _Html(
            f'<section id="{_anchor(promise)}"><h2>Offending operations: {_text(promise["name"])}</h2>'
            f"{''.join(parts)}</section>"
        )


def _summary(promise: Mapping[str, Any]) -> _Html:
    shown = f"violations: {promise['violations']}, rows shown: {len(promise['examples'])}"
    return _Html(f'<p>{_text(promise["text"])} <span class="dim">({shown})</span></p>')


def _causes(promise: Mapping[str, Any]) -> _Html:
    """Return a table of the violations by cause, with what the first violations were."""
    rows = [
        (group["cause"], group["violations"], group["expected"], observed)
        for group in promise.get("groups", ())
        for observed in group["observed"][:OBSERVED_MAX]
    ]
    return _table(("cause", "violations", "expected", "observed"), rows)


def _message(run: _Run, name: str, anchor: str, rows: Sequence[Row], examples: Sequence[Row]) -> _Html:
    marked = {_identity(row) for row in examples}
    shown = rows[:MESSAGE_ROWS_MAX]
    cut = f", the first {MESSAGE_ROWS_MAX} of {len(rows)} rows" if len(rows) > len(shown) else ""
    content = (
        _rows(run, shown, marked=marked) if shown else '<p class="dim">The history has no row of it.</p>'
    )
    return _Html(f'<h3 id="{anchor}">Message {_text(name)}{cut}</h3>{content}')


def _rows(
    run: _Run,
    rows: Sequence[Row],
    *,
    links: Mapping[str, str] | None = None,
    marked: Iterable[tuple[Any, ...]] = (),
) -> _Html:
    """Return a table of rows of the history, without empty columns."""
    others = dict.fromkeys(key for row in rows for key in row if key not in {"time_ns", *ROW_COLUMNS})
    columns = [
        column for column in (*ROW_COLUMNS, *others) if any(row.get(column) is not None for row in rows)
    ]
    cells = []
    for row in rows:
        time_ns = row.get("time_ns")
        line: list[Any] = [None if time_ns is None else f"{run.seconds(time_ns):.3f}"]
        for column in columns:
            value = row.get(column)
            if links is not None and column == "id" and isinstance(value, str) and value in links:
                value = _Html(f'<a href="#{links[value]}">{escape(value)}</a>')
            line.append(value)
        cells.append(line)
    return _table(("time, s", *columns), cells, [_identity(row) in marked for row in rows])


def _identity(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in ("time_ns", "process", "call", "type", "op"))


def _anchor(promise: Mapping[str, Any]) -> str:
    return escape("broken-" + promise["name"].replace(" ", "-"))


# HTML


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]], marked: Sequence[bool] = ()) -> _Html:
    if not rows:
        return _Html('<p class="dim">None.</p>')
    kinds = [_kind(column) for column in zip(*rows, strict=True)]
    lines = ["".join(f"<th{kind}>{escape(name)}</th>" for name, kind in zip(head, kinds, strict=True))]
    lines += [
        "".join(f"<td{kind}>{_text(value)}</td>" for value, kind in zip(row, kinds, strict=True))
        for row in rows
    ]
    marks = ["", *(' class="mark"' if mark else "" for mark in marked)]
    marks += [""] * (len(lines) - len(marks))
    body = "".join(f"<tr{mark}>{line}</tr>" for mark, line in zip(marks, lines, strict=True))
    return _Html(f'<div class="wide"><table>{body}</table></div>')


def _kind(column: Iterable[Any]) -> str:
    """Return the class of a column's cells and heading: numbers are aligned."""
    known = [value for value in column if value is not None]
    is_number = known and all(type(value) in {int, float} for value in known)
    return ' class="number"' if is_number else ""


def _text(value: Any) -> str:
    match value:
        case _Html():
            return value
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():  # including NaN
            return f"{value:,.2f}".rstrip("0").rstrip(".")
        case str():
            return escape(value)
        case _:
            return escape(json.dumps(value, default=str))


_STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 1360px; padding: 0 24px 48px; background: #fff; color: #1b2327;
       font: 14px/1.45 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
header { margin: 20px 0; padding: 16px 24px; border-radius: 6px; color: #fff; }
header.holds { background: #2e7d32; } header.broken { background: #c62828; } header.unknown { background: #b26a00; }
h1 { margin: 0; font-size: 40px; letter-spacing: .04em; line-height: 1.1; }
header p { margin: 6px 0 0; font-size: 16px; }
h2 { margin: 32px 0 8px; font-size: 19px; border-bottom: 1px solid #cfd8dc; padding-bottom: 4px; }
h3 { margin: 18px 0 6px; font-size: 14px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 18px; margin: 0; }
dt { color: #607078; } dd { margin: 0; }
code { background: #eef2f4; padding: 2px 6px; border-radius: 3px; overflow-wrap: anywhere; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: #455a64; background: #f3f6f7; }
th, td { padding: 4px 12px 4px 8px; border-bottom: 1px solid #e3e9eb; vertical-align: top; }
th.number, td.number { text-align: right; padding: 4px 8px 4px 12px; }
tr.mark td { background: #ffe3e0; }
.wide { overflow-x: auto; }
.side { display: flex; flex-wrap: wrap; gap: 16px 64px; align-items: flex-start; }
.good { color: #2e7d32; } .bad { color: #c62828; } .dim { color: #78909c; }
.chip { display: inline-block; width: 11px; height: 11px; margin-right: 7px; border-radius: 2px; }
a { color: #0b57a4; }
ul { margin: 0; padding-left: 20px; overflow-wrap: anywhere; }
section { scroll-margin-top: 12px; }
"""

# The policy lets the browser refuse all external resources.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:">
<title>{title}</title>
<style>{style}</style>
<script>{plotly}</script>
</head>
<body>
{body}
</body>
</html>
"""
