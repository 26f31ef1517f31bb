"""Acknowledgements, requeued messages and their position, and delivery counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.queues.clients import (
    Taker,
    barrier,
    bodies_of,
    close,
    declare,
    drain,
    get,
    got,
    lose,
    publish,
    ready,
    refused,
)
from tests.queues.leader_changes import ALSO_KILLED
from tests.queues.world import World

DELIVERED_AT_ALL = 21
"""With RabbitMQ's delivery limit of 20."""


def filled(world: World, queue: str, bodies: str, arguments: dict[str, Any] | None = None) -> str:
    channel = world.channel(1)
    publish(channel, declare(channel, queue, arguments), bodies)
    return queue


def unacked(world: World, queue: str) -> int:
    return world.request(f"/api/queues/%2F/{queue}", at=2)["messages_unacknowledged"]


# Acknowledgements


def test_multiple_acknowledges_all_deliveries_up_to_a_tag(world: World, queue: str) -> None:
    channel = world.channel(2)
    consumer = Taker(channel, filled(world, queue, "abcde"))
    consumer.wait(5)
    world.change_leader()
    channel.basic_ack(3, multiple=True)
    close(channel)
    assert bodies_of(drain(world.channel(1), queue)) == [b"d", b"e"]


@pytest.mark.parametrize(
    ("settle", "left"),
    [
        (lambda channel: channel.basic_ack(0, multiple=True), []),
        (lambda channel: channel.basic_nack(0, multiple=True, requeue=False), []),
        (lambda channel: channel.basic_nack(0, multiple=True, requeue=True), [b"a", b"b", b"c"]),
    ],
    ids=["ack", "discard", "return"],
)
def test_tag_0_with_multiple_settles_all_deliveries(
    world: World, queue: str, settle: Callable[[Any], None], left: list[bytes]
) -> None:
    channel = world.channel(2)
    consumer = Taker(channel, filled(world, queue, "abc"))
    consumer.wait(3)
    channel.basic_cancel(consumer.tag)
    world.change_leader()
    settle(channel)
    barrier(channel)
    assert unacked(world, queue) == 0
    assert bodies_of(drain(channel, queue)) == left


def test_ack_of_tag_0_with_multiple_is_valid_without_deliveries(world: World, queue: str) -> None:
    channel = world.channel(2)
    world.change_leader()
    channel.basic_ack(0, multiple=True)
    barrier(channel)


@pytest.mark.parametrize(
    "settle",
    [
        lambda channel: channel.basic_ack(2),
        lambda channel: channel.basic_ack(2, multiple=True),
        lambda channel: channel.basic_nack(2),
        lambda channel: channel.basic_reject(2),
    ],
    ids=["ack", "multiple", "nack", "reject"],
)
def test_to_acknowledge_twice_closes_the_channel(
    world: World, queue: str, settle: Callable[[Any], None]
) -> None:
    channel = world.channel(2)
    consumer = Taker(channel, filled(world, queue, "abc"))
    consumer.wait(3)
    channel.basic_ack(2)
    barrier(channel)
    world.change_leader()
    settle(channel)
    with refused(406, "PRECONDITION_FAILED - unknown delivery tag 2"):
        barrier(channel)
    assert bodies_of(drain(world.channel(1), queue)) == [b"a", b"c"]


def test_a_tag_that_was_never_given_closes_the_channel(world: World, queue: str) -> None:
    channel = world.channel(2)
    world.change_leader()
    channel.basic_ack(100)
    with refused(406, "PRECONDITION_FAILED - unknown delivery tag 100"):
        barrier(channel)


def test_ack_on_a_different_channel_is_refused(world: World, queue: str) -> None:
    connection = world.connect(2)
    channel, foreign = connection.channel(), connection.channel()
    consumer = Taker(channel, filled(world, queue, "a"))
    consumer.wait(1)
    world.change_leader()
    foreign.basic_ack(1)
    with refused(406, "PRECONDITION_FAILED - unknown delivery tag 1"):
        barrier(foreign)
    consumer.ack()
    barrier(channel)
    assert (unacked(world, queue), ready(channel, queue)) == (0, 0)


# Where messages come back to


def test_requeued_messages_come_first_in_order_of_return(world: World, queue: str) -> None:
    channel = world.channel(2)
    filled(world, queue, "abcd")
    first, second, third = (got(channel, queue, auto_ack=False) for _ in range(3))
    channel.basic_nack(third.tag)
    channel.basic_reject(first.tag)
    world.change_leader()
    channel.basic_nack(second.tag)
    assert bodies_of(drain(channel, queue)) == [b"c", b"a", b"b", b"d"]


def test_messages_nacked_together_keep_their_order(world: World, queue: str) -> None:
    channel = world.channel(2)
    filled(world, queue, "abcd")
    tags = [got(channel, queue, auto_ack=False).tag for _ in range(3)]
    world.change_leader()
    channel.basic_nack(tags[-1], multiple=True)
    assert bodies_of(drain(channel, queue)) == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("by", ["argument", "policy", "classic"])
def test_requeued_messages_return_to_their_original_position(world: World, queue: str, by: str) -> None:
    channel = world.channel(2)
    if by == "classic":
        channel.queue_declare(queue, durable=True)
        publish(channel, queue, "abcd")
    else:
        filled(world, queue, "abcd", {"x-return-position": "original"} if by == "argument" else {})
    if by == "policy":
        world.policy(queue, {"return-position": "original"})
    first, second, third = (got(channel, queue, auto_ack=False) for _ in range(3))
    channel.basic_nack(third.tag)
    channel.basic_reject(first.tag)
    world.change_leader()
    channel.basic_nack(second.tag)
    assert bodies_of(drain(channel, queue)) == [b"a", b"b", b"c", b"d"]


ENDS: dict[str, Callable[[Any], None]] = {
    "channel": lambda channel: channel.close(),
    "error": lambda channel: channel.basic_ack(99),
    "connection": lambda channel: channel.connection.close(),
    "lost": lambda channel: lose(channel.connection),
}


@pytest.mark.parametrize("end", ENDS)
def test_held_messages_return_in_order_when_a_channel_ends(world: World, queue: str, end: str) -> None:
    channel, heir = world.channel(2), world.channel(1)
    channel.basic_qos(prefetch_count=3)
    consumer = Taker(channel, filled(world, queue, "abcd"))
    consumer.wait(3)
    successor = Taker(heir, queue)
    assert [(m.body, m.redelivered, m.headers) for m in successor.wait(1)] == [(b"d", False, {})]
    consumer.ack(consumer.messages[1])
    barrier(channel)
    world.change_leader()
    ENDS[end](channel)
    assert [(m.body, m.redelivered, m.headers) for m in successor.wait(3)[1:]] == [
        (b"a", True, {"x-delivery-count": 1}),
        (b"c", True, {"x-delivery-count": 1}),
    ]


def test_unacked_messages_of_get_return_when_the_channel_closes(world: World, queue: str) -> None:
    channel, other = world.channel(2), world.channel(1)
    filled(world, queue, "ab")
    assert [got(channel, queue, auto_ack=False).left for _ in range(2)] == [1, 0]
    assert get(other, queue) is None
    world.change_leader()
    close(channel)
    assert [(m.body, m.redelivered) for m in drain(other, queue)] == [(b"a", True), (b"b", True)]


@ALSO_KILLED
def test_recover_redelivers_all_unacked_messages(world: World, queue: str) -> None:
    channel = world.channel(2)
    consumer = Taker(channel, filled(world, queue, "abc"))
    consumer.wait(3)
    consumer.ack(consumer.messages[1])
    barrier(channel)
    consumer.take_back()
    world.change_leader()
    channel.basic_recover(requeue=True)
    assert [(m.body, m.redelivered, m.tag) for m in consumer.wait(2)] == [(b"a", True, 4), (b"c", True, 5)]
    channel.basic_ack(2)
    with refused(406, "PRECONDITION_FAILED - unknown delivery tag 2"):
        barrier(channel)


def test_recovered_message_may_go_to_a_different_consumer(world: World, queue: str) -> None:
    channel, other = world.channel(2), world.channel(1)
    channel.basic_qos(prefetch_count=2)
    consumer = Taker(channel, filled(world, queue, "ab"))
    consumer.wait(2)
    preferred = Taker(other, queue, arguments={"x-priority": 1})
    world.change_leader()
    channel.basic_recover(requeue=True)
    assert (preferred.received(), consumer.received()) == ([b"a", b"b"], [b"a", b"b"])


# How often


def deliver_until_dead(
    world: World, queue: str, settle: Callable[[Any, int], None], most: int
) -> list[int | None]:
    """Have a message returned again and again; its x-delivery-count each time."""
    channel = world.channel(2)
    counts: list[int | None] = []
    while len(counts) < most:
        if len(counts) == most // 2:
            world.change_leader()
        message = get(channel, queue, auto_ack=False)
        if message is None:
            return counts
        assert message.redelivered == bool(counts)
        counts.append(message.headers.get("x-delivery-count"))
        settle(channel, message.tag)
    return counts


RETURNS: dict[str, Callable[[Any, int], None]] = {
    "nack": lambda channel, tag: channel.basic_nack(tag),
    "reject": lambda channel, tag: channel.basic_reject(tag),
    "recover": lambda channel, _: channel.basic_recover(requeue=True),
}


@pytest.mark.parametrize("how", RETURNS)
def test_message_is_delivered_21_times_by_default_then_dropped(world: World, queue: str, how: str) -> None:
    filled(world, queue, "a")
    counts = deliver_until_dead(world, queue, RETURNS[how], 22)
    assert counts == [None, *range(1, DELIVERED_AT_ALL)]
    assert unacked(world, queue) == 0


def test_a_channel_that_closes_counts_as_a_failed_delivery(world: World, queue: str) -> None:
    filled(world, queue, "a", {"x-delivery-limit": 1})
    for count in (None, 1):
        channel = world.channel(2)
        assert got(channel, queue, auto_ack=False).headers.get("x-delivery-count") == count
        world.change_leader()
        close(channel)
    assert get(world.channel(1), queue) is None


def test_message_above_the_delivery_limit_is_dead_lettered(world: World, queue: str) -> None:
    dead = declare(world.channel(1), f"{queue}-dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-delivery-limit": 2}
    filled(world, queue, "a", arguments)
    assert len(deliver_until_dead(world, queue, RETURNS["nack"], 4)) == 3
    consumer = Taker(world.channel(2), dead)
    [message] = consumer.wait(1)
    assert message.headers["x-death"][0]["reason"] == "delivery_limit"
    assert not message.redelivered
    assert "x-delivery-count" not in message.headers


@pytest.mark.parametrize(
    ("argument", "policy", "deliveries"),
    [
        (0, None, 1),
        (3, None, 4),
        (None, 3, 4),
        (5, 2, 3),
        (2, 5, 3),
        (-1, None, None),
        (None, -1, None),
        (-1, 2, 3),
        (2, -1, 3),
    ],
)
def test_delivery_limit_is_the_lower_of_argument_and_policy(
    world: World, queue: str, argument: int | None, policy: int | None, deliveries: int | None
) -> None:
    filled(world, queue, "a", {} if argument is None else {"x-delivery-limit": argument})
    if policy is not None:
        world.policy(queue, {"delivery-limit": policy})
    counts = deliver_until_dead(world, queue, RETURNS["nack"], 30)
    assert len(counts) == (deliveries or 30)


def test_mode_4_3_counts_only_rejected_deliveries(world: World, queue: str) -> None:
    filled(world, queue, "a", {"x-delivery-count-mode": "4.3", "x-delivery-limit": 1})
    channel = world.channel(2)
    headers: list[dict[str, Any]] = []
    for settle in ("nack", "nack", "reject", "nack", "reject"):
        message = got(channel, queue, auto_ack=False)
        headers.append(message.headers)
        RETURNS[settle](channel, message.tag)
        world.change_leader()
    assert headers == [
        {},
        {"x-acquired-count": 1},
        {"x-acquired-count": 2},
        {"x-acquired-count": 3, "x-delivery-count": 1},
        {"x-acquired-count": 4, "x-delivery-count": 1},
    ]
    assert get(channel, queue) is None


def test_redelivered_message_keeps_its_own_headers(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    headers = {"a": 1, "b": ["x", {"y": True}], "x-delivery-count": "mine"}
    publish(channel, queue, "a", headers=headers, content_type="text/plain", message_id="7", priority=3)
    message = got(channel, queue, auto_ack=False)
    assert message.headers == headers
    channel.basic_nack(message.tag)
    world.change_leader()
    message = got(channel, queue)
    assert message.headers == headers | {"x-delivery-count": 1}
    assert (message.properties.content_type, message.properties.message_id) == ("text/plain", "7")
    assert message.properties.priority == 3
