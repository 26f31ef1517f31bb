"""The commands of an archive, for `qq archive` and `python -m qq_spark.archive`.

Each of the two has options of its own for the nodes and the login: `with_access` adds these to a command, which gets
the resulting `Access` as its first argument.
"""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qq_spark.archive.store import Archive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from qq_spark.archive.frames import Selection
    from qq_spark.client import Access

    Command = Callable[..., int]
    SparkContext = AbstractContextManager[SparkSession]

_DIRECTORY = click.argument("location", metavar="DIR")
_DAYS_MAX = 36_500
_QUEUES = click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Queue; may be repeated.")


def with_spark(function: Command) -> Command:
    """Add the options of Spark; the command gets them as `spark`, a context that makes the session."""

    @wraps(function)
    def run(*arguments: Any, master: str, conf: tuple[str, ...], **options: Any) -> int:
        from qq_spark.archive.session import session  # noqa: PLC0415 - not for the help

        settings = {name: value for name, _, value in (setting.partition("=") for setting in conf)}
        return function(*arguments, spark=session(master, settings), **options)

    for option in (
        click.option(
            "--conf",
            multiple=True,
            metavar="NAME=VALUE",
            help="A setting of Spark, such as spark.driver.memory=4g; may be repeated.",
        ),
        click.option(
            "--master", default="local[*]", metavar="URL", help="Where Spark runs.  [default: local[*]]"
        ),
    ):
        run = option(run)
    return run


def with_selection(function: Command) -> Command:
    """Add the options that select messages; the command gets them as `selection`."""

    @wraps(function)
    def run(
        *arguments: Any,
        queues: tuple[str, ...],
        since: datetime | None,
        until: datetime | None,
        routing_key: str | None,
        headers: str | None,
        reason: str | None,
        **options: Any,
    ) -> int:
        from qq_spark.archive.frames import Selection  # noqa: PLC0415 - not for the help

        selection = Selection(queues, _utc(since), _utc(until), routing_key, _headers(headers), reason)
        if selection.since and selection.until and selection.since >= selection.until:
            raise click.UsageError("--since must be before --until")
        return function(*arguments, selection=selection, **options)

    for option in reversed(
        (
            _QUEUES,
            click.option("--since", type=_TIME, metavar="TIME", help="Messages from this time (UTC) on."),
            click.option("--until", type=_TIME, metavar="TIME", help="Messages before this time (UTC)."),
            click.option("--routing-key", metavar="KEY", help="Routing key, or pattern of a topic exchange."),
            click.option("--headers", metavar="JSON", help='Headers with these values, as {"tenant": "a"}.'),
            click.option("--reason", metavar="REASON", help="Reason of the last death, such as rejected."),
        )
    ):
        run = option(run)
    return run


_TIME = click.DateTime(("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"))


def _utc(time: datetime | None) -> datetime | None:
    return None if time is None else time.replace(tzinfo=UTC)


def _headers(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise click.UsageError('--headers must be a JSON object, as {"tenant": "a"}')
    return document


def archive_commands(with_access: Callable[[Command], Command]) -> Iterator[click.Command]:
    """Make the commands."""

    @click.command("messages")
    @_DIRECTORY
    @_QUEUES
    @click.option("--pattern", metavar="REGEX", help="Regular expression for names of queues.")
    @click.option("--keep", is_flag=True, help="Archive a snapshot, and leave the messages in the queue.")
    @with_spark
    @with_access
    def messages(
        access: Access,
        *,
        location: str,
        queues: tuple[str, ...],
        pattern: str | None,
        keep: bool,
        spark: SparkContext,
    ) -> int:
        """Move the ready messages of queues into an archive.

        If the command ends early, run it again: it goes on, and the archive has each message once.
        """
        if not queues and pattern is None:
            raise click.UsageError("give --queue or --pattern")
        from qq_spark.archive.job import archive_queues, named_queues, on_spark  # noqa: PLC0415

        archive = Archive(location)
        archive.create(access.vhost)
        found = named_queues(access, queues, pattern)
        with spark as session:
            for taken in archive_queues(on_spark(session), archive, access, found, keep=keep):
                click.echo(
                    f"archived {taken.messages:,} messages of '{shown(taken.queue)}' in {taken.files:,} files, "
                    f"{taken.bytes:,} bytes"
                )
        return 0

    @click.command("list")
    @_DIRECTORY
    def list_partitions(*, location: str) -> int:
        """List the queues and dates of an archive."""
        totals: dict[tuple[str, str], list[int]] = {}
        for each in Archive(location).contents().finished():
            total = totals.setdefault((each.queue, each.directory.rpartition("=")[2]), [0, 0, 0])
            total[0] += each.messages
            total[1] += len(each.files)
            total[2] += sum(file.bytes for file in each.files)
        for (queue, day), (count, files, size) in sorted(totals.items()):
            click.echo(f"{day}  {shown(queue)}  {count:,} messages  {files:,} files  {size:,} bytes")
        return 0

    @click.command("check")
    @_DIRECTORY
    def check(*, location: str) -> int:
        """Check that all leases and files of an archive are there and unchanged, by their numbers and hashes."""
        archive = Archive(location)
        contents = archive.contents()
        manifests = contents.finished()
        archive.check_files(contents, manifests, hashes=True)
        archive.check_leases(contents, manifests)  # last, because somebody may have released a lease
        files = sum(len(each.files) for each in manifests)
        click.echo(f"{sum(each.messages for each in manifests):,} messages in {files:,} files: unchanged")
        return 0

    @click.command("delete")
    @_DIRECTORY
    @click.option(
        "--older-than",
        "days",
        type=click.IntRange(1, _DAYS_MAX),
        required=True,
        metavar="DAYS",
        help="Days to keep.",
    )
    def delete(*, location: str, days: int) -> int:
        """Delete the partitions of an archive that are older than some days, except incomplete partitions."""
        deleted, incomplete = Archive(location).delete_older(days, datetime.now(UTC).date())
        for directory in deleted:
            click.echo(f"deleted {directory}")
        for directory in incomplete:
            click.echo(f"kept {directory}: it is not complete, run `archive messages` again")
        return 0

    @click.command("analyze")
    @click.argument("location", metavar="[DIR]", required=False)
    @click.option(
        "--page",
        type=click.Path(path_type=Path, dir_okay=False),
        required=True,
        metavar="FILE",
        help="HTML file to write.",
    )
    @with_selection
    @with_spark
    @with_access
    def analyze(
        access: Access, *, location: str | None, page: Path, selection: Selection, spark: SparkContext
    ) -> int:
        """Write a page about dead letters: reasons by hour, queue and publisher, and payloads.

        The dead letters are those of an archive or, without DIR, the ready messages of a queue, which stay there.
        """
        from qq_spark.archive.analysis import counted, write_page  # noqa: PLC0415 - not for the help
        from qq_spark.archive.frames import archived_messages, snapshot_messages  # noqa: PLC0415 - the same

        if location is None:
            if len(selection.queues) != 1:
                raise click.UsageError("give DIR, or a single --queue")
            (queue,) = selection.queues
            with spark as session, snapshot_messages(session, access, queue, selection) as frame:
                counts = counted(frame)
            title = f"Dead letters of queue {queue}"
        else:
            archive = Archive(location)
            archive.contents().finished(selection.queues)  # an error needs no Spark
            with spark as session:
                counts = counted(archived_messages(session, archive, selection))
            title = f"Dead letters of {location}"
        write_page(counts, title, page)
        click.echo(f"{page}: {counts.messages:,} messages")
        return 0

    @click.command("replay")
    @_DIRECTORY
    @click.option("--id", "name", required=True, metavar="ID", help="Name of the replay, to continue it.")
    @click.option("--exchange", required=True, metavar="EXCHANGE", help="Exchange that gets the messages.")
    @click.option("--to-key", metavar="KEY", help="Routing key of all messages.  [default: their own]")
    @click.option(
        "--amqp-url",
        "targets",
        multiple=True,
        default=("amqp://127.0.0.1:5672",),
        metavar="URL",
        help="AMQP port of a node; may be repeated.  [default: amqp://127.0.0.1:5672]",
    )
    @with_selection
    @with_spark
    @with_access
    def replay(
        access: Access,
        *,
        location: str,
        name: str,
        exchange: str,
        to_key: str | None,
        targets: tuple[str, ...],
        selection: Selection,
        spark: SparkContext,
    ) -> int:
        """Publish messages of an archive to an exchange, each once and in order.

        If the command ends early, run it again with the same options: it goes on.
        """
        from qq_spark.archive.replay import Publisher, Replay, Target  # noqa: PLC0415 - not for the help

        begun = Replay(Archive(location), name, selection, Target(exchange, to_key))
        with spark as session, closing(Publisher(targets, access, begun)) as publisher:
            count = begun.run(session, publisher)
        click.echo(f"published {count:,} messages to '{shown(exchange)}'")
        return 0

    yield from (messages, list_partitions, check, delete, replay, analyze)


def shown(text: str) -> str:
    """Escape control characters for a terminal."""
    return "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in text)
