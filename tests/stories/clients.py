"""Clients as users write them, with pika and aio-pika, that record their history.

Each is a thread with a home node. When its connection breaks it connects to the next node and goes on, as an
application would. A connection that breaks although its node was not killed, a nack and a closed channel go into the
history as incidents.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

import aio_pika
import aiormq.exceptions
import pika
import pika.exceptions

from tests.stories.history import Confirm, Delivery, History, Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aio_pika.abc import AbstractExchange, AbstractIncomingMessage

    from qq.testing import ClusterNode

EXCHANGE = "load"
PREFETCH = 20
WINDOW = 4
"""Messages that an aio-pika publisher has under way at once. Those of pika wait for each confirm."""
RETRY_S = 0.02
CLOSING_S = 1.0

CONNECTION_ERRORS = (
    pika.exceptions.AMQPConnectionError,
    aiormq.exceptions.AMQPConnectionError,
    aiormq.exceptions.ChannelInvalidStateError,
    aiormq.exceptions.InvalidFrameError,  # it is told connection.close, by a node that stops, in place of open-ok
    OSError,
)
REFUSALS = (pika.exceptions.AMQPError, aiormq.exceptions.AMQPError, aio_pika.exceptions.DeliveryError)


class Deaths:
    """When a client may lose its connection: only to a node that was killed since it connected."""

    def __init__(self) -> None:
        self._changes: dict[str, int] = {}

    def begin(self, node: ClusterNode) -> None:
        self._changes[node.name] = self.count(node) + 1

    end = begin

    def count(self, node: ClusterNode) -> int:
        """Beginnings and ends of this node's deaths so far."""
        return self._changes.get(node.name, 0)

    def explain_loss(self, node: ClusterNode, count_when_connected: int) -> bool:
        is_ending = self.count(node) % 2 == 1
        return is_ending or self.count(node) != count_when_connected


class World(NamedTuple):
    """The parts that all clients share."""

    nodes: Sequence[ClusterNode]
    history: History
    deaths: Deaths
    interval_s: float
    """Between two messages, or windows of messages, of a publisher."""


class Client(threading.Thread, ABC):
    """Connects, works until the connection breaks, and starts again elsewhere, until it is told to stop."""

    def __init__(self, world: World, label: str, home: ClusterNode) -> None:
        super().__init__(name=f"{label}@{home.name}", daemon=True)
        self.world = world
        self.history = world.history
        self.home = home
        self.stopping = threading.Event()
        self.connections = 0

    @property
    def identity(self) -> str:
        """A name that is new for each connection."""
        return f"{self.name}#{self.connections}"

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self._connect_somewhere()
        except BaseException as error:
            self.history.incident(f"{self.identity}: {error!r}")
            raise

    def _connect_somewhere(self) -> None:
        peers = [node for node in self.world.nodes if node is not self.home]
        for node in [self.home, *peers]:
            deaths = self.world.deaths.count(node)
            self.connections += 1
            if self._worked_at(node, deaths) or self.stopping.is_set():
                return
        self.stopping.wait(RETRY_S)

    def _worked_at(self, node: ClusterNode, deaths: int) -> bool:
        self.is_connected = False
        try:
            self.work(node)
        except CONNECTION_ERRORS as error:
            self._connection_broke(node, deaths, error)
        except REFUSALS as error:
            self.history.incident(f"{self.identity} at {node.name}: {error!r}")
        return self.is_connected

    def _connection_broke(self, node: ClusterNode, deaths: int, error: BaseException) -> None:
        if not self.is_connected:
            return
        self.lost()
        if not self.world.deaths.explain_loss(node, deaths):
            self.history.incident(
                f"{self.identity} lost its connection to {node.name}, which lives: {error!r}"
            )

    def lost(self) -> None:
        """The connection broke."""

    @abstractmethod
    def work(self, node: ClusterNode) -> None:
        """Set `is_connected` once connected, and return when stopping; raises CONNECTION_ERRORS and REFUSALS."""


class Publisher(Client):
    def __init__(self, world: World, label: str, home: ClusterNode) -> None:
        super().__init__(world, label, home)
        self.number = 0

    def next_message(self) -> Message:
        self.number += 1
        return Message(self.identity, self.number)

    def confirmed(self, message: Message, published_s: float) -> None:
        self.history.confirmed(Confirm(message, published_s, time.monotonic()))


class PikaPublisher(Publisher):
    def work(self, node: ClusterNode) -> None:
        connection = pika_connection(node)
        self.is_connected = True
        channel = connection.channel()
        channel.confirm_delivery()
        while not self.stopping.is_set():
            message = self.next_message()
            published_s = time.monotonic()
            channel.basic_publish(EXCHANGE, "", message.body, PERSISTENT, mandatory=True)
            self.confirmed(message, published_s)
            self.stopping.wait(self.world.interval_s)
        connection.close()


class AioPikaPublisher(Publisher):
    def work(self, node: ClusterNode) -> None:
        asyncio.run(self._publish(node))

    async def _publish(self, node: ClusterNode) -> None:
        connection = await aio_pika.connect(f"{node.url}?heartbeat=0")
        self.is_connected = True
        channel = await connection.channel(publisher_confirms=True)
        exchange = await channel.get_exchange(EXCHANGE, ensure=False)
        while not self.stopping.is_set():
            await asyncio.gather(*(self._publish_one(exchange) for _ in range(WINDOW)))
            await asyncio.sleep(WINDOW * self.world.interval_s)
        await connection.close()

    async def _publish_one(self, exchange: AbstractExchange) -> None:
        message = self.next_message()
        published_s = time.monotonic()
        await exchange.publish(
            aio_pika.Message(message.body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT), ""
        )
        self.confirmed(message, published_s)


class Consumer(Client):
    def __init__(self, world: World, queue: str, home: ClusterNode) -> None:
        super().__init__(world, f"{type(self).__name__}-of-{queue}", home)
        self.queue = queue

    def lost(self) -> None:
        self.history.lost_consumers.add(self.identity)

    def delivered(self, body: bytes, redelivered: bool) -> None:
        self.history.delivered(Delivery(self.queue, self.identity, Message.read(body), redelivered))


class PikaConsumer(Consumer):
    def work(self, node: ClusterNode) -> None:
        connection = pika_connection(node)
        self.is_connected = True
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        for method, _, body in channel.consume(self.queue, inactivity_timeout=0.1):
            if method is not None:
                self.delivered(body, method.redelivered)
                channel.basic_ack(method.delivery_tag)
            elif self.stopping.is_set():
                break
        connection.close()


class AioPikaConsumer(Consumer):
    def work(self, node: ClusterNode) -> None:
        asyncio.run(self._consume(node))

    async def _consume(self, node: ClusterNode) -> None:
        connection = await aio_pika.connect(f"{node.url}?heartbeat=0")
        self.is_connected = True
        broke = asyncio.Event()
        connection.close_callbacks.add(lambda *_: broke.set())
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await channel.get_queue(self.queue, ensure=False)
        await queue.consume(self._receive)
        while not self.stopping.is_set():
            if channel.is_closed:
                await _raise_reason(broke)
            await asyncio.sleep(RETRY_S)
        await connection.close()

    async def _receive(self, message: AbstractIncomingMessage) -> None:
        self.delivered(message.body, message.redelivered is True)
        await message.ack()


async def _raise_reason(broke: asyncio.Event) -> None:
    """When a connection breaks its channels close a moment before it does; else the broker closed the channel."""
    try:
        async with asyncio.timeout(CLOSING_S):
            await broke.wait()
    except TimeoutError:
        raise aiormq.exceptions.ChannelClosed from None
    raise aiormq.exceptions.AMQPConnectionError("the connection broke")


PERSISTENT = pika.BasicProperties(delivery_mode=2)


def pika_connection(node: ClusterNode) -> pika.BlockingConnection:
    """Connect without heartbeats: a paused node must not lose its clients."""
    return pika.BlockingConnection(pika.URLParameters(f"{node.url}?heartbeat=0&socket_timeout=2"))
