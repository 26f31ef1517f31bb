"""Streams of real queues in a real Spark: killed drivers, tasks and nodes neither lose nor double rows."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pika
import pytest

from qq.testing import LocalCluster
from qq_spark import Access, Group, LeaseClient
from tests.docs.documents import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

DRIVER = Path(__file__).with_name("stream_driver.py")
PATIENCE_S = 240


class Pipeline:
    """A streaming query, its drivers, and its output."""

    def __init__(self, cluster: LocalCluster, directory: Path, queues: str) -> None:
        self.cluster = cluster
        self.directory = directory
        self.urls = tuple(f"http://127.0.0.1:{node.http_port}" for node in cluster.nodes)
        self.options = {
            "url": ",".join(self.urls),
            "queuePattern": queues,
            "group": "pipeline",
            "partitions": 3,
            "maxMessagesPerTrigger": 400,
        }
        self._driver: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> None:
        with (self.directory / "driver.log").open("ab") as log:
            self._driver = subprocess.Popen(
                [sys.executable, DRIVER, self.directory, json.dumps(self.options)],
                env=os.environ | {"PYTHONPATH": str(ROOT), **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill the driver, Java, and the workers."""
        assert self._driver is not None
        os.killpg(self._driver.pid, signal.SIGKILL)
        self._driver.wait()

    def finish(self) -> None:
        """End the query when it has read and committed all messages."""
        assert self._driver is not None
        with LeaseClient(Access(self.urls)) as client:
            queues = client.queues()
            self.wait(lambda: all(is_drained(client.group(queue, "pipeline")) for queue in queues))
        (self.directory / "stop").touch()
        assert self._driver.wait(PATIENCE_S) == 0, self.log()

    def wait(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert self._driver is not None
            assert self._driver.poll() is None, self.log()
            assert time.monotonic() < end, self.log()
            time.sleep(0.05)

    def log(self) -> str:
        return (self.directory / "driver.log").read_text()[-4000:]

    def batches(self) -> dict[int, list[str]]:
        """Return the attempts of each batch, whose rows are lines."""
        found: defaultdict[int, list[str]] = defaultdict(list)
        for file in self.directory.glob("[0-9]*.[0-9]*"):
            found[int(file.stem)].append(file.read_text())
        return found

    def rows(self) -> list[dict[str, object]]:
        """Return the output: each batch once. Its attempts must be equal."""
        batches = self.batches()
        assert {number for number, attempts in batches.items() if len(set(attempts)) > 1} == set()
        assert sorted(batches) == list(range(len(batches)))
        return [json.loads(line) for number in batches for line in batches[number][0].splitlines()]


def is_drained(group: Group | None) -> bool:
    return group is not None and group.committed >= 0 and group.ready == 0 and not group.leases


@pytest.fixture
def pipeline(tmp_path: Path) -> Generator[Pipeline]:
    with LocalCluster(3) as cluster:
        pipeline = Pipeline(cluster, tmp_path, "orders-.*")
        yield pipeline
        if pipeline._driver is not None and pipeline._driver.poll() is None:
            pipeline.kill()


def publish(cluster: LocalCluster, bodies: Sequence[tuple[str, str]]) -> None:
    """Publish messages to queues, in a transaction."""
    node = next(node for node in cluster.nodes if node.running)
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        channel = connection.channel()
        for queue in {queue for queue, _ in bodies}:
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        channel.tx_select()
        for queue, body in bodies:
            channel.basic_publish("", queue, body.encode())
        channel.tx_commit()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rows_are_exact_when_driver_task_and_node_die(pipeline: Pipeline) -> None:
    sent = [(f"orders-{number % 2}", f"order {number}") for number in range(1000)]
    publish(pipeline.cluster, sent)
    pipeline.start(HOLD="1")
    pipeline.wait(lambda: 1 in pipeline.batches())
    pipeline.kill()  # its batch is written, and not recorded as finished
    pipeline.cluster.nodes[0].kill()
    pipeline.start()
    pipeline.finish()
    rows = pipeline.rows()
    assert len(pipeline.batches()[1]) == 2
    assert sorted((row["queue"], row["body"]) for row in rows) == sorted(sent)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(3))
def test_rows_are_exact_when_all_parts_die_at_random(pipeline: Pipeline, seed: int) -> None:
    chance = random.Random(seed)
    pipeline.options["maxMessagesPerTrigger"] = 150
    sent: list[tuple[str, str]] = []
    for run in range(6):
        more = [(f"orders-{chance.randrange(3)}", f"order {run}.{number}") for number in range(700)]
        publish(pipeline.cluster, more)
        sent += more
        pipeline.start()
        begun = len(pipeline.batches())
        pipeline.wait(lambda begun=begun: len(pipeline.batches()) > begun)
        time.sleep(chance.random() * 3)
        if chance.random() < 0.7:
            chance.choice(pipeline.cluster.nodes).kill()
            time.sleep(chance.random())
        pipeline.kill()
        pipeline.cluster.restore()
    pipeline.start()
    pipeline.finish()
    assert sorted((row["queue"], row["body"]) for row in pipeline.rows()) == sorted(sent)
