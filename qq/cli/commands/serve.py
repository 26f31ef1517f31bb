"""`qq serve`: its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli.command_line.values import FILE, PEER
from qq.cli.terminal import signals
from qq.process import garbage

if TYPE_CHECKING:
    from pathlib import Path

    from qq.config import Seed


@click.command("serve")
@click.option("--config", type=FILE, required=True, metavar="FILE", help="Settings of the node.")
@click.option(
    "--join",
    type=PEER,
    multiple=True,
    metavar="HOST:PORT",
    help="Join the cluster that has a node with this peer address; may be given several times.",
)
@click.option(
    "--check", is_flag=True, help="Only check the settings and the files that they name, and show them."
)
def serve_command(*, config: Path, join: tuple[Seed, ...], check: bool) -> int:
    """Run a node in the foreground until SIGTERM or SIGINT."""
    if check:
        from qq.cli.local.check_settings import check_settings  # noqa: PLC0415

        return check_settings(config, join)
    with garbage.none_expected(), signals.exit_at_once():
        from qq.cli.local.serve import serve  # noqa: PLC0415

    return serve(config, join=join)
