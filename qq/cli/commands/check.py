"""`qq check`: its commands and their options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.options import asks_node, prints
from qq.cli.tree import CommandGroup
from qq.cli.values import NODE, SECONDS

if TYPE_CHECKING:
    from qq.cli.remote import Remote


@click.group("check", cls=CommandGroup, short_help="ask before you do something; exit status 0 is yes")
def command() -> None:
    """Ask before you do something; exit status 0 is yes."""


@command.command("safe-to-stop", short_help="whether the cluster goes on without a node")
@asks_node
@click.option("--node", "name", type=NODE, metavar="NODE", help="[default: the node that is asked]")
@click.option(
    "--timeout",
    type=SECONDS,
    metavar="SECONDS",
    help="How long to wait for a yes.  [default: it is not waited for]",
)
@prints
def safe_to_stop(node: Remote, *, name: str | None, form: str) -> int:
    """Say whether the cluster goes on without a node."""
    from qq.cli.operations import check_safe_to_stop  # noqa: PLC0415

    return check_safe_to_stop(node, name, form)
