"""A client with large deliveries: further clients, and further channels of its connection, have turns in between."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from threading import Thread
from typing import Any

import pytest
import uvloop
from pamqp import commands

from qq.amqp.encoding import HEARTBEAT
from qq.amqp_server.connection import AmqpConnection
from qq.client_sockets.flow_control import BULK_BYTES, PORTION_BYTES, UNJOINED_BYTES
from qq.ranges import Range
from qq.sessions.batch import BATCH_BYTES_MAX, FRAGMENT_BYTES
from tests.harness.lone_broker import LoneBroker, wait_until
from tests.harness.raw_client import RawClient, publish

Basic, Confirm, Queue = commands.Basic, commands.Confirm, commands.Queue
SIZE, COUNT = 64 * 1024, 400
"""A backlog of 25 MiB: much more than sockets hold."""


@pytest.fixture(scope="module")
def broker() -> Generator[LoneBroker]:
    with LoneBroker() as broker:
        yield broker


@pytest.fixture
def client(broker: LoneBroker) -> Generator[RawClient]:
    """A client with two channels and a backlog to consume."""
    with RawClient(broker.amqp_port) as client:
        client.open_channel(1)
        client.open_channel(2)
        client.call(1, Queue.Declare(queue="backlog"), Queue.DeclareOk)
        message = publish(1, "backlog", bytes(SIZE))
        for _ in range(COUNT):
            client.write(message)
        assert client.call(1, Queue.Declare(queue="backlog"), Queue.DeclareOk).message_count == COUNT
        yield client


def take_all(client: RawClient) -> None:
    for _ in range(COUNT):
        client.expect_message()


class Recorder:
    """A transport that notes how much is written at a time."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.written: list[int] = []
        self.pieces: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self.written.append(len(data))
        self._transport.write(data)

    def writelines(self, buffers: Sequence[bytes]) -> None:
        self.pieces += map(len, buffers)
        self._transport.writelines(buffers)


def test_a_backlog_is_written_in_portions(broker: LoneBroker, client: RawClient) -> None:
    connection: Any = list(broker.broker.connections.values())[-1]
    recorder = connection._transport = Recorder(connection._transport)
    client.call(1, Basic.Consume(queue="backlog", no_ack=True), Basic.ConsumeOk)
    take_all(client)
    assert sum(recorder.written) > COUNT * SIZE
    assert max(recorder.written) <= PORTION_BYTES + BATCH_BYTES_MAX + SIZE


def test_large_message_is_written_without_joining(broker: LoneBroker) -> None:
    large = bytes(range(256)) * (UNJOINED_BYTES // 128)
    with RawClient(broker.amqp_port) as client:
        client.open_channel(1)
        client.call(1, Queue.Declare(queue="large"), Queue.DeclareOk)
        client.write(publish(1, "large", b"a") + publish(1, "large", large) + publish(1, "large", b"b"))
        client.call(1, Queue.Declare(queue="large"), Queue.DeclareOk)
        connection: Any = list(broker.broker.connections.values())[-1]
        recorder = connection._transport = Recorder(connection._transport)
        client.call(1, Basic.Consume(queue="large", no_ack=True), Basic.ConsumeOk)
        assert [client.expect_message()[2] for _ in range(3)] == [b"a", large, b"b"]
        assert any(len(large) <= size < len(large) + 5000 for size in recorder.pieces)


def test_confirm_does_not_wait_for_a_backlog_of_its_connection(client: RawClient) -> None:
    client.call(2, Confirm.Select(), Confirm.SelectOk)
    client.call(1, Basic.Consume(queue="backlog", no_ack=True), Basic.ConsumeOk)
    for _ in range(COUNT // 8):
        client.expect_message()
    client.write(publish(2, "nowhere", b"x"))
    before = 0
    while not isinstance(frame := client.receive()[1], Basic.Ack):
        before += isinstance(frame, Basic.Deliver)
    assert before < COUNT // 2


def test_further_sockets_are_read_after_each_large_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """libuv reads up to 32 times in a row from a socket that has more."""
    passes = 0
    read_in: list[int] = []
    receive = AmqpConnection.data_received

    def received(connection: AmqpConnection, data: bytes) -> None:
        if len(data) >= BULK_BYTES:
            read_in.append(passes)
        receive(connection, data)

    monkeypatch.setattr(AmqpConnection, "data_received", received)
    with LoneBroker(new_loop=uvloop.new_event_loop) as lone, RawClient(lone.amqp_port) as client:  # as a node

        def count_pass() -> None:
            nonlocal passes
            passes += 1
            asyncio.get_running_loop().call_soon(count_pass)

        client.open_channel(1)
        client.call(1, Queue.Declare(queue="large"), Queue.DeclareOk)
        client.call(1, Confirm.Select(), Confirm.SelectOk)
        lone.call(count_pass)
        message = publish(1, "large", bytes(8 * 1024 * 1024))
        sender = Thread(target=client.write, args=(message,))
        sender.start()
        lone.call(time.sleep, 0.1)  # so that the socket has much
        sender.join()
        client.expect(Basic.Ack)
    assert len(read_in) > 10
    assert len(set(read_in)) == len(read_in)


def test_large_messages_of_a_batch_are_written_individually() -> None:
    """Once all messages of a batch were in memory at once for a single consumer that did not even read."""
    count = 20
    size = 3 * FRAGMENT_BYTES - 100  # the last fragment fills a turn, so messages end in the next turn
    with LoneBroker() as lone, ExitStack() as clients:
        lone.broker.submissions.large_bytes = 2 * FRAGMENT_BYTES
        publishers = [clients.enter_context(RawClient(lone.amqp_port)) for _ in range(count + 1)]
        reader = publishers.pop()
        reader.open_channel(1)
        reader.call(1, Queue.Declare(queue="large"), Queue.DeclareOk)
        for publisher in publishers:
            publisher.open_channel(1)
            publisher.call(1, Confirm.Select(), Confirm.SelectOk)
        lone.call(setattr, lone.group, "holding", True)
        for publisher in publishers:
            publisher.write(publish(1, "large", bytes(size)))
        wait_until(lambda: lone.broker.submissions.pending_bytes > size * count, "all messages")
        lone.call(lone.group.release)
        for publisher in publishers:
            publisher.expect(Basic.Ack)
        backlog = lone.machine.vhosts["/"].queues["large"].backlog.freeze()
        assert max(messages.count for messages in backlog.browse(0, count)) > count // 2
        taken = list[int]()
        messages = lone.broker.entries.messages

        def record(part: Range, **how: bool) -> Any:
            taken.append(part.count)
            return messages(part, **how)

        lone.broker.entries.messages = record
        reader.call(1, Basic.Consume(queue="large"), Basic.ConsumeOk)
        for _ in range(count):
            reader.expect_message()
        assert max(taken) == 1


@pytest.mark.parametrize("has_heartbeats", [False, True])
def test_stuck_consumer_stays_while_its_heartbeats_arrive(broker: LoneBroker, has_heartbeats: bool) -> None:
    """The node does not read it any more; once it stayed for ever with its unacknowledged messages."""
    name = f"held-{has_heartbeats}"
    with RawClient(broker.amqp_port) as other, RawClient(broker.amqp_port, heartbeat=1) as hung:
        for each in (other, hung):
            each.open_channel(1)
        other.call(1, Queue.Declare(queue=name), Queue.DeclareOk)
        other.write(publish(1, name, bytes(12 * 1024 * 1024)))
        hung.send(1, Basic.Consume(queue=name))
        queue = broker.machine.vhosts["/"].queues[name]
        wait_until(lambda: broker.call(lambda: queue.unacked) == 1, "the delivery")
        if has_heartbeats:
            end_s = time.monotonic() + 4.0
            while time.monotonic() < end_s:
                hung.write(HEARTBEAT)
                time.sleep(0.3)
            assert broker.call(lambda: queue.unacked) == 1
        wait_until(lambda: broker.call(lambda: queue.unacked) == 0, "its end")


def test_slow_consumer_of_a_large_message_is_kept(broker: LoneBroker) -> None:
    """It reads so slowly that its socket's buffers are full and its heartbeats do not arrive: it is busy."""
    with RawClient(broker.amqp_port) as other, RawClient(broker.amqp_port, heartbeat=1) as slow:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
        for each in (other, slow):
            each.open_channel(1)
        other.call(1, Queue.Declare(queue="slow"), Queue.DeclareOk)
        other.write(publish(1, "slow", bytes(12 * 1024 * 1024)))
        slow.send(1, Basic.Consume(queue="slow"))
        queue = broker.machine.vhosts["/"].queues["slow"]
        wait_until(lambda: broker.call(lambda: queue.unacked) == 1, "the delivery")
        end_s = time.monotonic() + 4.0
        while time.monotonic() < end_s:
            slow.socket.recv(16 * 1024)
            time.sleep(0.1)
        assert broker.call(lambda: queue.unacked) == 1
