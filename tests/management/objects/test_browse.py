"""Messages read in place: those that a consumer would get, in order, while the queue changes."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Generator
from typing import Any

import pika
import pytest

from qq.management.objects.browse import STEP_MESSAGES, browse, stored_messages
from qq.management.reports.messages import Message
from qq.ranges import Range
from tests.harness.lone_broker import LoneBroker

QUORUM = {"x-queue-type": "quorum"}


@pytest.fixture
def broker() -> Generator[LoneBroker]:
    with LoneBroker() as lone:
        yield lone


@pytest.fixture
def channel(broker: LoneBroker) -> Generator[Any]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True, arguments=QUORUM)
    yield channel
    connection.close()


def publish(channel: Any, *bodies: bytes, **properties: Any) -> None:
    for body in bodies:
        channel.basic_publish("", "q", body, pika.BasicProperties(**properties))


def page(broker: LoneBroker, offset: int = 0, count: int = 1000, bytes_max: int = 2**30) -> list[Message]:
    queue = broker.machine.vhosts["/"].queues["q"]
    reading = browse(queue, broker.broker.entries, offset, count, bytes_max)
    return asyncio.run_coroutine_threadsafe(reading, broker._loop).result(10)


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


def test_browsing_does_not_change_the_queue(broker: LoneBroker, channel: Any) -> None:
    publish(channel, b"a", b"b", b"c")
    before = broker.machine.digest()
    assert bodies(page(broker)) == bodies(page(broker)) == [b"a", b"b", b"c"]
    assert broker.machine.digest() == before
    assert channel.basic_get("q", auto_ack=True)[2] == b"a"


@pytest.mark.parametrize(("offset", "count"), [(0, 1), (0, 2), (1, 1), (2, 5), (3, 1), (0, 0), (10**18, 1)])
def test_page_is_the_requested_range(broker: LoneBroker, channel: Any, offset: int, count: int) -> None:
    publish(channel, b"a", b"b", b"c")
    found = page(broker, offset, count)
    assert bodies(found) == [b"a", b"b", b"c"][offset : offset + count]
    assert [message.offset for message in found] == list(range(3))[offset : offset + count]


def test_many_messages_of_a_batch_are_read_in_steps(broker: LoneBroker, channel: Any) -> None:
    count = 3 * STEP_MESSAGES + 1
    numbers = [b"%d" % number for number in range(count)]
    publish(channel, *numbers)
    assert bodies(page(broker)) == numbers
    assert bodies(page(broker, STEP_MESSAGES - 1, STEP_MESSAGES + 2)) == numbers[49:101]


def test_a_message_has_the_properties_it_was_published_with(broker: LoneBroker, channel: Any) -> None:
    publish(channel, b"body", content_type="a/b", headers={"h": [1, "é"]}, delivery_mode=2, priority=3)
    [message] = page(broker)
    assert (message.exchange, message.routing_key, message.redelivered) == ("", "q", False)
    properties = message.properties
    assert properties.content_type == "a/b"
    assert properties.headers == {"h": [1, "é"]}
    assert (properties.delivery_mode, properties.priority) == (2, 3)


def test_messages_are_in_delivery_order_with_their_counts(broker: LoneBroker, channel: Any) -> None:
    publish(channel, b"a", b"b")
    publish(channel, b"high", priority=9)
    tag = channel.basic_get("q")[0].delivery_tag  # high
    channel.basic_nack(tag)
    broker.pass_some_time()
    channel.queue_declare("q", passive=True)
    publish(channel, b"higher", priority=10)
    found = page(broker)
    assert bodies(found) == [b"high", b"higher", b"a", b"b"]
    assert [message.redelivered for message in found] == [True, False, False, False]
    assert found[0].properties.headers == {"x-delivery-count": 1}
    assert bodies(page(broker, 1, 2)) == [b"higher", b"a"]


def test_unacked_and_delayed_messages_are_not_browsed(broker: LoneBroker, channel: Any) -> None:
    publish(channel, b"a", b"b")
    publish(channel, b"later", headers={"x-delay": 60_000})
    channel.basic_get("q")
    assert bodies(page(broker)) == [b"b"]


def test_dead_letter_shows_its_x_death_header(broker: LoneBroker, channel: Any) -> None:
    arguments = QUORUM | {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    channel.queue_declare("source", durable=True, arguments=arguments)
    channel.basic_publish("", "source", b"dead", pika.BasicProperties(expiration="60000"))
    tag = channel.basic_get("source")[0].delivery_tag
    channel.basic_reject(tag, requeue=False)
    channel.queue_declare("q", passive=True)
    broker.call(broker.broker.leader_changed, "n1", 1)
    broker.pass_some_time()
    [message] = page(broker)
    headers: Any = message.properties.headers
    assert (message.routing_key, message.properties.expiration) == ("q", None)
    assert [(death["queue"], death["reason"], death["count"]) for death in headers["x-death"]] == [
        ("source", "rejected", 1)
    ]


def test_page_ends_at_its_size_limit_but_has_a_message(broker: LoneBroker, channel: Any) -> None:
    publish(channel, b"aaa", b"bbb", b"ccc")
    assert bodies(page(broker, bytes_max=6)) == [b"aaa", b"bbb"]
    assert bodies(page(broker, bytes_max=5)) == [b"aaa"]
    assert bodies(page(broker, bytes_max=1)) == [b"aaa"]


def test_deleted_messages_are_skipped(broker: LoneBroker, channel: Any) -> None:
    publish(channel, b"a", b"b", b"c", b"d")
    entries = sorted(broker.group.entries)[-4:]
    broker.call(broker.lose_messages, entries[2])
    assert [(message.offset, message.body) for message in page(broker)] == [(2, b"c")]
    assert bodies(page(broker, 0, 2)) == [b"c"]  # the first two were removed, so the page begins after them
    assert page(broker, 3) == []


def test_a_queue_that_is_emptied_while_it_is_read_ends(broker: LoneBroker, channel: Any) -> None:
    publish(channel, b"a", b"b")
    channel.queue_purge("q")
    assert page(broker) == []


class OneMessage:
    """Entries with a message that must be read first; the reader holds it."""

    def __init__(self) -> None:
        self.known: weakref.ref[set[int]] | None = None
        self._is_read = False

    def messages(self, _part: Range) -> list[set[int]] | None:
        if not self._is_read:
            return None
        message = {1}
        self.known = weakref.ref(message)
        return [message]

    def load(self, _indexes: list[int], done: Callable[[], None]) -> None:
        self._is_read = True
        asyncio.get_running_loop().call_soon(done)


def test_browsed_messages_leave_no_reference_cycle() -> None:
    """A circle would stay until memory is short, and grow with each request by all that it was answered with."""
    entries: Any = OneMessage()
    part = Range(1, 0, 1)

    async def read() -> int:
        return len(await stored_messages(entries, part, (part,)))

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(read()) == 1
        assert entries.known is not None
        assert entries.known() is None
    finally:
        gc.enable()
