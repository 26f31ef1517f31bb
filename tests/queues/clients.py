"""Clients as applications write them, with pika, and short helpers for tests."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

PATIENCE_S = 15.0
QUORUM: Mapping[str, Any] = {"x-queue-type": "quorum"}
HERE = "in vhost '/'"
Bodies = list[bytes]


class Message(NamedTuple):
    """A message as delivered, or as returned by `basic.get`."""

    tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    properties: pika.BasicProperties
    body: bytes
    left: int | None = None
    """Messages that basic.get has left in the queue."""

    @property
    def headers(self) -> dict[str, Any]:
        return self.properties.headers or {}


class Taker:
    """A consumer that keeps its deliveries, and acknowledges them on request."""

    def __init__(self, channel: BlockingChannel, queue: str, **options: Any) -> None:
        self.channel = channel
        self.queue = queue
        self.messages: list[Message] = []
        self.is_cancelled = False
        self.tag = channel.basic_consume(queue, self._take, **options)
        channel.add_on_cancel_callback(self._cancelled)

    def _take(self, _: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        place = (method.delivery_tag, method.redelivered, method.exchange, method.routing_key)
        self.messages.append(Message(*place, properties, body))

    def _cancelled(self, method: Any) -> None:
        self.is_cancelled = self.is_cancelled or method.method.consumer_tag == self.tag

    @property
    def bodies(self) -> Bodies:
        return [message.body for message in self.messages]

    def until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, self.bodies
            self.channel.connection.process_data_events(0.02)

    def wait(self, count: int) -> list[Message]:
        """Wait until it has at least so many, and return those it has by then."""
        self.until(lambda: len(self.messages) >= count)
        return self.messages

    def received(self) -> Bodies:
        """Return all bodies that the log has delivered by now.

        The answer to the first barrier may precede the deliveries of its own entry.
        """
        barrier(self.channel)
        barrier(self.channel)
        self.channel.connection.process_data_events(0)
        return self.bodies

    def ack(self, *messages: Message) -> None:
        for message in messages or self.messages:
            self.channel.basic_ack(message.tag)

    def take_back(self) -> list[Message]:
        """Return the received messages, and forget them."""
        messages, self.messages = self.messages, []
        return messages


def barrier(channel: BlockingChannel) -> None:
    """Wait until all that the channel asked for is done."""
    channel.exchange_declare("amq.direct", passive=True)


def declare(channel: BlockingChannel, queue: str, arguments: Mapping[str, Any] | None = None) -> str:
    channel.queue_declare(queue, durable=True, arguments={**QUORUM, **(arguments or {})})
    return queue


def publish(
    channel: BlockingChannel,
    queue: str,
    bodies: Iterable[bytes | str],
    exchange: str = "",
    **properties: Any,
) -> None:
    """Publish to a queue, and wait until all is there."""
    for body in bodies:
        text = body if isinstance(body, bytes) else body.encode()
        channel.basic_publish(exchange, queue, text, pika.BasicProperties(**properties))
    barrier(channel)


def get(channel: BlockingChannel, queue: str, *, auto_ack: bool = True) -> Message | None:
    method, properties, body = channel.basic_get(queue, auto_ack)
    if method is None:
        return None
    place = (method.delivery_tag, method.redelivered, method.exchange, method.routing_key)
    return Message(*place, properties, body, method.message_count)


def got(channel: BlockingChannel, queue: str, *, auto_ack: bool = True) -> Message:
    message = get(channel, queue, auto_ack=auto_ack)
    assert message is not None
    return message


def drain(channel: BlockingChannel, queue: str) -> list[Message]:
    """Get all ready messages one by one, in the order of delivery."""
    return list(iter(lambda: get(channel, queue), None))


def bodies_of(messages: Iterable[Message]) -> Bodies:
    return [message.body for message in messages]


def exactly(messages: Iterable[Message]) -> Message:
    """Return the only message."""
    [message] = messages
    return message


def counted(channel: BlockingChannel, queue: str) -> tuple[int, int]:
    """Messages that are ready, and consumers."""
    method = channel.queue_declare(queue, passive=True).method
    return method.message_count, method.consumer_count


def ready(channel: BlockingChannel, queue: str) -> int:
    return counted(channel, queue)[0]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def close(channel: BlockingChannel) -> None:
    """Close a channel, and wait until its unacknowledged messages are requeued; as in RabbitMQ, close-ok precedes
    that.
    """
    connection = channel.connection
    channel.close()
    behind = connection.channel()
    behind.queue_declare("", exclusive=True)
    behind.close()


def lose(connection: BlockingConnection) -> None:
    """Break a connection, as a cable does."""
    connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)


@contextmanager
def refused(code: int, text: str) -> Generator[None]:
    """The channel, or the connection, is closed by the broker, for this reason."""
    closed = (pika.exceptions.ChannelClosedByBroker, pika.exceptions.ConnectionClosedByBroker)
    with pytest.raises(closed) as caught:
        yield
    assert (caught.value.reply_code, caught.value.reply_text) == (code, text)


def send(channel: BlockingChannel, queue: str, publisher: str, *numbers: int) -> None:
    """Publish messages with their numbers as bodies, and wait for each confirm."""
    for number in numbers:
        headers = {"x-publisher-id": publisher, "x-publish-seq": number}
        channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(headers=headers))
