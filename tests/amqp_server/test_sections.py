"""Messages of AMQP 1.0 in queues of a node: consumed by AMQP 0-9-1, dead, moved, delayed, searched, large."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pika
import pytest

from qq.amqp10.sections import DATA, VALUE, MessageHeader, MessageProperties
from qq.amqp10.values import Long, UInt
from qq.client_sockets.message_output import CONVERTED_BYTES_MAX, CONVERTED_MAX
from qq.machine.protocol import commands as c
from qq.management.changes.leases import LeasePath, Leases
from qq.management.changes.request_session import RequestSession
from qq.management.objects.browse import browse
from qq.management.objects.search import Search, SearchLimits
from qq.management.reports.messages import AckMode
from qq.ranges import Range
from qq.sessions.deliveries10 import delivered10
from qq.sessions.message_filter import MessageFilter
from qq.stored.editing import content
from qq.stored.to_frames import to_frames
from tests.harness.lone_broker import LoneBroker, wait_until
from tests.harness.sections_publisher import publish_sections
from tests.stored.messages10 import message10

if TYPE_CHECKING:
    from collections.abc import Generator

QUORUM = {"x-queue-type": "quorum"}
HEAD = MessageHeader(durable=True)
MIB = 1024 * 1024


@pytest.fixture
def broker() -> Generator[LoneBroker]:
    with LoneBroker() as lone:
        lone.call(lone.broker.leader_changed, "n1", 1)
        yield lone


@pytest.fixture
def channel(broker: LoneBroker) -> Generator[Any]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port))
    yield connection.channel()
    connection.close()


def declare(channel: Any, name: str, **arguments: Any) -> None:
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    channel.queue_declare(name, durable=True, arguments=QUORUM | named)


def publish(broker: LoneBroker, key: str, *messages: bytes, exchange: str = "") -> None:
    broker.await_on_loop(publish_sections(broker.broker, exchange, key, messages))


def got(channel: Any, queue: str, *, auto_ack: bool = True) -> tuple[Any, Any, bytes]:
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        method, properties, body = channel.basic_get(queue, auto_ack=auto_ack)
        if method is not None:
            return method, properties, body
    raise AssertionError(f"no message in {queue}")


def test_consumer_and_get_have_converted_messages(broker: LoneBroker, channel: Any) -> None:
    declare(channel, "q")
    properties = MessageProperties("m", b"guest", content_type="text/plain")
    publish(
        broker,
        "q",
        message10(HEAD, {"x-a": "b"}, properties, {"n": UInt(5)}),
        message10(body=[(VALUE, None)]),
    )
    method, found, body = got(channel, "q", auto_ack=False)
    assert (body, found.headers, found.message_id, found.user_id) == (
        b"body",
        {"x-a": "b", "n": 5},
        "m",
        "guest",
    )
    channel.basic_nack(method.delivery_tag)
    deliveries = channel.consume("q", inactivity_timeout=10)
    method, found, body = next(deliveries)
    assert (method.redelivered, body, found.headers["x-delivery-count"]) == (True, b"body", 1)
    method, found, body = next(deliveries)
    assert (method.redelivered, body, found.type) == (False, message10(body=[(VALUE, None)]), "amqp-1.0")


def conversions(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return a list that gets the sizes of the messages of each conversion."""
    steps: list[list[int]] = []

    def convert(messages: list[bytes], number: int, frame_max: int) -> list[bytes]:
        steps.append(list(map(len, messages)))
        return to_frames(messages, number, frame_max)

    monkeypatch.setattr("qq.sessions.headers.to_frames", convert)
    return steps


def test_messages_of_a_range_are_converted_in_steps(
    broker: LoneBroker, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(channel, "q")
    large = [message10(HEAD, {"x-a": "a" * 10_000, "x-i": UInt(number)}) for number in range(20)]
    small = [message10(HEAD, {"x-i": UInt(number)}) for number in range(600)]
    publish(broker, "q", *small)
    publish(broker, "q", *large)
    steps = conversions(monkeypatch)
    deliveries = channel.consume("q", auto_ack=True, inactivity_timeout=10)
    numbers = [next(deliveries)[1].headers["x-i"] for _ in range(620)]
    assert numbers == [*range(600), *range(20)]
    assert max(map(len, steps)) <= CONVERTED_MAX
    assert max(map(sum, steps)) <= CONVERTED_BYTES_MAX
    assert len(steps) < 10


@pytest.mark.parametrize("size", [0, 1000])
def test_direct_replies_are_converted_in_steps(
    broker: LoneBroker, channel: Any, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Large runs of replies go through the log, small ones do not."""
    declare(channel, "q")
    replies: list[bytes] = []
    channel.basic_consume("amq.rabbitmq.reply-to", lambda *parts: replies.append(parts[-1]), auto_ack=True)
    request = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
    channel.basic_publish("", "q", b"request", request)
    _, properties, _ = got(channel, "q")
    steps = conversions(monkeypatch)
    bodies = [b"%04d" % number + bytes(size) for number in range(600)]
    publish(broker, properties.reply_to, *(message10(HEAD, body=[(DATA, body)]) for body in bodies))
    deadline_s = time.monotonic() + 10
    while len(replies) < len(bodies) and time.monotonic() < deadline_s:
        channel.connection.process_data_events(0.1)
    assert replies == bodies
    assert sum(map(len, steps)) == len(bodies)
    assert max(map(len, steps)) <= CONVERTED_MAX
    assert max(map(sum, steps)) <= CONVERTED_BYTES_MAX


def test_messages_of_both_kinds_keep_their_order(broker: LoneBroker, channel: Any) -> None:
    declare(channel, "q")
    channel.confirm_delivery()
    for number in range(6):
        if number % 2:
            channel.basic_publish("", "q", b"%d" % number)
        else:
            publish(broker, "q", message10(HEAD, body=[(DATA, b"%d" % number)]))
    assert [got(channel, "q")[2] for _ in range(6)] == [b"%d" % number for number in range(6)]


def test_priority_and_further_keys_matter(broker: LoneBroker, channel: Any) -> None:
    declare(channel, "q")
    declare(channel, "copy")
    publish(broker, "q", message10(HEAD, {"x-cc": ["copy"]}), message10(MessageHeader(priority=9)))
    assert got(channel, "q")[1].priority == 9
    assert got(channel, "q")[1].headers == {"CC": ["copy"]} == got(channel, "copy")[1].headers


def test_dead_letter_loses_its_expiration_and_keeps_its_body(broker: LoneBroker, channel: Any) -> None:
    declare(channel, "q", dead_letter_exchange="", dead_letter_routing_key="dead")
    declare(channel, "dead")
    publish(broker, "q", message10(MessageHeader(ttl=60_000), {"x-cc": ["copy"]}, MessageProperties("m")))
    channel.basic_reject(got(channel, "q", auto_ack=False)[0].delivery_tag, requeue=False)
    method, found, body = got(channel, "dead")
    assert (found.message_id, found.expiration, body) == ("m", None, b"body")
    [death] = found.headers["x-death"]
    assert (death["reason"], death["original-expiration"], method.routing_key) == (
        "rejected",
        "60000",
        "dead",
    )
    assert death["routing-keys"] == ["q", "copy"]
    assert isinstance(death["time"], datetime)


def test_headers_exchange_routes_messages_and_dead_letters(broker: LoneBroker, channel: Any) -> None:
    for name, flag in (("yes", True), ("one", 1)):
        declare(channel, name)
        channel.queue_bind(name, "amq.headers", "", {"flag": flag, "x-match": "all"})
    declare(channel, "q", dead_letter_exchange="amq.headers")
    publish(broker, "", message10(named={"flag": True}), exchange="amq.headers")
    publish(broker, "", message10(named={"flag": Long(1)}), exchange="amq.headers")
    assert got(channel, "yes")[1].headers == {"flag": True}
    assert got(channel, "one")[1].headers == {"flag": 1}
    publish(broker, "q", message10(named={"flag": True}), message10(named={"flag": Long(1)}))
    for _ in range(2):
        channel.basic_reject(got(channel, "q", auto_ack=False)[0].delivery_tag, requeue=False)
    assert got(channel, "yes")[1].headers["x-first-death-queue"] == "q"
    assert got(channel, "one")[1].headers["flag"] == 1


def test_large_message_is_stored_in_fragments(broker: LoneBroker, channel: Any) -> None:
    declare(channel, "q", dead_letter_exchange="", dead_letter_routing_key="dead")
    declare(channel, "dead")
    body = bytes(range(256)) * 12 * 1024
    large = message10(HEAD, properties=MessageProperties("m"), body=[(DATA, body)], footer={"x-f": True})
    without_head = message10(body=[(DATA, body)])
    publish(broker, "q", message10(), large, without_head)
    assert len(broker.group.entries) > 20
    assert got(channel, "q")[2] == b"body"
    for message_id in ("m", None):
        method, found, whole = got(channel, "q", auto_ack=False)
        assert (found.message_id, whole == body) == (message_id, True)
        channel.basic_reject(method.delivery_tag, requeue=False)
    for message in (large, without_head):
        wait_until(lambda: broker.machine.vhosts["/"].queues["dead"].ready > 0, "the dead letter")
        [stored] = stored_messages(broker, "dead")
        assert stored.messages == [message]
        assert got(channel, "dead")[2] == body


def stored_messages(broker: LoneBroker, queue: str) -> Any:
    [part, *_] = broker.machine.vhosts["/"].queues[queue].backlog.freeze().browse(0, 1)
    return broker.call(broker.broker.entries.messages, part)


def test_consumer_of_the_same_protocol_gets_the_sent_octets(broker: LoneBroker, channel: Any) -> None:
    declare(channel, "q")
    message = message10(HEAD, {"x-a": "b"}, MessageProperties("m"), {"n": UInt(5)}, footer={"x-f": True})
    publish(broker, "q", message)
    [stored] = stored_messages(broker, "q")
    assert stored.messages == [message]
    [(_, rests)] = delivered10(stored, Range(1, 0, 1), None, count_contract="4.0")
    assert rests == [message10(properties=MessageProperties("m"), named={"n": UInt(5)}, footer={"x-f": True})]


def test_messages_are_browsed_searched_and_moved(broker: LoneBroker, channel: Any) -> None:
    declare(channel, "q")
    declare(channel, "to")
    publish(
        broker,
        "q",
        message10(named={"n": UInt(1)}, body=[(DATA, b"first Text")]),
        message10(named={"n": UInt(2)}, body=[(VALUE, "second text")]),
        message10(properties=MessageProperties(subject="third TEXT")),
        message10(named={"n": "no"}),
    )
    queue = broker.machine.vhosts["/"].queues["q"]
    page = broker.await_on_loop(browse(queue, broker.broker.entries, 0, 10, MIB))
    second = message10(body=[(VALUE, "second text")])
    assert [message.body for message in page] == [b"first Text", second, b"body", b"body"]

    def found(**wanted: Any) -> list[int]:
        limits = SearchLimits(offset=0, looked_at=1000, messages=20, bytes=2**20)
        search = Search(broker.machine.vhosts["/"], queue, MessageFilter(**wanted), limits)
        result = asyncio.run_coroutine_threadsafe(search.run(broker.broker.entries), broker._loop).result(10)
        return [message.offset for message in result.messages]

    assert found(text="text") == [0, 1, 2]
    assert found(headers={"n": 2}) == [1]
    broker.operate(c.BeginMove("/", "m", "guest", "q", "to", 0, 0, "", "", {"n": 2}, "", False))
    assert got(channel, "to")[1].headers == {"n": 2}


def test_reply_reaches_a_requester_of_frames(broker: LoneBroker, channel: Any) -> None:
    declare(channel, "requests")
    replies: list[bytes] = []
    channel.basic_consume(
        "amq.rabbitmq.reply-to", lambda *delivered: replies.append(delivered[3]), auto_ack=True
    )
    channel.basic_publish("", "requests", b"", pika.BasicProperties(reply_to="amq.rabbitmq.reply-to"))
    publish(broker, got(channel, "requests")[1].reply_to, message10(body=[(DATA, b"reply")]))
    channel.connection.process_data_events(time_limit=10)
    assert replies == [b"reply"]


def test_lease_has_converted_messages(broker: LoneBroker, channel: Any) -> None:
    declare(channel, "q")
    publish(broker, "q", message10(HEAD, properties=MessageProperties("m")), message10(body=[(VALUE, None)]))
    broker.operate(
        c.OpenGroup("/", "q", "g", 1, "me", "guest", "", False, 60_000),
        c.LeaseMessages("/", "q", "g", 1, 0, 10, MIB),
    )
    leases: Any = Leases(broker.broker, Mock())

    async def read() -> list[Any]:
        wanted = await leases.part(LeasePath("/", "q", "g", 0), 0, 1)
        return [each async for each in leases.read(wanted)]

    messages = [content(message) for each in broker.await_on_loop(read()) for message in each.messages]
    assert [(each.properties.message_id, each.body) for each in messages] == [
        ("m", b"body"),
        (None, message10(body=[(VALUE, None)])),
    ]


def test_http_get_has_converted_messages(broker: LoneBroker, channel: Any) -> None:
    declare(channel, "q")
    publish(broker, "q", message10(HEAD, properties=MessageProperties("m")))

    async def get() -> list[Any]:
        async with RequestSession(broker.broker, "/", "guest") as session:
            return await session.get("q", 5, AckMode.ACK_REQUEUE_FALSE)

    [message] = broker.await_on_loop(get())
    assert (message.properties.message_id, message.body) == ("m", b"body")
