"""Exchanges that look into messages, from a client to its queues and on to where dead letters go."""

from __future__ import annotations

import time
from typing import Any

import pika

QUORUM = {"x-queue-type": "quorum"}


def publish(channel: Any, exchange: str, body: str, **headers: Any) -> None:
    channel.basic_publish(exchange, "", body.encode(), pika.BasicProperties(headers=headers, message_id=body))


def bodies(channel: Any, queue: str, count: int) -> list[str]:
    found: list[str] = []
    until_s = time.monotonic() + 10
    while len(found) < count and time.monotonic() < until_s:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is not None:
            found.append(body.decode())
    assert channel.basic_get(queue, auto_ack=True)[0] is None
    return found


def test_messages_are_routed_by_their_headers(channel: Any, queue: str) -> None:
    red, large = f"{queue}-red", f"{queue}-large"
    channel.confirm_delivery()
    for name in (red, large):
        channel.queue_declare(name, durable=True, arguments=QUORUM)
    channel.queue_bind(red, "amq.headers", "", {"x-match": "all", "colour": "red"})
    channel.queue_bind(large, "amq.headers", "", {"x-match": "any", "size": 9, "colour": "blue"})
    publish(channel, "amq.headers", "a", colour="red")
    publish(channel, "amq.headers", "b", colour="red", size=9)
    publish(channel, "amq.headers", "c", colour="blue")
    publish(channel, "amq.headers", "d", size=True)
    assert bodies(channel, red, 2) == ["a", "b"]
    assert bodies(channel, large, 2) == ["b", "c"]
    channel.queue_unbind(red, "amq.headers", "", {"x-match": "all", "colour": "red"})
    publish(channel, "amq.headers", "e", colour="red")
    assert bodies(channel, red, 0) == []


def test_dead_letters_are_routed_by_their_headers(channel: Any, queue: str) -> None:
    exchange, yes, no = f"{queue}-x", f"{queue}-yes", f"{queue}-no"
    channel.exchange_declare(exchange, "headers", durable=True)
    for name, flag in ((yes, True), (no, 1)):
        channel.queue_declare(name, durable=True, arguments=QUORUM)
        channel.queue_bind(name, exchange, "", {"flag": flag})
    channel.queue_declare(queue, durable=True, arguments=QUORUM | {"x-dead-letter-exchange": exchange})
    for number in range(20):
        properties = pika.BasicProperties(headers={"flag": True if number % 2 else 1})
        channel.basic_publish("", queue, str(number).encode(), properties)
    for _ in range(20):
        method, _, _ = channel.basic_get(queue)
        channel.basic_reject(method.delivery_tag, requeue=False)
    assert bodies(channel, yes, 10) == [str(number) for number in range(1, 20, 2)]
    assert bodies(channel, no, 10) == [str(number) for number in range(0, 20, 2)]


def test_equal_property_is_always_hashed_to_the_same_queue(channel: Any, queue: str) -> None:
    exchange = f"{queue}-x"
    names = [f"{queue}-{number}" for number in range(3)]
    channel.exchange_declare(exchange, "x-consistent-hash", arguments={"hash-property": "message_id"})
    for name in names:
        channel.queue_declare(name, durable=True, arguments=QUORUM)
        channel.queue_bind(name, exchange, "1")
    channel.confirm_delivery()
    for _ in range(3):
        for body in "abcdefgh":
            publish(channel, exchange, body)
    found = {name: channel.queue_declare(name, passive=True).method.message_count for name in names}
    assert sum(found.values()) == 24
    assert sum(map(bool, found.values())) > 1
    for name, count in found.items():
        got = bodies(channel, name, count)
        assert got == sorted(set(got)) * 3
