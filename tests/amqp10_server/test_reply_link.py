"""Direct replies to clients of AMQP 1.0, and from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest

from qq.amqp10.addresses import source_queue
from qq.amqp10.performatives import (
    AcceptedState,
    AttachFrame,
    DetachFrame,
    DispositionFrame,
    FlowFrame,
    SenderSettleMode,
    SourceTerminus,
    TargetTerminus,
    TransferFrame,
)
from qq.client_sockets.message_output import CONVERTED_BYTES_MAX, CONVERTED_MAX
from qq.stored.leading import Leading
from qq.stored.publishing10 import properties_of
from qq.stored.to_sections import split_frames
from qq.testing import ClusterNode
from tests.amqp10_server.lone_broker10 import LoneBroker10, ManagementClient
from tests.amqp10_server.socket_client import SocketClient, data
from tests.harness.sections_publisher import publish_stored
from tests.stored.messages091 import frames

CAPABILITIES = ("rabbitmq:volatile-queue",)
SOURCE = SourceTerminus(dynamic=True, expiry_policy="link-detach", capabilities=CAPABILITIES)
REPLIES = 5
"""The handle of the link for replies."""


def attach(client: SocketClient, mode: SenderSettleMode = SenderSettleMode.SETTLED, **fields: Any) -> None:
    source = SOURCE._replace(**fields)
    client.send(AttachFrame("replies", REPLIES, True, mode, source=source, target=TargetTerminus()))


def address_of_replies(client: SocketClient, credit: int = 10) -> str:
    attach(client)
    attached = client.expect(AttachFrame)
    assert attached.snd_settle_mode is SenderSettleMode.SETTLED
    assert attached.source is not None
    assert attached.source.dynamic
    assert attached.source.capabilities == CAPABILITIES
    address = attached.source.address
    assert address is not None
    assert address.startswith("/queues/amq.rabbitmq.reply-to.")
    client.credit(credit, REPLIES)
    client.send(FlowFrame(0, 10_000, 0, 10_000, REPLIES, link_credit=credit, echo=True))
    client.until(FlowFrame)
    return address


def next_reply(client: SocketClient) -> Any:
    received = client.receive()
    transfer = received.performative
    assert isinstance(transfer, TransferFrame)
    assert (transfer.handle, transfer.settled) == (REPLIES, True)
    return received


def test_reply_of_amqp_0_9_1_reaches_a_link(client: SocketClient, channel: Any) -> None:
    address = address_of_replies(client)
    properties = pika.BasicProperties(correlation_id="c")
    channel.basic_publish("", source_queue(address), b"reply", properties)
    received = next_reply(client)
    assert received.payload.endswith(data(b"reply")[-5:])
    assert properties_of(received.payload).correlation_id == "c"


@pytest.mark.parametrize("size", [5, 100_000, 3_000_000])
def test_reply_of_a_link_reaches_a_link(node: ClusterNode, client: SocketClient, size: int) -> None:
    address = address_of_replies(client)
    with SocketClient(node.amqp_port) as responder:
        responder.open()
        responder.begin()
        responder.attach_sender(address)
        message = data(b"x" * size)
        for at in range(0, len(message), 100_000):
            responder.transfer(0, message[at : at + 100_000], more=at + 100_000 < len(message))
        assert isinstance(responder.until(DispositionFrame).state, AcceptedState)
    octets, more = b"", True
    while more:
        received = client.receive()
        octets, more = octets + received.payload, received.performative.more
    assert octets.endswith(data(b"x" * size))


def test_reply_of_a_link_reaches_amqp_0_9_1(client: SocketClient, channel: Any, queue: str) -> None:
    replies: list[bytes] = []
    channel.basic_consume("amq.rabbitmq.reply-to", lambda *parts: replies.append(parts[-1]), auto_ack=True)
    request = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to")
    channel.basic_publish("", queue, b"request", request)
    client.attach_receiver(queue)
    client.credit(1)
    address = properties_of(client.receive().payload).reply_to
    assert address is not None
    client.attach_sender(address)
    client.transfer(0, data(b"reply"))
    client.until(DispositionFrame)
    channel.connection.process_data_events(5)
    assert replies == [b"reply"]


@pytest.mark.parametrize("size", [0, 1000])
def test_replies_of_amqp_0_9_1_are_converted_in_steps(
    broker: LoneBroker10, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Large runs of replies go through the log, small ones do not."""
    steps: list[list[int]] = []

    def split(messages: list[bytes]) -> Iterator[tuple[Leading, list[bytes]]]:
        steps.append(list(map(len, messages)))
        return split_frames(messages)

    monkeypatch.setattr("qq.sessions.deliveries10.split_frames", split)
    bodies = [b"%04d" % number + bytes(size) for number in range(600)]
    with ManagementClient(broker.amqp_port) as client:
        client.begin()
        name = source_queue(address_of_replies(client, 1000))
        replies = [frames({}, body) for body in bodies]
        broker.await_on_loop(publish_stored(broker.broker, "", name, [(None, replies)], 1))
        for body in bodies:
            assert next_reply(client).payload.endswith(body)
    assert sum(map(len, steps)) == len(bodies)
    assert max(map(len, steps)) <= CONVERTED_MAX
    assert max(map(sum, steps)) <= CONVERTED_BYTES_MAX


def test_reply_without_credit_is_lost(client: SocketClient, channel: Any) -> None:
    address = address_of_replies(client, credit=1)
    for body in (b"first", b"lost"):
        channel.basic_publish("", source_queue(address), body)
    channel.queue_declare("", exclusive=True)  # the broker has taken all that was published before
    assert next_reply(client).payload.endswith(b"first")
    client.send(FlowFrame(0, 10_000, 0, 10_000, REPLIES, 1, 1, echo=True))
    client.until(FlowFrame)
    channel.basic_publish("", source_queue(address), b"second")
    assert next_reply(client).payload.endswith(b"second")


def test_reply_behind_the_end_of_its_link_is_lost(node: ClusterNode, client: SocketClient) -> None:
    address = address_of_replies(client)
    client.send(DetachFrame(REPLIES, True))
    assert client.until(DetachFrame).error is None
    with SocketClient(node.amqp_port) as responder:
        responder.open()
        responder.begin()
        responder.attach_sender(address)
        responder.transfer(0, data(b"late"))
        assert isinstance(responder.until(DispositionFrame).state, AcceptedState)
    client.send(FlowFrame(0, 10_000, 0, 10_000, echo=True))
    assert client.expect(FlowFrame).handle is None


@pytest.mark.parametrize(
    ("mode", "fields"),
    [(SenderSettleMode.MIXED, {}), (SenderSettleMode.SETTLED, {"expiry_policy": "session-end"})],
)
def test_unsettled_or_lasting_replies_are_refused(
    client: SocketClient, mode: SenderSettleMode, fields: Any
) -> None:
    attach(client, mode, **fields)
    assert client.expect(AttachFrame).source is None
    error = client.expect(DetachFrame).error
    assert error is not None
    assert error.condition == "amqp:not-implemented"


def test_drain_of_replies_ends_at_once(client: SocketClient) -> None:
    address_of_replies(client)
    client.send(FlowFrame(0, 10_000, 0, 10_000, REPLIES, 0, 3, drain=True))
    flow = client.until(FlowFrame)
    assert (flow.link_credit, flow.delivery_count, flow.drain) == (0, 3, True)


def test_address_of_replies_is_found_while_its_link_lives(broker: LoneBroker10) -> None:
    # RabbitMQ's Java client asks so whether a requester still waits.
    with ManagementClient(broker.amqp_port) as client:
        client.manage()
        address = address_of_replies(client)
        found = client.request("GET", address)
        assert (found.status, found.body["name"]) == ("200", source_queue(address))
        assert (found.body["type"], found.body["consumer_count"]) == ("rabbit_volatile_queue", 1)
        client.detach(REPLIES)
        assert client.request("GET", address).status == "404"
