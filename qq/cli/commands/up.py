"""`qq up`: its options."""

from __future__ import annotations

from pathlib import Path

import click

from qq.cli.command_line.values import DIRECTORY
from qq.cli.local_files import BASE_PORT_MAX


@click.command("up")
@click.option("--nodes", type=click.Choice(["1", "3", "5"]), default="3", help="[default: 3]")
@click.option(
    "--data-dir",
    type=DIRECTORY,
    default=Path("var"),
    metavar="DIR",
    help="Directory of the cluster, kept between runs.  [default: ./var]",
)
@click.option(
    "--base-port",
    type=click.IntRange(1, BASE_PORT_MAX),
    default=5672,
    metavar="PORT",
    help="Node i: AMQP on PORT+i-1, HTTP on that +10000, peers on that +20000.  [default: 5672]",
)
@click.option("--fresh", is_flag=True, help="Delete the cluster in the directory first.")
@click.option("--restart", is_flag=True, help="Start nodes again when they die.")
def up_command(*, nodes: str, data_dir: Path, base_port: int, fresh: bool, restart: bool) -> int:
    """Run a cluster on this machine, a process for each node, until Ctrl-C. Its data stays."""
    from qq.cli.local.up import up  # noqa: PLC0415

    return up(data_dir=data_dir, node_count=int(nodes), base_port=base_port, fresh=fresh, restart=restart)
