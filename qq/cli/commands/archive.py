"""`qq archive`: the commands of `qq_spark.archive`, with the nodes and the login of `qq`."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from qq.cli.command_line.tree import CommandGroup
from qq.cli.options import with_target, with_vhost
from qq.errors import CommandError
from qq_spark.archive.command_line import archive_commands
from qq_spark.client import Access
from qq_spark.errors import QueueSourceError

if TYPE_CHECKING:
    from qq.cli.client.contexts import Context
    from qq.cli.client.http_client import ClientLogin
    from qq.cli.options import Command


class _ArchiveGroup(CommandGroup):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except QueueSourceError as error:
            raise CommandError(str(error)) from error


@click.group("archive", cls=_ArchiveGroup)
def archive_command() -> None:
    """Keep messages of queues in Parquet files, and use the archive.

    Spark does the work: pip install 'qq-broker[spark]'.
    """


def _with_access(function: Command) -> Command:
    @wraps(function)
    def run(context: Context, login: ClientLogin, *, vhost: str, **options: Any) -> int:
        if context.cert_file is not None:
            raise CommandError("the tasks of Spark have no client certificates: use a listener without them")
        ca_file = None if context.ca_file is None else str(context.ca_file)
        return function(Access(context.urls, login.user, login.password, vhost, ca_file), **options)

    return with_target(with_vhost(run))


for _command in archive_commands(_with_access):
    archive_command.add_command(_command)
