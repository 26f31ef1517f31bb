"""Credit, drains and windows of consumers that change their mind, wait, or do not read; priorities of consumers."""

from __future__ import annotations

import time
from typing import Any

import pytest

from qq import testing
from qq.amqp10.performatives import AcceptedState, FlowFrame, SenderSettleMode, TransferFrame
from qq.amqp10.values import Int, Symbol
from qq.testing import ClusterNode
from tests.amqp10_server.messages import bodies, body_of, put, ready
from tests.amqp10_server.settling import Consumer, quorum, send
from tests.amqp10_server.socket_client import SocketClient, data


def numbered(first: int, last: int) -> list[bytes]:
    return [data(b"%d" % number) for number in range(first, last + 1)]


def received(client: SocketClient, count: int) -> list[int]:
    return [int(body) for body in bodies(client, count)]


def drained(client: SocketClient, handle: int = 1) -> FlowFrame:
    """Return the flow that ends a drain. No message may come before it."""
    while True:
        frame = client.receive().performative
        assert not isinstance(frame, TransferFrame)
        if isinstance(frame, FlowFrame) and frame.handle == handle and frame.drain:
            assert frame.link_credit == 0
            return frame


def assert_quiet(client: SocketClient, handle: int) -> None:
    """Assert that no message comes before the answer to an echo of a link without credit."""
    client.credit(0, handle=handle, echo=True)
    while True:
        frame = client.receive().performative
        assert isinstance(frame, FlowFrame), frame
        if frame.handle == handle and frame.available is not None and not frame.drain:
            return


def test_credit_may_be_set_many_times_before_a_drain(client: SocketClient, queue: str) -> None:
    send(client, queue, *numbered(1, 500))
    client.attach_receiver(queue, snd_settle_mode=SenderSettleMode.SETTLED)
    client.credit(499, drain=True)
    assert received(client, 499) == list(range(1, 500))
    given = drained(client).delivery_count
    client.credit(500, delivery_count=given, drain=True)
    assert received(client, 1) == [500]
    given = drained(client).delivery_count
    send(client, queue, *numbered(501, 1000))
    for credit in (0, 1, 250, 500):
        client.credit(credit, delivery_count=given)
    client.credit(500, delivery_count=given, drain=True)
    assert received(client, 500) == list(range(501, 1001))
    given = drained(client).delivery_count
    send(client, queue, data(b"1001"))
    client.credit(2_000_000_000, delivery_count=given, drain=True)
    assert received(client, 1) == [1001]
    drained(client)  # at once, although the credit was large


def test_stopped_link_goes_on_where_it_stopped(client: SocketClient, channel: Any, queue: str) -> None:
    send(client, queue, *numbered(1, 300))
    client.attach_receiver(queue, snd_settle_mode=SenderSettleMode.SETTLED)
    client.credit(20)
    found = received(client, 20)
    client.credit(100, delivery_count=20)
    client.credit(0, delivery_count=20, echo=True)
    while isinstance((frame := client.receive()).performative, TransferFrame):
        found.append(int(body_of(frame.payload)))
    assert len(found) <= 120
    client.credit(300, delivery_count=len(found))
    found += received(client, 300 - len(found))
    assert found == list(range(1, 301))


def test_available_counts_messages_left_in_the_queue(client: SocketClient, queue: str) -> None:
    send(client, queue, *numbered(1, 1000))
    client.attach_receiver(queue)
    client.credit(0)
    client.credit(1, echo=True)
    assert received(client, 1) == [1]
    flow = client.until(FlowFrame, lambda flow: flow.handle == 1)
    assert (flow.available, flow.link_credit) == (999, 0)


def test_consumer_with_a_higher_priority_comes_first(client: SocketClient, channel: Any, queue: str) -> None:
    priorities = {1: None, 2: 2_000_000_000, 3: -2_000_000_000}
    given = {1: 1, 2: 2, 3: 1}
    for handle, priority in priorities.items():
        properties = None if priority is None else {Symbol("rabbitmq:priority"): Int(priority)}
        client.attach_receiver(queue, handle, properties=properties)
    for handle, credit in given.items():
        client.credit(credit, handle=handle, echo=True)
        client.until(FlowFrame, lambda flow, handle=handle: flow.handle == handle)
    put(channel, queue, b"1", b"2", b"3", b"4", b"5")
    found = [client.message() for _ in range(4)]
    assert [(transfer.handle, body_of(message)) for transfer, message in found] == [
        (2, b"1"),
        (2, b"2"),
        (1, b"3"),
        (3, b"4"),
    ]
    assert ready(channel, queue) == 1


def test_drain_of_an_inactive_consumer_ends_at_once(client: SocketClient, channel: Any) -> None:
    quorum(channel, "inactive10", single_active_consumer=True)
    counts = {
        handle: client.attach_receiver("inactive10", handle).initial_delivery_count for handle in (1, 2)
    }
    for handle in (1, 2):
        client.credit(100, handle=handle, drain=True, delivery_count=counts[handle])
        counts[handle] = drained(client, handle).delivery_count
    put(channel, "inactive10", b"m1", b"m2")
    client.credit(200, handle=2, drain=True, delivery_count=counts[2])
    counts[2] = drained(client, 2).delivery_count
    client.credit(200, handle=1, drain=True, delivery_count=counts[1])
    transfers = [client.message()[0] for _ in range(2)]
    assert [transfer.handle for transfer in transfers] == [1, 1]
    client.accept(transfers[0].delivery_id, transfers[1].delivery_id)
    drained(client, 1)
    client.detach(1)
    put(channel, "inactive10", b"m3")
    assert_quiet(client, 2)
    client.credit(300, handle=2, drain=True, delivery_count=counts[2])
    transfer, message = client.message()
    assert (transfer.handle, body_of(message)) == (2, b"m3")
    drained(client, 2)


def test_single_active_consumer_is_replaced_by_a_higher_priority(client: SocketClient, channel: Any) -> None:
    """The consumer with the highest priority is next. The active consumer stays active while it holds messages."""
    quorum(channel, "active10", single_active_consumer=True)
    send(client, "active10", *numbered(1, 6))
    first = Consumer(client, "active10", 1)
    assert body_of(first.get()) == b"1"
    second = Consumer(client, "active10", 2, priority=1)
    client.credit(1, handle=2, delivery_count=second.initial)
    assert_quiet(client, 1)
    first.settle(AcceptedState())
    transfer, message = client.message()
    assert (transfer.handle, body_of(message)) == (2, b"2")
    client.accept(transfer.delivery_id)
    third = Consumer(client, "active10", 3, priority=1)
    client.credit(1, handle=3, delivery_count=third.initial, echo=True)
    flow = client.until(
        FlowFrame, lambda flow: flow.handle == 3
    )  # a consumer of the same priority stays inactive
    assert flow.link_credit == 1
    client.detach(2)
    transfer, message = client.message()
    assert (transfer.handle, body_of(message)) == (3, b"3")


def test_drain_waits_behind_messages_for_the_window(client: SocketClient, queue: str) -> None:
    send(client, queue, data(b"my body"))
    client.attach_receiver(queue)
    client.flow(0)
    client.credit(2, window=0, drain=True)
    client.flow(0, echo=True)
    client.expect(FlowFrame)  # of the session: no message, and no end of the drain
    client.flow(5)
    assert bodies(client, 1) == [b"my body"]
    drained(client)


def test_link_stops_while_its_messages_wait_for_the_window(client: SocketClient, queue: str) -> None:
    send(client, queue, data(b"m1"), data(b"m2"))
    client.attach_receiver(queue)
    client.flow(0)
    client.credit(1, window=0, drain=True)
    client.credit(0, window=0)
    client.flow(5)
    client.credit(0, window=5, echo=True)
    found = []
    while True:
        frame = client.receive()
        if isinstance(frame.performative, TransferFrame):
            found.append(body_of(frame.payload))
        elif frame.performative.handle == 1 and not frame.performative.drain:
            break
    assert found in ([], [b"m1"])  # the first message may be under way, the second not


def test_link_is_detached_while_its_messages_wait_for_the_window(
    client: SocketClient, channel: Any, queue: str
) -> None:
    send(client, queue, data(b"my body"))
    client.attach_receiver(queue)
    client.flow(0)
    client.credit(2, window=0, drain=True)
    assert client.detach(1).error is None
    client.flow(5)
    assert client.end().error is None  # no frame of the link behind its detach
    assert ready(channel, queue) == 1


def test_messages_wait_in_the_queue_for_the_window(client: SocketClient, queue: str) -> None:
    send(client, queue, *numbered(1, 300))
    client.attach_receiver(queue, snd_settle_mode=SenderSettleMode.SETTLED)
    client.flow(0)
    client.credit(600, window=0)
    client.flow(2)
    assert received(client, 2) == [1, 2]
    client.flow(1)
    assert received(client, 1) == [3]
    client.flow(0, echo=True)
    client.expect(FlowFrame)
    for first in range(4, 301, 33):
        client.flow(33)
        assert received(client, 33) == list(range(first, first + 33))


@pytest.mark.parametrize("end", ["detach", "end", "hang up"])
@pytest.mark.parametrize(("size", "window"), [(1, 5), (2500, 15)])
def test_settled_messages_behind_the_window_stay_in_the_queue(
    node: ClusterNode, channel: Any, queue: str, size: int, window: int, end: str
) -> None:
    put(channel, queue, *(bytes(size) for _ in range(60)))
    with SocketClient(node.amqp_port) as client:
        client.open(max_frame_size=1000)
        client.begin(window=window)
        client.attach_receiver(queue, snd_settle_mode=SenderSettleMode.SETTLED)
        client.credit(50, window=window)
        for _ in range(window):
            client.message()
        if end == "detach":
            client.detach(1)
        elif end == "end":
            client.end()
    testing._wait_until(
        lambda: ready(channel, queue) == 55, lambda: f"{ready(channel, queue)} ready messages"
    )


def test_each_part_of_a_message_takes_a_place_in_the_window(
    node: ClusterNode, channel: Any, queue: str
) -> None:
    put(channel, queue, *(b"%d" % number + bytes(2500) for number in range(10)))
    with SocketClient(node.amqp_port) as client:
        client.open(max_frame_size=1000)
        client.begin()
        client.attach_receiver(queue, snd_settle_mode=SenderSettleMode.SETTLED)
        client.flow(0)
        client.credit(50, window=0)
        client.flow(3)
        parts = [client.message() for _ in range(3)]
        assert [transfer.more for transfer, _ in parts] == [True, True, False]
        client.flow(0, echo=True)
        client.expect(FlowFrame)
        for _ in range(27):
            client.flow(1)
            parts.append(client.message())
        messages = b"".join(payload for _, payload in parts).split(bytes(2500))
        assert [message[-1:] for message in messages[:-1]] == [b"%d" % number for number in range(10)]


def test_queue_keeps_messages_of_a_client_that_does_not_read(
    node: ClusterNode, channel: Any, queue: str
) -> None:
    for _ in range(5000):
        channel.basic_publish("", queue, bytes(4000))
    with SocketClient(node.amqp_port, receive_buffer=4096) as client:
        client.open()
        client.begin()
        client.attach_receiver(queue, snd_settle_mode=SenderSettleMode.SETTLED)
        client.credit(5000)
        deadline_s = time.monotonic() + 10
        before, left = 5000, ready(channel, queue)
        while left == 5000 or left != before:
            assert time.monotonic() < deadline_s
            time.sleep(0.2)
            before, left = left, ready(channel, queue)
    assert 0 < left < 5000
