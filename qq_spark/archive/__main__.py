"""`python -m qq_spark.archive`: the commands of an archive, without the command `qq`."""

from __future__ import annotations

import sys
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qq_spark.archive.command_line import archive_commands
from qq_spark.client import Access
from qq_spark.errors import QueueSourceError

if TYPE_CHECKING:
    from qq_spark.archive.command_line import Command

_PROGRAM = "python -m qq_spark.archive"


def with_access(function: Command) -> Command:
    """Add the options of the nodes and the login to a command."""

    @wraps(function)
    def run(
        urls: tuple[str, ...],
        user: str,
        password_file: Path | None,
        ca_file: str | None,
        vhost: str,
        **options: Any,
    ) -> int:
        password = "guest" if password_file is None else password_file.read_text().rstrip("\r\n")
        return function(Access(urls, user, password, vhost, ca_file), **options)

    for option in reversed(
        (
            click.option(
                "--url",
                "urls",
                multiple=True,
                default=("http://127.0.0.1:15672",),
                metavar="URL",
                help="HTTP port of a node; may be repeated.  [default: http://127.0.0.1:15672]",
            ),
            click.option("--vhost", default="/", metavar="NAME", help="The virtual host.  [default: /]"),
            click.option("--user", default="guest", metavar="USER", help="[default: guest]"),
            click.option("--password-file", type=click.Path(exists=True, path_type=Path), metavar="FILE"),
            click.option("--ca-file", metavar="FILE", help="CA certificates that verify the nodes."),
        )
    ):
        run = option(run)
    return run


@click.group()
def main() -> None:
    """Archive queues in Parquet files, and use the archive."""


for _command in archive_commands(with_access):
    main.add_command(_command)

if __name__ == "__main__":
    try:
        sys.exit(main(prog_name=_PROGRAM, standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except QueueSourceError as error:
        sys.exit(f"{_PROGRAM}: {error}")
