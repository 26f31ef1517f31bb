"""Queues that are full."""

from __future__ import annotations

from typing import Any

import pika.exceptions
import pytest

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
    refused,
    wait_until,
)
from tests.queues.leader_changes import KILLED_IF_LONG
from tests.queues.world import World

BODY = b"x" * 1000
REJECTS = {"overflow": "reject-publish"}


def limited(world: World, queue: str, by: str, **settings: Any) -> str:
    """Declare a queue with settings by argument or by policy."""
    named = {name.replace("_", "-"): value for name, value in settings.items()}
    declare(
        world.channel(1),
        queue,
        {f"x-{name}": value for name, value in named.items()} if by == "argument" else {},
    )
    if by == "policy":
        world.policy(queue, named)
    return queue


def accepted(channel: Any, queue: str, body: bytes | str) -> bool:
    """Whether a publish is confirmed, and not refused with basic.nack."""
    try:
        channel.basic_publish("", queue, body if isinstance(body, bytes) else body.encode())
    except pika.exceptions.NackError:
        return False
    return True


# drop-head


@pytest.mark.parametrize("by", ["argument", "policy"])
def test_queue_above_its_length_limit_drops_its_oldest_messages(world: World, queue: str, by: str) -> None:
    limited(world, queue, by, max_length=3)
    channel = world.channel(1)
    publish(channel, queue, "ab")
    world.change_leader()
    publish(channel, queue, "cdefg")
    assert ready(channel, queue) == 3
    assert bodies_of(drain(world.channel(2), queue)) == [b"e", b"f", b"g"]


@pytest.mark.parametrize("by", ["argument", "policy"])
def test_queue_above_its_size_limit_drops_its_oldest_messages(world: World, queue: str, by: str) -> None:
    limited(world, queue, by, max_length_bytes=2500)
    channel = world.channel(1)
    publish(channel, queue, [b"1" + BODY, b"2" + BODY])
    world.change_leader()
    publish(channel, queue, [b"3" + BODY, b"4" + BODY, b"5"])
    assert [body[:1] for body in bodies_of(drain(channel, queue))] == [b"3", b"4", b"5"]


def test_held_messages_do_not_count_towards_the_limit(world: World, queue: str) -> None:
    limited(world, queue, "argument", max_length=2)
    channel = world.channel(1)
    publish(channel, queue, "ab")
    held = [got(channel, queue, auto_ack=False) for _ in range(2)]
    publish(channel, queue, "cd")
    assert ready(channel, queue) == 2
    world.change_leader()
    # Requeued messages are at the head, and are dropped.
    for message in held:
        channel.basic_nack(message.tag)
    assert bodies_of(drain(channel, queue)) == [b"c", b"d"]


def test_full_queue_accepts_messages_for_a_waiting_consumer(world: World, queue: str) -> None:
    limited(world, queue, "argument", max_length=0)
    consumer = Taker(world.channel(2), queue)
    world.change_leader()
    publish(world.channel(1), queue, "ab")
    assert consumer.received() == [b"a", b"b"]


def test_a_policy_shortens_a_queue_at_once(world: World, queue: str) -> None:
    channel = world.channel(1)
    publish(channel, declare(channel, queue), "abcde")
    world.change_leader()
    world.policy(queue, {"max-length": 2})
    assert bodies_of(drain(channel, queue)) == [b"d", b"e"]


@pytest.mark.parametrize(("argument", "policy"), [(2, 5), (5, 2)])
def test_the_smaller_of_two_limits_counts(world: World, queue: str, argument: int, policy: int) -> None:
    limited(world, queue, "argument", max_length=argument)
    world.policy(queue, {"max-length": policy})
    channel = world.channel(1)
    world.change_leader()
    publish(channel, queue, "abcdefg")
    assert ready(channel, queue) == 2


def test_operator_policy_limits_the_policy(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    world.policy(queue, {"max-length": 5})
    world.policy(queue, {"max-length": 2}, operator=True)
    world.change_leader()
    publish(channel, queue, "abcdefg")
    assert ready(channel, queue) == 2
    status = world.request(f"/api/queues/%2F/{queue}")
    assert (status["policy"], status["operator_policy"]) == (queue, queue)
    assert status["effective_policy_definition"] == {"max-length": 2}


def test_the_head_is_the_message_that_would_be_delivered_next(world: World, queue: str) -> None:
    limited(world, queue, "argument", max_length=2)
    channel = world.channel(1)
    publish(channel, queue, "n", priority=1)
    publish(channel, queue, "h", priority=9)
    world.change_leader()
    publish(channel, queue, "m", priority=1)
    assert bodies_of(drain(channel, queue)) == [b"n", b"m"]


@KILLED_IF_LONG
def test_dropped_messages_are_dead_lettered_in_order(world: World, queue: str) -> None:
    channel = world.channel(1)
    dead = declare(channel, f"{queue}-dead")
    declare(
        channel,
        queue,
        {"x-max-length": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead},
    )
    bodies = [b"%d" % number for number in range(200)]
    publish(channel, queue, bodies[:100])
    world.change_leader()
    publish(channel, queue, bodies[100:])
    consumer = Taker(world.channel(2), dead)
    consumer.wait(190)
    assert consumer.received() == bodies[:190]
    assert {m.headers["x-death"][0]["reason"] for m in consumer.messages} == {"maxlen"}
    assert bodies_of(drain(channel, queue)) == bodies[190:]


# reject-publish


@pytest.mark.parametrize("by", ["argument", "policy"])
def test_a_queue_that_is_full_refuses_messages(world: World, queue: str, by: str) -> None:
    limited(world, queue, by, max_length=2, **REJECTS)
    channel = world.channel(1, confirms=True)
    assert [accepted(channel, queue, body) for body in "abc"] == [True, True, False]
    world.change_leader()
    assert not accepted(channel, queue, "d")
    assert got(channel, queue).body == b"a"
    assert [accepted(channel, queue, body) for body in "ef"] == [True, False]
    assert bodies_of(drain(world.channel(2), queue)) == [b"b", b"e"]


@pytest.mark.parametrize("by", ["argument", "policy"])
def test_full_queue_refuses_messages_that_do_not_fit(world: World, queue: str, by: str) -> None:
    limited(world, queue, by, max_length_bytes=2500, **REJECTS)
    channel = world.channel(1, confirms=True)
    assert [accepted(channel, queue, BODY) for _ in range(3)] == [True, True, False]
    world.change_leader()
    assert accepted(channel, queue, b"small")
    assert ready(channel, queue) == 3


def test_full_queue_drops_messages_silently_without_confirms(world: World, queue: str) -> None:
    limited(world, queue, "argument", max_length=2, **REJECTS)
    channel = world.channel(1)
    world.change_leader()
    publish(channel, queue, "abcd")
    assert bodies_of(drain(channel, queue)) == [b"a", b"b"]


def test_message_refused_by_a_queue_reaches_no_queue(world: World, queue: str) -> None:
    channel = world.channel(1, confirms=True)
    limited(world, queue, "argument", max_length=1, **REJECTS)
    other = declare(channel, f"{queue}-other")
    channel.exchange_declare(f"{queue}-x", "fanout")
    for name in (queue, other):
        channel.queue_bind(name, f"{queue}-x")
    channel.basic_publish(f"{queue}-x", "", b"a")
    world.change_leader()
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish(f"{queue}-x", "", b"b")
    assert [ready(channel, name) for name in (queue, other)] == [1, 1]


def test_rejecting_queue_never_exceeds_its_limit(world: World, queue: str) -> None:
    limited(world, queue, "argument", max_length=50, **REJECTS)
    channels = [world.channel(at) for at in (1, 2, 0)]
    for _ in range(40):
        for channel in channels:
            channel.basic_publish("", queue, b"m")
    world.change_leader()
    for channel in channels:
        barrier(channel)
    assert ready(channels[0], queue) == 50


def test_rejecting_queue_accepts_messages_for_a_waiting_consumer(world: World, queue: str) -> None:
    limited(world, queue, "argument", max_length=1, **REJECTS)
    consumer = Taker(world.channel(2), queue)
    channel = world.channel(1, confirms=True)
    world.change_leader()
    assert [accepted(channel, queue, body) for body in "abc"] == [True, True, True]
    assert consumer.received() == [b"a", b"b", b"c"]


def test_rejecting_queue_accepts_a_burst_for_a_waiting_consumer(world: World, queue: str) -> None:
    limited(world, queue, "argument", max_length=1, **REJECTS)
    consumer = Taker(world.channel(2), queue)
    world.change_leader()
    publish(world.channel(1), queue, ["m"] * 20)
    assert len(consumer.received()) == 20


def test_policy_changes_overflow_behaviour(world: World, queue: str) -> None:
    limited(world, queue, "argument", max_length=1)
    channel = world.channel(1, confirms=True)
    assert [accepted(channel, queue, body) for body in "ab"] == [True, True]
    world.change_leader()
    path = world.policy(queue, REJECTS)
    assert not accepted(channel, queue, "c")
    world.request(path, "DELETE")
    world.forget(path)
    assert accepted(channel, queue, "d")
    assert bodies_of(drain(channel, queue)) == [b"d"]


# Purge and delete


def everything_in(world: World, queue: str) -> None:
    """A message each that is ready, delayed, on its way to a dead-letter exchange, and held by a consumer."""
    channel = world.channel(1)
    arguments = {
        "x-overflow": "reject-publish",
        "x-dead-letter-strategy": "at-least-once",
        "x-dead-letter-exchange": f"{queue}-nowhere",
    }
    declare(channel, queue, arguments)
    publish(channel, queue, "dhr")
    channel.basic_reject(got(channel, queue, auto_ack=False).tag, requeue=False)
    got(channel, queue, auto_ack=False)
    publish(channel, queue, "l", headers={"x-delay": 60_000})


def counts(world: World, queue: str) -> dict[str, int]:
    status = world.request(f"/api/queues/%2F/{queue}")
    return {name: status[f"messages_{name}"] for name in ("ready", "delayed", "dlx", "unacknowledged")}


@KILLED_IF_LONG
def test_purge_drops_all_messages_except_unacked(world: World, queue: str) -> None:
    everything_in(world, queue)
    assert counts(world, queue) == {"ready": 1, "delayed": 1, "dlx": 1, "unacknowledged": 1}
    world.change_leader()
    channel = world.channel(2)
    assert channel.queue_purge(queue).method.message_count == 3
    wait_until(lambda: counts(world, queue) == {"ready": 0, "delayed": 0, "dlx": 0, "unacknowledged": 1})
    publish(channel, queue, "n")
    assert got(channel, queue).body == b"n"


@pytest.mark.parametrize("last", ["ready", "delayed", "dying"])
def test_queue_delete_if_empty_is_refused_for_a_nonempty_queue(world: World, queue: str, last: str) -> None:
    everything_in(world, queue)
    channel = world.channel(2)
    if last != "ready":
        channel.queue_purge(queue)
    if last == "delayed":
        publish(channel, queue, "l", headers={"x-delay": 60_000})
    if last == "dying":
        publish(channel, queue, "d")
        channel.basic_reject(got(channel, queue, auto_ack=False).tag, requeue=False)
    world.change_leader()
    with refused_for(queue, "not empty"):
        channel.queue_delete(queue, if_empty=True)
    channel = world.channel(2)
    channel.queue_purge(queue)
    channel.queue_delete(queue, if_empty=True)
    wait_until(lambda: not world.exists(queue))  # at a node other than that of the delete


def test_a_queue_that_is_used_is_not_deleted_on_that_condition(world: World, queue: str) -> None:
    channel, other = world.channel(1), world.channel(2)
    declare(channel, queue)
    publish(channel, queue, "a")
    consumer = Taker(other, queue)
    world.change_leader()
    with refused_for(queue, "in use"):
        channel.queue_delete(queue, if_unused=True)
    other.basic_cancel(consumer.tag)
    world.channel(1).queue_delete(queue, if_unused=True)
    assert not world.exists(queue)


def refused_for(queue: str, why: str) -> Any:
    return refused(406, f"PRECONDITION_FAILED - queue '{queue}' {HERE} {why}")


def test_deleting_a_missing_queue_succeeds(world: World, queue: str) -> None:
    channel = world.channel(1)
    world.change_leader()
    assert channel.queue_delete(queue, if_empty=True, if_unused=True).method.message_count == 0
