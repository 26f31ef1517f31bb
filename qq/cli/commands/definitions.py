"""`qq definitions`: its commands and their options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.options import asks_node
from qq.cli.tree import CommandGroup
from qq.cli.values import NAME

if TYPE_CHECKING:
    from qq.cli.remote import Remote

_vhost = click.option("--vhost", type=NAME, metavar="NAME", help="Only of this virtual host.  [default: all]")
_file = click.argument("file", metavar="FILE|-")


@click.group("definitions", cls=CommandGroup, short_help="write out, or take over, all that was declared")
def command() -> None:
    """Write out, or take over, all that was declared or set."""


@command.command("export")
@_file
@_vhost
@asks_node
def export(node: Remote, *, file: str, vhost: str | None) -> int:
    """Write all that was declared or set to a file, or to standard output (-)."""
    from qq.cli import definitions  # noqa: PLC0415

    return definitions.export(node, vhost, file)


@command.command("import")
@_file
@_vhost
@asks_node
def take_over(node: Remote, *, file: str, vhost: str | None) -> int:
    """Take over what is in a file, or comes from standard input (-). What is there already stays."""
    from qq.cli import definitions  # noqa: PLC0415

    return definitions.take_over(node, vhost, file)
