"""Consuming by AMQP 1.0: credit, drains, outcomes, ends of links."""

from __future__ import annotations

from typing import Any

import pytest

from qq.amqp10.performatives import (
    AcceptedState,
    AttachFrame,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    FlowFrame,
    ModifiedState,
    RejectedState,
    ReleasedState,
    SenderSettleMode,
)
from qq.amqp10.sections import HEADER
from qq.amqp10.values import Symbol
from qq.testing import ClusterNode
from tests.amqp10_server.messages import annotations_of, bodies, body_of, header_of, put
from tests.amqp10_server.socket_client import SocketClient, data, receiver, sender


def test_deliveries_stay_within_the_credit(client: SocketClient, channel: Any, queue: str) -> None:
    put(channel, queue, b"1", b"2", b"3", b"4")
    client.attach_receiver(queue)
    client.credit(2)
    assert bodies(client, 2) == [b"1", b"2"]
    client.accept(0, 1)  # settling gives no credit
    client.credit(1, delivery_count=2)
    assert bodies(client, 1) == [b"3"]
    client.detach(1)
    assert channel.queue_declare(queue, passive=True).method.message_count == 2


def test_drain_is_answered_behind_the_deliveries(client: SocketClient, channel: Any, queue: str) -> None:
    put(channel, queue, b"1", b"2")
    client.attach_receiver(queue)
    client.credit(10, drain=True)
    assert bodies(client, 2) == [b"1", b"2"]
    flow = client.expect(FlowFrame)
    assert (flow.drain, flow.link_credit, flow.delivery_count, flow.available) == (True, 0, 10, 0)
    client.credit(1, delivery_count=10)
    put(channel, queue, b"3")
    assert bodies(client, 1) == [b"3"]


def test_drain_of_an_empty_queue_ends_at_once(client: SocketClient, queue: str) -> None:
    client.attach_receiver(queue)
    client.credit(7, drain=True)
    flow = client.expect(FlowFrame)
    assert (flow.drain, flow.link_credit, flow.delivery_count) == (True, 0, 7)


def test_echo_tells_credit_and_ready_messages(client: SocketClient, channel: Any, queue: str) -> None:
    put(channel, queue, b"1", b"2", b"3")
    client.attach_receiver(queue)
    client.credit(1, echo=True)
    assert bodies(client, 1) == [b"1"]
    flow = client.expect(FlowFrame)
    assert (flow.link_credit, flow.delivery_count, flow.available) == (0, 1, 2)


def test_credit_is_lowered(client: SocketClient, channel: Any, queue: str) -> None:
    client.attach_receiver(queue)
    client.credit(10)
    client.credit(1, echo=True)
    client.until(FlowFrame)
    put(channel, queue, b"1", b"2", b"3")
    assert bodies(client, 1) == [b"1"]
    client.detach(1)
    assert channel.queue_declare(queue, passive=True).method.message_count == 3


def test_released_message_comes_again_and_has_not_failed(
    client: SocketClient, channel: Any, queue: str
) -> None:
    put(channel, queue, b"again")
    client.attach_receiver(queue)
    client.credit(2)
    _, message = client.message()
    assert (header_of(message).delivery_count, header_of(message).first_acquirer) == (0, True)
    client.send(DispositionFrame(True, 0, settled=True, state=ReleasedState()))
    _, message = client.message()
    assert (header_of(message).delivery_count, header_of(message).first_acquirer) == (0, False)


def test_modified_message_has_failed_and_has_annotations(
    client: SocketClient, channel: Any, queue: str
) -> None:
    put(channel, queue, b"again")
    client.attach_receiver(queue)
    client.credit(2)
    client.message()
    annotations: dict[Any, Any] = {Symbol("x-why"): "busy"}
    state = ModifiedState(delivery_failed=True, message_annotations=annotations)
    client.send(DispositionFrame(True, 0, settled=True, state=state))
    _, message = client.message()
    assert header_of(message).delivery_count == 1
    assert annotations_of(message)[Symbol("x-why")] == "busy"


@pytest.mark.parametrize(
    "state", [RejectedState(), ModifiedState(undeliverable_here=True)], ids=["rejected", "undeliverable"]
)
def test_message_is_dead_lettered_by_its_outcome(client: SocketClient, channel: Any, state: Any) -> None:
    channel.queue_declare("morgue10", durable=True, arguments={"x-queue-type": "quorum"})
    arguments = {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "morgue10",
    }
    channel.queue_declare("mortal10", durable=True, arguments=arguments)
    put(channel, "mortal10", b"dead")
    client.attach_receiver("mortal10")
    client.credit(1)
    client.message()
    client.send(DispositionFrame(True, 0, settled=True, state=state))
    client.attach_receiver("morgue10", 2)
    client.credit(1, handle=2)
    transfer, message = client.message()
    assert (transfer.handle, body_of(message)) == (2, b"dead")
    client.accept(1)
    deaths = annotations_of(message)[Symbol("x-opt-deaths")]
    assert deaths.elements[0][Symbol("queue")] == "mortal10"


def test_disposition_without_settlement_is_answered(client: SocketClient, channel: Any, queue: str) -> None:
    put(channel, queue, b"1")
    client.attach_receiver(queue)
    client.credit(1)
    client.message()
    client.send(DispositionFrame(True, 0, settled=False, state=ReleasedState()))
    answer = client.until(DispositionFrame)
    assert (answer.role, answer.first, answer.settled) == (False, 0, True)


def test_settled_deliveries_are_gone(client: SocketClient, channel: Any, queue: str) -> None:
    put(channel, queue, b"1", b"2")
    client.attach_receiver(queue, snd_settle_mode=SenderSettleMode.SETTLED)
    client.credit(1)
    transfer, _ = client.message()
    assert transfer.settled
    client.detach(1)
    assert channel.queue_declare(queue, passive=True).method.message_count == 1


def test_held_messages_return_when_the_link_detaches(client: SocketClient, channel: Any, queue: str) -> None:
    put(channel, queue, b"1", b"2")
    client.attach_receiver(queue)
    client.credit(2)
    assert bodies(client, 2) == [b"1", b"2"]
    client.detach(1)
    assert channel.queue_declare(queue, passive=True).method.message_count == 2
    method, _, body = channel.basic_get(queue)
    assert (method.redelivered, body) == (True, b"1")


def test_handle_is_used_again_before_the_detach_is_answered(
    client: SocketClient, channel: Any, queue: str
) -> None:
    put(channel, queue, b"1", b"2")
    client.attach_receiver(queue)
    client.credit(1)
    assert bodies(client, 1) == [b"1"]
    client.send(DetachFrame(1, closed=True))
    client.send(receiver(f"/queues/{queue}", name="second"))
    client.credit(2)
    assert client.expect(DetachFrame).error is None
    assert client.expect(AttachFrame).name == "second"
    assert bodies(client, 2) == [b"1", b"2"]
    client.accept(1, 2)
    client.send(DetachFrame(1, closed=True))
    client.send(sender(f"/queues/{queue}", handle=1))  # in the other direction
    assert client.until(AttachFrame).role
    client.transfer(0, data(b"3"), handle=1)
    assert client.until(DispositionFrame).state == AcceptedState()
    assert channel.queue_declare(queue, passive=True).method.message_count == 1


def test_link_is_detached_when_its_queue_is_deleted(client: SocketClient, channel: Any, queue: str) -> None:
    client.attach_receiver(queue)
    channel.queue_delete(queue)
    detach = client.until(DetachFrame)
    assert detach.closed
    assert detach.error is not None
    assert detach.error.condition == "amqp:resource-deleted"


@pytest.mark.parametrize("address", ["/queues/none", "/queues/", "/exchanges/amq.topic/a", None])
def test_source_is_refused_when_it_is_bad(client: SocketClient, address: str | None) -> None:
    client.send(receiver(address))
    attach = client.expect(AttachFrame)
    assert attach.source is None
    detach = client.expect(DetachFrame)
    assert detach.error is not None
    assert detach.error.condition == ("amqp:not-found" if address == "/queues/none" else "amqp:invalid-field")


def test_large_message_comes_in_frames_of_the_client(node: ClusterNode, channel: Any, queue: str) -> None:
    body = bytes(range(256)) * 40
    put(channel, queue, body)
    with SocketClient(node.amqp_port) as client:
        client.open(max_frame_size=512)
        client.begin()
        client.attach_receiver(queue)
        client.credit(1)
        parts: list[bytes] = []
        while True:
            transfer, payload = client.message()
            parts.append(payload)
            if not transfer.more:
                break
    assert len(parts) > 20
    assert body_of(b"".join(parts)) == body


def test_deliveries_wait_for_the_window_of_the_session(node: ClusterNode, channel: Any, queue: str) -> None:
    put(channel, queue, *(b"%d" % number for number in range(10)))
    with SocketClient(node.amqp_port) as client:
        client.open()
        client.begin(window=3)
        client.attach_receiver(queue)
        client.send(FlowFrame(0, 3, 0, 10_000, 1, link_credit=10))
        assert bodies(client, 3) == [b"0", b"1", b"2"]
        client.send(FlowFrame(3, 7, 0, 10_000))
        assert bodies(client, 7) == [b"%d" % number for number in range(3, 10)]


def test_credit_holds_when_the_window_opens(node: ClusterNode, channel: Any, queue: str) -> None:
    """A flow opens the window and sets the credit, of which a message that it lets pass takes a part."""
    put(channel, queue, *(b"%d" % number for number in range(10)))
    with SocketClient(node.amqp_port) as client:
        client.open()
        client.begin(window=2)
        client.attach_receiver(queue)
        client.send(FlowFrame(0, 2, 0, 10_000, 1, link_credit=6))
        assert bodies(client, 2) == [b"0", b"1"]
        client.send(FlowFrame(2, 100, 0, 10_000, 1, delivery_count=2, link_credit=4))
        assert bodies(client, 4) == [b"2", b"3", b"4", b"5"]
        client.send(FlowFrame(6, 100, 0, 10_000, 1, delivery_count=6, link_credit=0, echo=True))
        assert client.expect(FlowFrame).delivery_count == 6


def test_bare_message_arrives_octet_for_octet(client: SocketClient, queue: str) -> None:
    header = b"\x00\x53\x70\xd0\x00\x00\x00\x07\x00\x00\x00\x02\x41\x50\x01"  # as omq writes it
    bare = b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x73\x45" + data(b"first") + data(b"second")
    footer = b"\x00\x53\x78\xc1\x05\x02\xa3\x01a\x43"
    client.attach_sender(f"/queues/{queue}")
    client.transfer(0, header + bare + footer)
    client.until(DispositionFrame)
    client.attach_receiver(queue)
    client.credit(1)
    _, message = client.message()
    assert message.endswith(bare + footer)
    assert message.startswith(bytes((0, 0x53, HEADER)))
    assert header_of(message).priority == 1
    assert annotations_of(message)[Symbol("x-routing-key")] == queue


def test_single_active_consumers_learn_their_activity(client: SocketClient, channel: Any) -> None:
    arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
    channel.queue_declare("single10", durable=True, arguments=arguments)
    active = Symbol("rabbitmq:active")
    for handle in (1, 2):
        client.attach_receiver("single10", handle)
    for handle in (1, 2):
        client.credit(10, handle=handle, echo=True)
    told = {}
    while len(told) < 2:
        flow = client.until(FlowFrame, lambda flow: flow.handle is not None)
        told[flow.handle] = (flow.properties or {}).get(active)
    assert told == {1: True, 2: False}
    client.detach(1)
    flow = client.until(FlowFrame, lambda flow: flow.handle == 2)
    assert (flow.properties or {}).get(active) is True


def test_delivery_is_released_when_it_is_not_settled_in_time(client: SocketClient, channel: Any) -> None:
    arguments = {"x-queue-type": "quorum", "x-consumer-timeout": 200}
    channel.queue_declare("impatient10", durable=True, arguments=arguments)
    put(channel, "impatient10", b"slow", b"slower")
    client.attach_receiver("impatient10")
    client.credit(2)
    assert bodies(client, 2) == [b"slow", b"slower"]
    released: set[int] = set()
    while released != {0, 1}:
        disposition = client.until(DispositionFrame)
        assert (disposition.role, disposition.settled) == (False, False)
        assert isinstance(disposition.state, ReleasedState)
        released |= {disposition.first, disposition.last or disposition.first}
    client.accept(0, 1)  # too late: the messages are back in the queue
    client.credit(2, delivery_count=2)
    assert bodies(client, 2) == [b"slow", b"slower"]
    client.accept(2, 3)
    client.detach(1)
    assert channel.queue_declare("impatient10", passive=True).method.message_count == 0


def test_session_ends_when_a_message_is_too_large_for_its_client(
    client: SocketClient, channel: Any, queue: str
) -> None:
    put(channel, queue, bytes(500), bytes(2000))
    client.attach_receiver(queue, max_message_size=1000)
    client.credit(2)
    assert bodies(client, 1) == [bytes(500)]
    error = client.until(EndFrame).error
    assert error is not None
    assert error.condition == "amqp:link:message-size-exceeded"
    client.send(EndFrame())
    client.begin()  # the connection goes on, and both messages are back
    assert channel.queue_declare(queue, passive=True).method.message_count == 2
