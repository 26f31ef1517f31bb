"""`qq revive`: its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.options import asks_node, waits
from qq.cli.values import NODE

if TYPE_CHECKING:
    from qq.cli.remote import Remote


@click.command("revive", short_help="end what `qq drain` has begun")
@click.argument("name", type=NODE, metavar="[NODE]", required=False)
@asks_node
@waits
def command(node: Remote, *, name: str | None) -> int:
    """End the maintenance that `qq drain` has begun.

    Without NODE it is the node that is asked.
    """
    from qq.cli.members import revive  # noqa: PLC0415

    return revive(node, name)
