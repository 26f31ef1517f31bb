"""Writers: wrong columns and options, batches, and a query from queue to queue while its driver and executors die."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pytest

from qq.http.documents.arrow_input import ROWS_MAX
from qq.testing import LocalCluster
from qq_spark import Access, QueueSourceError, Refusal, SinkClient
from qq_spark.options import writer_options
from qq_spark.sink_client import pieces
from tests.docs.documents import ROOT

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

pa: Any = pytest.importorskip("pyarrow")
types = pytest.importorskip("pyspark.sql.types")

from qq_spark.sink import AttemptMessage, QueueWriter, check_sink_columns  # noqa: E402 - only with PySpark

DRIVER = Path(__file__).with_name("sink_driver.py")
URL = {"url": "http://127.0.0.1:1"}
PATIENCE_S = 240


@pytest.mark.parametrize(
    ("options", "is_stream", "error"),
    [
        ({"group": "g"}, False, "option 'group' is unknown"),
        ({"queue": "q", "exchange": "x"}, False, "option 'exchange' contradicts option 'queue'"),
        ({"guarantee": "twice"}, False, "option 'guarantee' must be 'exactly-once' or 'at-least-once'"),
        ({"guarantee": "at-least-once", "sink": "s"}, True, "option 'sink' contradicts option 'guarantee'"),
        ({"epoch": "3"}, False, "option 'sink' is missing"),
        ({"sink": "s"}, False, "option 'epoch' is missing"),
        ({"sink": "s", "epoch": "-1"}, False, "option 'epoch' must be a whole number from 0"),
        ({"epoch": "3"}, True, "option 'epoch' is for write"),
    ],
)
def test_option_that_contradicts_is_named(options: dict[str, str], is_stream: bool, error: str) -> None:
    with pytest.raises(QueueSourceError, match=error):
        writer_options(URL | options, is_stream=is_stream)


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ([("routing_key", "string")], "column 'body' is missing"),
        ([("body", "integer")], "column 'body' must be binary or string: int"),
        (
            [("body", "string"), ("colour", "string")],
            "a message has no column 'colour', so select others; the columns are: body, ",
        ),
        (
            [("body", "string"), ("headers", types.MapType(types.IntegerType(), types.StringType()))],
            "column 'headers' must be map<string,...> or string: map<int,string>",
        ),
        (
            [("body", "string"), ("priority", "string")],
            "column 'priority' must be tinyint or smallint or int or bigint: string",
        ),
        ([("body", "string")], "option 'queue' is missing"),
    ],
)
def test_column_that_does_not_fit_is_named(columns: list[tuple[str, Any]], error: str) -> None:
    options = writer_options(URL, is_stream=False)
    schema = types.StructType()
    for name, kind in columns:
        schema.add(name, kind)
    with pytest.raises(QueueSourceError) as refused:
        check_sink_columns(schema, options, overwrite=False)
    assert str(refused.value).startswith(error)


def test_options_that_spark_adds_are_accepted() -> None:
    added = {"queryName": "copies", "checkpointLocation": "/c", "path": "/p"}
    assert writer_options(URL | added, is_stream=True) == writer_options(URL, is_stream=True)


def test_rows_are_divided_by_their_bytes() -> None:
    bodies = [b"x" * 10] * 5_000 + [b"y" * 1_500_000, b"z" * 3_000_000] + [b"x" * 300] * 9_000
    batch = pa.record_batch({"body": bodies})
    parts = list(pieces(batch))
    assert [body for part in parts for body in part.column("body").to_pylist()] == bodies
    assert all(part.nbytes < 2_200_000 or part.num_rows == 1 for part in parts)
    assert list(pieces(batch.slice(0, 0))) == []


def test_rows_are_divided_at_the_limit_of_a_node() -> None:
    batch = pa.record_batch({"body": pa.array([b""] * 140_000, pa.binary())})
    assert [part.num_rows for part in pieces(batch)] == [ROWS_MAX, ROWS_MAX, 140_000 - 2 * ROWS_MAX]


class Cluster:
    """A cluster with queues of the test."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.nodes = cluster.nodes
        self.urls = tuple(f"http://127.0.0.1:{node.http_port}" for node in cluster.nodes)

    @contextmanager
    def _channel(self) -> Generator[Any]:
        node = next(node for node in self.nodes if node.running)
        with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
            yield connection.channel()

    def declare(self, queue: str, **arguments: object) -> None:
        kind = {"x-queue-type": "quorum"}
        with self._channel() as channel:
            channel.queue_declare(queue, durable=True, arguments=kind | arguments)

    def publish(self, queue: str, bodies: Sequence[str]) -> None:
        with self._channel() as channel:
            channel.tx_select()
            for body in bodies:
                channel.basic_publish("", queue, body.encode())
            channel.tx_commit()

    def count(self, queue: str) -> int:
        with self._channel() as channel:
            return channel.queue_declare(queue, passive=True).method.message_count

    def bodies(self, queue: str) -> list[str]:
        found: list[str] = []
        with self._channel() as channel:
            while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                found.append(got[2].decode())
        return found


@pytest.fixture(scope="module")
def cluster() -> Generator[Cluster]:
    with LocalCluster(3) as cluster:
        yield Cluster(cluster)


def writer_of(cluster: Cluster, **options: str) -> QueueWriter:
    """Return a writer as a worker gets it."""
    given = {"url": ",".join(cluster.urls), "retrySeconds": "20", **options}
    return pickle.loads(pickle.dumps(QueueWriter(writer_options(given, is_stream=False))))


def write(writer: QueueWriter, *bodies: str) -> AttemptMessage:
    return writer.write(iter([pa.record_batch({"body": list(bodies)})]))


def test_batch_is_published_as_a_whole(cluster: Cluster) -> None:
    cluster.declare("whole")
    writer = writer_of(cluster, queue="whole")
    write(writer, "of a dead task")
    messages = [write(writer, "a", "b"), None, write(writer, "c"), writer.write(iter([]))]
    assert cluster.count("whole") == 0
    writer.commit(messages)
    writer.commit([])
    assert cluster.bodies("whole") == ["a", "b", "c"]
    failed = writer_of(cluster, queue="whole")
    write(failed, "x")
    failed.abort([None])
    with SinkClient(Access(cluster.urls)) as client:
        assert client._request("GET", "/api/sinks/%2F") == []
    assert cluster.bodies("whole") == []


def test_repeated_epoch_of_a_named_sink_is_published_once(cluster: Cluster) -> None:
    cluster.declare("named")
    for epoch in ("0", "0", "1", "0"):
        writer = writer_of(cluster, queue="named", sink="mine", epoch=epoch)
        writer.commit([write(writer, f"{epoch} a"), write(writer, f"{epoch} b")])
    assert cluster.bodies("named") == ["0 a", "0 b", "1 a", "1 b"]


def test_at_least_once_publishes_before_the_commit(cluster: Cluster) -> None:
    cluster.declare("early")
    writer = writer_of(cluster, queue="early", guarantee="at-least-once")
    message = write(writer, "a", "b")
    assert cluster.bodies("early") == ["a", "b"]
    writer.commit([message])
    assert cluster.bodies("early") == []


def test_full_queue_fails_the_write_and_keeps_no_message(cluster: Cluster) -> None:
    cluster.declare("full", **{"x-max-length": 2, "x-overflow": "reject-publish"})
    writer = writer_of(cluster, queue="full")
    with pytest.raises(Refusal, match="queue 'full' in vhost '/' is too full for 3 messages"):
        writer.commit([write(writer, "a"), write(writer, "b", "c")])
    assert cluster.count("full") == 0
    with pytest.raises(Refusal, match="routing key 'nowhere' reach no queue from exchange ''"):
        write(writer_of(cluster, queue="nowhere"), "a")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_queue_to_queue_is_exact_when_all_parts_die(cluster: Cluster, tmp_path: Path) -> None:
    sent = [f"order {number}" for number in range(800)]
    cluster.declare("in")
    cluster.declare("out")
    cluster.publish("in", sent)
    access = {"url": ",".join(cluster.urls)}
    source = access | {"queue": "in", "group": "g", "partitions": "2", "maxMessagesPerTrigger": "80"}

    def start() -> subprocess.Popen[bytes]:
        with (tmp_path / "driver.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, DRIVER, tmp_path, json.dumps(source), json.dumps(access | {"queue": "out"})],
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(driver: subprocess.Popen[bytes], count: int) -> None:
        end = time.monotonic() + PATIENCE_S
        while cluster.count("out") < count:
            log = (tmp_path / "driver.log").read_text()[-4000:]
            assert driver.poll() is None, log
            assert time.monotonic() < end, log
            time.sleep(0.1)

    driver = start()
    try:
        wait(driver, 160)
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        finished = sorted(
            (tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda file: int(file.name)
        )
        finished[-1].unlink()  # so the next driver repeats an epoch that is published
        # Otherwise Hadoop writes the file of the repeated epoch, but fails to put its checksum beside it. PySpark 4.3
        # writes none.
        finished[-1].with_name(f".{finished[-1].name}.crc").unlink(missing_ok=True)
        cluster.nodes[0].kill()
        driver = start()
        wait(driver, len(sent))
        (tmp_path / "stop").touch()
        assert driver.wait(PATIENCE_S) == 0
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
    assert sorted(cluster.bodies("out")) == sorted(sent)
