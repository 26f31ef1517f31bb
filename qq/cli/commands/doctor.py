"""`qq doctor`: its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.options import asks_node, prints_answer

if TYPE_CHECKING:
    from qq.cli.remote import Remote


@click.command("doctor", short_help="what is wrong, what limits the cluster, and what to do about it?")
@asks_node
@prints_answer
def command(node: Remote, *, form: str) -> int:
    """Show what is wrong in the cluster, what limits it, and what to do about it. The first line is the verdict."""
    from qq.cli.doctor import doctor  # noqa: PLC0415

    return doctor(node, form)
