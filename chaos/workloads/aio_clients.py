"""Clients that use aio-pika, reconnect by themselves, and write down what they see.

Lives here: connecting, publishing with a window of confirms, consuming. Not here: which messages (the workloads), the
order of endpoints (world.py).

Law: each row says what its connection saw, so nothing here hides that a connection was lost.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Literal

import aio_pika
import aiormq.exceptions
from aio_pika.connection import make_url
from aio_pika.exceptions import DeliveryError

from chaos.workloads.world import (
    CONFIRM_TIMEOUT_S,
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
from qq.errors import OperatingError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator

    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange, AbstractIncomingMessage

    from chaos.history import Arrived, Call, Where

CLOSE_TIMEOUT_S = 3.0
_LOST = (aiormq.exceptions.AMQPError, aiormq.exceptions.ChannelInvalidStateError, OSError, TimeoutError)

Settling = Literal["ack", "nack", "reject"]
"""nack: requeued; reject: dead-lettered."""


class LostError(OperatingError):
    """The connection or the channel is gone, or the answer did not come in time."""


@contextmanager
def asking(call: Call | None = None) -> Generator[None]:
    """Around a request: ends its call, and turns whatever the libraries raise for what is gone into LostError."""
    try:
        yield
    except LostError as error:
        detail = str(error)
    except _LOST as error:
        detail = repr(error)
    except asyncio.CancelledError:
        # aiormq also cancels those who wait for an answer on a connection that it closes.
        detail = "the client library gave up waiting"
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            if call is not None:
                call.unknown(detail)
            raise
    except Exception as error:
        if type(error) is not Exception:
            raise
        detail = "the client library closed the channel"  # that is how aiormq says so
    else:
        if call is not None:
            call.ok()
        return
    if call is not None:
        call.unknown(detail)
    raise LostError(detail)


async def connect(endpoint: Endpoint, user: str, password: str) -> AbstractConnection:
    """Connect once. Raises LostError."""
    url = make_url(
        host=endpoint.host, port=endpoint.port, login=user, password=password, heartbeat=HEARTBEAT_S
    )
    connection = aio_pika.Connection(url)
    try:
        with asking():
            await connection.connect(timeout=CONNECT_TIMEOUT_S)
    except LostError:
        # Else the collector closes it, in whatever thread that happens to run in.
        await connection.close()
        raise
    return connection


class Link:
    """One connection with one channel."""

    def __init__(self, connection: AbstractConnection, name: str, node: str, changed: asyncio.Event) -> None:
        self.connection = connection
        self.where: Where = {"node": node, "connection": name}
        self.broken: str | None = None
        """Why the client should connect anew."""
        self._changed = changed
        connection.close_callbacks.add(lambda _, error: self.breaks(error))

    def breaks(self, error: BaseException | str | None) -> None:
        if self.broken is None:
            self.broken = repr(error) if isinstance(error, BaseException) else str(error)
        self._changed.set()

    async def open_channel(self, *, confirms: bool) -> AbstractChannel:
        with asking():
            channel = await self.connection.channel(publisher_confirms=confirms, on_return_raises=confirms)
            self.where["channel"] = (await channel.get_underlay_channel()).number
        channel.close_callbacks.add(lambda _, error: self.breaks(error))
        return channel

    async def close(self) -> None:
        """Close the connection. A node that is frozen does not answer: then the library gives up later, by itself."""
        await asyncio.wait({asyncio.ensure_future(self._close())}, timeout=CLOSE_TIMEOUT_S)

    async def _close(self) -> None:
        with suppress(LostError), asking():
            await self.connection.close()


class AioClient(Client):
    """Connects, works until the connection breaks, and starts again."""

    def __init__(self, world: World, name: str, home: int, *, pinned: bool = False) -> None:
        super().__init__(name)
        self.world = world
        self.random = world.random(name)
        self.process = world.process(name)
        self.changed = asyncio.Event()
        """Whatever a waiting client has to look at: it shall stop, its connection broke."""
        self.stopping = False
        self._rotation = Rotation(world, home, name, pinned=pinned)
        self._connections = count(1)

    def stop(self) -> None:
        self.stopping = True
        self.changed.set()

    @property
    def is_finished(self) -> bool:
        return self.stopping

    async def run(self) -> None:
        while not self.is_finished:
            link = await self._connect()
            if link is None:
                await asyncio.sleep(self._rotation.failed())
                continue
            self._rotation.worked()
            try:
                await self.work(link)
            except LostError as error:
                link.breaks(str(error))
            if link.broken is not None:
                self.process.event("connect", "info", **link.where, detail=f"lost: {link.broken}")
            await link.close()

    async def _connect(self) -> Link | None:
        endpoint = self._rotation.next()
        name = f"{self.name}#{next(self._connections)}"
        call = self.process.invoke("connect", node=endpoint.node, connection=name)
        try:
            connection = await connect(endpoint, self.world.user, self.world.password)
        except LostError as error:
            call.fail(str(error))
            return None
        call.ok()
        return Link(connection, name, endpoint.node, self.changed)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until the condition holds; it is looked at whenever something changes."""
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def rest(self, link: Link, seconds: float) -> None:
        """Wait so long, unless there is nothing to wait for any more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.until(lambda: self.stopping or link.broken)

    @abstractmethod
    async def work(self, link: Link) -> None:
        """Return when finished or the link is broken; may raise LostError."""


class AioPublisher(AioClient):
    """Publishes to one queue, with up to `window` messages unconfirmed."""

    def __init__(
        self,
        world: World,
        name: str,
        home: int,
        *,
        queue: str,
        rate: float,
        window: int,
        pinned: bool = False,
    ) -> None:
        super().__init__(world, name, home, pinned=pinned)
        self.queue = queue
        self.window = window
        self.pace = Pace(rate)
        self.messages: Iterator[Outgoing] = messages_of(name, self.random)

    async def work(self, link: Link) -> None:
        exchange = (await link.open_channel(confirms=True)).default_exchange
        under_way: set[asyncio.Task[None]] = set()
        try:
            async for message in self.outgoing(link):
                task = asyncio.create_task(self._publish(link, exchange, message))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                while len(under_way) >= self.window:
                    await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Each ends: with its confirm, with the connection, or by its timeout.
            await asyncio.gather(*under_way)

    async def outgoing(self, link: Link) -> AsyncIterator[Outgoing]:
        """What to publish on this link, each when it is time for it."""
        while not self.stopping and link.broken is None:
            yield next(self.messages)
            await self.rest(link, self.pace.wait_s())

    async def _publish(self, link: Link, exchange: AbstractExchange, message: Outgoing) -> None:
        call = self.process.invoke("publish", **link.where, queue=self.queue, **message.fields())
        packed = aio_pika.Message(
            message.body,
            headers=message.headers,
            priority=message.priority,
            message_id=message.id,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        try:
            with asking(call):
                try:
                    await exchange.publish(packed, self.queue, mandatory=True, timeout=CONFIRM_TIMEOUT_S)
                except aiormq.exceptions.PublishError:
                    call.fail("returned")
                except DeliveryError:
                    call.unknown("basic.nack")
                    self.unconfirmed(link, message)
        except LostError as error:
            link.breaks(str(error))
            self.unconfirmed(link, message)

    def unconfirmed(self, link: Link, message: Outgoing) -> None:
        """Hear that nobody knows what became of a message."""


class AioConsumer(AioClient):
    """Consumes one queue; settles each message as `settling` says, after `delay_s`."""

    def __init__(
        self,
        world: World,
        name: str,
        home: int,
        *,
        queue: str,
        prefetch: int = PREFETCH,
        settling: Callable[[Arrived], Settling] = lambda _: "ack",
        delay_s: float = 0.0,
        pinned: bool = False,
    ) -> None:
        super().__init__(world, name, home, pinned=pinned)
        self.queue = queue
        self.delivered_s = time.monotonic()
        """When the last message came; at first, when this consumer was made."""
        self.is_consuming = False
        self._prefetch = prefetch
        self._settling = settling
        self._delay_s = delay_s

    async def work(self, link: Link) -> None:
        channel = await link.open_channel(confirms=False)
        with asking():
            await channel.set_qos(prefetch_count=self._prefetch)
        queue = await channel.get_queue(self.queue, ensure=False)
        cancelled: set[str] = set()

        def on_cancelled(frame: aiormq.spec.Basic.Cancel) -> None:
            tag = str(frame.consumer_tag)
            cancelled.add(tag)
            self.process.event("cancelled", **link.where, queue=self.queue, consumer=tag)
            self.changed.set()

        (await channel.get_underlay_channel()).on_consumer_cancel_callbacks.add(on_cancelled)
        for number in count(1):
            tag = f"{link.where['connection']}.{number}"
            call = self.process.invoke("consume", **link.where, queue=self.queue, consumer=tag)
            with asking(call):
                await queue.consume(partial(self._receive, link), consumer_tag=tag)
            self.is_consuming = True
            await self.until(lambda tag=tag: self.stopping or link.broken or tag in cancelled)
            self.is_consuming = False
            if link.broken:
                return
            if self.stopping:
                call = self.process.invoke("cancel", **link.where, queue=self.queue, consumer=tag)
                with asking(call):
                    await queue.cancel(tag)
                return

    async def _receive(self, link: Link, message: AbstractIncomingMessage) -> None:
        self.delivered_s = time.monotonic()
        tag = str(message.consumer_tag)
        arrival = arrived(
            message_id=message.message_id,
            body=message.body,
            headers=message.headers,
            redelivered=bool(message.redelivered),
            priority=message.priority,
        )
        self.process.event("deliver", **link.where, queue=self.queue, consumer=tag, **arrival)
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        if link.broken or message.channel.is_closed:
            return
        settling = self._settling(arrival)
        call = self.process.invoke(settling, **link.where, queue=self.queue, consumer=tag, id=arrival["id"])
        with suppress(LostError), asking(call):
            match settling:
                case "ack":
                    await message.ack()
                case "nack":
                    await message.nack(requeue=True)
                case "reject":
                    await message.reject(requeue=False)
