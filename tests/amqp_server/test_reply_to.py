"""Direct reply-to: replies go straight to the channel that has asked."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any
from unittest import mock

import aio_pika
import kombu
import pika
import pytest
from pamqp import commands
from pika.adapters.blocking_connection import BlockingChannel

from qq.amqp_server import outgoing
from qq.machine.protocol.commands import PutVhost, SetPermissions
from qq.sessions import direct_replies
from qq.sessions.direct_replies import REPLY_BYTES_MAX
from tests.harness.lone_broker import LoneBroker
from tests.harness.raw_client import RawClient, publish

Basic, Confirm, Queue, Tx = commands.Basic, commands.Confirm, commands.Queue, commands.Tx

REPLY_TO = "amq.rabbitmq.reply-to"
NAME_LENGTH = len(REPLY_TO) + 1 + 22
GONE = f"{REPLY_TO}.{'x' * 22}"


@pytest.fixture
def broker() -> Generator[LoneBroker]:
    with LoneBroker() as broker:
        yield broker


@pytest.fixture
def requester(broker: LoneBroker) -> Generator[RawClient]:
    with RawClient(broker.amqp_port) as client:
        client.open_channel(1)
        client.call(1, Queue.Declare(queue="requests"), Queue.DeclareOk)
        yield client


@pytest.fixture
def replier(broker: LoneBroker) -> Generator[RawClient]:
    with RawClient(broker.amqp_port) as client:
        client.open_channel(1)
        yield client


def request_frame(reply_to: str = REPLY_TO) -> bytes:
    """Properties with an address."""
    return b"\x02\0" + bytes([len(reply_to)]) + reply_to.encode()


def consume_replies(client: RawClient, channel: int = 1, tag: str = "mine") -> None:
    consume = Basic.Consume(queue=REPLY_TO, consumer_tag=tag, no_ack=True)
    assert client.call(channel, consume, Basic.ConsumeOk).consumer_tag == tag


def requested(client: RawClient) -> str:
    """Where the next request is to be answered."""
    client.send(1, Basic.Get(queue="requests", no_ack=True))
    return client.expect_message()[1].properties.reply_to


def request(client: RawClient, replier: RawClient, channel: int = 1) -> str:
    """Publish a request; returns the name that it came with."""
    client.write(publish(channel, "requests", b"request", properties=request_frame()))
    client.call(1, Queue.Declare(queue="requests"), Queue.DeclareOk)
    return requested(replier)


def barrier(client: RawClient) -> None:
    client.call(1, Queue.Declare(queue="requests"), Queue.DeclareOk)


# Requests and replies


def test_reply_is_delivered_directly_to_the_consumer(requester: RawClient, replier: RawClient) -> None:
    consume_replies(requester)
    name = request(requester, replier)
    assert name.startswith(f"{REPLY_TO}.")
    assert len(name) == NAME_LENGTH
    assert request(requester, replier) == name
    replier.write(publish(1, name, b"reply", properties=b"\x04\0\x02id"))
    method, header, body = requester.expect_message()
    assert (method.consumer_tag, method.delivery_tag, method.redelivered) == ("mine", 1, False)
    assert (method.exchange, method.routing_key, body) == ("", name, b"reply")
    assert header.properties.correlation_id == "id"


def test_each_channel_has_its_own_reply_name(requester: RawClient, replier: RawClient) -> None:
    requester.open_channel(2)
    names: list[str] = []
    for channel in (1, 2):
        consume_replies(requester, channel)
        names.append(request(requester, replier, channel))
    replier.write(publish(1, names[1], b"second") + publish(1, names[0], b"first"))
    for channel, expected in ((2, b"second"), (1, b"first")):
        got, _ = requester.receive()
        assert got == channel
        requester.receive()
        assert requester.receive()[1].value == expected


def test_unrelated_reply_to_addresses_stay_unchanged(requester: RawClient, replier: RawClient) -> None:
    for address in ("requests", f"{REPLY_TO}x", f"{REPLY_TO}.x", "x" * len(REPLY_TO)):
        requester.write(publish(1, "requests", b"request", properties=request_frame(address)))
        barrier(requester)
        assert requested(replier) == address


def test_replies_of_a_transaction_come_when_it_is_committed(requester: RawClient, replier: RawClient) -> None:
    consume_replies(requester)
    name = request(requester, replier)
    replier.call(1, Tx.Select(), Tx.SelectOk)
    replier.write(publish(1, name, b"one") + publish(1, name, b"two"))
    barrier(replier)
    barrier(requester)
    replier.call(1, Tx.Commit(), Tx.CommitOk)
    assert [requester.expect_message()[2] for _ in range(2)] == [b"one", b"two"]


def test_replies_share_the_channels_tags_and_not_its_limits(requester: RawClient, replier: RawClient) -> None:
    requester.call(1, Basic.Qos(prefetch_count=1, global_=True), Basic.QosOk)
    requester.call(1, Queue.Declare(queue="q"), Queue.DeclareOk)
    requester.call(1, Basic.Consume(queue="q", consumer_tag="other"), Basic.ConsumeOk)
    consume_replies(requester)
    name = request(requester, replier)
    replier.write(publish(1, "q", b"m") * 2 + publish(1, name, b"r") * 3)
    barrier(replier)
    got = [requester.expect_message()[0] for _ in range(4)]
    assert [method.delivery_tag for method in got] == [1, 2, 3, 4]
    assert sorted(method.consumer_tag for method in got) == ["mine", "mine", "mine", "other"]
    [held] = [method.delivery_tag for method in got if method.consumer_tag == "other"]
    requester.send(1, Basic.Ack(held))
    assert requester.expect_message()[0].delivery_tag == 5
    requester.send(1, Basic.Ack(held + 1 if held < 4 else 1))
    requester.expect_close(
        406, f"PRECONDITION_FAILED - unknown delivery tag {held + 1 if held < 4 else 1}", channel=1
    )


def test_large_replies_fit_the_frames_of_the_requester(broker: LoneBroker, replier: RawClient) -> None:
    with RawClient(broker.amqp_port, frame_max=8192) as client:
        client.open_channel(7)
        client.call(7, Queue.Declare(queue="requests"), Queue.DeclareOk)
        client.call(7, Basic.Consume(queue=REPLY_TO, no_ack=True), Basic.ConsumeOk)
        client.write(publish(7, "requests", b"x", properties=request_frame()))
        client.call(7, Queue.Declare(queue="requests"), Queue.DeclareOk)
        replier.write(publish(1, requested(replier), bytes(100_000)))
        assert client.expect_message()[2] == bytes(100_000)


# Missing consumers


def test_declaring_a_reply_name_shows_whether_it_exists(requester: RawClient, replier: RawClient) -> None:
    consume_replies(requester)
    name = request(requester, replier)
    for passive in (True, False):
        declared = replier.call(1, Queue.Declare(queue=name, passive=passive), Queue.DeclareOk)
        assert (declared.queue, declared.message_count, declared.consumer_count) == (name, 0, 1)
    assert requester.call(1, Basic.Cancel("mine"), Basic.CancelOk).consumer_tag == "mine"
    replier.send(1, Queue.Declare(queue=name, passive=True))
    replier.expect_close(404, f"NOT_FOUND - no queue '{name}' in vhost '/'", channel=1)


@pytest.mark.parametrize("end", ["channel", "connection", "cancel", "nowait"])
def test_reply_to_a_closed_requester_is_confirmed_not_returned(
    requester: RawClient, replier: RawClient, end: str
) -> None:
    requester.open_channel(2)
    consume_replies(requester, 2)
    name = request(requester, replier, 2)
    if end == "channel":
        requester.call(2, commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)
    elif end == "connection":
        requester.close()
    elif end == "cancel":
        requester.call(2, Basic.Cancel("mine"), Basic.CancelOk)
    else:
        requester.send(2, Basic.Cancel("mine", nowait=True))
        requester.call(2, Queue.Declare(queue="requests"), Queue.DeclareOk)
    replier.call(1, Confirm.Select(), Confirm.SelectOk)
    replier.write(publish(1, name, b"late", mandatory=True))
    assert replier.expect(Basic.Ack).delivery_tag == 1
    replier.write(publish(1, f"{REPLY_TO}.none", b"m", mandatory=True))
    assert replier.expect_message()[0].reply_code == 312
    assert replier.expect(Basic.Ack).delivery_tag == 2


def test_new_reply_consumer_gets_a_new_name(requester: RawClient, replier: RawClient) -> None:
    consume_replies(requester)
    first = request(requester, replier)
    requester.call(1, Basic.Cancel("mine"), Basic.CancelOk)
    consume_replies(requester)
    second = request(requester, replier)
    assert first != second
    replier.write(publish(1, first, b"lost") + publish(1, second, b"there"))
    assert requester.expect_message()[2] == b"there"


def test_reply_from_a_second_virtual_host_is_lost(
    broker: LoneBroker, requester: RawClient, replier: RawClient
) -> None:
    consume_replies(requester)
    name = request(requester, replier)
    broker.learn(PutVhost("other", "", [], ""))
    broker.learn(SetPermissions("guest", "other", ".*", ".*", ".*"))
    with RawClient(broker.amqp_port, vhost="other") as foreigner:
        foreigner.open_channel(1)
        foreigner.call(1, Confirm.Select(), Confirm.SelectOk)
        foreigner.write(publish(1, name, b"foreign", mandatory=True))
        assert foreigner.expect(Basic.Ack).delivery_tag == 1
    replier.write(publish(1, name, b"there"))
    assert requester.expect_message()[2] == b"there"


# Refusals


def expect_failure(client: RawClient, frame: Any, code: int, text: str, *, hard: bool = False) -> None:
    client.send(1, frame)
    client.expect_close(code, text, channel=0 if hard else 1)


def test_a_consumer_of_replies_cannot_acknowledge(requester: RawClient) -> None:
    text = "PRECONDITION_FAILED - reply consumer cannot acknowledge"
    expect_failure(requester, Basic.Consume(queue=REPLY_TO), 406, text)


@pytest.mark.parametrize("tag", ["mine", "another"])
def test_channel_has_at_most_a_single_reply_consumer(requester: RawClient, tag: str) -> None:
    consume_replies(requester)
    again = Basic.Consume(queue=REPLY_TO, consumer_tag=tag, no_ack=True)
    expect_failure(requester, again, 406, "PRECONDITION_FAILED - reply consumer already set")


def test_the_consumer_tag_must_be_free(requester: RawClient) -> None:
    requester.call(1, Basic.Consume(queue="requests", consumer_tag="mine"), Basic.ConsumeOk)
    consume = Basic.Consume(queue=REPLY_TO, consumer_tag="mine", no_ack=True)
    expect_failure(requester, consume, 530, "NOT_ALLOWED - attempt to reuse consumer tag 'mine'", hard=True)


def test_a_request_without_a_consumer_of_replies_is_refused(requester: RawClient) -> None:
    requester.open_channel(2)
    consume_replies(requester, 2)
    requester.write(
        publish(1, "requests", b"before") + publish(1, "requests", b"x", properties=request_frame())
    )
    text = "PRECONDITION_FAILED - fast reply consumer does not exist"
    requester.expect_close(406, text, channel=1)
    requester.send(1, commands.Channel.CloseOk())
    again = requester.call(2, Queue.Declare(queue="requests"), Queue.DeclareOk)
    assert again.message_count == 1


def test_binding_a_reply_name_is_refused(requester: RawClient, replier: RawClient) -> None:
    text = "ACCESS_REFUSED - cannot bind or unbind to a volatile (direct reply-to) queue"
    expect_failure(requester, Queue.Bind(queue=GONE, exchange="amq.fanout"), 403, text)
    expect_failure(replier, Queue.Unbind(queue=GONE, exchange="amq.fanout"), 403, text)


def test_a_name_is_no_queue_to_get_from_or_to_consume_from(requester: RawClient, replier: RawClient) -> None:
    consume_replies(requester)
    name = request(requester, replier)
    thing = f"queue '{name}' in vhost '/'"
    text = f"PRECONDITION_FAILED - multiple consumers are unsupported for {thing}"
    replier.open_channel(2)
    replier.send(2, Basic.Consume(queue=name, no_ack=True))
    only = f"PRECONDITION_FAILED - only creator channel may consume from {thing}"
    replier.expect_close(406, only, channel=2)
    hard = f"NOT_IMPLEMENTED - basic.get not supported by volatile {thing}"
    expect_failure(replier, Basic.Get(queue=name), 540, hard, hard=True)
    expect_failure(requester, Basic.Consume(queue=name, no_ack=True), 406, text)


def test_only_publishing_needs_a_permission(broker: LoneBroker, requester: RawClient) -> None:
    broker.add_user("eve", "eve")
    broker.learn(SetPermissions("eve", "/", "", "^amq.default$", ""))
    with RawClient(broker.amqp_port, user="eve") as eve:
        eve.open_channel(1)
        eve.open_channel(2)
        consume_replies(eve)
        eve.write(publish(1, "requests", b"x", properties=request_frame()))
        eve.call(1, Queue.Declare(queue=REPLY_TO), Queue.DeclareOk)
        name = requested(requester)
        eve.call(1, Queue.Declare(queue=name, passive=True), Queue.DeclareOk)
        eve.write(publish(1, name, b"to myself"))
        assert eve.expect_message()[2] == b"to myself"
        eve.send(2, Queue.Bind(queue=name, exchange="amq.fanout"))
        text = "ACCESS_REFUSED - cannot bind or unbind to a volatile (direct reply-to) queue"
        eve.expect_close(403, text, channel=2)
        broker.learn(SetPermissions("eve", "/", ".*", "", ".*"))
        eve.write(publish(1, name, b"no more"))
        refused = "write access to exchange 'amq.default' in vhost '/' refused for user 'eve'"
        eve.expect_close(403, f"ACCESS_REFUSED - {refused}", channel=1)


# Clients that do not read, nodes that were away

MIB = bytes(1024 * 1024)
COUNT = 40
LOGGED = bytes(REPLY_BYTES_MAX)
"""A reply that is too large for a message between nodes, so it goes through the log."""


def waiting(broker: LoneBroker) -> int:
    def count() -> int:
        return sum(
            channel.core.outgoing._replies_waiting for channel in broker.broker._dispatcher.sessions.values()
        )

    return broker.call(count)


def test_replies_wait_for_a_client_that_reads_late(
    broker: LoneBroker, requester: RawClient, replier: RawClient
) -> None:
    consume_replies(requester)
    name = request(requester, replier)
    replier.write(publish(1, name, MIB) * COUNT + publish(1, name, b"last"))
    barrier(replier)
    assert waiting(broker) > 1
    assert broker.call(broker.broker.needed_from) is None
    assert [len(requester.expect_message()[2]) for _ in range(COUNT)] == [len(MIB)] * COUNT
    method, _, body = requester.expect_message()
    assert (method.delivery_tag, body) == (COUNT + 1, b"last")
    assert waiting(broker) == 0
    counters = broker.broker.counters
    assert (counters.amqp091.replies_delivered, counters.replies_dropped) == (COUNT + 1, 0)


def test_small_replies_above_the_limit_are_dropped(
    broker: LoneBroker, requester: RawClient, replier: RawClient
) -> None:
    consume_replies(requester)
    name = request(requester, replier)
    replier.write(publish(1, name, MIB) * COUNT)
    barrier(replier)
    with mock.patch.object(direct_replies, "CHANNEL_BYTES_MAX", 1_500):
        for _ in range(5):
            replier.write(publish(1, name, b"x" * 100))
            barrier(replier)
    assert broker.broker.counters.replies_dropped == 3
    assert broker.call(lambda: broker.broker.direct_replies.waiting_bytes) > 0
    for _ in range(COUNT):
        requester.expect_message()
    assert [requester.expect_message()[2] for _ in range(2)] == [b"x" * 100] * 2
    assert broker.call(lambda: broker.broker.direct_replies.waiting_bytes) == 0


def test_small_replies_keep_their_order_behind_large_replies(
    requester: RawClient, replier: RawClient
) -> None:
    consume_replies(requester)
    name = request(requester, replier)
    bodies = [LOGGED if number % 3 == 0 else b"%d" % number for number in range(30)]
    for body in bodies:
        replier.write(publish(1, name, body))
    assert [requester.expect_message()[2] for _ in bodies] == bodies


def test_small_replies_need_no_entry(broker: LoneBroker, requester: RawClient, replier: RawClient) -> None:
    consume_replies(requester)
    name = request(requester, replier)
    barrier(replier)
    before = broker.group.last_index
    for number in range(20):
        replier.write(publish(1, name, b"%d" % number))
        assert requester.expect_message()[2] == b"%d" % number
    assert broker.group.last_index == before


def test_reply_in_confirm_mode_is_confirmed_in_order(requester: RawClient, replier: RawClient) -> None:
    consume_replies(requester)
    name = request(requester, replier)
    replier.call(1, Confirm.Select(), Confirm.SelectOk)
    replier.write(publish(1, name, b"a") + publish(1, "requests", b"") + publish(1, name, b"b"))
    assert [requester.expect_message()[2] for _ in range(2)] == [b"a", b"b"]
    confirmed = 0
    while confirmed < 3:
        ack = replier.expect(Basic.Ack, 1)
        assert ack.delivery_tag > confirmed
        confirmed = ack.delivery_tag


def test_replies_above_the_limit_of_a_slow_client_are_dropped(
    broker: LoneBroker, requester: RawClient, replier: RawClient
) -> None:
    consume_replies(requester)
    name = request(requester, replier)
    replier.write(publish(1, name, MIB) * COUNT)
    barrier(replier)
    already = waiting(broker)
    with mock.patch.object(outgoing, "REPLIES_WAITING_MAX", already + 2):
        for _ in range(5):
            replier.write(publish(1, name, LOGGED))
            barrier(replier)
    assert waiting(broker) == already + 2
    assert broker.broker.counters.replies_dropped == 3
    for _ in range(COUNT):
        requester.expect_message()
    assert [requester.expect_message()[2] for _ in range(2)] == [LOGGED] * 2
    replier.write(publish(1, name, b"again"))
    method, _, body = requester.expect_message()
    assert (method.delivery_tag, body) == (COUNT + 3, b"again")


def test_replies_that_waited_too_long_are_lost(
    broker: LoneBroker, requester: RawClient, replier: RawClient
) -> None:
    consume_replies(requester)
    name = request(requester, replier)
    for _ in range(COUNT):
        replier.write(publish(1, name, MIB))
        barrier(replier)
    replier.write(publish(1, name, LOGGED))
    barrier(replier)
    broker.call(broker.lose_messages)
    replier.write(publish(1, name, b"there"))
    read = 0
    while (message := requester.expect_message())[2] != b"there":
        assert message[2] == MIB
        read += 1
    assert 0 < read < COUNT
    assert message[0].delivery_tag == read + 1
    assert broker.broker.counters.replies_dropped == COUNT - read + 1


def test_reply_consumer_survives_a_snapshot(
    broker: LoneBroker, requester: RawClient, replier: RawClient
) -> None:
    consume_replies(requester)
    name = request(requester, replier)
    broker.skip()
    replier.write(publish(1, name, LOGGED))  # missed
    broker.pass_some_time()
    replier.open_channel(2)
    broker.pass_some_time()
    broker.resume()
    replier.write(publish(1, name, b"heard"))
    method, _, body = requester.expect_message()
    assert (method.consumer_tag, method.delivery_tag, body) == ("mine", 1, b"heard")


# Client libraries


def test_a_thousand_calls_with_pika(broker: LoneBroker) -> None:
    address = pika.ConnectionParameters("127.0.0.1", broker.amqp_port)
    with pika.BlockingConnection(address) as clients, pika.BlockingConnection(address) as servers:
        client, server = clients.channel(), servers.channel()
        server.queue_declare("rpc")

        def serve(channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
            again = pika.BasicProperties(correlation_id=properties.correlation_id)
            channel.basic_publish("", properties.reply_to, body.upper(), again)
            channel.basic_ack(method.delivery_tag)

        replies: dict[str, bytes] = {}

        def record(_: Any, __: Any, properties: Any, body: bytes) -> None:
            assert properties.correlation_id not in replies
            replies[properties.correlation_id] = body

        server.basic_consume("rpc", serve)
        client.basic_consume(REPLY_TO, record, auto_ack=True)
        for number in range(1000):
            properties = pika.BasicProperties(reply_to=REPLY_TO, correlation_id=str(number))
            client.basic_publish("", "rpc", b"call %d" % number, properties)
        while len(replies) < 1000:
            servers.process_data_events(0.01)
            clients.process_data_events(0.01)
        assert replies == {str(number): b"CALL %d" % number for number in range(1000)}


def test_a_call_with_aio_pika(broker: LoneBroker) -> None:
    async def scenario() -> bytes:
        url = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/"
        async with await aio_pika.connect(url) as clients, await aio_pika.connect(url) as servers:
            client, server = await clients.channel(), await servers.channel()
            requests = await server.declare_queue("rpc")

            async def serve(message: aio_pika.abc.AbstractIncomingMessage) -> None:
                assert message.reply_to
                reply = aio_pika.Message(message.body.upper(), correlation_id=message.correlation_id)
                await server.default_exchange.publish(reply, message.reply_to)
                await message.ack()

            await requests.consume(serve)
            answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            replies = await client.get_queue(REPLY_TO)

            async def record(message: aio_pika.abc.AbstractIncomingMessage) -> None:
                answered.set_result(message.body)

            await replies.consume(record, no_ack=True)
            await client.default_exchange.publish(aio_pika.Message(b"call", reply_to=REPLY_TO), "rpc")
            return await asyncio.wait_for(answered, 10)

    assert asyncio.run(scenario()) == b"CALL"


def test_a_call_with_kombu(broker: LoneBroker) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/"
    with kombu.Connection(url) as clients, kombu.Connection(url) as servers:
        client, server = clients.channel(), servers.channel()
        answered: list[str] = []

        def serve(body: str, message: kombu.Message) -> None:
            kombu.Producer(server).publish(body.upper(), routing_key=message.properties["reply_to"])

        def record(body: str, _: kombu.Message) -> None:
            answered.append(body)

        requests = kombu.Queue("rpc", durable=False, channel=server)
        requests.declare()
        replies = kombu.Queue(REPLY_TO, no_declare=True, no_ack=True)
        with (
            kombu.Consumer(server, [requests], callbacks=[serve], no_ack=True),
            kombu.Consumer(client, [replies], callbacks=[record], no_ack=True),
        ):
            kombu.Producer(client).publish("call", routing_key="rpc", reply_to=REPLY_TO)
            servers.drain_events(timeout=10)
            clients.drain_events(timeout=10)
        assert answered == ["CALL"]
