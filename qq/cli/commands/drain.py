"""`qq drain`: its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.options import asks_node, waits
from qq.cli.values import NODE

if TYPE_CHECKING:
    from qq.cli.remote import Remote


@click.command("drain", short_help="have a node lead nothing and serve no clients")
@click.argument("name", type=NODE, metavar="[NODE]", required=False)
@asks_node
@waits
def command(node: Remote, *, name: str | None) -> int:
    """Have a node lead nothing and serve no clients, and return when all have gone.

    Without NODE it is the node that is asked.
    """
    from qq.cli.members import drain  # noqa: PLC0415

    return drain(node, name)
