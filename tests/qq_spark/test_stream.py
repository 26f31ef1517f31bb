"""Streams of real queues in a real Spark: killed drivers, tasks and nodes neither lose nor double rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pika
import pytest

from qq.testing import LocalCluster
from tests.qq_spark.pipeline import Query, drained, drivers_of, run_killed_at_random

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rows_are_exact_when_driver_task_and_node_die(tmp_path: Path) -> None:
    sent = [(f"orders-{number % 2}", f"order {number}") for number in range(1000)]
    with LocalCluster(3) as cluster:
        query = Query(cluster, tmp_path, "orders-.*", maxMessagesPerTrigger=400)
        drivers = drivers_of(tmp_path, query)
        publish(cluster, query.copies, sent)
        drivers.start(HOLD="1")
        try:
            drivers.wait(lambda: 1 in query.batches())
            drivers.kill()  # its batch is written, and not recorded as finished
            cluster.nodes[0].kill()
            drivers.start()
            drivers.wait(lambda: query.has_drained(["orders-0", "orders-1"]))
            drivers.end()
        finally:
            drivers.kill()
        rows = query.rows()
        assert len(query.batches()[1]) == 2
        assert sorted((row["queue"], row["body"]) for row in rows) == sorted(sent)
        cluster.restore()
        assert sorted(drained(cluster, query.copies)) == sorted(body for _, body in sent)


def publish(cluster: LocalCluster, copies: str, messages: list[tuple[str, str]]) -> None:
    """Publish messages to queues, in a transaction."""
    with pika.BlockingConnection(pika.URLParameters(cluster.urls[0])) as connection:
        channel = connection.channel()
        for queue in {copies, *(queue for queue, _ in messages)}:
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        channel.tx_select()
        for queue, body in messages:
            channel.basic_publish("", queue, body.encode())
        channel.tx_commit()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_rows_are_exact_when_all_parts_die_at_random(tmp_path: Path) -> None:
    """`make spark` runs more of these."""
    with LocalCluster(3) as cluster:
        run_killed_at_random(cluster, tmp_path, range(3))
