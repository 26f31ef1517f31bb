"""Publishing by AMQP 1.0: targets, outcomes in order, errors at their level, limits."""

from __future__ import annotations

from typing import Any

import pytest

from qq.amqp10.performatives import (
    AcceptedState,
    AttachFrame,
    DetachFrame,
    EndFrame,
    RejectedState,
    SenderSettleMode,
    TransferFrame,
)
from qq.amqp10.sections import MESSAGE_ANNOTATIONS, encode_annotations
from qq.amqp10.values import Symbol, encode
from qq.testing import ClusterNode
from tests.amqp10.amqp10_wire import frame
from tests.amqp10_server.lone_broker10 import LoneBroker10
from tests.amqp10_server.messages import ACCEPTED, RELEASED, outcomes, states
from tests.amqp10_server.socket_client import SocketClient, data, sender
from tests.page.demo import api


@pytest.mark.parametrize("target", ["queue", "exchange", "anonymous"])
def test_publish_is_accepted_when_its_queue_has_it(
    client: SocketClient, channel: Any, queue: str, target: str
) -> None:
    channel.queue_bind(queue, "amq.direct", "the key")
    address = {"queue": f"/queues/{queue}", "exchange": "/exchanges/amq.direct/the%20key", "anonymous": None}
    flow = client.attach_sender(address[target])
    assert flow.link_credit
    to = f"/queues/{queue}".encode()
    properties = b"\x00\x53\x73\xc0" + bytes((4 + len(to) + 1, 3)) + b"\x40\x40\xa1" + bytes((len(to),)) + to
    client.transfer(0, data(b"a body", properties))
    assert outcomes(client, 1) == [ACCEPTED]
    assert channel.basic_get(queue, auto_ack=True)[2] == b"a body"


def test_publish_is_released_when_no_queue_gets_it(client: SocketClient) -> None:
    client.attach_sender("/exchanges/amq.topic/nowhere")
    client.transfer(0, data(b"a"))
    assert outcomes(client, 1) == [RELEASED]


def test_publish_is_rejected_when_its_queue_is_full(client: SocketClient, channel: Any) -> None:
    channel.queue_declare(
        "full10",
        durable=True,
        arguments={"x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "reject-publish"},
    )
    client.attach_sender("/queues/full10")
    for number in range(3):
        client.transfer(number, data(b"a"))
    first, *others = states(client, 3)
    assert isinstance(first, AcceptedState)
    for other in others:
        assert isinstance(other, RejectedState)
        assert other.error is not None
        assert other.error.condition == "amqp:resource-limit-exceeded"
        assert "full10" in (other.error.description or "")


@pytest.mark.parametrize(
    ("address", "condition"),
    [
        ("/queues/not-there", "amqp:not-found"),
        ("/exchanges/not-there/key", "amqp:not-found"),
        ("/exchanges//key", "amqp:invalid-field"),
        ("/exchanges/amq.default/key", "amqp:invalid-field"),
        ("/queues/", "amqp:invalid-field"),
        ("nonsense", "amqp:invalid-field"),
        ("/queues/" + 256 * "a", "amqp:invalid-field"),
        ("/queues/%zz", "amqp:invalid-field"),
    ],
)
def test_target_is_refused_when_it_is_bad(client: SocketClient, address: str, condition: str) -> None:
    client.send(sender(address))
    attach = client.expect(AttachFrame)
    assert attach.target is None
    detach = client.expect(DetachFrame)
    assert detach.closed
    assert detach.error is not None
    assert detach.error.condition == condition
    client.send(DetachFrame(0, closed=True))
    client.attach_sender("/exchanges/amq.topic")  # the session goes on


def test_link_ends_behind_outcomes_of_earlier_messages(client: SocketClient, queue: str) -> None:
    client.attach_sender(f"/queues/{queue}")
    messages = [data(b"good"), b"\x00\x53\x99\x40", data(b"behind it")]  # the second is no section
    # In one piece, because the link ends as soon as the first is confirmed.
    client.write(b"".join(frame(TransferFrame(0, n, b"tag", 0), 0, each) for n, each in enumerate(messages)))
    assert outcomes(client, 3) == [ACCEPTED, RELEASED, RELEASED]
    detach = client.until(DetachFrame)
    assert detach.error is not None
    assert detach.error.condition == "amqp:decode-error"


def test_anonymous_message_without_address_is_rejected_alone(client: SocketClient, queue: str) -> None:
    client.attach_sender(None)
    client.transfer(0, data(b"no address"))
    (rejected,) = states(client, 1)
    assert isinstance(rejected, RejectedState)
    assert rejected.error is not None
    assert rejected.error.condition == "amqp:precondition-failed"


def test_link_ends_when_its_queue_is_deleted(client: SocketClient, channel: Any, queue: str) -> None:
    client.attach_sender(f"/queues/{queue}")
    client.attach_sender(f"/queues/{queue}", handle=2)
    client.attach_sender("/exchanges/amq.direct/key", handle=3)
    client.transfer(0, data(b"a"))
    assert outcomes(client, 1) == [ACCEPTED]
    client.detach(2)
    channel.queue_delete(queue)
    detach = client.expect(DetachFrame)
    assert detach.handle == 0
    assert detach.closed
    assert detach.error is not None
    assert detach.error.condition == "amqp:resource-deleted"
    channel.queue_declare(queue, durable=True)
    client.send(DetachFrame(0, closed=True))
    client.attach_sender(f"/queues/{queue}")
    channel.queue_delete(queue)
    assert client.expect(DetachFrame).handle == 0


def test_settled_messages_are_published_before_a_detach(
    client: SocketClient, channel: Any, queue: str
) -> None:
    client.attach_sender(f"/queues/{queue}", snd_settle_mode=SenderSettleMode.SETTLED)
    for number in range(100):
        client.transfer(number, data(b"%d" % number), settled=True)
    client.detach(0)
    assert channel.queue_declare(queue, passive=True).method.message_count == 100


def test_session_ends_when_a_permission_is_missing(node: ClusterNode, channel: Any, queue: str) -> None:
    api(node, "users/reader10", "PUT", {"password": "reader10", "tags": ""})
    api(node, "permissions/%2F/reader10", "PUT", {"configure": "", "write": "", "read": ".*"})
    with SocketClient(node.amqp_port) as client:
        client.open("reader10")
        client.begin()
        client.send(sender(f"/queues/{queue}"))
        end = client.until(EndFrame)
    assert end.error is not None
    assert end.error.condition == "amqp:unauthorized-access"
    assert end.error.description == (
        "write access to exchange 'amq.default' in vhost '/' refused for user 'reader10'"
    )


def test_message_keys_and_priority_come_from_annotations(
    client: SocketClient, channel: Any, queue: str
) -> None:
    client.attach_sender("/exchanges/amq.direct/a")
    channel.queue_bind(queue, "amq.direct", "b")
    annotations = encode_annotations(MESSAGE_ANNOTATIONS, [(encode(Symbol("x-cc")), encode(["b"]))])
    client.transfer(0, data(b"copied", annotations))
    assert outcomes(client, 1) == [ACCEPTED]
    assert channel.basic_get(queue, auto_ack=True)[2] == b"copied"


def test_links_count_as_publishers_until_they_end(broker: LoneBroker10) -> None:
    counters = broker.broker.counters
    with SocketClient(broker.amqp_port) as client:
        client.open()
        client.begin()
        for handle in (0, 1, 2):
            client.attach_sender("/exchanges/amq.topic/a", handle)
        client.send(sender("/queues/none", 3))
        client.until(DetachFrame)
        assert counters.amqp10.publishers == 3
        client.detach(0)
        assert counters.amqp10.publishers == 2
        client.end()
        assert counters.amqp10.publishers == 0
