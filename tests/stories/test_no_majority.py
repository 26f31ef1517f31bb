"""Two of three nodes are down: clients of the third get the reason, and continue when the majority is back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aio_pika
import aiormq
import pika
import pytest

from qq.testing import ClusterNode, LocalCluster
from tests.harness.stopwatch import Stopwatch

QUORUM = {"x-queue-type": "quorum"}
UNANSWERED = "the cluster has not answered in time"
LIMITS = {"majority_timeout_ms": 1500, "handshake_timeout_s": 1.0}


@pytest.fixture(scope="module")
def cluster() -> Generator[LocalCluster]:
    with LocalCluster(nodes=3, settings={"limits": LIMITS}) as cluster:
        yield cluster


def refusal(request: Callable[[], Any]) -> str:
    with pytest.raises(pika.exceptions.AMQPConnectionError) as closed:
        request()
    return str(closed.value)


def connect(node: ClusterNode, user: str = "guest:guest") -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(node.url.replace("guest:guest", user)))


def test_waiting_clients_are_refused_and_idle_clients_stay(cluster: LocalCluster) -> None:
    node = cluster.leader()
    peers = [each for each in cluster.nodes if each is not node]
    why = f"no majority: {', '.join(each.name for each in peers)} do not answer"
    unknown = f"{why}; what was asked for may still be carried out; try again, here or at another node"
    publisher, declarer, getter, idle = (connect(node).channel() for _ in range(4))
    queue = "q"
    publisher.queue_declare(queue, durable=True, arguments=QUORUM)
    publisher.confirm_delivery()
    for other in peers:
        other.kill()
    with Stopwatch() as watch, ThreadPoolExecutor() as threads:
        waiting = [
            threads.submit(refusal, request)
            for request in (
                lambda: publisher.basic_publish("", queue, b"late"),
                lambda: declarer.queue_declare(f"{queue}-2", durable=True),
                lambda: getter.basic_get(queue),
                lambda: connect(node).channel(),
                lambda: connect(node, "guest:wrong"),
                lambda: connect(node, "nobody:x"),
            )
        ]
        outcomes = [each.result() for each in waiting]
    assert 0.9 < watch.seconds < 8 * watch.slowness
    assert outcomes[:3] == [f"(320, 'CONNECTION_FORCED - {unknown}')"] * 3
    # On a busy machine the connection ends before the reason is known.
    reasons = [
        f"CONNECTION_FORCED - {each}; try again, here or at another node'" for each in (why, UNANSWERED)
    ]
    for each in outcomes[3:]:  # pika adds a guess to the end of a login, and the node's text behind it
        assert any(reason in each for reason in reasons), each
    # The majority is known to be missing from now on.
    time.sleep(0.6)
    with Stopwatch() as watch:
        assert why in refusal(lambda: connect(node).channel())
    assert watch.seconds < 0.8 * watch.slowness

    async def aio() -> None:
        connection = await aio_pika.connect(node.url)
        with pytest.raises(aiormq.exceptions.ConnectionClosed, match=why):
            await connection.channel()
        with pytest.raises(aiormq.exceptions.AMQPError, match=why):
            await aio_pika.connect(node.url.replace("guest:guest", "guest:wrong"))

    asyncio.run(aio())
    # Idle clients get no error, and continue afterwards.
    for other in peers:
        other.start()
    cluster.wait_caught_up()
    assert idle.queue_declare(queue, durable=True, arguments=QUORUM).method.message_count == 1
    idle.connection.close()
    connect(node).close()
