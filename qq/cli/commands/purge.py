"""`qq purge`: its command and the options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.options import asks_node, in_vhost
from qq.cli.tree import CommandGroup
from qq.cli.values import REQUIRED

if TYPE_CHECKING:
    from qq.cli.remote import Remote


@click.group("purge", cls=CommandGroup, short_help="remove all messages that wait in a queue")
def command() -> None:
    """Remove all messages that wait in a queue."""


@command.command("queue")
@click.option("--name", type=REQUIRED, required=True, metavar="NAME", help="What the queue is called.")
@in_vhost
@asks_node
def queue(node: Remote, *, name: str, vhost: str) -> int:
    """Remove all messages that wait in a queue; those at consumers stay."""
    from qq.cli.objects import purge  # noqa: PLC0415

    return purge(node, vhost, name)
