"""`qq restore` and `qq recover`: their options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.command_line.values import DIRECTORY, FILE
from qq.cli.terminal import signals

if TYPE_CHECKING:
    from pathlib import Path


@click.command("restore")
@click.argument("source", metavar="BACKUP")
@click.option(
    "--config",
    type=FILE,
    required=True,
    metavar="FILE",
    help="Settings of the first node; its data directory must be empty.",
)
def restore_command(*, source: str, config: Path) -> int:
    """Begin a new cluster from a backup: a directory, a tar archive, or - for an archive from standard input."""
    from qq.cli.local.restore import restore_backup  # noqa: PLC0415

    with signals.exit_in_order():
        return restore_backup(source, config)


@click.command("recover")
@click.option(
    "--unsafe-from",
    "survivor",
    type=DIRECTORY,
    required=True,
    metavar="DIR",
    help="Data directory of the surviving node; confirmed messages may be missing in it.",
)
@click.option("--yes", is_flag=True, help="Begin the cluster; without it only report possible losses.")
def recover_command(*, survivor: Path, yes: bool) -> int:
    """Begin a new cluster from the data of a surviving node, when a majority is lost for good."""
    from qq.cli.local.restore import recover_survivor  # noqa: PLC0415

    return recover_survivor(survivor, is_sure=yes)
