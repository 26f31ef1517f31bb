"""`qq release`: returns the messages of a lease to their queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.command_line.tree import CommandGroup
from qq.cli.objects import place_of
from qq.cli.options import with_group, with_node

if TYPE_CHECKING:
    from qq.cli.client.remote import Remote
    from qq.cli.objects import ApiObject


@click.group("release", cls=CommandGroup)
def release_command() -> None:
    """Return the messages of a lease to their queue."""


@release_command.command("lease")
@with_group
@click.option(
    "--lease", type=click.IntRange(min=0), required=True, metavar="NUMBER", help="Number of the lease."
)
@with_node
def release_lease(node: Remote, *, group: ApiObject, lease: int) -> int:
    """Return the messages of a lease to their places in the queue. The job of the group cannot read it any more."""
    node.send("DELETE", f"{group.path}/leases/{lease}", query=place_of(node, group))
    print(f"lease {lease} of {group.text}: released")
    return 0
