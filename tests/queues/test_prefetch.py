"""Prefetch, as the documents on consumer prefetch have it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.queues.clients import Taker, declare, got, publish, ready
from tests.queues.leader_changes import KILLED_IF_LONG
from tests.queues.world import World

CAPABILITIES = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}


def queues_of(world: World, queue: str, count: int, messages: int) -> list[str]:
    """Queues with so many messages each."""
    publisher = world.channel(1)
    names = [f"{queue}-{number}" for number in range(count)]
    for name in names:
        publish(publisher, declare(publisher, name), [str(number) for number in range(messages)])
    return names


def held(*takers: Taker) -> list[int]:
    return [len(taker.received()) for taker in takers]


def test_consumer_holds_at_most_the_prefetch_at_its_start(world: World, queue: str) -> None:
    [name] = queues_of(world, queue, 1, 20)
    channel = world.channel(2)
    channel.basic_qos(prefetch_count=10)
    consumer = Taker(channel, name)
    assert held(consumer) == [10]
    world.change_leader()
    consumer.ack(consumer.messages[3])
    assert held(consumer) == [11]
    channel.basic_ack(consumer.messages[9].tag, multiple=True)
    assert held(consumer) == [20]


def test_the_example_of_four_unacknowledged_deliveries(world: World, queue: str) -> None:
    [name] = queues_of(world, queue, 1, 12)
    channel = world.channel(2)
    channel.basic_qos(prefetch_count=4)
    consumer = Taker(channel, name)
    channel.basic_ack(consumer.wait(4)[3].tag, multiple=True)
    assert [message.tag for message in consumer.wait(8)[4:]] == [5, 6, 7, 8]
    world.change_leader()
    channel.basic_ack(5)
    assert [message.tag for message in consumer.wait(9)[8:]] == [9]
    assert held(consumer) == [9]


def test_two_consumers_of_a_channel_have_a_limit_each(world: World, queue: str) -> None:
    one, other = queues_of(world, queue, 2, 20)
    channel = world.channel(2)
    channel.basic_qos(prefetch_count=10)
    takers = [Taker(channel, name) for name in (one, other)]
    world.change_leader()
    assert held(*takers) == [10, 10]


def test_a_global_limit_is_shared_by_the_consumers_of_a_channel(world: World, queue: str) -> None:
    one, other = queues_of(world, queue, 2, 20)
    channel, neighbour = world.channel(2), world.channel(2)
    channel.basic_qos(prefetch_count=15, global_qos=True)
    takers = [Taker(channel, name) for name in (one, other)]
    assert sum(held(*takers)) == 15
    world.change_leader()
    channel.basic_ack(takers[0].messages[0].tag)
    assert sum(held(*takers)) == 16
    assert held(Taker(neighbour, other)) == [20 - len(takers[1].messages)]


@KILLED_IF_LONG
def test_ten_for_each_consumer_and_fifteen_for_the_channel(world: World, queue: str) -> None:
    # The example of the documents.
    one, other = queues_of(world, queue, 2, 20)
    channel = world.channel(2)
    channel.basic_qos(prefetch_count=10)
    channel.basic_qos(prefetch_count=15, global_qos=True)
    first, second = Taker(channel, one), Taker(channel, other)
    assert held(first, second) == [10, 5]
    settled = {first: 0, second: 0}
    for number in range(40):
        if number == 12:
            world.change_leader()
        taker = min((first, second), key=lambda taker: settled[taker] - len(taker.messages))
        taker.ack(taker.messages[settled[taker]])
        settled[taker] += 1
        outstanding = [
            count - settled[each] for count, each in zip(held(first, second), settled, strict=True)
        ]
        assert max(outstanding) <= 10
        assert sum(outstanding) == min(15, 39 - number)
    assert [first.bodies, second.bodies] == [[b"%d" % number for number in range(20)]] * 2


def test_channel_prefetch_changes_while_consumers_run(world: World, queue: str) -> None:
    [name] = queues_of(world, queue, 1, 20)
    channel = world.channel(2)
    channel.basic_qos(prefetch_count=5, global_qos=True)
    consumer = Taker(channel, name)
    assert held(consumer) == [5]
    world.change_leader()
    channel.basic_qos(prefetch_count=8, global_qos=True)
    assert held(consumer) == [8]
    channel.basic_qos(prefetch_count=2, global_qos=True)
    consumer.ack(*consumer.messages[:6])
    assert held(consumer) == [8]
    consumer.ack(consumer.messages[6])
    assert held(consumer) == [9]
    channel.basic_qos(prefetch_count=0, global_qos=True)
    assert held(consumer) == [20]


def test_a_prefetch_of_0_is_no_limit(world: World, queue: str) -> None:
    [name] = queues_of(world, queue, 1, 5000)
    channel = world.channel(2)
    channel.basic_qos(prefetch_count=0)
    consumer = Taker(channel, name)
    world.change_leader()
    assert len(consumer.wait(5000)) == 5000
    assert ready(channel, name) == 0


def test_a_later_qos_counts_for_later_consumers_only(world: World, queue: str) -> None:
    one, other = queues_of(world, queue, 2, 10)
    channel = world.channel(2)
    channel.basic_qos(prefetch_count=3)
    before = Taker(channel, one)
    world.change_leader()
    channel.basic_qos(prefetch_count=6)
    after = Taker(channel, other)
    assert held(before, after) == [3, 6]


def test_basic_get_knows_no_limit(world: World, queue: str) -> None:
    [name] = queues_of(world, queue, 1, 5)
    channel = world.channel(2)
    channel.basic_qos(prefetch_count=1)
    channel.basic_qos(prefetch_count=1, global_qos=True)
    consumer = Taker(channel, name)
    assert held(consumer) == [1]
    world.change_leader()
    assert [got(channel, name, auto_ack=False).body for _ in range(4)] == [b"1", b"2", b"3", b"4"]
    # Messages from basic.get do not count for the prefetch either.
    publish(channel, name, "x")
    consumer.ack(consumer.messages[0])
    assert held(consumer) == [2]


def test_consumer_with_auto_ack_ignores_the_prefetch(world: World, queue: str) -> None:
    [name] = queues_of(world, queue, 1, 50)
    channel = world.channel(2)
    channel.basic_qos(prefetch_count=1)
    channel.basic_qos(prefetch_count=1, global_qos=True)
    consumer = Taker(channel, name, auto_ack=True)
    world.change_leader()
    assert held(consumer) == [50]


def live_taker(world: World, name: str, by: str) -> Taker:
    properties = {"capabilities": CAPABILITIES | {"live_prefetch": by == "capability"}}
    channel = world.connect(2, client_properties=properties).channel()
    channel.basic_qos(prefetch_count=3)
    arguments: dict[str, Any] = {"x-live-prefetch": True} if by == "argument" else {}
    return Taker(channel, name, arguments=arguments)


@pytest.mark.parametrize("by", ["argument", "capability"])
def test_live_prefetch_of_a_running_consumer_changes(world: World, queue: str, by: str) -> None:
    [name] = queues_of(world, queue, 1, 20)
    consumer = live_taker(world, name, by)
    assert held(consumer) == [3]
    world.change_leader()
    consumer.channel.basic_qos(prefetch_count=6)
    assert held(consumer) == [6]
    consumer.channel.basic_qos(prefetch_count=2)
    consumer.ack(*consumer.messages[:4])
    assert held(consumer) == [6]
    consumer.ack(consumer.messages[4])
    assert held(consumer) == [7]
    consumer.channel.basic_qos(prefetch_count=0)
    assert held(consumer) == [20]


def test_consumer_may_decline_live_prefetch_of_its_connection(world: World, queue: str) -> None:
    [name] = queues_of(world, queue, 1, 9)
    channel = world.connect(
        2, client_properties={"capabilities": CAPABILITIES | {"live_prefetch": True}}
    ).channel()
    channel.basic_qos(prefetch_count=3)
    consumer = Taker(channel, name, arguments={"x-live-prefetch": False})
    world.change_leader()
    channel.basic_qos(prefetch_count=6)
    assert held(consumer) == [3]
