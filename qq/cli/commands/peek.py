"""`qq peek`: its command and the options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.options import asks_node, in_vhost, prints
from qq.cli.tree import CommandGroup
from qq.cli.values import REQUIRED

if TYPE_CHECKING:
    from qq.cli.remote import Remote


@click.group("peek", cls=CommandGroup, short_help="look at messages where they are; nothing changes")
def command() -> None:
    """Look at messages where they are: nobody gets them, and nothing changes."""


@command.command("messages")
@click.option(
    "--queue", "name", type=REQUIRED, required=True, metavar="NAME", help="What the queue is called."
)
@in_vhost
@click.option(
    "--offset",
    type=click.IntRange(0),
    default=0,
    metavar="NUMBER",
    help="How many to pass over.  [default: 0]",
)
@click.option("--count", type=click.IntRange(1), default=10, metavar="NUMBER", help="[default: 10]")
@prints
@asks_node
def messages(node: Remote, *, name: str, vhost: str, offset: int, count: int, form: str) -> int:
    """Print the messages that wait in a queue, in the order in which consumers will get them."""
    from qq.cli.messages import peek  # noqa: PLC0415

    return peek(node, vhost, name, offset, count, form)
