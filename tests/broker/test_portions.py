"""A client that takes much at once: others on the node, and other channels of its connection, have turns in between."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from lone_broker import LoneBroker
from pamqp import commands
from raw_client import RawClient, publish

from qq.amqp_server.connection import PORTION_BYTES
from qq.sessions.batch import BATCH_BYTES_MAX

Basic, Confirm, Queue = commands.Basic, commands.Confirm, commands.Queue
SIZE, COUNT = 64 * 1024, 400
"""A backlog of 25 MiB: much more than sockets hold."""


@pytest.fixture(scope="module")
def broker() -> Generator[LoneBroker]:
    with LoneBroker() as broker:
        yield broker


@pytest.fixture
def client(broker: LoneBroker) -> Generator[RawClient]:
    """A client with two channels, for which a backlog waits."""
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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self.written.append(len(data))
        self._transport.write(data)


def test_a_backlog_is_written_in_portions(broker: LoneBroker, client: RawClient) -> None:
    connection: Any = list(broker.broker.connections.values())[-1]
    recorder = connection._transport = Recorder(connection._transport)
    client.call(1, Basic.Consume(queue="backlog", no_ack=True), Basic.ConsumeOk)
    take_all(client)
    assert sum(recorder.written) > COUNT * SIZE
    assert max(recorder.written) <= PORTION_BYTES + BATCH_BYTES_MAX + SIZE


def test_a_confirm_on_one_channel_does_not_wait_for_the_backlog_of_another_one(client: RawClient) -> None:
    client.call(2, Confirm.Select(), Confirm.SelectOk)
    client.call(1, Basic.Consume(queue="backlog", no_ack=True), Basic.ConsumeOk)
    for _ in range(COUNT // 8):
        client.expect_message()
    client.write(publish(2, "nowhere", b"x"))
    before = 0
    while not isinstance(frame := client.receive()[1], Basic.Ack):
        before += isinstance(frame, Basic.Deliver)
    assert before < COUNT // 2
