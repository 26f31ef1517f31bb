"""Replays of an archive: an exchange gets each selected message once, also if replays end in the middle."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pika
import pytest

from qq_spark.archive import archiver
from qq_spark.archive import replay as module
from qq_spark.archive.frames import Selection
from qq_spark.archive.replay import Message, Publisher, Replay, Target
from qq_spark.archive.store import Archive, ArchiveError
from tests.qq_spark.archive.local_archive import CrashError, publish, run

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from qq.testing import LocalCluster
    from qq_spark import Access

pytestmark = [
    # PySpark leaves the sockets of results to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def archive(cluster: LocalCluster, access: Access, tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """An archive of 26 messages in 6 leases, every second with the header `odd`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archiver, "LEASE_MESSAGES", 5)
        for number in range(26):
            headers = {"odd": number % 2, "x-publisher-id": "source", "x-publish-seq": number + 1}
            publish(cluster, "source", [str(number)], headers=headers, content_type="a/b", priority=3)
        directory = tmp_path_factory.mktemp("archive")
        run(directory, access, "source")
    return Archive(str(directory))


def drained(cluster: LocalCluster, queue: str) -> list[tuple[pika.BasicProperties, bytes]]:
    with pika.BlockingConnection(pika.URLParameters(cluster.nodes[0].url)) as connection:
        channel = connection.channel()
        found: list[tuple[pika.BasicProperties, bytes]] = []
        while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
            found.append(got[1:])
        return found


def replayed(
    spark: SparkSession, archive: Archive, cluster: LocalCluster, access: Access, **options: Any
) -> int:
    given = {"name": "again", "selection": Selection(), "target": Target("", "copy")} | options
    begun = Replay(archive, **given)
    with closing(Publisher([cluster.nodes[0].url], access, begun)) as publisher:
        return begun.run(spark, publisher)


@pytest.mark.slow
def test_interrupted_replays_publish_each_message_once(
    spark: SparkSession,
    archive: Archive,
    cluster: LocalCluster,
    access: Access,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish(cluster, "copy", [])
    monkeypatch.setattr(module, "BATCH_MESSAGES", 2)
    publishing = Publisher._publish
    left = 0

    def crashing(publisher: Publisher, batch: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise CrashError
        publishing(publisher, batch)
        if left == 0:
            raise CrashError

    monkeypatch.setattr(Publisher, "_publish", crashing)
    for steps in (1, 2, 4, 5):
        left = steps
        with pytest.raises(CrashError):
            replayed(spark, archive, cluster, access)
    monkeypatch.setattr(Publisher, "_publish", publishing)
    replayed(spark, archive, cluster, access)
    found = drained(cluster, "copy")
    assert [body.decode() for _, body in found] == list(map(str, range(26)))
    properties = found[1][0]
    assert (properties.content_type, properties.priority, properties.headers["odd"]) == ("a/b", 3, 1)
    assert re.fullmatch("replay-again-[0-9a-f]{16}", properties.headers["x-publisher-id"])
    assert replayed(spark, archive, cluster, access) == 0
    with pytest.raises(ArchiveError, match="replay 'again' has begun with another routing_key"):
        replayed(spark, archive, cluster, access, target=Target("", "source"))


@pytest.mark.slow
def test_replays_of_a_name_in_two_archives_publish_both(
    spark: SparkSession, cluster: LocalCluster, access: Access, tmp_path: Path
) -> None:
    publish(cluster, "both", [])
    for number, source in enumerate(("first", "second")):
        publish(cluster, source, [f"{number}-{each}" for each in range(3)])
        run(tmp_path / source, access, source)
        assert (
            replayed(spark, Archive(str(tmp_path / source)), cluster, access, target=Target("", "both")) == 3
        )
    assert len(drained(cluster, "both")) == 6


def test_replay_of_an_earlier_program_keeps_its_publisher_id(archive: Archive) -> None:
    options = (Selection(), Target("", "copy"))
    begun = Replay(archive, "old", *options)
    record = archive.replay("old", ("publisher",))
    assert record is not None
    assert begun.publisher_id == record.pop("publisher") == Replay(archive, "old", *options).publisher_id
    archive.write_replay("old", record)
    assert Replay(archive, "old", *options).publisher_id == "replay-old"


@pytest.mark.slow
def test_selected_messages_are_published(
    spark: SparkSession, archive: Archive, cluster: LocalCluster, access: Access
) -> None:
    chosen = {"name": "odd", "selection": Selection(headers={"odd": 1}), "target": Target("amq.topic", "a.b")}
    publish(cluster, "chosen", [])
    with pytest.raises(ArchiveError, match=r"exchange 'amq\.topic' has no queue for routing key 'a\.b'"):
        replayed(spark, archive, cluster, access, **chosen)
    with pika.BlockingConnection(pika.URLParameters(cluster.nodes[0].url)) as connection:
        connection.channel().queue_bind("chosen", "amq.topic", "a.#")
    replayed(spark, archive, cluster, access, **chosen)
    assert [body.decode() for _, body in drained(cluster, "chosen")] == list(map(str, range(1, 26, 2)))
    with pytest.raises(ArchiveError, match="no exchange 'absent'"):
        replayed(spark, archive, cluster, access, name="absent", target=Target("absent", None))


def test_queue_without_room_is_told(archive: Archive, cluster: LocalCluster, access: Access) -> None:
    arguments = {"x-queue-type": "quorum", "x-max-length": 2, "x-overflow": "reject-publish"}
    with pika.BlockingConnection(pika.URLParameters(cluster.nodes[0].url)) as connection:
        connection.channel().queue_declare("full", durable=True, arguments=arguments)
    begun = Replay(archive, "full", Selection(), Target("", "full"))
    octets = b"".join(pika.BasicProperties().encode())
    batch = [Message(number, "full", b"text", octets) for number in range(1, 4)]
    with (
        closing(Publisher([cluster.nodes[0].url], access, begun)) as publisher,
        pytest.raises(
            ArchiveError,
            match=r"partial tx completion: a queue of exchange '' refuses messages, .* run the replay again",
        ),
    ):
        publisher.publish(batch)


def test_wrong_names_and_addresses_are_refused(
    archive: Archive, cluster: LocalCluster, access: Access, tmp_path: Path
) -> None:
    with pytest.raises(ArchiveError, match="'a/b' is no name of a replay"):
        Replay(archive, "a/b", Selection(), Target("", None))
    begun = Replay(archive, "addresses", Selection(), Target("", None))
    with pytest.raises(ArchiveError, match="'http://x' is no address"):
        Publisher(["http://x"], access, begun)
    with pytest.raises(ArchiveError, match="the cluster refuses user 'guest'"):
        Publisher([cluster.nodes[0].url], access._replace(password="wrong"), begun).publish([])
