"""Errors that end links, sessions and connections: foreign users, reserved annotations, deletions, limits."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.membership.alarms import Alarm, reason_of
from qq.amqp10.performatives import (
    BeginFrame,
    CloseFrame,
    DetachFrame,
    EndFrame,
    ErrorReply,
    FlowFrame,
    OpenFrame,
)
from qq.amqp10.sections import MessageProperties
from qq.machine.protocol.codec import decode_commands, encode_batch, messages_of
from qq.machine.protocol.commands import DeclareQueue, Table
from qq.testing import ClusterNode
from tests.amqp10_server.lone_broker10 import LoneBroker10, ManagementClient
from tests.amqp10_server.messages import ACCEPTED, RELEASED, bodies, header_of, outcomes
from tests.amqp10_server.socket_client import SocketClient, data, receiver, sender
from tests.harness.lone_broker import NAME, LoneGroup
from tests.stored.messages10 import message10


def test_link_ends_when_a_message_names_a_different_user(client: SocketClient) -> None:
    client.attach_sender("/exchanges/amq.direct/some-routing-key")
    client.transfer(0, message10(properties=MessageProperties(user_id=b"guest")))
    assert outcomes(client, 1) == [RELEASED]
    client.transfer(1, message10(properties=MessageProperties(user_id=b"fake user")), settled=True)
    text = "user_id property set to 'fake user' but authenticated user was 'guest'"
    assert client.until(DetachFrame).error == ErrorReply("amqp:unauthorized-access", text)


def test_link_ends_when_an_annotation_is_reserved(client: SocketClient) -> None:
    client.attach_sender("/exchanges/amq.fanout")
    client.transfer(0, message10(annotations={"reserved-key": True}), settled=True)
    error = client.until(DetachFrame).error
    assert error is not None
    assert error.condition == "amqp:decode-error"
    assert "reserved-key" in (error.description or "")


def test_queue_of_a_different_connection_is_locked(client: SocketClient, channel: Any) -> None:
    channel.queue_declare("locked10", exclusive=True)
    client.send(receiver("/queues/locked10"))
    error = client.until(DetachFrame).error
    assert error is not None
    assert error.condition == "amqp:resource-locked"
    assert (error.description or "").startswith(
        "cannot obtain exclusive access to locked queue 'locked10' in vhost '/'"
    )


@pytest.mark.parametrize("is_settled", [True, False])
def test_link_ends_when_its_exchange_is_deleted(
    client: SocketClient, channel: Any, queue: str, is_settled: bool
) -> None:
    channel.exchange_declare("passing10")
    channel.queue_bind(queue, "passing10", "key")
    client.attach_sender("/exchanges/passing10/key")
    client.transfer(0, data(b"m1"))
    assert outcomes(client, 1) == [ACCEPTED]
    channel.exchange_delete("passing10")
    client.transfer(1, data(b"m2"), settled=is_settled)
    if not is_settled:
        assert outcomes(client, 1) == [RELEASED]
    error = client.until(DetachFrame).error
    assert error is not None
    assert error.condition == "amqp:not-found"


def test_session_beyond_the_limit_closes_the_connection(node: ClusterNode) -> None:
    with SocketClient(node.amqp_port) as client:
        opened: OpenFrame = client.open()
        assert opened.channel_max == 63
        for channel in range(64):
            client.begin(channel)
        client.send(BeginFrame(None, 0, 10, 10), 64)
        error = client.until(CloseFrame).error
    text = "channel number (64) exceeds maximum channel number (63)"
    assert error == ErrorReply("amqp:connection:framing-error", text)


def test_link_beyond_the_limit_ends_the_session(client: SocketClient) -> None:
    begin = client.begin(1)
    assert begin.handle_max == 255
    client.attach_sender("/exchanges/amq.direct/k1", 255, channel=1)
    client.send(sender("/exchanges/amq.direct/k2", 256), 1)
    error = client.until(EndFrame).error
    text = "link handle value (256) exceeds maximum link handle value (255)"
    assert error == ErrorReply("amqp:connection:framing-error", text)


def test_window_is_closed_during_an_alarm(broker: LoneBroker10) -> None:
    """Publishers get credit all the same, and consumers get messages."""
    with ManagementClient(broker.amqp_port) as management:
        management.manage()
        assert management.request("PUT", "/queues/alarmed", {}).status == "201"
    with SocketClient(broker.amqp_port) as client:
        client.open()
        usual = client.begin().incoming_window
        assert usual
        client.attach_sender("/queues/alarmed")
        client.transfer(0, data(b"m1"))
        assert outcomes(client, 1) == [ACCEPTED]
        broker.alarm(reason_of(Alarm.DISK))
        assert client.until(FlowFrame, lambda flow: flow.handle is None).incoming_window == 0
        assert client.begin(1).incoming_window == 0
        assert client.attach_sender("/queues/alarmed", channel=1).link_credit
        client.attach_receiver("alarmed", channel=1)
        client.credit(1, channel=1)
        assert bodies(client, 1) == [b"m1"]
        broker.alarm(None)
        opened: dict[int, int] = {}
        while len(opened) < 2:
            received = client.receive()
            if isinstance(received.performative, FlowFrame) and received.performative.handle is None:
                opened[received.channel] = received.performative.incoming_window
        assert set(opened.values()) == {usual}
        client.transfer(0, data(b"m2"), channel=1)
        assert outcomes(client, 1) == [ACCEPTED]


class _SingleCommands(LoneGroup):
    """A group whose log has an entry for each command, except for batches with messages."""

    def _apply(self, sequence: int, payload: Any) -> None:
        commands = decode_commands(b"".join(payload))
        if any(map(messages_of, commands)):
            super()._apply(sequence, payload)
            return
        for command in commands[:-1]:
            self.last_index += 1
            batch = b"".join(encode_batch([command], []))
            applied = self.machine.apply_batch(NAME, self.last_index, 0, 0, batch)
            self._broker.applied(self.last_index, [*applied, *self.machine.end_entry(0)])
        super()._apply(sequence, encode_batch(commands[-1:], []))


def test_returned_messages_of_an_ended_link_have_not_failed() -> None:
    with LoneBroker10(new_group=_SingleCommands) as broker, SocketClient(broker.amqp_port) as client:
        quorum: Table = {"x-queue-type": "quorum"}
        broker.operate(DeclareQueue(0, 0, "q", False, True, False, False, False, quorum))
        client.open()
        client.begin()
        client.attach_sender("/queues/q", handle=0)
        client.transfer(0, data(b"1"))
        assert outcomes(client, 1) == [ACCEPTED]
        client.attach_receiver("q", handle=1)
        client.credit(10, handle=1)
        assert bodies(client, 1) == [b"1"]
        client.detach(1)
        client.attach_receiver("q", handle=2)
        client.credit(1, handle=2)
        assert header_of(client.message()[1]).delivery_count == 0
