"""Dead-lettering: reasons, targets, headers, and delivery exactly once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pika
import pytest
from pika.compat import long

from tests.queues.clients import (
    Message,
    Taker,
    barrier,
    bodies_of,
    declare,
    drain,
    get,
    got,
    publish,
    ready,
    wait_until,
)
from tests.queues.leader_changes import ALSO_KILLED
from tests.queues.world import World

MANY = 1000


def source_of(world: World, queue: str, arguments: dict[str, Any] | None = None, **policy: Any) -> str:
    """Declare `queue`, and the target of its dead letters through the default exchange."""
    channel = world.channel(1)
    dead = declare(channel, f"{queue}-dead")
    routing = {"dead-letter-exchange": "", "dead-letter-routing-key": dead}
    if policy:
        declare(channel, queue, arguments)
        world.policy(queue, {name.replace("_", "-"): value for name, value in policy.items()} | routing)
    else:
        declare(channel, queue, {f"x-{name}": value for name, value in routing.items()} | (arguments or {}))
    return dead


def death_of(world: World, dead: str) -> Message:
    [message] = Taker(world.channel(2), dead).wait(1)
    return message


def reject(world: World, queue: str) -> None:
    channel = world.channel(2)
    channel.basic_reject(got(channel, queue, auto_ack=False).tag, requeue=False)
    barrier(channel)


# Reasons and headers


def test_a_rejected_message_is_dead_lettered_with_all_headers(world: World, queue: str) -> None:
    dead = source_of(world, queue)
    publish(world.channel(1), queue, "a", headers={"mine": "kept"}, content_type="text/plain")
    world.change_leader()
    reject(world, queue)
    message = death_of(world, dead)
    [death] = message.headers.pop("x-death")
    assert message.headers == {
        "mine": "kept",
        "x-first-death-reason": "rejected",
        "x-first-death-queue": queue,
        "x-first-death-exchange": "",
        "x-last-death-reason": "rejected",
        "x-last-death-queue": queue,
        "x-last-death-exchange": "",
        "x-delivery-count": 1,  # the rejection
    }
    assert abs(death.pop("time") - datetime.now(UTC)) < timedelta(seconds=30)
    assert type(death["count"]) is long  # AMQP's signed 64 bits
    assert death == {
        "count": 1,
        "reason": "rejected",
        "queue": queue,
        "exchange": "",
        "routing-keys": [queue],
    }
    assert (message.body, message.exchange, message.routing_key) == (b"a", "", dead)
    assert (message.redelivered, message.properties.content_type) == (True, "text/plain")


@pytest.mark.parametrize("how", ["nack", "multiple"])
def test_nack_without_requeue_rejects(world: World, queue: str, how: str) -> None:
    dead = source_of(world, queue)
    publish(world.channel(1), queue, "ab")
    channel = world.channel(2)
    tags = [got(channel, queue, auto_ack=False).tag for _ in range(2)]
    world.change_leader()
    for tag in tags if how == "nack" else (0,):
        channel.basic_nack(tag, multiple=not tag, requeue=False)
    messages = Taker(channel, dead).wait(2)
    assert [(m.body, m.headers["x-first-death-reason"]) for m in messages] == [
        (b"a", "rejected"),
        (b"b", "rejected"),
    ]


@pytest.mark.parametrize("by", ["argument", "policy"])
@pytest.mark.parametrize("reason", ["expired", "maxlen", "delivery_limit"])
def test_expired_dropped_and_overdelivered_messages_have_reasons(
    world: World, queue: str, reason: str, by: str
) -> None:
    settings = {
        "expired": {"message-ttl": 0},
        "maxlen": {"max-length": 0},
        "delivery_limit": {"delivery-limit": 0},
    }[reason]
    if by == "policy":
        dead = source_of(world, queue, **{name.replace("-", "_"): value for name, value in settings.items()})
    else:
        dead = source_of(world, queue, {f"x-{name}": value for name, value in settings.items()})
    world.change_leader()
    publish(world.channel(1), queue, "a")
    if reason == "delivery_limit":
        channel = world.channel(2)
        channel.basic_nack(got(channel, queue, auto_ack=False).tag)
    message = death_of(world, dead)
    assert message.headers["x-death"][0]["reason"] == reason
    assert (message.headers["x-first-death-reason"], message.headers["x-last-death-reason"]) == (
        reason,
        reason,
    )


def test_newest_death_is_first_and_the_first_death_is_kept(world: World, queue: str) -> None:
    channel = world.channel(1)
    last, middle = declare(channel, f"{queue}-last"), f"{queue}-middle"
    declare(
        channel,
        middle,
        {"x-message-ttl": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": last},
    )
    channel.exchange_declare(f"{queue}-x", "fanout")
    declare(channel, queue, {"x-dead-letter-exchange": f"{queue}-x"})
    channel.queue_bind(middle, f"{queue}-x")
    publish(channel, queue, "a")
    world.change_leader()
    reject(world, queue)
    message = death_of(world, last)
    deaths = [(d["queue"], d["reason"], d["exchange"], d["routing-keys"]) for d in message.headers["x-death"]]
    assert deaths == [(middle, "expired", f"{queue}-x", [queue]), (queue, "rejected", "", [queue])]
    causes = {
        name: (message.headers[f"x-{name}-death-reason"], message.headers[f"x-{name}-death-queue"])
        for name in ("first", "last")
    }
    assert causes == {"first": ("rejected", queue), "last": ("expired", middle)}
    assert message.headers["x-last-death-exchange"] == f"{queue}-x"


@ALSO_KILLED
def test_a_message_that_is_retried_counts_its_deaths(world: World, queue: str) -> None:
    # The usual retry: rejected into a queue that sends it back after a while.
    channel = world.channel(1)
    retry = f"{queue}-retry"
    to = {"x-dead-letter-exchange": ""}
    declare(channel, queue, to | {"x-dead-letter-routing-key": retry})
    declare(channel, retry, to | {"x-dead-letter-routing-key": queue, "x-message-ttl": 20})
    publish(channel, queue, "a")
    consumer = Taker(world.channel(2), queue)
    for attempt in range(3):
        consumer.channel.basic_nack(consumer.wait(attempt + 1)[attempt].tag, requeue=False)
        if attempt == 1:
            world.change_leader()
    message = consumer.wait(4)[3]
    deaths = [(d["queue"], d["reason"], d["count"]) for d in message.headers["x-death"]]
    assert deaths == [(retry, "expired", 3), (queue, "rejected", 3)]
    assert message.headers["x-first-death-queue"] == queue
    assert message.headers["x-last-death-queue"] == retry


# Cycles


def test_a_message_that_expires_in_a_circle_is_dropped(world: World, queue: str) -> None:
    channel = world.channel(1)
    names = [queue, f"{queue}-b"]
    for name, following in zip(names, reversed(names), strict=True):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": following}
        declare(channel, name, arguments | {"x-message-ttl": 20})
    publish(channel, queue, "a")
    world.change_leader()
    wait_until(lambda: sum(_all_messages(world, name) for name in names) == 0)


def test_queue_dead_letters_into_itself_only_by_rejection(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue, {"x-dead-letter-exchange": ""})
    publish(channel, queue, "r")
    publish(channel, queue, "e", expiration="50")
    world.change_leader()
    reject(world, queue)
    wait_until(lambda: _all_messages(world, queue) == 1)
    message = death_of(world, queue)
    assert (message.body, message.headers["x-death"][0]["count"]) == (b"r", 1)


def _all_messages(world: World, queue: str, at: int = 1) -> int:
    return world.request(f"/api/queues/%2F/{queue}", at=at)["messages"]


# Where to


def test_rejected_message_is_dropped_without_an_exchange(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    publish(channel, queue, "a")
    world.change_leader()
    reject(world, queue)
    assert get(channel, queue) is None


def test_dead_letter_for_a_missing_exchange_is_dropped(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue, {"x-dead-letter-exchange": f"{queue}-nowhere"})
    publish(channel, queue, "a")
    world.change_leader()
    reject(world, queue)
    wait_until(lambda: _all_messages(world, queue) == 0)


def test_the_argument_wins_over_the_policy(world: World, queue: str) -> None:
    dead = source_of(world, queue)
    world.policy(queue, {"dead-letter-exchange": "amq.fanout", "dead-letter-routing-key": "elsewhere"})
    publish(world.channel(1), queue, "a")
    world.change_leader()
    reject(world, queue)
    assert death_of(world, dead).routing_key == dead


def keys_world(world: World, queue: str, routing_key: str | None) -> list[str]:
    """Declare a queue that dead-letters through a direct exchange, with queues bound by the keys k, cc, bcc, dl."""
    channel, exchange = world.channel(1), f"{queue}-x"
    channel.exchange_declare(exchange, "direct")
    arguments = {"x-dead-letter-exchange": exchange}
    if routing_key is not None:
        arguments["x-dead-letter-routing-key"] = routing_key
    declare(channel, queue, arguments)
    channel.exchange_declare(f"{queue}-in", "fanout")
    channel.queue_bind(queue, f"{queue}-in")
    names = []
    for key in ("k", "cc", "bcc", "dl"):
        names.append(declare(channel, f"{queue}-{key}"))
        channel.queue_bind(names[-1], exchange, key)
    headers = {"CC": ["cc"], "BCC": ["bcc"], "mine": 1}
    publish(channel, "k", "a", exchange=f"{queue}-in", headers=headers)
    return names


def test_dead_letter_without_a_queue_key_keeps_its_keys(world: World, queue: str) -> None:
    names = keys_world(world, queue, None)
    world.change_leader()
    reject(world, queue)
    channel = world.channel(2)
    wait_until(lambda: ready(channel, names[0]) == 1)
    assert [ready(channel, name) for name in names] == [1, 1, 1, 0]
    message = got(channel, names[1])
    assert (message.exchange, message.routing_key) == (f"{queue}-x", "k")
    assert message.headers["CC"] == ["cc"]
    assert "BCC" not in message.headers
    [death] = message.headers["x-death"]
    assert (death["exchange"], death["routing-keys"]) == (f"{queue}-in", ["k", "cc"])


def test_dead_letter_routing_key_of_the_queue_replaces_all_keys(world: World, queue: str) -> None:
    names = keys_world(world, queue, "dl")
    world.change_leader()
    reject(world, queue)
    channel = world.channel(2)
    wait_until(lambda: ready(channel, names[3]) == 1)
    assert [ready(channel, name) for name in names] == [0, 0, 0, 1]
    message = got(channel, names[3])
    assert (message.routing_key, message.headers["mine"]) == ("dl", 1)
    assert (message.headers["CC"], "BCC" in message.headers) == (["cc"], False)
    assert message.headers["x-death"][0]["routing-keys"] == ["k", "cc"]


def test_dead_letter_has_its_expiration_only_in_x_death(world: World, queue: str) -> None:
    dead = source_of(world, queue)
    publish(world.channel(1), queue, "a", expiration="30", delivery_mode=2)
    world.change_leader()
    message = death_of(world, dead)
    assert message.properties.expiration is None
    assert message.properties.delivery_mode == 2
    assert message.headers["x-death"][0]["original-expiration"] == "30"


def test_the_time_to_live_of_the_next_queue_counts(world: World, queue: str) -> None:
    channel = world.channel(1)
    dead = f"{queue}-dead"
    declare(channel, dead, {"x-message-ttl": 100})
    declare(channel, queue, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    publish(channel, queue, "a", expiration="60000")
    reject(world, queue)
    world.change_leader()
    wait_until(lambda: _all_messages(world, dead) == 0)


def test_dead_letters_keep_their_priority(world: World, queue: str) -> None:
    dead = source_of(world, queue)
    channel = world.channel(1)
    publish(channel, queue, "ab", priority=1)
    publish(channel, queue, "cd", priority=9)
    tags = [got(channel, queue, auto_ack=False) for _ in range(4)]
    assert len(tags) == 4
    world.change_leader()
    channel.basic_nack(0, multiple=True, requeue=False)
    wait_until(lambda: ready(channel, dead) == 4)
    assert bodies_of(drain(channel, dead)) == [b"c", b"d", b"a", b"b"]


def test_the_next_queue_judges_the_priority_that_was_published(world: World, queue: str) -> None:
    """A queue may take a priority of none for 4, or 9 for 5; the next queue judges the original priority."""
    channel = world.channel(1)
    dead = f"{queue}-dead"
    channel.queue_declare(dead, durable=True, arguments={"x-max-priority": 9})
    declare(channel, queue, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    publish(channel, queue, "a")
    publish(channel, queue, "b", priority=2)
    publish(channel, queue, "c", priority=8)
    publish(channel, queue, "d", priority=9)
    for _ in range(4):
        reject(world, queue)
    wait_until(lambda: ready(channel, dead) == 4)
    assert bodies_of(drain(channel, dead)) == [b"d", b"c", b"b", b"a"]


# Exactly once


@ALSO_KILLED
def test_each_message_is_dead_lettered_exactly_once_and_in_order(world: World, queue: str) -> None:
    dead = source_of(world, queue)
    publisher, rejecter = world.channel(1), world.channel(2)
    bodies = [b"%d" % number for number in range(MANY)]
    publish(publisher, queue, bodies)
    rejecter.basic_qos(prefetch_count=MANY)
    Taker(rejecter, queue).wait(MANY)
    consumer = Taker(publisher, dead)
    rejecter.basic_nack(0, multiple=True, requeue=False)
    rejecter.connection.process_data_events(0)
    world.change_leader()
    consumer.wait(MANY)
    assert consumer.received() == bodies
    assert _all_messages(world, queue) == 0


@ALSO_KILLED
def test_messages_that_expire_during_a_leader_change_arrive_once(world: World, queue: str) -> None:
    dead = source_of(world, queue)
    publisher = world.channel(1)
    consumer = Taker(world.channel(2), dead)
    bodies = [b"%d" % number for number in range(MANY)]
    for number, body in enumerate(bodies):
        publish_one(publisher, queue, body, expiration=str(1 + number % 200))
    world.change_leader()
    barrier(publisher)
    consumer.wait(MANY)
    assert sorted(consumer.received(), key=int) == bodies


def publish_one(channel: Any, queue: str, body: bytes, **properties: Any) -> None:
    channel.basic_publish("", queue, body, pika.BasicProperties(**properties))


# At least once


@pytest.mark.parametrize("by", ["argument", "policy"])
def test_at_least_once_dead_letter_waits_for_room_in_its_target(world: World, queue: str, by: str) -> None:
    channel = world.channel(1)
    full = f"{queue}-full"
    declare(channel, full, {"x-max-length": 1, "x-overflow": "reject-publish"})
    settings: dict[str, Any] = {
        "dead-letter-exchange": "",
        "dead-letter-routing-key": full,
        "dead-letter-strategy": "at-least-once",
        "overflow": "reject-publish",
    }
    if by == "policy":
        declare(channel, queue)
        world.policy(queue, settings)
    else:
        declare(channel, queue, {f"x-{name}": value for name, value in settings.items()})
    publish(channel, queue, "abc")
    for _ in range(3):
        reject(world, queue)
    wait_until(lambda: ready(channel, full) == 1)
    world.change_leader()
    status = world.request(f"/api/queues/%2F/{queue}")
    assert (status["messages"], status["messages_dlx"], status["messages_ready"]) == (2, 2, 0)
    assert status["message_bytes"] == status["message_bytes_dlx"] > 0
    taken = []
    while len(taken) < 3:
        wait_until(lambda: ready(channel, full) == 1)
        taken.append(got(channel, full))
    assert [(m.body, m.headers["x-death"][0]["reason"]) for m in taken] == [
        (b"a", "rejected"),
        (b"b", "rejected"),
        (b"c", "rejected"),
    ]


def test_at_least_once_a_message_waits_for_its_exchange(world: World, queue: str) -> None:
    channel = world.channel(1)
    arguments = {
        "x-dead-letter-exchange": f"{queue}-x",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    declare(channel, queue, arguments)
    publish(channel, queue, "a")
    reject(world, queue)
    world.change_leader()
    assert _all_messages(world, queue) == 1
    dead = declare(channel, f"{queue}-dead")
    channel.exchange_declare(f"{queue}-x", "fanout")
    channel.queue_bind(dead, f"{queue}-x")
    assert death_of(world, dead).body == b"a"


def test_dead_letter_without_a_target_blocks_no_later_message(world: World, queue: str) -> None:
    """The level queue of a delayed delivery, as in NServiceBus: some destinations are gone or full."""
    channel = world.channel(1)
    there, late, full = (f"{queue}-{name}" for name in ("there", "late", "full"))
    channel.exchange_declare(f"{queue}-in", "fanout")
    channel.exchange_declare(f"{queue}-out", "topic")
    level = {
        "x-message-ttl": 1,
        "x-dead-letter-exchange": f"{queue}-out",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    channel.queue_bind(declare(channel, queue, level), f"{queue}-in")
    declare(channel, full, {"x-max-length": 1, "x-overflow": "reject-publish"})
    for target in (declare(channel, there), full):
        channel.queue_bind(target, f"{queue}-out", target)
    bodies = {late: [b"l%d" % n for n in range(50)], full: [b"f%d" % n for n in range(50)], there: [b"t"]}
    for target, contents in bodies.items():
        for body in contents:
            channel.basic_publish(f"{queue}-in", target, body)
    wait_until(lambda: ready(channel, there) == 1)
    wait_until(lambda: world.request(f"/api/queues/%2F/{queue}")["messages_dlx"] == 99)
    world.change_leader()
    channel.queue_bind(declare(channel, late), f"{queue}-out", late)
    wait_until(lambda: ready(channel, late) == 50)
    assert bodies_of(drain(channel, late)) == bodies[late]
    taken = []
    while len(taken) < 50:
        wait_until(lambda: ready(channel, full) == 1)
        taken.append(got(channel, full).body)
    assert taken == bodies[full]
    wait_until(lambda: _all_messages(world, queue) == 0)


def test_at_least_once_without_reject_publish_is_at_most_once(world: World, queue: str) -> None:
    channel = world.channel(1)
    arguments = {"x-dead-letter-exchange": f"{queue}-nowhere", "x-dead-letter-strategy": "at-least-once"}
    declare(channel, queue, arguments)
    publish(channel, queue, "a")
    world.change_leader()
    reject(world, queue)
    wait_until(lambda: _all_messages(world, queue) == 0)


def test_waiting_dead_letters_count_towards_the_limit(world: World, queue: str) -> None:
    channel = world.channel(1)
    arguments = {
        "x-dead-letter-exchange": f"{queue}-nowhere",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-max-length": 1,
    }
    declare(channel, queue, arguments)
    publish(channel, queue, "a")
    reject(world, queue)
    world.change_leader()
    publish(channel, queue, "b")
    assert (ready(channel, queue), _all_messages(world, queue)) == (0, 1)
    assert channel.queue_purge(queue).method.message_count == 1
    publish(channel, queue, "c")
    assert got(channel, queue).body == b"c"
