"""An archive in a directory, and runs of it in this process, without Spark."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pika
from pyarrow import parquet

from qq_spark.archive.archiver import write_part_with
from qq_spark.archive.job import archive_queues
from qq_spark.archive.store import Archive
from qq_spark.client import LeaseClient

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from pathlib import Path

    import pytest

    from qq.testing import LocalCluster
    from qq_spark import Access
    from qq_spark.archive.archiver import Part, Taken
    from qq_spark.archive.store import DataFile


class CrashError(Exception):
    """The run has ended in the middle."""


class Crash:
    """Ends a run at a step: before or after a request, or a change of a file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1
        """Steps until the end; negative without an end."""
        self._around(monkeypatch, LeaseClient, "_request")
        self._around(monkeypatch, Archive, "delete")
        writing = Archive.writing

        @contextmanager
        def crashing(archive: Archive, name: str) -> Generator[Any]:
            self.step()
            with writing(archive, name) as file:
                yield file
                self.step()
            self.step()

        monkeypatch.setattr(Archive, "writing", crashing)

    def step(self) -> None:
        if self.left == 0:
            raise CrashError
        self.left -= 1

    def _around(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def crashing(*arguments: Any) -> Any:
            self.step()
            result = function(*arguments)
            self.step()
            return result

        monkeypatch.setattr(owner, name, crashing)


def run(directory: Path | str, access: Access, *queues: str, keep: bool = False) -> list[Taken]:
    """Archive queues in this process."""

    def execute(parts: Sequence[Part]) -> list[DataFile]:
        with LeaseClient(access) as client:
            return [write_part_with(client, part) for part in parts]

    return list(archive_queues(execute, Archive(str(directory)), access, queues, keep=keep))


def rows(directory: Path, *queues: str) -> list[dict[str, Any]]:
    """Return the messages of an archive in its order."""
    archive = Archive(str(directory))
    contents = archive.contents()
    manifests = contents.finished(queues)
    archive.check_files(contents, manifests, hashes=True)
    archive.check_leases(contents, manifests)
    return [
        row
        for each in manifests
        for file in each.files
        for row in parquet.read_table(
            f"{directory}/{each.directory}/{file.name}", partitioning=None
        ).to_pylist()
    ]


def bodies(directory: Path, *queues: str) -> list[str]:
    return [row["body"].decode() for row in rows(directory, *queues)]


def publish(cluster: LocalCluster, queue: str, texts: Iterable[str], **properties: Any) -> None:
    """Publish messages in a transaction."""
    with pika.BlockingConnection(pika.URLParameters(cluster.nodes[0].url)) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        channel.tx_select()
        for text in texts:
            channel.basic_publish("", queue, text.encode(), pika.BasicProperties(**properties))
        channel.tx_commit()


def ready(cluster: LocalCluster, queue: str) -> int:
    with pika.BlockingConnection(pika.URLParameters(cluster.nodes[0].url)) as connection:
        return connection.channel().queue_declare(queue, passive=True).method.message_count


def delete_queue(cluster: LocalCluster, queue: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(cluster.nodes[0].url)) as connection:
        connection.channel().queue_delete(queue)
