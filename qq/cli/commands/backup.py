"""`qq backup`: its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.options import with_node
from qq.cli.terminal import signals

if TYPE_CHECKING:
    from qq.cli.client.remote import Remote


@click.command("backup")
@click.argument("target", metavar="DIR|-")
@with_node
def backup_command(node: Remote, *, target: str) -> int:
    """Make a backup of a running cluster, in a new directory or, with -, as a tar archive on standard output."""
    from qq.cli.local.backup import backup  # noqa: PLC0415

    with signals.exit_in_order():
        return backup(node, target)
