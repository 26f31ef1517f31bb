"""Clients that reconnect by themselves and record each operation.

Invariant: each row is an observation of its connection, and every lost connection is recorded. A client's next step
depends on its seed, on the time of its event loop and on its answers: so it behaves alike in every world.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from chaos.workloads.messages import Delivery, Outgoing, arrived, messages_of
from chaos.workloads.transport import Channel, Connection, LostError, Mode, RefusedError, Settling
from chaos.workloads.world import PREFETCH, Client, Pace, Rotation, World

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

    from chaos.history import Arrived, Call, Process, Where

ANSWER_TIMEOUT_S = 10.0
"""Seconds after which a client gives up waiting for an answer, records its outcome as unknown and reconnects."""


@asynccontextmanager
async def request_of(call: Call | None = None) -> AsyncGenerator[None]:
    """End a request's call with its outcome and bound its waiting time. Raises LostError."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            yield
    except TimeoutError:
        failure = LostError(f"no answer in {ANSWER_TIMEOUT_S:g} s")
    except LostError as error:
        failure = error
    except asyncio.CancelledError:
        if call is not None:
            call.unknown("nobody waits for it any more")
        raise
    else:
        if call is not None:
            call.ok()
        return
    if call is not None:
        (call.fail if isinstance(failure, RefusedError) else call.unknown)(str(failure))
    raise failure


class Link:
    """A single connection of a client."""

    connection: Connection

    def __init__(self, name: str, node: str, changed: asyncio.Event) -> None:
        self.where: Where = {"node": node, "connection": name}
        self.broken: str | None = None
        """Why the client should reconnect; None while the connection works."""
        self._changed = changed

    def breaks(self, why: str) -> None:
        if self.broken is None:
            self.broken = why
        self._changed.set()

    async def open_channel(self, mode: Mode = "plain", prefetch: int = 0) -> Channel:
        """Open the only channel of this connection."""
        async with request_of():
            channel = await self.connection.open_channel(mode, prefetch)
        self.where["channel"] = channel.number
        return channel


class ConnectingClient(Client):
    """Connects, works until the connection breaks, and starts again."""

    def __init__(self, world: World, name: str, home: int, *, pinned: bool = False) -> None:
        super().__init__(name)
        self.world = world
        self.random = world.random(name)
        self.process: Process = world.process(name)
        self.changed = asyncio.Event()
        """Set when a waiting client must check its conditions again, such as after a lost connection."""
        self.stopping = False
        self._rotation = Rotation(world, home, name, pinned=pinned)
        self._drawing = world.random(f"{name}/protocol")
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
            await link.connection.close()

    async def _connect(self) -> Link | None:
        endpoint = self._rotation.next()
        link = Link(f"{self.name}#{next(self._connections)}", endpoint.node, self.changed)
        call = self.process.invoke("connect", **link.where)
        transport = self._drawing.choice(self.world.transports)
        try:
            async with request_of():
                link.connection = await transport.connect(endpoint, link.breaks)
        except LostError as error:
            call.fail(f"{transport.protocol}: {error}")
            return None
        call.ok(detail=transport.protocol)
        return link

    async def until(self, condition: Callable[[], object], seconds: float | None = None) -> None:
        """Wait until the condition holds, for at most `seconds`; it is checked whenever `changed` is set."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not condition():
                    self.changed.clear()
                    await self.changed.wait()

    async def rest(self, link: Link, seconds: float) -> None:
        """Wait, but return early when the client should stop or its connection breaks."""
        await self.until(lambda: self.stopping or link.broken, seconds)

    @abstractmethod
    async def work(self, link: Link) -> None:
        """Work until finished or until the link breaks; may raise LostError."""

    async def publish(
        self, link: Link, channel: Channel, queue: str, message: Outgoing, exchange: str = ""
    ) -> bool:
        """Publish in confirm mode, wait for the outcome, and return whether it is known. Raises LostError."""
        call = self.process.invoke("publish", **link.where, queue=queue, **message.fields())
        async with request_of(call):
            outcome = await channel.publish(message, queue, exchange)
            if outcome == "returned":
                call.fail("returned")
            elif outcome == "nacked":
                call.unknown("basic.nack")
        return outcome != "nacked"

    async def get(self, link: Link, channel: Channel, queue: str) -> tuple[int, Arrived] | None:
        """Get a message: return its delivery tag and its history fields, or None if the queue is empty.

        The delivered message gets a row of its own, like that of a consumer's delivery.
        """
        call = self.process.invoke("get", **link.where, queue=queue)
        async with request_of(call):
            delivery = await channel.get(queue)
            if delivery is None:
                call.ok(detail="empty")
        return None if delivery is None else (delivery.tag, self.delivered(link, queue, delivery))

    def delivered(self, link: Link, queue: str, delivery: Delivery, consumer: str | None = None) -> Arrived:
        """Record a delivered message; a message from a get has no consumer."""
        arrival = arrived(delivery)
        self.process.event("deliver", **link.where, queue=queue, consumer=consumer, **arrival)
        return arrival


@dataclass(frozen=True)
class PublishPlan:
    """The work of a publisher."""

    queue: str
    rate: float
    """Messages per second."""
    window: int
    """Unconfirmed messages at most."""


class Publisher(ConnectingClient):
    """Publishes to a single queue."""

    def __init__(
        self, world: World, name: str, home: int, plan: PublishPlan, *, pinned: bool = False
    ) -> None:
        super().__init__(world, name, home, pinned=pinned)
        self.queue = plan.queue
        self.window = plan.window
        self.pace = Pace(plan.rate)
        self.messages: Iterator[Outgoing] = messages_of(name, self.random)

    async def work(self, link: Link) -> None:
        channel = await link.open_channel("confirms")
        await self.prepare(channel)
        under_way: set[asyncio.Task[None]] = set()
        try:
            async for message in self.outgoing(link):
                task = asyncio.create_task(self._publish(link, channel, message))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                while len(under_way) >= self.window:
                    await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Each publish ends: with its confirm, with the connection, or by its timeout.
            await asyncio.gather(*under_way)

    async def prepare(self, channel: Channel) -> None:
        """Prepare a new channel for publishing. May raise LostError."""

    async def outgoing(self, link: Link) -> AsyncIterator[Outgoing]:
        """Yield the messages to publish on this link, each at its time."""
        while not self.stopping and link.broken is None:
            yield next(self.messages)
            await self.rest(link, self.pace.wait_s())

    async def _publish(self, link: Link, channel: Channel, message: Outgoing) -> None:
        try:
            is_known = await self.publish(link, channel, self.queue, message)
        except LostError as error:
            link.breaks(str(error))
            is_known = False
        if not is_known:
            self.unconfirmed(link, message)

    def unconfirmed(self, link: Link, message: Outgoing) -> None:
        """Handle a message with an unknown outcome."""


@dataclass(frozen=True)
class ConsumePlan:
    """The work of a consumer."""

    queue: str
    known_as: str | None = None
    """Name of the queue in the history, if its messages were moved from a different queue (`QueuePlan.moved_from`)."""
    prefetch: int = PREFETCH
    settling: Callable[[Arrived], Settling] = lambda _: "ack"
    """Decides how a message is settled."""
    delay_s: float = 0.0
    """Seconds until a message is settled."""
    period_s: tuple[float, float] | None = None
    """Least and most seconds until the consumer cancels itself and consumes again; None if it does not."""


class Consumer(ConnectingClient):
    """Consumes a single queue, and settles its messages."""

    def __init__(
        self, world: World, name: str, home: int, plan: ConsumePlan, *, pinned: bool = False
    ) -> None:
        super().__init__(world, name, home, pinned=pinned)
        self.plan = plan
        self._known_as = plan.known_as or plan.queue
        self.delivered_s = asyncio.get_running_loop().time()
        """When the last message came; before the first message, when this consumer was created."""
        self.is_consuming = False
        self._settlements: dict[asyncio.Task[None], None] = {}

    async def work(self, link: Link) -> None:
        channel = await link.open_channel(prefetch=self.plan.prefetch)
        for number in count(1):
            await self._consume(link, channel, f"{link.where['connection']}.{number}")
            if self.stopping or link.broken:
                return

    async def _consume(self, link: Link, channel: Channel, tag: str) -> None:
        """Consume under this tag until the consumer or the link ends."""
        ended: list[str] = []

        def cancelled() -> None:
            ended.append(tag)
            self.process.event("cancelled", **link.where, queue=self._known_as, consumer=tag)
            self.changed.set()

        async with request_of(
            self.process.invoke("consume", **link.where, queue=self._known_as, consumer=tag)
        ):
            receive = partial(self._receive, link, channel, tag)
            await channel.consume(self.plan.queue, tag, receive, cancelled)
        self.is_consuming = True
        seconds = None if self.plan.period_s is None else self.random.uniform(*self.plan.period_s)
        await self.until(lambda: self.stopping or link.broken or ended, seconds)
        self.is_consuming = False
        if not (link.broken or ended):
            async with request_of(
                self.process.invoke("cancel", **link.where, queue=self._known_as, consumer=tag)
            ):
                await channel.cancel(tag)

    def _receive(self, link: Link, channel: Channel, tag: str, delivery: Delivery) -> None:
        self.delivered_s = asyncio.get_running_loop().time()
        arrival = self.delivered(link, self._known_as, delivery, tag)
        task = asyncio.create_task(self._settle(link, channel, tag, delivery.tag, arrival))
        self._settlements[task] = None
        task.add_done_callback(self._settlements.pop)

    async def _settle(
        self, link: Link, channel: Channel, tag: str, delivery_tag: int, arrival: Arrived
    ) -> None:
        if self.plan.delay_s:
            await asyncio.sleep(self.plan.delay_s)
        if link.broken:
            return
        settling = self.plan.settling(arrival)
        call = self.process.invoke(
            settling, **link.where, queue=self._known_as, consumer=tag, id=arrival["id"]
        )
        with suppress(LostError):
            async with request_of(call):
                await channel.settle(delivery_tag, settling)
