"""`qq member`: its commands and their options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.options import asks_node, prints_answer, waits
from qq.cli.tree import CommandGroup
from qq.cli.values import NODE, PEER

if TYPE_CHECKING:
    from qq.cli.remote import Remote
    from qq.config import Seed

_name = click.argument("name", type=NODE, metavar="NODE")
_no_wait = click.option("--no-wait", is_flag=True, help="Return before the node votes.")


@click.group("member", cls=CommandGroup, short_help="show or change the members of the cluster")
def command() -> None:
    """Show or change the members of the cluster."""


@command.command("list", short_help="show the members")
@asks_node
@prints_answer
def list_(node: Remote, *, form: str) -> int:
    """Show the members of the cluster, as the log lists them."""
    from qq.cli.members import list_members  # noqa: PLC0415

    return list_members(node, form)


@command.command("add", short_help="take a node in; returns when it votes")
@_name
@click.argument("address", type=PEER, metavar="HOST:PORT")
@asks_node
@waits
@_no_wait
def add(node: Remote, *, name: str, address: Seed, no_wait: bool) -> int:
    """Take a node into the cluster, and return when it votes. The others reach it at HOST:PORT."""
    from qq.cli.members import add_member  # noqa: PLC0415

    return add_member(node, name, *address, waits_for_vote=not no_wait)


@command.command("remove", short_help="have a member be none any more, up or down")
@_name
@asks_node
@waits
def remove(node: Remote, *, name: str) -> int:
    """Remove a member from the cluster, whether it is up or not."""
    from qq.cli.members import remove_member  # noqa: PLC0415

    return remove_member(node, name)


@command.command("replace", short_help="have another data directory take the place of a lost one")
@_name
@asks_node
@waits
@_no_wait
def replace(node: Remote, *, name: str, no_wait: bool) -> int:
    """Have a node with another data directory take the place of a member whose directory is lost."""
    from qq.cli.members import replace_member  # noqa: PLC0415

    return replace_member(node, name, waits_for_vote=not no_wait)


@command.command("promote", short_help="wait until a member votes")
@_name
@asks_node
@waits
def promote(node: Remote, *, name: str) -> int:
    """Wait until a member is up and votes."""
    from qq.cli.members import promote_member  # noqa: PLC0415

    return promote_member(node, name)
