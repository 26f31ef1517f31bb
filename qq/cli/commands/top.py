"""`qq top`: its options."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from qq.cli.options import asks_node, prints

if TYPE_CHECKING:
    from qq.cli.remote import Remote

_COUNT_MAX = 500
_KINDS = ("queues", "connections")


@click.command("top", short_help="show the busiest queues and connections, live")
@click.argument("kind", type=click.Choice(_KINDS), metavar="[queues|connections]", required=False)
@click.option(
    "--count",
    type=click.IntRange(1, _COUNT_MAX),
    default=10,
    metavar="NUMBER",
    help="How many.  [default: 10]",
)
@click.option(
    "--interval",
    type=click.FloatRange(0.5),
    default=5.0,
    metavar="SECONDS",
    help="When to look again; a node samples rates every 5 s.  [default: 5]",
)
@click.option(
    "--once", is_flag=True, help="Look once. It is so where there is no terminal, and with --output."
)
@prints
@asks_node
def command(node: Remote, *, kind: str | None, count: int, interval: float, once: bool, form: str) -> int:
    """Show the busiest queues and connections, by rates over the last 5 to 10 s, until Ctrl-C."""
    from qq.cli import busiest  # noqa: PLC0415

    if form == "csv" and kind is None:
        raise click.UsageError("--output csv needs queues or connections: they have other columns")
    kinds = [busiest.KINDS[name] for name in _KINDS if kind in (None, name)]
    if once or form != "table" or not sys.stdout.isatty():
        return busiest.print_busiest(node, kinds, count, form)
    return busiest.watch(node, kinds, count, interval)
