"""The format `qq` beside a real node, called as Spark calls it: snapshots and open leases."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pika
import pytest

from qq.testing import LocalCluster
from qq_spark import Access, LeaseClient, QueueSourceError, Refusal

if TYPE_CHECKING:
    from collections.abc import Generator

types = pytest.importorskip("pyspark.sql.types")
SCHEMA = types.StructType(
    [types.StructField("body", types.StringType()), types.StructField("row", types.LongType())]
)


@pytest.fixture(scope="module")
def client() -> Generator[LeaseClient]:
    """A client of a cluster with 100 messages in the queue `orders`."""
    with LocalCluster(1) as cluster:
        with pika.BlockingConnection(pika.URLParameters(cluster.nodes[0].url)) as connection:
            channel = connection.channel()
            channel.queue_declare("orders", durable=True, arguments={"x-queue-type": "quorum"})
            channel.tx_select()
            for number in range(100):
                channel.basic_publish("", "orders", b"%d" % number)
            channel.tx_commit()
        with LeaseClient(Access((f"http://127.0.0.1:{cluster.nodes[0].http_port}",))) as client:
            yield client


def reader_of(client: LeaseClient, **options: str) -> Any:
    """Return a reader as a worker gets it."""
    from qq_spark.source import QueueSource  # noqa: PLC0415 - it imports PySpark

    source = QueueSource({"url": client._access.urls[0], "queue": "orders", **options})
    return pickle.loads(pickle.dumps(source)).reader(SCHEMA)


def rows(reader: Any) -> list[int]:
    batches = [
        batch for each in reader.partitions() for batch in pickle.loads(pickle.dumps(reader)).read(each)
    ]
    found = [row for batch in batches for row in batch.to_pylist()]
    assert [row["row"] for row in found] == list(range(len(found)))
    return [int(row["body"]) for row in found]


def test_snapshot_is_read_again_until_it_is_released(client: LeaseClient) -> None:
    reader = reader_of(client, group="look", maxMessages="30", partitions="3")
    assert len(reader.partitions()) == 3
    assert rows(reader) == rows(reader) == list(range(30))
    parts = reader.partitions()
    client.end_group("orders", "look", 0, release=True)
    returned = r"this snapshot of queue 'orders' have .* 'holdSeconds' \(300 s\)"
    with pytest.raises(QueueSourceError, match=returned):
        list(reader.read(parts[0]))
    assert rows(reader_of(client, group="look", maxMessages="1")) == [0]
    with pytest.raises(QueueSourceError, match=returned):  # the lease of this number is of a later snapshot
        list(reader.read(parts[0]))
    client.end_group("orders", "look", 0, release=True)


def test_each_data_frame_has_a_snapshot_of_its_own(client: LeaseClient) -> None:
    assert rows(reader_of(client, maxMessages="60", holdSeconds="1")) == list(range(60))
    assert rows(reader_of(client, holdSeconds="1")) == list(range(60, 100))
    assert rows(reader_of(client, holdSeconds="1")) == []


def test_leases_are_read_by_their_numbers(client: LeaseClient) -> None:
    with pytest.raises(Refusal, match="no group 'mine' of queue 'orders'"):
        reader_of(client, group="mine", leases="0").partitions()
    fence = client.take_over("orders", "mine", "test").fence
    while client.group("orders", "mine").ready < 100:  # the snapshots return
        pass
    for number in range(3):
        client.take("orders", "mine", fence, number, 10, 10**6)
    taken = reader_of(client, group="mine", leases="1-2", partitions="2")
    found = [
        row["body"] for each in taken.partitions() for batch in taken.read(each) for row in batch.to_pylist()
    ]
    assert [int(body) for body in found] == list(range(10, 30))
    client.end_group("orders", "mine", fence, release=True)


def test_errors_can_be_sent_between_processes() -> None:
    for error in (QueueSourceError("text"), Refusal(409, "fence 3 is stale")):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
