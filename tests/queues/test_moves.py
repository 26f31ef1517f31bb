"""Moves while the leader changes: each message ends in exactly a single queue, in order."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pika

from tests.queues.clients import Taker, bodies_of, declare, drain, got, publish, ready, wait_until
from tests.queues.leader_changes import ALSO_KILLED
from tests.queues.world import World

MANY = 600


def begin(world: World, **body: Any) -> str:
    """Begin a move; returns its path."""
    wait_until(lambda: world.request("/api/cluster")["version"] >= 8)
    return f"/api/moves/%2F/{quote(world.request('/api/moves/%2F', 'POST', body)['id'])}"


def wait_ended(world: World, path: str) -> dict[str, Any]:
    wait_until(lambda: world.request(path)["state"] != "running")
    return world.request(path)


@ALSO_KILLED
def test_each_message_is_moved_exactly_once_and_in_order(world: World, queue: str) -> None:
    channel = world.channel(1)
    target = declare(channel, f"{queue}-target")
    declare(channel, queue)
    publish(channel, queue, [b"%d" % number for number in range(MANY)])
    wait_until(lambda: ready(channel, queue) == MANY)
    path = begin(world, source=queue, destination=target, rate=1000)
    wait_until(lambda: world.request(path)["moved"] > MANY // 5)
    world.change_leader()
    move = wait_ended(world, path)
    assert (move["state"], move["moved"], move["ready"]) == ("finished", MANY, MANY)
    consumer = Taker(world.channel(2), target)
    assert bodies_of(consumer.wait(MANY)) == [b"%d" % number for number in range(MANY)]
    assert ready(channel, queue) == ready(channel, target) == 0


def test_dead_letters_move_to_their_origin_beside_live_clients(world: World, queue: str) -> None:
    """Messages published, consumed and returned meanwhile are not moved."""
    channel = world.channel(1)
    dead = declare(channel, f"{queue}-dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    declare(channel, queue, arguments)
    publish(channel, queue, [b"%d" % number for number in range(20)])
    for _ in range(20):
        channel.basic_reject(got(channel, queue, auto_ack=False).tag, requeue=False)
    wait_until(lambda: ready(channel, dead) == 20)
    held = got(channel, dead, auto_ack=False)
    consumer = Taker(world.channel(2), queue)
    path = begin(world, source=dead, to_origin=True, filter={"reason": "rejected"})
    publish(channel, dead, ["new"])
    world.change_leader()
    move = wait_ended(world, path)
    assert (move["state"], move["moved"]) == ("finished", 19)
    messages = consumer.wait(19)
    assert bodies_of(messages) == [b"%d" % number for number in range(1, 20)]
    assert {message.headers["x-first-death-queue"] for message in messages} == {queue}
    assert not any(message.redelivered for message in messages)
    channel.basic_nack(held.tag)
    wait_until(lambda: ready(channel, dead) == 2)
    assert sorted(bodies_of(drain(channel, dead))) == [b"0", b"new"]


def test_move_filter_reads_headers_at_the_leader(world: World, queue: str) -> None:
    channel = world.channel(2, confirms=True)
    target = declare(channel, f"{queue}-target")
    declare(channel, queue)
    for number in range(30):
        properties = pika.BasicProperties(headers={"n": number % 3, "tenant": "é"})
        channel.basic_publish("", queue, b"%d" % number, properties)
    path = begin(
        world, source=queue, destination=target, filter={"headers": {"n": 1, "tenant": "é"}}, count=8
    )
    move = wait_ended(world, path)
    assert (move["moved"], move["examined"], move["skipped"]) == (8, 23, 15)
    assert bodies_of(drain(channel, target)) == [b"%d" % number for number in range(1, 24, 3)]
    assert ready(channel, queue) == 22
