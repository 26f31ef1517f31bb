"""`qq rescue-admin`: its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.client.new_password import prompt_or_read, with_new_password
from qq.cli.command_line.values import FILE, REQUIRED, SECONDS

if TYPE_CHECKING:
    from pathlib import Path

_TIMEOUT_S = 30.0


@click.command("rescue-admin")
@click.option(
    "--config", type=FILE, required=True, metavar="FILE", help="Settings of a node of this machine."
)
@click.option(
    "--name", type=REQUIRED, required=True, metavar="USER", help="User that becomes an administrator."
)
@with_new_password
@click.option(
    "--timeout",
    "timeout_s",
    type=SECONDS,
    default=_TIMEOUT_S,
    metavar="SECONDS",
    help=f"How long to wait for the node.  [default: {_TIMEOUT_S:g}]",
)
def rescue_admin_command(*, config: Path, name: str, file: str | None, timeout_s: float) -> int:
    """Make a user an administrator with a new password, without a login. Run it where the node runs, as its user."""
    from qq.cli.local.rescue import rescue  # noqa: PLC0415 -- large

    return rescue(config, name, prompt_or_read(file), timeout_s)
