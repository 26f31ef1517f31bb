"""Deliveries that are not acknowledged in time."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

import qq.machine.queue.consumers
from qq.testing import LocalCluster
from tests.queues.clients import (
    HERE,
    Taker,
    barrier,
    bodies_of,
    declare,
    drain,
    got,
    publish,
    ready,
    wait_until,
)
from tests.queues.consumer_timeouts import GUIDE, SHORT_MS, closed_text, wait_closed
from tests.queues.leader_changes import KILLED
from tests.queues.world import World


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known exactly since when a message is out, instead of within a second."""
    monkeypatch.setattr(qq.machine.queue.consumers, "MARK_MS", 20)


def logged_text(queue: str, tag: str, delivery_tag: int, timeout_ms: int = SHORT_MS) -> str:
    """The sentence of the documents."""
    return (
        f"Consumer '{tag}' on channel 1 and queue '{queue}' {HERE} has timed out waiting for a consumer "
        f"acknowledgement of a delivery with delivery tag = {delivery_tag}. Timeout used: {timeout_ms} ms. {GUIDE}"
    )


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("by", ["queue", "policy", "consumer"])
def test_unacknowledged_delivery_closes_the_channel_in_time(
    world: World, queue: str, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    publisher, channel = world.channel(1), world.channel(2)
    declare(publisher, queue, {"x-consumer-timeout": SHORT_MS} if by == "queue" else {})
    if by == "policy":
        world.policy(queue, {"consumer-timeout": SHORT_MS})
    publish(publisher, queue, "abc")
    consumer = Taker(channel, queue, arguments={"x-consumer-timeout": SHORT_MS} if by == "consumer" else {})
    consumer.wait(3)
    channel.basic_ack(1)
    world.change_leader()
    wait_closed(channel, closed_text())
    logged = [record for record in caplog.records if record.name == "qq.amqp_server.channel.consuming"]
    assert [(record.levelno, record.getMessage()) for record in logged] == [
        (logging.WARNING, logged_text(queue, consumer.tag, 2))
    ]
    wait_until(lambda: ready(publisher, queue) == 2)  # they return with the end of the channel
    assert [(m.body, m.redelivered) for m in drain(publisher, queue)] == [(b"b", True), (b"c", True)]


@pytest.mark.usefixtures("_soon")
def test_timeout_returns_all_messages_of_only_that_channel(world: World, queue: str) -> None:
    publisher, connection = world.channel(1), world.connect(2)
    names = [declare(publisher, f"{queue}-{number}") for number in range(3)]
    for name in names:
        publish(publisher, name, "a")
    channel, neighbour = connection.channel(), connection.channel()
    slow = Taker(channel, names[0], arguments={"x-consumer-timeout": SHORT_MS})
    same = Taker(channel, names[1])
    other = Taker(neighbour, names[2])
    for consumer in (slow, same, other):
        consumer.wait(1)
    world.change_leader()
    wait_closed(channel, closed_text())
    wait_until(lambda: [ready(publisher, name) for name in names] == [1, 1, 0])
    other.ack()
    barrier(neighbour)


@pytest.mark.usefixtures("_soon")
def test_consumer_that_keeps_acknowledging_stays(world: World, queue: str) -> None:
    publisher, channel = world.channel(1), world.channel(2)
    declare(publisher, queue, {"x-consumer-timeout": 800})
    channel.basic_qos(prefetch_count=1)
    publish(publisher, queue, ["m"] * 10)
    consumer = Taker(channel, queue)
    for number in range(10):
        message = consumer.wait(number + 1)[number]
        time.sleep(0.15)
        channel.basic_ack(message.tag)
        if number == 4:
            world.change_leader()
    barrier(channel)
    assert ready(publisher, queue) == 0


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize(("argument", "consumer_argument"), [(100, 10_000), (100, 0)])
def test_consumer_timeout_argument_overrides_the_queue(
    world: World, queue: str, argument: int, consumer_argument: int
) -> None:
    publisher, channel = world.channel(1), world.channel(2)
    declare(publisher, queue, {"x-consumer-timeout": argument})
    publish(publisher, queue, "a")
    consumer = Taker(channel, queue, arguments={"x-consumer-timeout": consumer_argument})
    consumer.wait(1)
    world.change_leader()
    time.sleep(0.4)
    consumer.ack()
    barrier(channel)


@pytest.mark.usefixtures("_soon")
def test_a_message_that_was_got_times_out_too(world: World, queue: str) -> None:
    publisher, channel = world.channel(1), world.channel(2)
    declare(publisher, queue, {"x-consumer-timeout": SHORT_MS})
    publish(publisher, queue, "a")
    got(channel, queue, auto_ack=False)
    world.change_leader()
    wait_closed(channel, closed_text())
    wait_until(lambda: ready(publisher, queue) == 1)  # it returns with the end of the channel
    assert bodies_of(drain(publisher, queue)) == [b"a"]


@pytest.mark.usefixtures("_soon")
def test_timeout_of_a_new_policy_applies_to_earlier_deliveries(world: World, queue: str) -> None:
    publisher, channel = world.channel(1), world.channel(2)
    declare(publisher, queue)
    publish(publisher, queue, "a")
    Taker(channel, queue).wait(1)
    world.change_leader()
    world.policy(queue, {"consumer-timeout": SHORT_MS})
    wait_closed(channel, closed_text())


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("by", ["argument", "policy"])
def test_as_an_option_only_the_consumer_is_cancelled(world: World, queue: str, by: str) -> None:
    publisher, channel = world.channel(1), world.channel(2)
    settings: dict[str, Any] = {"consumer-timeout": SHORT_MS, "consumer-timeout-action": "cancel-consumer"}
    declare(
        publisher, queue, {f"x-{key}": value for key, value in settings.items()} if by == "argument" else {}
    )
    if by == "policy":
        world.policy(queue, settings)
    other_queue = declare(publisher, f"{queue}-other")
    for name in (queue, other_queue):
        publish(publisher, name, "a")
    slow, other = Taker(channel, queue), Taker(channel, other_queue)
    slow.wait(1)
    other.wait(1)
    world.change_leader()
    slow.until(lambda: slow.is_cancelled)
    assert not other.is_cancelled
    wait_until(lambda: ready(publisher, queue) == 1)
    # It is too late for that, and no error.
    slow.ack()
    other.ack()
    barrier(channel)
    assert [(m.body, m.redelivered) for m in drain(publisher, queue)] == [(b"a", True)]


@pytest.mark.usefixtures("_soon")
def test_client_without_cancel_notify_loses_its_channel(world: World, queue: str) -> None:
    publisher = world.channel(1)
    properties = {"capabilities": {"basic.nack": True}}
    channel = world.connect(2, client_properties=properties).channel()
    arguments = {"x-consumer-timeout": SHORT_MS, "x-consumer-timeout-action": "cancel-consumer"}
    declare(publisher, queue, arguments)
    publish(publisher, queue, "a")
    Taker(channel, queue).wait(1)
    world.change_leader()
    wait_closed(channel, closed_text())


@pytest.mark.usefixtures("_soon")
def test_message_that_times_out_repeatedly_is_dead_lettered(world: World, queue: str) -> None:
    publisher = world.channel(1)
    dead = declare(publisher, f"{queue}-dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-delivery-limit": 1}
    declare(publisher, queue, arguments | {"x-consumer-timeout": 100})
    publish(publisher, queue, "a")
    for _ in range(2):
        channel = world.channel(2)
        Taker(channel, queue).wait(1)
        world.change_leader()
        wait_closed(channel, closed_text(100))
    [message] = Taker(publisher, dead).wait(1)
    assert message.headers["x-death"][0]["reason"] == "delivery_limit"


@KILLED
def test_consumer_timeout_fires_after_the_leader_was_killed(
    world: World, queue: str, processes: LocalCluster
) -> None:
    publisher, channel = world.channel(1), world.channel(2)
    declare(publisher, queue, {"x-consumer-timeout": SHORT_MS})
    publish(publisher, queue, "a")
    consumer = Taker(channel, queue)
    consumer.wait(1)
    world.change_leader()
    wait_closed(channel, closed_text())
    text = logged_text(queue, consumer.tag, 1)
    assert text in next(node for node in processes.nodes if node is world.nodes[2]).log.read_text()


def test_timeout_of_a_wrong_value_is_ignored(world: World, queue: str) -> None:
    """RabbitMQ 4.0 does not know the argument, and takes any value of it."""
    channel = world.channel(1)
    world.change_leader()
    declare(channel, queue, {"x-consumer-timeout": -1})
    publish(channel, queue, "a")
    consumer = Taker(world.channel(2), queue)
    consumer.ack(*consumer.wait(1))
