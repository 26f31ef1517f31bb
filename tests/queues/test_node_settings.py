"""Settings of a node for consumers and publishers."""

from __future__ import annotations

import time
from collections.abc import Generator

import pika.exceptions
import pytest

import qq.machine.queue.consumers
from qq.config import NodeLimits
from tests.queues.clients import (
    PATIENCE_S,
    Taker,
    barrier,
    bodies_of,
    declare,
    drain,
    publish,
    refused,
    send,
)
from tests.queues.consumer_timeouts import closed_text, wait_closed
from tests.queues.leader_changes import CHANGES, QUIET
from tests.queues.nodes_here import ClusterHere
from tests.queues.world import World, world_here

PUBLISH_TIMEOUT_MS = 1000
LIMITS = NodeLimits(
    consumer_timeout_ms=600,
    default_consumer_prefetch=3,
    consumer_max_per_channel=2,
    publish_timeout_ms=PUBLISH_TIMEOUT_MS,
)


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Generator[ClusterHere]:
    with ClusterHere(tmp_path_factory.mktemp("configured"), LIMITS) as cluster:
        yield cluster
        assert len(cluster.digests()) == 1


@pytest.fixture(params=CHANGES)
def world(configured: ClusterHere, request: pytest.FixtureRequest) -> Generator[World]:
    yield from world_here(configured, request.param)


def test_channel_without_qos_has_the_nodes_default_prefetch(world: World, queue: str) -> None:
    publisher, channel = world.channel(1), world.channel(2)
    publish(publisher, declare(publisher, queue), ["m"] * 10)
    world.change_leader()
    consumer = Taker(channel, queue)
    assert len(consumer.received()) == 3
    channel.basic_qos(prefetch_count=0)
    assert len(Taker(channel, queue).received()) == 7


def test_consumers_of_a_channel_are_limited(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    first, _ = Taker(channel, queue), Taker(channel, queue)
    channel.basic_cancel(first.tag)
    Taker(channel, queue)
    world.change_leader()
    with refused(530, "NOT_ALLOWED - reached maximum (2) of consumers per channel"):
        Taker(channel, queue)


def test_consumer_timeout_of_the_node_applies_by_default(
    world: World, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qq.machine.queue.consumers, "MARK_MS", 20)
    publisher, channel = world.channel(1), world.channel(2)
    other = declare(publisher, f"{queue}-other", {"x-consumer-timeout": 60_000})
    for name in (declare(publisher, queue), other):
        publish(publisher, name, "a")
    patient = Taker(world.channel(2), other)
    Taker(channel, queue).wait(1)
    world.change_leader()
    wait_closed(channel, closed_text(600))
    patient.ack(*patient.wait(1))
    barrier(patient.channel)


@QUIET
def test_publish_without_a_confirm_in_time_is_nacked(
    world: World, queue: str, configured: ClusterHere
) -> None:
    channel = world.channel(0, confirms=True)
    declare(channel, queue)
    send(channel, queue, queue, 1)
    followers = [node for node in configured.nodes if node.url != world.nodes[0].url]
    configured.stop(*followers)
    began_s = time.monotonic()
    with pytest.raises(pika.exceptions.NackError):
        send(channel, queue, queue, 2)
    assert PUBLISH_TIMEOUT_MS / 1000 <= time.monotonic() - began_s < 5
    configured.start(*followers)
    # Its outcome was unknown, so it is published until it is confirmed.
    ends_s = time.monotonic() + PATIENCE_S
    while not _is_confirmed(channel, queue, 2):
        assert time.monotonic() < ends_s
    send(channel, queue, queue, 3)
    assert bodies_of(drain(world.channel(1), queue)) == [b"1", b"2", b"3"]


def _is_confirmed(channel: object, queue: str, number: int) -> bool:
    try:
        send(channel, queue, queue, number)
    except pika.exceptions.NackError:
        return False
    return True


def test_publish_confirmed_in_time_is_not_refused_later(world: World, queue: str) -> None:
    channel = world.channel(1, confirms=True)
    declare(channel, queue)
    send(channel, queue, queue, 1, 2)
    world.change_leader()
    time.sleep(PUBLISH_TIMEOUT_MS / 1000 + 0.1)
    send(channel, queue, queue, 3)
    assert bodies_of(drain(channel, queue)) == [b"1", b"2", b"3"]
