"""Clients that use pika, each in a thread of its own, reconnect by themselves, and write down what they see.

Lives here: connecting, publishing one message at a time, consuming. Not here: which messages (the workloads), the order
of endpoints (world.py).

Law: each row says what its connection saw, so nothing here hides that a connection was lost.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import abstractmethod
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING

import pika
import pika.exceptions
from pika import frame, spec
from pika.adapters.utils.connection_workflow import AMQPConnectorException

from chaos.workloads.world import (
    CONNECT_TIMEOUT_S,
    HEARTBEAT_S,
    PREFETCH,
    Client,
    Endpoint,
    Outgoing,
    Pace,
    Rotation,
    World,
    arrived,
    messages_of,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from pika.adapters.blocking_connection import BlockingChannel

    from chaos.history import Arrived, Call, Where

POLL_S = 0.1
LOST = (pika.exceptions.AMQPError, AMQPConnectorException, OSError)
"""What pika raises when a connection or a channel is gone, or a connection cannot be made."""
_NOT_CONNECTED = (*LOST, ValueError)
"""The last one comes of a socket that is reset as soon as it is connected."""


@contextmanager
def asking(call: Call) -> Generator[None]:
    """Around a request: ends its call. What the broker refuses has failed; what else is raised leaves it unknown."""
    try:
        yield
    except pika.exceptions.ChannelClosedByBroker as error:
        call.fail(repr(error))
        raise
    except LOST as error:
        call.unknown(repr(error))
        raise
    call.ok()


class PikaClient(Client):
    """Connects, works until the connection breaks, and starts again."""

    where: Where
    """Node, connection and channel of the moment."""

    def __init__(self, world: World, name: str, home: int) -> None:
        super().__init__(name)
        self.world = world
        self.random = world.random(name)
        self.process = world.process(name)
        self.stopping = threading.Event()
        self._rotation = Rotation(world, home, name, pinned=False)
        self._connections = count(1)

    def stop(self) -> None:
        self.stopping.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def end(error: BaseException | None) -> None:
            if ended.done():
                return
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

        def body() -> None:
            error = None
            try:
                self._work_until_stopped()
            except Exception as unexpected:  # noqa: BLE001 -- it is raised where this client is awaited
                error = unexpected
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(end, error)

        # A daemon: an answer that never comes must not keep the harness from ending.
        threading.Thread(target=body, name=self.name, daemon=True).start()
        await ended

    def _work_until_stopped(self) -> None:
        while not self.stopping.is_set():
            connection = self._connect()
            if connection is None:
                self.stopping.wait(self._rotation.failed())
                continue
            self._rotation.worked()
            try:
                self.work(connection)
                connection.close()
            except LOST as error:
                self.process.event("connect", "info", **self.where, detail=f"lost: {error!r}")
                with suppress(*LOST):  # open still, if it was only the channel that was closed
                    connection.close()

    def _connect(self) -> pika.BlockingConnection | None:
        endpoint = self._rotation.next()
        self.where = {"node": endpoint.node, "connection": f"{self.name}#{next(self._connections)}"}
        call = self.process.invoke("connect", **self.where)
        try:
            connection = pika.BlockingConnection(self._parameters(endpoint))
        except _NOT_CONNECTED as error:
            call.fail(repr(error))
            return None
        call.ok()
        return connection

    def _parameters(self, endpoint: Endpoint) -> pika.ConnectionParameters:
        return pika.ConnectionParameters(
            endpoint.host,
            endpoint.port,
            credentials=pika.PlainCredentials(self.world.user, self.world.password),
            heartbeat=HEARTBEAT_S,
            socket_timeout=CONNECT_TIMEOUT_S,
            stack_timeout=CONNECT_TIMEOUT_S,
        )

    def open_channel(self, connection: pika.BlockingConnection) -> BlockingChannel:
        channel = connection.channel()
        self.where["channel"] = channel.channel_number
        return channel

    @abstractmethod
    def work(self, connection: pika.BlockingConnection) -> None:
        """Return when stopping; may raise LOST."""

    def publish(self, channel: BlockingChannel, queue: str, message: Outgoing, exchange: str = "") -> None:
        """Publish on a channel with confirms, and wait for the outcome."""
        call = self.process.invoke("publish", **self.where, queue=queue, **message.fields())
        try:
            with asking(call):
                channel.basic_publish(exchange, queue, message.body, properties_of(message), mandatory=True)
        except pika.exceptions.UnroutableError:
            call.fail("returned")
        except pika.exceptions.NackError:
            call.unknown("basic.nack")

    def get(self, channel: BlockingChannel, queue: str) -> tuple[int, Arrived] | None:
        """Ask for a message: its delivery tag and what the history says of it; None if there is none.

        What comes is a row of its own, as of a message that nobody asked for.
        """
        call = self.process.invoke("get", **self.where, queue=queue)
        with asking(call):
            method, properties, body = channel.basic_get(queue)
            if method is None or properties is None or body is None:
                call.ok(detail="empty")
                return None
        return method.delivery_tag, self.delivered(queue, method, properties, body)

    def delivered(
        self,
        queue: str,
        method: spec.Basic.Deliver | spec.Basic.GetOk,
        properties: pika.BasicProperties,
        body: bytes,
        consumer: str | None = None,
    ) -> Arrived:
        """Record what came; a message that was asked for has no consumer."""
        arrival = arrived(
            message_id=properties.message_id,
            body=body,
            headers=properties.headers,
            redelivered=method.redelivered,
            priority=properties.priority,
        )
        self.process.event("deliver", **self.where, queue=queue, consumer=consumer, **arrival)
        return arrival


def properties_of(message: Outgoing) -> pika.BasicProperties:
    return pika.BasicProperties(
        message_id=message.id, delivery_mode=2, priority=message.priority, headers=message.headers or None
    )


class PikaPublisher(PikaClient):
    """Publishes to one queue and waits for each confirm."""

    def __init__(self, world: World, name: str, home: int, *, queue: str, rate: float) -> None:
        super().__init__(world, name, home)
        self.queue = queue
        self.pace = Pace(rate)
        self.messages: Iterator[Outgoing] = messages_of(name, self.random)

    def work(self, connection: pika.BlockingConnection) -> None:
        channel = self.open_channel(connection)
        channel.confirm_delivery()
        while not self.stopping.is_set():
            self.publish(channel, self.queue, next(self.messages))
            connection.sleep(self.pace.wait_s())


class PikaConsumer(PikaClient):
    """Consumes one queue and acknowledges. Cancels its consumer now and then, after `turn_s`, and begins anew."""

    def __init__(
        self, world: World, name: str, home: int, *, queue: str, turn_s: tuple[float, float]
    ) -> None:
        super().__init__(world, name, home)
        self.queue = queue
        self._turn_s = turn_s
        self._cancelled: set[str] = set()

    def work(self, connection: pika.BlockingConnection) -> None:
        channel = self.open_channel(connection)
        channel.basic_qos(prefetch_count=PREFETCH)
        channel.add_on_cancel_callback(self._on_cancelled)
        for number in count(1):
            tag = f"{self.where['connection']}.{number}"
            self._consume(connection, channel, tag)
            if self.stopping.is_set():
                return

    def _consume(self, connection: pika.BlockingConnection, channel: BlockingChannel, tag: str) -> None:
        with asking(self.process.invoke("consume", **self.where, queue=self.queue, consumer=tag)):
            channel.basic_consume(self.queue, self._receive, consumer_tag=tag)
        deadline_s = time.monotonic() + self.random.uniform(*self._turn_s)
        while not self.stopping.is_set() and time.monotonic() < deadline_s and tag not in self._cancelled:
            connection.sleep(POLL_S)
        if tag not in self._cancelled:
            with asking(self.process.invoke("cancel", **self.where, queue=self.queue, consumer=tag)):
                channel.basic_cancel(tag)

    def _on_cancelled(self, frame: frame.Method[spec.Basic.Cancel]) -> None:
        tag = frame.method.consumer_tag
        self._cancelled.add(tag)
        self.process.event("cancelled", **self.where, queue=self.queue, consumer=tag)

    def _receive(
        self,
        channel: BlockingChannel,
        method: spec.Basic.Deliver,
        properties: pika.BasicProperties,
        body: bytes,
    ) -> None:
        fields = self.delivered(self.queue, method, properties, body, method.consumer_tag)
        call = self.process.invoke(
            "ack", **self.where, queue=self.queue, consumer=method.consumer_tag, id=fields["id"]
        )
        with asking(call):
            channel.basic_ack(method.delivery_tag)
