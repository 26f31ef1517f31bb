"""`qq inspect`: its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.values import DIRECTORY

if TYPE_CHECKING:
    from pathlib import Path


@click.command("inspect", short_help="check the data of a node that does not run, or a backup")
@click.argument("directory", type=DIRECTORY, metavar="DIR")
@click.option("--dump", is_flag=True, help="Print the entries of the log instead.")
@click.option("--from", "first", type=int, metavar="INDEX", help="The first entry to print.")
@click.option("--to", "last", type=int, metavar="INDEX", help="The last entry to print.")
def command(*, directory: Path, dump: bool, first: int | None, last: int | None) -> int:
    """Check the data directory of a node that does not run, or a backup. Nothing in it is changed."""
    from qq.cli import inspect  # noqa: PLC0415

    if dump:
        return inspect.dump(directory, first or 0, last)
    if (first, last) != (None, None):
        raise click.UsageError("--from and --to need --dump: else all is checked")
    return inspect.inspect(directory)
