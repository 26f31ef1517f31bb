"""`qq close`: its commands and their options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.options import asks_node
from qq.cli.tree import CommandGroup
from qq.cli.values import LINE, REQUIRED

if TYPE_CHECKING:
    from qq.cli.remote import Remote

_reason = click.option("--reason", type=LINE, metavar="TEXT", help="What the client is told.")


@click.group("close", cls=CommandGroup, short_help="close connections of clients")
def command() -> None:
    """Close connections of clients."""


@command.command("connection")
@click.option(
    "--name", type=REQUIRED, required=True, metavar="NAME", help="As `qq list connections` shows it."
)
@_reason
@asks_node
def connection(node: Remote, *, name: str, reason: str | None) -> int:
    """Close a connection."""
    from qq.cli.clients import close_connection  # noqa: PLC0415

    return close_connection(node, name, reason)


@command.command("connections")
@click.option("--for-user", "owner", type=REQUIRED, required=True, metavar="USER", help="Whose connections.")
@_reason
@asks_node
def connections(node: Remote, *, owner: str, reason: str | None) -> int:
    """Close all connections of a user."""
    from qq.cli.clients import close_connections  # noqa: PLC0415

    return close_connections(node, owner, reason)
