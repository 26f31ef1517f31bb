"""Publishers that publish again, and messages that wait."""

from __future__ import annotations

import time
from typing import Any

import pika
import pytest

from tests.queues.clients import (
    Taker,
    barrier,
    bodies_of,
    declare,
    drain,
    exactly,
    get,
    got,
    lose,
    publish,
    ready,
    refused,
    send,
    wait_until,
)
from tests.queues.leader_changes import ALSO_KILLED, QUIET
from tests.queues.nodes_here import ClusterHere
from tests.queues.world import World

# Deduplication


def test_duplicate_publish_is_confirmed_and_dropped(world: World, queue: str) -> None:
    channel = world.channel(1, confirms=True)
    declare(channel, queue)
    send(channel, queue, queue, 1, 2, 2)
    world.change_leader()
    send(channel, queue, queue, 1, 2, 3, 3, 2, 4)
    assert bodies_of(drain(world.channel(2), queue)) == [b"1", b"2", b"3", b"4"]


@ALSO_KILLED
def test_publisher_id_is_known_after_a_reconnect_to_any_node(world: World, queue: str) -> None:
    channel = world.channel(1, confirms=True)
    declare(channel, queue)
    send(channel, queue, queue, 1, 2, 3)
    lose(channel.connection)
    world.change_leader()
    channel = world.channel(2, confirms=True)
    send(channel, queue, queue, 2, 3, 4, 5)
    assert bodies_of(drain(channel, queue)) == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("world", ["quiet"], indirect=True)
def test_a_publisher_is_known_after_a_restart_of_all_nodes(
    world: World, queue: str, cluster_here: ClusterHere
) -> None:
    channel = world.channel(1, confirms=True)
    declare(channel, queue)
    send(channel, queue, queue, 1, 2, 3)
    cluster_here.stop(*cluster_here.nodes)
    cluster_here.start(*cluster_here.nodes)
    channel = world.channel(2, confirms=True)
    send(channel, queue, queue, 1, 3, 4)
    assert bodies_of(drain(channel, queue)) == [b"1", b"2", b"3", b"4"]


def test_sequence_numbers_of_publishers_are_independent(world: World, queue: str) -> None:
    channel = world.channel(1, confirms=True)
    declare(channel, queue)
    send(channel, queue, f"{queue}-a", 5)
    world.change_leader()
    send(channel, queue, f"{queue}-b", 1)
    send(channel, queue, f"{queue}-a", 5)
    assert bodies_of(drain(channel, queue)) == [b"5", b"1"]


def test_duplicate_for_several_queues_is_dropped_in_all(world: World, queue: str) -> None:
    channel = world.channel(1, confirms=True)
    names = [declare(channel, f"{queue}-{number}") for number in range(2)]
    channel.exchange_declare(f"{queue}-x", "fanout")
    for name in names:
        channel.queue_bind(name, f"{queue}-x")
    properties = pika.BasicProperties(headers={"x-publisher-id": queue, "x-publish-seq": 1})
    for _ in range(2):
        channel.basic_publish(f"{queue}-x", "", b"a", properties)
        world.change_leader()
    assert [bodies_of(drain(channel, name)) for name in names] == [[b"a"], [b"a"]]


def test_refused_message_may_be_published_again(world: World, queue: str) -> None:
    channel = world.channel(1, confirms=True)
    declare(channel, queue, {"x-max-length": 1, "x-overflow": "reject-publish"})
    send(channel, queue, queue, 1)
    with pytest.raises(pika.exceptions.NackError):
        send(channel, queue, queue, 2)
    world.change_leader()
    assert got(channel, queue).body == b"1"
    send(channel, queue, queue, 2)
    assert got(channel, queue).body == b"2"


def test_the_headers_of_the_publisher_are_delivered(world: World, queue: str) -> None:
    channel = world.channel(1, confirms=True)
    declare(channel, queue)
    send(channel, queue, queue, 7)
    world.change_leader()
    assert got(channel, queue).headers == {"x-publisher-id": queue, "x-publish-seq": 7}


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"x-publisher-id": "p"}, "header 'x-publisher-id' without header 'x-publish-seq'"),
        ({"x-publish-seq": 1}, "header 'x-publish-seq' without header 'x-publisher-id'"),
        (
            {"x-publisher-id": "", "x-publish-seq": 1},
            "invalid header 'x-publisher-id': not a string of 1 to 255 octets of UTF-8",
        ),
        (
            {"x-publisher-id": "p", "x-publish-seq": 0},
            "invalid header 'x-publish-seq': not an integer from 1 to 2^63-1",
        ),
        (
            {"x-publisher-id": "p", "x-publish-seq": "1"},
            "invalid header 'x-publish-seq': not an integer from 1 to 2^63-1",
        ),
        ({"CC": "k"}, 'invalid message: {unacceptable_type_in_header,"CC",longstr}'),
    ],
)
@QUIET
def test_malformed_headers_of_qq_are_refused(
    world: World, queue: str, headers: dict[str, Any], text: str
) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    with refused(406, f"PRECONDITION_FAILED - {text}"):
        publish(channel, queue, "a", headers=headers)


# CC and BCC


def test_message_with_cc_and_bcc_reaches_each_queue_once(world: World, queue: str) -> None:
    channel = world.channel(1)
    names = [declare(channel, f"{queue}-{number}") for number in range(4)]
    world.change_leader()
    publish(channel, names[0], "a", headers={"CC": [names[1], names[0]], "BCC": [names[2]]})
    assert [ready(channel, name) for name in names] == [1, 1, 1, 0]
    for name in names[:3]:
        message = got(channel, name)
        assert (message.routing_key, message.headers) == (names[0], {"CC": [names[1], names[0]]})


# Delayed messages


@ALSO_KILLED
def test_delayed_message_is_appended_when_it_is_due(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    consumer = world.channel(2)
    began_s = time.monotonic()
    publish(channel, queue, "l", headers={"x-delay": 700})
    publish(channel, queue, "e", headers={"x-delay": 300})
    publish(channel, queue, "n")
    world.change_leader()
    wait_until(lambda: ready(consumer, queue) == 3)
    assert time.monotonic() - began_s > 0.65, (
        "clocks of leaders differ by milliseconds, and of busy ones by some more"
    )
    assert [(m.body, m.redelivered) for m in drain(consumer, queue)] == [
        (b"n", False),
        (b"e", False),
        (b"l", False),
    ]


def test_delayed_messages_are_counted_and_not_ready(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    publish(channel, queue, "ab", headers={"x-delay": 60_000})
    world.change_leader()
    barrier(channel)
    status = world.request(f"/api/queues/%2F/{queue}")
    assert (status["messages_ready"], status["messages_delayed"], status["messages"]) == (0, 2, 2)
    assert get(channel, queue) is None
    assert channel.queue_purge(queue).method.message_count == 2


@pytest.mark.parametrize("delay", [0, -5, "00", "soon"])
def test_zero_negative_or_invalid_delay_is_no_delay(world: World, queue: str, delay: Any) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    world.change_leader()
    publish(channel, queue, "a", headers={"x-delay": delay})
    assert got(channel, queue).headers == {"x-delay": delay}


def test_the_time_to_live_begins_when_the_delay_is_over(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    consumer = Taker(world.channel(2), queue)
    publish(channel, queue, "a", headers={"x-delay": 800}, expiration="700")
    world.change_leader()
    assert consumer.wait(1)[0].body == b"a"


def test_delayed_message_with_ttl_0_reaches_a_waiting_consumer(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue)
    consumer = Taker(world.channel(2), queue)
    for number in range(20):
        headers = {"x-delay": 100 + number}
        channel.basic_publish("", queue, b"m", pika.BasicProperties(headers=headers, expiration="0"))
    barrier(channel)
    world.change_leader()
    wait_until(lambda: world.request(f"/api/queues/%2F/{queue}")["messages_delayed"] == 0)
    assert len(consumer.received()) == 20


def test_delayed_message_exchange_routes_as_its_inner_type(world: World, queue: str) -> None:
    channel = world.channel(1)
    exchange = f"{queue}-x"
    channel.exchange_declare(exchange, "x-delayed-message", arguments={"x-delayed-type": "topic"})
    declare(channel, queue)
    channel.queue_bind(queue, exchange, "logs.*")
    publish(channel, "logs.now", "n", exchange=exchange)
    publish(channel, "logs.later", "l", exchange=exchange, headers={"x-delay": 200})
    publish(channel, "other", "o", exchange=exchange, headers={"x-delay": 200})
    world.change_leader()
    messages = Taker(world.channel(2), queue).wait(2)
    assert [(m.body, m.routing_key) for m in messages] == [(b"n", "logs.now"), (b"l", "logs.later")]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "Invalid argument, 'x-delayed-type' must be an existing exchange type"),
        (
            {"x-delayed-type": "x-delayed-message"},
            "Invalid argument, 'x-delayed-message' can't be used for 'x-delayed-type'",
        ),
        ({"x-delayed-type": "nope"}, "unknown exchange type 'nope'"),
    ],
)
@QUIET
def test_delayed_message_exchange_needs_a_valid_inner_type(
    world: World, queue: str, arguments: dict[str, Any], text: str
) -> None:
    channel = world.channel(1)
    with refused(406, f"PRECONDITION_FAILED - {text}"):
        channel.exchange_declare(f"{queue}-x", "x-delayed-message", arguments=arguments)


# Delayed retry


@pytest.mark.parametrize("by", ["argument", "policy"])
def test_returned_message_waits_for_the_retry_delay(world: World, queue: str, by: str) -> None:
    channel = world.channel(1)
    settings: dict[str, Any] = {
        "delayed-retry-type": "all",
        "delayed-retry-min": 200,
        "delayed-retry-max": 300,
    }
    declare(
        channel, queue, {f"x-{key}": value for key, value in settings.items()} if by == "argument" else {}
    )
    if by == "policy":
        world.policy(queue, settings)
    publish(channel, queue, "ab")
    consumer = Taker(world.channel(2), queue)
    consumer.channel.basic_nack(consumer.wait(2)[0].tag)
    began_s = time.monotonic()
    assert consumer.received() == [b"a", b"b"]
    world.change_leader()
    message = consumer.wait(3)[2]
    assert (message.body, message.redelivered, message.headers) == (b"a", True, {"x-delivery-count": 1})
    assert time.monotonic() - began_s > 0.15
    consumer.channel.basic_reject(message.tag)
    began_s = time.monotonic()
    assert consumer.wait(4)[3].headers == {"x-delivery-count": 2}
    assert 0.25 < time.monotonic() - began_s < 5


@pytest.mark.parametrize(("kind", "waits"), [("failed", "reject"), ("returned", "nack")])
def test_retry_delay_applies_only_to_its_kind_of_return(
    world: World, queue: str, kind: str, waits: str
) -> None:
    channel = world.channel(1)
    declare(channel, queue, {"x-delayed-retry-type": kind, "x-delayed-retry-min": 60_000})
    publish(channel, queue, "nr")
    nacked, rejected = (got(channel, queue, auto_ack=False) for _ in range(2))
    world.change_leader()
    channel.basic_nack(nacked.tag)
    channel.basic_reject(rejected.tag)
    assert bodies_of(drain(channel, queue)) == [b"r" if waits == "nack" else b"n"]


def test_a_retry_without_a_time_is_no_delay(world: World, queue: str) -> None:
    channel = world.channel(1)
    declare(channel, queue, {"x-delayed-retry-type": "all"})
    publish(channel, queue, "a")
    world.change_leader()
    channel.basic_nack(got(channel, queue, auto_ack=False).tag)
    assert get(channel, queue) is not None


# Unroutable


def test_unroutable_mandatory_message_is_returned_and_confirmed(world: World, queue: str) -> None:
    channel = world.channel(1, confirms=True)
    world.change_leader()
    with pytest.raises(pika.exceptions.UnroutableError) as caught:
        channel.basic_publish("", queue, b"a", pika.BasicProperties(priority=9), mandatory=True)
    [returned] = caught.value.messages
    assert (returned.method.reply_code, returned.method.reply_text, returned.body) == (312, "NO_ROUTE", b"a")
    channel.basic_publish("", queue, b"a")


def test_alternate_exchange_gets_unroutable_messages(world: World, queue: str) -> None:
    channel = world.channel(1, confirms=True)
    declare(channel, queue)
    channel.exchange_declare(f"{queue}-other", "fanout")
    channel.queue_bind(queue, f"{queue}-other")
    channel.exchange_declare(f"{queue}-x", "direct", arguments={"alternate-exchange": f"{queue}-other"})
    world.change_leader()
    channel.basic_publish(f"{queue}-x", "nobody", b"a", mandatory=True)
    assert exactly(drain(channel, queue)).routing_key == "nobody"
