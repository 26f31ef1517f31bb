"""`qq inspect`: its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.command_line.values import DIRECTORY

if TYPE_CHECKING:
    from pathlib import Path


@click.command("inspect")
@click.argument("directory", type=DIRECTORY, metavar="DIR")
@click.option("--dump", is_flag=True, help="Print the entries of the log instead.")
@click.option("--from", "first", type=int, metavar="INDEX", help="Index of the first entry to print.")
@click.option("--to", "last", type=int, metavar="INDEX", help="Index of the last entry to print.")
def inspect_command(*, directory: Path, dump: bool, first: int | None, last: int | None) -> int:
    """Check the data directory of a stopped node, or a backup. No file is changed."""
    from qq.cli.local import inspect  # noqa: PLC0415

    if dump:
        return inspect.dump(directory, first or 0, last)
    if (first, last) != (None, None):
        raise click.UsageError("--from and --to need --dump: without it all entries are checked")
    return inspect.inspect(directory)
