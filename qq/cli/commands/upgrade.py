"""`qq upgrade`: its command and the options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.options import asks_node, waits
from qq.cli.tree import CommandGroup

if TYPE_CHECKING:
    from qq.cli.remote import Remote


@click.group("upgrade", cls=CommandGroup, short_help="go over to the next version of the state")
def command() -> None:
    """Go over to the next version of the state."""


@command.command("finish", short_help="have all nodes go over to it; there is no way back")
@asks_node
@waits
def finish(node: Remote) -> int:
    """Have all nodes go over to what the program of the node that is asked can run. There is no way back."""
    from qq.cli.members import finish_upgrade  # noqa: PLC0415

    return finish_upgrade(node)
