"""The consumer that gets a message: turns, priorities of consumers, the single active consumer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.queues.clients import (
    HERE,
    QUORUM,
    Taker,
    barrier,
    bodies_of,
    close,
    counted,
    declare,
    drain,
    lose,
    publish,
    refused,
    wait_until,
)
from tests.queues.leader_changes import ALSO_KILLED, KILLED
from tests.queues.world import World

SINGLE = {"x-single-active-consumer": True}
PREFERRED = {"x-priority": 10}


def taker(channel: BlockingChannel, queue: str, prefetch: int = 0, **arguments: Any) -> Taker:
    channel.basic_qos(prefetch_count=prefetch)
    return Taker(channel, queue, arguments=arguments)


def test_consumers_on_different_nodes_are_served_in_turn(world: World, queue: str) -> None:
    publisher = world.channel(1)
    declare(publisher, queue)
    takers = [taker(world.channel(at), queue) for at in (1, 2)]
    for number in range(4):
        publish(publisher, queue, [str(number)])
    world.change_leader()
    for number in range(4, 8):
        publish(publisher, queue, [str(number)])
    assert [consumer.received() for consumer in takers] == [
        [b"0", b"2", b"4", b"6"],
        [b"1", b"3", b"5", b"7"],
    ]


def test_a_backlog_is_shared_evenly(world: World, queue: str) -> None:
    publisher = world.channel(1)
    declare(publisher, queue)
    takers = [taker(world.channel(at), queue, prefetch=100) for at in (0, 1, 2)]
    world.change_leader()
    publish(publisher, queue, ["m"] * 300)
    assert [len(consumer.received()) for consumer in takers] == [100, 100, 100]


# Priorities of consumers


def test_consumer_of_higher_priority_is_served_first_with_credit(world: World, queue: str) -> None:
    publisher = world.channel(1)
    declare(publisher, queue)
    other = taker(world.channel(2), queue, prefetch=10)
    preferred = taker(world.channel(0), queue, prefetch=3, **PREFERRED)
    publish(publisher, queue, "abcde")
    assert (preferred.received(), other.received()) == ([b"a", b"b", b"c"], [b"d", b"e"])
    world.change_leader()
    preferred.ack(preferred.messages[0])
    barrier(preferred.channel)
    publish(publisher, queue, "fg")
    assert (preferred.received()[3:], other.received()[2:]) == ([b"f"], [b"g"])


def test_consumers_of_equal_priority_take_turns_before_the_lower(world: World, queue: str) -> None:
    publisher = world.channel(1)
    declare(publisher, queue)
    below = taker(world.channel(1), queue, **{"x-priority": -1})
    equals = [taker(world.channel(at), queue, prefetch=2, **PREFERRED) for at in (0, 2)]
    world.change_leader()
    for body in "abcdef":
        publish(publisher, queue, body)
    assert [each.received() for each in (*equals, below)] == [[b"a", b"c"], [b"b", b"d"], [b"e", b"f"]]


# The single active consumer

ENDS: dict[str, Callable[[Taker], None]] = {
    "cancel": lambda consumer: consumer.channel.basic_cancel(consumer.tag),
    "channel": lambda consumer: consumer.channel.close(),
    "connection": lambda consumer: consumer.channel.connection.close(),
    "lost": lambda consumer: lose(consumer.channel.connection),
}


def active_consumer(world: World, queue: str, at: int) -> str | None:
    return world.request(f"/api/queues/%2F/{queue}", at=at)["single_active_consumer_tag"]


@pytest.mark.parametrize("end", ENDS)
def test_next_consumer_becomes_active_when_the_active_ends(world: World, queue: str, end: str) -> None:
    publisher = world.channel(1)
    declare(publisher, queue, SINGLE)
    first, second, third = (Taker(world.channel(at), queue) for at in (1, 2, 0))
    publish(publisher, queue, "ab")
    first.wait(2)
    first.ack()
    barrier(first.channel)
    world.change_leader()
    ENDS[end](first)
    wait_until(lambda: counted(publisher, queue)[1] == 2)
    publish(publisher, queue, "cd")
    assert second.received() == [b"c", b"d"]
    assert (first.bodies, third.received()) == ([b"a", b"b"], [])


@KILLED
def test_next_consumer_becomes_active_when_the_active_node_dies(world: World, queue: str) -> None:
    publisher = world.channel(1)
    declare(publisher, queue, SINGLE)
    active, waiting = Taker(world.doomed_channel(), queue), Taker(world.channel(2), queue)
    publish(publisher, queue, "ab")
    active.wait(2)
    world.change_leader()
    assert [(m.body, m.redelivered, m.headers) for m in waiting.wait(2)] == [
        (b"a", True, {"x-delivery-count": 1}),
        (b"b", True, {"x-delivery-count": 1}),
    ]


@pytest.mark.parametrize("end", ["channel", "connection", "lost"])
def test_successor_gets_the_active_consumers_messages_in_order(world: World, queue: str, end: str) -> None:
    publisher = world.channel(1)
    declare(publisher, queue, SINGLE)
    first, second = Taker(world.channel(1), queue), Taker(world.channel(2), queue)
    publish(publisher, queue, "abc")
    first.wait(3)
    first.ack(first.messages[1])
    barrier(first.channel)
    world.change_leader()
    ENDS[end](first)
    publish(publisher, queue, "d")
    second.wait(3)
    assert [(m.body, m.redelivered) for m in second.messages] == [(b"a", True), (b"c", True), (b"d", False)]


def test_cancelled_active_consumer_may_still_acknowledge(world: World, queue: str) -> None:
    publisher = world.channel(1)
    declare(publisher, queue, SINGLE)
    first, second = Taker(world.channel(1), queue), Taker(world.channel(2), queue)
    publish(publisher, queue, "ab")
    messages = list(first.wait(2))
    first.channel.basic_cancel(first.tag)
    world.change_leader()
    first.channel.basic_ack(messages[0].tag)
    first.channel.basic_reject(messages[1].tag)
    barrier(first.channel)
    assert second.wait(1)[0].body == b"b"


def test_waiting_consumer_gets_no_message_while_active_is_full(world: World, queue: str) -> None:
    publisher = world.channel(1)
    declare(publisher, queue, SINGLE)
    active, waiting = taker(world.channel(1), queue, prefetch=1), taker(world.channel(2), queue)
    world.change_leader()
    publish(publisher, queue, "abc")
    assert (active.received(), waiting.received()) == ([b"a"], [])


@ALSO_KILLED
def test_preferred_consumer_takes_over_after_the_active_settles(world: World, queue: str) -> None:
    publisher = world.channel(1)
    declare(publisher, queue, SINGLE)
    active = taker(world.channel(1), queue, prefetch=2)
    publish(publisher, queue, "abcd")
    active.wait(2)
    better = taker(world.channel(2), queue, prefetch=2, **PREFERRED)
    active.ack(active.messages[0])
    assert (active.received(), better.received()) == ([b"a", b"b"], [])
    assert active_consumer(world, queue, 2) == active.tag
    world.change_leader()
    active.ack(active.messages[1])
    assert (active.received(), better.received()) == ([b"a", b"b"], [b"c", b"d"])
    assert active_consumer(world, queue, 2) == better.tag


def test_preferred_consumer_takes_over_from_an_idle_active(world: World, queue: str) -> None:
    publisher = world.channel(1)
    declare(publisher, queue, SINGLE)
    active, better = Taker(world.channel(1), queue), Taker(world.channel(2), queue, arguments=PREFERRED)
    world.change_leader()
    publish(publisher, queue, "ab")
    assert (active.received(), better.received()) == ([], [b"a", b"b"])


def test_successor_has_the_highest_priority_then_waits_longest(world: World, queue: str) -> None:
    publisher = world.channel(1)
    declare(publisher, queue, SINGLE)
    active = Taker(world.channel(1), queue, arguments={"x-priority": 9})
    low = Taker(world.channel(0), queue)
    high, younger = (Taker(world.channel(2), queue, arguments={"x-priority": 5}) for _ in range(2))
    active.channel.basic_cancel(active.tag)
    world.change_leader()
    publish(publisher, queue, "a")
    assert [consumer.received() for consumer in (low, high, younger)] == [[], [b"a"], []]


def test_api_reports_the_active_consumer(world: World, queue: str) -> None:
    publisher = world.channel(1)
    declare(publisher, queue, SINGLE)
    first, second = Taker(world.channel(1), queue), Taker(world.channel(2), queue)
    world.change_leader()
    barrier(publisher)
    consumers = [each for each in world.request("/api/consumers/%2F") if each["queue"]["name"] == queue]
    reported = {each["consumer_tag"]: (each["active"], each["activity_status"]) for each in consumers}
    assert reported == {first.tag: (True, "single_active"), second.tag: (False, "waiting")}
    assert active_consumer(world, queue, 1) == first.tag


def test_basic_get_is_refused_on_a_single_active_consumer_queue(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue, SINGLE)
    publish(channel, queue, "a")
    world.change_leader()
    text = (
        f"RESOURCE_LOCKED - cannot obtain access to locked queue '{queue}' {HERE}. basic.get operations are not "
        "supported by quorum queues with single active consumer"
    )
    with refused(405, text):
        channel.basic_get(queue)


def test_classic_queue_refuses_exclusive_single_active_consumers(world: World, queue: str) -> None:
    channel = world.channel(1)
    channel.queue_declare(queue, durable=True, arguments=dict(SINGLE))
    world.change_leader()
    with refused(403, f"ACCESS_REFUSED - queue '{queue}' {HERE} in exclusive use"):
        Taker(channel, queue, exclusive=True)


# Exclusive consumers, tags, cancellation


def test_exclusive_is_accepted_and_ignored_on_a_quorum_queue(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    takers = [Taker(world.channel(at), queue, exclusive=True) for at in (1, 2)]
    world.change_leader()
    publish(channel, queue, "ab")
    assert [consumer.received() for consumer in takers] == [[b"a"], [b"b"]]


def test_exclusive_consumer_locks_a_classic_queue_until_it_ends(world: World, queue: str) -> None:
    channel = world.channel(1)
    channel.queue_declare(queue, durable=True)
    owner = Taker(channel, queue, exclusive=True)
    world.change_leader()
    for exclusive in (False, True):
        with refused(403, f"ACCESS_REFUSED - queue '{queue}' {HERE} in exclusive use"):
            Taker(world.channel(2), queue, exclusive=exclusive)
    channel.basic_cancel(owner.tag)
    Taker(world.channel(2), queue, exclusive=True)


def test_cancelled_consumer_may_acknowledge_earlier_deliveries(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    consumer = taker(channel, queue, prefetch=2)
    publish(channel, queue, "abc")
    consumer.wait(2)
    channel.basic_cancel(consumer.tag)
    world.change_leader()
    consumer.ack(consumer.messages[0])
    close(channel)
    assert bodies_of(drain(world.channel(2), queue)) == [b"b", b"c"]


def test_deleted_queue_cancels_consumers_on_all_nodes(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    takers = [Taker(world.channel(at), queue) for at in (1, 2)]
    world.change_leader()
    channel.queue_delete(queue)
    for consumer in takers:
        consumer.until(lambda consumer=consumer: consumer.is_cancelled)
        # Cancelling a consumer that was just cancelled is no error.
        consumer.channel.basic_cancel(consumer.tag)
        barrier(consumer.channel)


def test_leader_change_cancels_only_consumers_that_requested_it(
    world: World, queue: str, request: pytest.FixtureRequest
) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    fragile = Taker(world.channel(2), queue, arguments={"x-cancel-on-ha-failover": True})
    robust = Taker(world.channel(2), queue)
    world.change_leader()
    if "handover" in request.node.name:
        fragile.until(lambda: fragile.is_cancelled)
    publish(channel, queue, "ab")
    taken = robust.received()
    assert (fragile.is_cancelled, len(taken)) == (
        (True, 2) if "handover" in request.node.name else (False, 1)
    )


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"x-priority": "high"}, '"expected integer, got longstr"'),
        ({"x-live-prefetch": "yes"}, "{unacceptable_type,longstr}"),
    ],
)
def test_wrong_arguments_of_consumers_are_refused(
    world: World, queue: str, arguments: dict[str, Any], wrong: str
) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    world.change_leader()
    [key] = arguments
    with refused(406, f"PRECONDITION_FAILED - invalid arg '{key}' for queue '{queue}' {HERE}: {wrong}"):
        Taker(channel, queue, arguments=arguments)


def test_an_argument_for_streams_is_refused(world: World, queue: str) -> None:
    channel = world.channel(1)
    channel.queue_declare(queue, durable=True, arguments=dict(QUORUM))
    world.change_leader()
    text = (
        f"PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue '{queue}' {HERE} "
        "of queue type rabbit_quorum_queue"
    )
    with refused(406, text):
        Taker(channel, queue, arguments={"x-stream-offset": "first"})
