"""`qq change-password`: its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.options import asks_node
from qq.cli.values import REQUIRED

if TYPE_CHECKING:
    from qq.cli.remote import Remote


@click.command("change-password", short_help="give a user another password")
@click.option("--name", type=REQUIRED, required=True, metavar="USER", help="Whose password.")
@click.option(
    "--new-password-file",
    "file",
    metavar="FILE|-",
    help="A file with the password and nothing else, or - for standard input.  [default: it is asked for]",
)
@asks_node
def command(node: Remote, *, name: str, file: str | None) -> int:
    """Give a user another password, which is asked for, or read from a file. The tags stay."""
    from qq.cli.users import change_password  # noqa: PLC0415

    return change_password(node, name, file)
