"""`qq recover`: its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.values import DIRECTORY

if TYPE_CHECKING:
    from pathlib import Path


@click.command("recover", short_help="begin a new cluster with what one node holds")
@click.option(
    "--unsafe-from",
    "survivor",
    type=DIRECTORY,
    required=True,
    metavar="DIR",
    help="The data directory of the node that is left; confirmed messages may be missing in it.",
)
@click.option("--yes", is_flag=True, help="Do it, and do not only tell what may be missing.")
def command(*, survivor: Path, yes: bool) -> int:
    """Begin a new cluster with what one node holds, when a majority is gone for good."""
    from qq.cli.restore import recover_survivor  # noqa: PLC0415

    return recover_survivor(survivor, is_sure=yes)
