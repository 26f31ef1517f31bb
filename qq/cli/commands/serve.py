"""`qq serve`: its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qq.cli import ending
from qq.cli.values import FILE, PEER
from qq.process import garbage

if TYPE_CHECKING:
    from pathlib import Path

    from qq.config import Seed


@click.command("serve", short_help="run one node until SIGTERM")
@click.option("--config", type=FILE, required=True, metavar="FILE", help="The settings of the node.")
@click.option(
    "--join",
    type=PEER,
    multiple=True,
    metavar="HOST:PORT",
    help="Become a member of the cluster whose node has this port for peers; may be given several times.",
)
def command(*, config: Path, join: tuple[Seed, ...]) -> int:
    """Run one node in the foreground until SIGTERM or SIGINT."""
    with garbage.none_expected(), ending.at_once():
        from qq.cli.serve import serve  # noqa: PLC0415

    return serve(config, join=join)
