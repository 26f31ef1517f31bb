"""Messages and queues that live for a time only."""

from __future__ import annotations

import time
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.queues.clients import (
    PATIENCE_S,
    Taker,
    barrier,
    bodies_of,
    declare,
    drain,
    get,
    got,
    publish,
    ready,
    refused,
    wait_until,
)
from tests.queues.leader_changes import KILLED_IF_LONG, QUIET
from tests.queues.world import World

LATE_S = 5.0
"""Longer than any step here takes, even on a busy machine."""


def wait_empty(channel: BlockingChannel, queue: str) -> None:
    """Wait until the published messages have expired."""
    began_s = time.monotonic()
    wait_until(lambda: ready(channel, queue) == 0)
    assert time.monotonic() - began_s < LATE_S


@pytest.mark.parametrize("by", ["property", "argument", "policy"])
def test_a_message_expires_when_its_time_is_over(world: World, queue: str, by: str) -> None:
    channel = world.channel(1)
    declare(channel, queue, {"x-message-ttl": 500} if by == "argument" else {})
    if by == "policy":
        world.policy(queue, {"message-ttl": 500})
    publish(channel, queue, "ab", expiration="500" if by == "property" else None)
    assert ready(channel, queue) == 2
    world.change_leader()
    wait_empty(world.channel(2), queue)
    assert get(channel, queue) is None


@pytest.mark.parametrize(
    ("expiration", "argument", "policy"),
    [("100", 60_000, None), ("60000", 100, None), (None, 60_000, 100), (None, 100, 60_000)],
)
def test_the_shortest_time_to_live_counts(
    world: World, queue: str, expiration: str | None, argument: int, policy: int | None
) -> None:
    channel = world.channel(1)
    declare(channel, queue, {"x-message-ttl": argument})
    if policy is not None:
        world.policy(queue, {"message-ttl": policy})
    publish(channel, queue, "a", expiration=expiration)
    world.change_leader()
    wait_empty(channel, queue)


@KILLED_IF_LONG
def test_short_lived_message_expires_behind_long_lived_messages(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    publish(channel, queue, "a", expiration="60000")
    publish(channel, queue, "b")
    publish(channel, queue, "c", expiration="200")
    publish(channel, queue, "d", expiration="50000")
    world.change_leader()
    wait_until(lambda: ready(channel, queue) == 3)
    assert bodies_of(drain(channel, queue)) == [b"a", b"b", b"d"]


def test_a_time_to_live_of_0_is_enough_for_a_consumer_that_waits(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    other = world.channel(2)
    other.basic_qos(prefetch_count=1)
    consumer = Taker(other, queue)
    world.change_leader()
    publish(channel, queue, "ab", expiration="0")
    assert consumer.received() == [b"a"]
    assert ready(channel, queue) == 0
    consumer.ack()
    assert consumer.received() == [b"a"]


def test_message_with_ttl_0_expires_without_a_waiting_consumer(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue, {"x-message-ttl": 0})
    world.change_leader()
    publish(channel, queue, "a")
    assert get(channel, queue) is None


def test_requeued_message_keeps_its_expiry(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    publish(channel, queue, "a", expiration="500")
    began_s = time.monotonic()
    message = got(channel, queue, auto_ack=False)
    world.change_leader()
    time.sleep(max(0.0, 0.55 - (time.monotonic() - began_s)))
    channel.basic_nack(message.tag)
    assert get(channel, queue) is None


def test_a_message_that_a_consumer_holds_does_not_expire(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue, {"x-message-ttl": 400})
    publish(channel, queue, "a")
    message = got(channel, queue, auto_ack=False)
    world.change_leader()
    time.sleep(0.45)
    assert world.request(f"/api/queues/%2F/{queue}")["messages_unacknowledged"] == 1
    channel.basic_ack(message.tag)
    barrier(channel)


def test_expiration_property_is_delivered_unchanged(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    publish(channel, queue, "a", expiration="60000")
    world.change_leader()
    assert got(channel, queue).properties.expiration == "60000"


@pytest.mark.parametrize(
    ("expiration", "wrong"),
    [
        ("soon", "no_integer"),
        ("10s", '{leftover_string,"s"}'),
        ("-1", "{value_negative,-1}"),
        ("315360000001", "{value_too_large,315360000001}"),
    ],
)
@QUIET
def test_an_expiration_that_is_no_time_is_refused(
    world: World, queue: str, expiration: str, wrong: str
) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    with refused(406, f"PRECONDITION_FAILED - invalid expiration '{expiration}': {wrong}"):
        publish(channel, queue, "a", expiration=expiration)


# Queues


@pytest.mark.parametrize("by", ["argument", "policy"])
def test_unused_queue_expires(world: World, queue: str, by: str) -> None:
    channel = world.channel(1)
    declare(channel, queue, {"x-expires": 400} if by == "argument" else {})
    if by == "policy":
        world.policy(queue, {"expires": 400})
    publish(channel, queue, "a")
    world.change_leader()
    began_s = time.monotonic()
    wait_until(lambda: not world.exists(queue))
    assert time.monotonic() - began_s < LATE_S


def use_by_redeclaring(channel: BlockingChannel, queue: str, arguments: dict[str, Any]) -> None:
    declare(channel, queue, arguments)


def use_by_passive_declare(channel: BlockingChannel, queue: str, _: dict[str, Any]) -> None:
    ready(channel, queue)


def use_by_getting(channel: BlockingChannel, queue: str, _: dict[str, Any]) -> None:
    get(channel, queue)


@pytest.mark.parametrize("use", [use_by_redeclaring, use_by_passive_declare, use_by_getting])
def test_a_queue_that_is_used_stays(world: World, queue: str, use: Any) -> None:
    channel = world.channel(1)
    arguments = {"x-expires": 800}
    declare(channel, queue, arguments)
    ends_s = time.monotonic() + 1.0
    while time.monotonic() < ends_s:
        time.sleep(0.15)
        use(channel, queue, arguments)
    world.change_leader()
    assert world.exists(queue)
    wait_until(lambda: not world.exists(queue))


def test_queue_with_consumers_stays_and_expires_after_the_last(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue, {"x-expires": 300})
    consumer = Taker(channel, queue)
    world.change_leader()
    time.sleep(0.5)
    assert world.exists(queue)
    channel.basic_cancel(consumer.tag)
    wait_until(lambda: not world.exists(queue))


def test_messages_of_an_expired_queue_are_not_dead_lettered(world: World, queue: str) -> None:
    channel = world.channel(1)
    dead = declare(channel, f"{queue}-dead")
    arguments = {"x-expires": 300, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    declare(channel, queue, arguments)
    publish(channel, queue, "a")
    world.change_leader()
    wait_until(lambda: not world.exists(queue))
    assert ready(channel, dead) == 0


def test_a_policy_that_is_taken_back_lets_a_queue_stay(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    path = world.policy(queue, {"expires": 800})
    world.change_leader()
    world.request(path, "DELETE")
    world.forget(path)
    time.sleep(0.9)
    assert world.exists(queue)


def test_many_different_times_are_all_kept(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    for number in range(300):
        properties = pika.BasicProperties(expiration=str(60_000 + number if number % 3 else 100 + number % 7))
        channel.basic_publish("", queue, b"%d" % number, properties)
    barrier(channel)
    world.change_leader()
    deadline_s = time.monotonic() + PATIENCE_S
    while ready(channel, queue) > 200:
        assert time.monotonic() < deadline_s
    assert bodies_of(drain(channel, queue)) == [b"%d" % number for number in range(300) if number % 3]
