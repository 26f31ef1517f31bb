"""The largest allowed messages and transactions, while nodes lag behind or are configured with lower limits."""

from __future__ import annotations

import time
from hashlib import sha256
from random import Random
from typing import TYPE_CHECKING

import pika.exceptions
import pytest

from qq.testing import LocalCluster
from tests.stories.clients import pika_connection

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from qq.testing import ClusterNode

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(100)]

MIB = 1024 * 1024
QUEUE = "large"
ARRIVES_WITHIN_S = 30.0


def body_of(number: int, size: int) -> bytes:
    return Random(number).randbytes(MIB) * (size // MIB)


def check_fetched(node: ClusterNode, bodies: Sequence[bytes]) -> None:
    """Take messages of the queue through this node."""
    digests: list[bytes] = []
    deadline_s = time.monotonic() + ARRIVES_WITHIN_S
    with pika_connection(node) as connection:
        channel = connection.channel()
        while len(digests) < len(bodies) and time.monotonic() < deadline_s:
            found, _, body = channel.basic_get(QUEUE, auto_ack=True)
            if found is not None and body is not None:
                digests.append(sha256(body).digest())
    assert digests == [sha256(body).digest() for body in bodies]


def check_logs(cluster: LocalCluster) -> None:
    """Assert that no node has ended, or has closed a link to a live peer."""
    for node in cluster.nodes:
        text = node.log.read_text()
        assert "CRITICAL" not in text
        assert "does not read" not in text


def test_large_transactions_reach_a_follower_that_was_away(tmp_path: Path) -> None:
    """Two of them in an append once exceeded the limit of a link: the leader ended, and so did each successor."""
    with LocalCluster(3, tmp_path) as cluster:
        leader, (follower, other) = cluster.leader(), cluster.followers()
        bodies = [body_of(number, 15 * MIB) for number in range(9)]
        with pika_connection(leader) as connection:
            channel = connection.channel()
            channel.queue_declare(QUEUE, durable=True)
            channel.tx_select()

            def commit(numbers: range) -> None:
                for number in numbers:
                    channel.basic_publish("", QUEUE, bodies[number])
                channel.tx_commit()

            follower.kill()
            commit(range(3))
            commit(range(3, 6))
            follower.start()
            commit(range(6, 9))
        cluster.wait_caught_up()
        other.kill()  # each commit now needs the node that was away
        check_fetched(follower, bodies)
        check_logs(cluster)


@pytest.mark.long
def test_message_above_a_nodes_limit_is_replicated_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """110 MiB, through the leader and through a follower, while the third node has the default of 16 MiB."""
    body = body_of(0, 110 * MIB)
    monkeypatch.setenv("QQ_LIMITS_MESSAGE_BYTES", str(128 * MIB))
    monkeypatch.setenv("QQ_LIMITS_NODE_UNCOMMITTED_BYTES", str(MIB))
    with LocalCluster(3, tmp_path) as cluster:
        monkeypatch.undo()
        leader, (generous, other) = cluster.leader(), cluster.followers()
        other.stop()
        other.start()
        for node in (leader, generous):
            with pika_connection(node) as connection:
                channel = connection.channel()
                channel.queue_declare(QUEUE, durable=True)
                channel.confirm_delivery()
                channel.basic_publish("", QUEUE, body)
        cluster.wait_caught_up()
        check_fetched(other, [body])
        check_fetched(generous, [body])
        check_logs(cluster)


def test_large_messages_stay_whole_on_every_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message is larger than a node's cache. Small messages are published between their fragments."""
    monkeypatch.setenv("QQ_LIMITS_MESSAGE_BYTES", str(64 * MIB))
    bodies = [body_of(number, size * MIB) for number, size in enumerate((3, 5, 1, 16, 40))]
    with LocalCluster(3, tmp_path) as cluster:
        leader, (follower, _) = cluster.leader(), cluster.followers()
        with pika_connection(leader) as connection, pika_connection(follower) as other_connection:
            channel, other = connection.channel(), other_connection.channel()
            for name, arguments in (
                (QUEUE, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}),
                ("dead", {}),
                ("small", {}),
            ):
                channel.queue_declare(name, durable=True, arguments=arguments)
            channel.confirm_delivery()
            other.confirm_delivery()
            for number, body in enumerate(bodies):
                channel.basic_publish("", QUEUE, body)
                other.basic_publish("", "small", b"%d" % number)
            with pytest.raises(pika.exceptions.UnroutableError) as returned:
                channel.basic_publish("", "none", bodies[3], mandatory=True)
            assert returned.value.messages[0].body == bodies[3]
            for expected in bodies:
                method, _, body = other.basic_get(QUEUE)
                assert method is not None
                assert body == expected
                other.basic_reject(method.delivery_tag, requeue=expected == bodies[-1])
        for node in cluster.nodes:
            node.kill()
        for node in cluster.nodes:
            node.start()
        cluster.wait_caught_up()
        check_fetched(follower, bodies[-1:])
        with pika_connection(leader) as connection:
            channel = connection.channel()
            dead = [channel.basic_get("dead", auto_ack=True)[2] for _ in bodies[:-1]]
            assert dead == bodies[:-1]
            assert channel.queue_declare("small", passive=True).method.message_count == len(bodies)
        check_logs(cluster)
