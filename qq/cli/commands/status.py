"""`qq status`: its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.options import asks_node, prints_answer

if TYPE_CHECKING:
    from qq.cli.remote import Remote


@click.command("status", short_help="is the cluster well, and what does each node do?")
@asks_node
@prints_answer
def command(node: Remote, *, form: str) -> int:
    """Show the cluster as one of its nodes sees it. The first line, and the exit status, say whether all is well."""
    from qq.cli.status import status  # noqa: PLC0415

    return status(node, form)
