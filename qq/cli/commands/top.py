"""`qq top`: shows the busiest queues and connections, once or repeatedly.

Invariant: a node is asked for a few rows only, however many queues and connections it has.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from qq.cli.client.api import path_of
from qq.cli.options import with_node, with_output
from qq.cli.terminal.output import (
    cell,
    print_cells,
    print_document,
    print_rows,
    table_of,
    terminal_width,
    value_in,
    widths_that_fit,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qq.cli.client.remote import Remote


class RankedKind(NamedTuple):
    """A kind of object that `qq top` can rank: queues or connections."""

    name: str
    rates: tuple[str, ...]
    """Columns with rates. Objects are ranked by the sum of their rates."""
    columns: tuple[str, ...]
    head: tuple[str, ...]


_QUEUES = RankedKind(
    "queues",
    ("message_stats.publish_details.rate", "message_stats.deliver_get_details.rate"),
    (
        *("vhost", "name", "messages_ready", "messages_unacknowledged", "consumers"),
        *("message_stats.publish_details.rate", "message_stats.deliver_get_details.rate"),
    ),
    ("vhost", "queue", "ready", "unacked", "consumers", "published/s", "delivered/s"),
)
_CONNECTIONS = RankedKind(
    "connections",
    ("recv_oct_details.rate", "send_oct_details.rate"),
    (
        *("user_provided_name", "recv_oct_details.rate", "send_oct_details.rate", "user", "vhost", "name"),
        *("node", "state", "channels"),
    ),
    ("client", "received B/s", "sent B/s", "user", "vhost", "connection", "node", "state", "channels"),
)
_KINDS = {kind.name: kind for kind in (_QUEUES, _CONNECTIONS)}
_COUNT_MAX = 500


@click.command("top")
@click.argument("name", type=click.Choice(list(_KINDS)), metavar="[queues|connections]", required=False)
@click.option(
    "--count",
    type=click.IntRange(1, _COUNT_MAX),
    default=10,
    metavar="NUMBER",
    help="Rows of each table.  [default: 10]",
)
@click.option(
    "--interval",
    type=click.FloatRange(0.5),
    default=5.0,
    metavar="SECONDS",
    help="Time between two requests; a node samples rates every 5 s.  [default: 5]",
)
@click.option(
    "--once",
    is_flag=True,
    help="Print the tables once. This is the default without a terminal, and with --output.",
)
@with_output
@with_node
def top_command(node: Remote, *, name: str | None, count: int, interval: float, once: bool, form: str) -> int:
    """Show the busiest queues and connections, by rates over the last 5 to 10 s, until Ctrl-C."""
    if form == "csv" and name is None:
        raise click.UsageError("--output csv needs queues or connections: they have other columns")
    kinds = [kind for kind in _KINDS.values() if name in (None, kind.name)]
    if once or form != "table" or not sys.stdout.isatty():
        return _print_once(node, kinds, count, form)
    return _watch(node, kinds, count, interval)


def _print_once(node: Remote, kinds: Sequence[RankedKind], count: int, form: str) -> int:
    """Print the busiest objects of each kind once. Raises CommandError."""
    found = {kind.name: _busiest(node, kind, count) for kind in kinds}
    if form == "json":
        print_document(found)
        return 0
    for number, kind in enumerate(kinds):
        if form == "csv":
            print_rows(form, found[kind.name], kind.columns)
            continue
        if number:
            print()
        print_cells(kind.head, _cells(kind, found[kind.name]))
    return 0


def _watch(node: Remote, kinds: Sequence[RankedKind], count: int, interval_s: float) -> int:
    """Show the busiest objects on the terminal, refreshed after each interval, until Ctrl-C. Raises CommandError."""
    from rich.console import Group  # noqa: PLC0415 -- only for a terminal
    from rich.live import Live  # noqa: PLC0415

    with Live(screen=True, auto_refresh=False) as live:
        while True:
            tables = [_table(kind, _busiest(node, kind, count)) for kind in kinds]
            live.update(Group(*tables), refresh=True)
            time.sleep(interval_s)


def _table(kind: RankedKind, rows: Sequence[dict[str, Any]]) -> Any:
    cells = _cells(kind, rows)
    widths = widths_that_fit(kind.head, cells, terminal_width())
    return table_of(kind.head[: len(widths)], [row[: len(widths)] for row in cells], widths)


def _cells(kind: RankedKind, rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    return [[cell(value_in(row, column)) for column in kind.columns] for row in rows]


def _busiest(node: Remote, kind: RankedKind, count: int) -> list[dict[str, Any]]:
    """Return the busiest objects: rank by the sum of rates the first `count` objects of each rate."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for rate in kind.rates:
        query = {"sort": rate, "sort_reverse": "true", "page": "1", "page_size": str(count)}
        page = node.get(path_of(kind.name), {**query, "columns": ",".join(kind.columns)})
        try:
            found |= {(row["vhost"], row["name"]): row for row in page["items"]}
        except (KeyError, TypeError):
            raise node.foreign_answer() from None
    return sorted(found.values(), key=lambda row: _rate(kind, row), reverse=True)[:count]


def _rate(kind: RankedKind, row: dict[str, Any]) -> float:
    return sum(value_in(row, column) or 0.0 for column in kind.rates)
