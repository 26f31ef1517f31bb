"""`qq restore`: its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli import ending
from qq.cli.values import FILE

if TYPE_CHECKING:
    from pathlib import Path


@click.command("restore", short_help="begin a new cluster with what a backup holds")
@click.argument("source", metavar="BACKUP")
@click.option(
    "--config",
    type=FILE,
    required=True,
    metavar="FILE",
    help="The settings of the node that begins; its data is to be empty.",
)
def command(*, source: str, config: Path) -> int:
    """Begin a new cluster with what a backup holds: a directory, a tar archive, or - for one from standard input."""
    from qq.cli.restore import restore_backup  # noqa: PLC0415

    with ending.in_order():
        return restore_backup(source, config)
