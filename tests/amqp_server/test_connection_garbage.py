"""A closed connection leaves no garbage for the collector."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import uvloop
from pamqp import commands

from qq.amqp_server.channel.channel import Channel
from qq.amqp_server.connection import AmqpConnection
from qq.scopes import Scopes, TokenUser
from tests.harness.lone_broker import LoneBroker
from tests.harness.raw_client import RawClient, publish

Basic, Confirm, Queue = commands.Basic, commands.Confirm, commands.Queue


def works(client: RawClient) -> None:
    """A bit of everything."""
    client.open_channel(1)
    name = client.call(1, Queue.Declare(exclusive=True), Queue.DeclareOk).queue
    client.call(1, Confirm.Select(), Confirm.SelectOk)
    client.call(1, Basic.Consume(queue=name), Basic.ConsumeOk)
    client.write(publish(1, name, b"m"))
    client.expect(Basic.Ack, 1)


def in_a_transaction(client: RawClient) -> None:
    client.open_channel(1)
    name = client.call(1, Queue.Declare(exclusive=True), Queue.DeclareOk).queue
    client.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
    client.write(publish(1, name, b"m"))
    client.call(1, commands.Tx.Commit(), commands.Tx.CommitOk)
    client.write(publish(1, name, b"m"))
    client.close()


def with_a_delivery(client: RawClient) -> None:
    client.open_channel(1)
    name = client.call(1, Queue.Declare(exclusive=True), Queue.DeclareOk).queue
    client.call(1, Basic.Consume(queue=name), Basic.ConsumeOk)
    client.write(publish(1, name, b"m"))
    client.expect_message()
    client.call(1, Basic.Get(queue=name), Basic.GetEmpty)
    client.call(1, Basic.Consume(queue="amq.rabbitmq.reply-to", no_ack=True), Basic.ConsumeOk)
    client.close()


def in_good_order(client: RawClient) -> None:
    works(client)
    client.close()


def vanishing(client: RawClient) -> None:
    works(client)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()


def failing(client: RawClient) -> None:
    client.open_channel(1)
    client.send(1, Basic.Ack(77))
    client.expect(commands.Channel.Close, 1)
    client.send(1, Basic.Ack(77))
    client.close()


def refused(client: RawClient) -> None:
    client.write(b"\xff" * 100)
    client.expect(commands.Connection.Close)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def broker(request: pytest.FixtureRequest) -> Iterator[LoneBroker]:
    with LoneBroker(new_loop=request.param) as broker:
        yield broker


@contextmanager
def no_garbage(broker: LoneBroker) -> Iterator[None]:
    """Assert that objects of the block are freed without a collection."""
    logging.disable()  # records are kept for the report of a test
    gc.collect()
    before = there()
    gc.disable()
    try:
        yield
        until_s = time.monotonic() + 10
        while time.monotonic() < until_s and (
            broker.call(len, broker.broker.connections) or there() > before
        ):
            time.sleep(0.01)
        assert there() == before
    finally:
        gc.enable()
        logging.disable(logging.NOTSET)


def there() -> int:
    return sum(isinstance(thing, AmqpConnection | Channel) for thing in gc.get_objects())


class Vouching:
    """Takes every password for a valid token of an hour."""

    def is_token(self, password: bytes) -> bool:
        return bool(password)

    def verify(self, token: bytes) -> TokenUser:
        return TokenUser(token.decode(), Scopes(["configure:*", "write:*", "read:*"]), time.time() + 3600)

    def renew_keys(self, token: bytes, renewed: Callable[[], None]) -> bool:
        return bool(token and renewed is None)


@pytest.mark.parametrize(
    "ending", [in_good_order, in_a_transaction, with_a_delivery, vanishing, failing, refused]
)
def test_closed_connection_is_freed(broker: LoneBroker, ending: Callable[[RawClient], None]) -> None:
    with no_garbage(broker):
        for _ in range(3):
            with RawClient(broker.amqp_port) as client:
                ending(client)


def test_connection_with_a_token_is_freed(broker: LoneBroker) -> None:
    broker.broker.logins.verifier = Vouching()
    with no_garbage(broker), RawClient(broker.amqp_port) as client:
        [connection] = broker.broker.connections.values()
        assert connection.scopes is not None
        del connection
        vanishing(client)


def test_unauthenticated_connection_is_freed(broker: LoneBroker) -> None:
    with no_garbage(broker), socket.create_connection(("127.0.0.1", broker.amqp_port)) as client:
        client.sendall(b"AMQP\x00\x00\x09\x01")
        assert client.recv(1)  # the node has accepted it
