"""`qq leader`: its commands and their options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.options import asks_node, prints
from qq.cli.tree import CommandGroup
from qq.cli.values import NODE, SECONDS

if TYPE_CHECKING:
    from qq.cli.remote import Remote


@click.group("leader", cls=CommandGroup, short_help="show or change who leads")
def command() -> None:
    """Show or change who leads."""


@command.command("show", short_help="print the name of the node that leads")
@asks_node
@prints
def show(node: Remote, *, form: str) -> int:
    """Print the name of the node that leads."""
    from qq.cli.operations import show_leader  # noqa: PLC0415

    return show_leader(node, form)


@command.command("transfer", short_help="have another node lead; returns when it does")
@asks_node
@click.option("--to", type=NODE, metavar="NODE", help="[default: any other]")
@click.option(
    "--timeout",
    type=SECONDS,
    metavar="SECONDS",
    help="For how long to try again if NODE has not taken over.  [default: it is not tried again]",
)
def transfer(node: Remote, *, to: str | None) -> int:
    """Have another node lead, and return when it does."""
    from qq.cli.operations import transfer_leadership  # noqa: PLC0415

    if node.has_time and to is None:
        raise click.UsageError("--timeout needs --to: without it each try moves leadership on")
    return transfer_leadership(node, to)
