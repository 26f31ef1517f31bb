"""`qq backup`: its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli import ending
from qq.cli.options import asks_node

if TYPE_CHECKING:
    from qq.cli.remote import Remote


@click.command("backup", short_help="make a backup of a cluster that runs")
@click.argument("target", metavar="DIR|-")
@asks_node
def command(node: Remote, *, target: str) -> int:
    """Make a backup of a cluster that runs, in a new directory, or - for a tar archive on standard output."""
    from qq.cli.backup import backup  # noqa: PLC0415

    with ending.in_order():
        return backup(node, target)
