"""Clients of AMQP 1.0 by Qpid Proton: a transport of live runs, beside those of AMQP 0-9-1.

A channel is a session with a link for each queue that it publishes to or consumes from. Requests such as declarations
go to the management node.

Invariant: a cancelled consumer gets the messages of its credit, and its link is detached when they all are settled. So
a history is alike for both protocols.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from proton import Delivery as LinkDelivery
from proton import Message, symbol

from chaos.workloads.amqp10_engine import Engine
from chaos.workloads.amqp10_links import ManagementLinks, OwnedLink, ReceivingLink, SendingLink
from chaos.workloads.messages import Delivery
from chaos.workloads.transport import (
    CLOSE_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    HEARTBEAT_S,
    LostError,
    PendingRequests,
    RefusedError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from proton import Link

    from chaos.workloads.amqp10_engine import LinkEvents
    from chaos.workloads.messages import Outgoing
    from chaos.workloads.transport import Endpoint, Mode, Outcome, Settling

TICK_S = HEARTBEAT_S / 4
CHANNEL = 1
"""The number of a connection's only session in the history."""
NO_TRANSACTIONS = "clients of AMQP 1.0 have no transactions"


class ClientSide(Protocol):
    """The client's side of a stream."""

    def received(self, data: bytes) -> None: ...

    def lost(self) -> None: ...


class Stream(Protocol):
    """A connected stream of octets; the client is called with octets of the node and at the end."""

    def send(self, octets: bytes) -> None: ...

    def drop(self) -> None: ...


class TcpStream(asyncio.Protocol):
    """A TCP connection."""

    _transport: asyncio.Transport

    def __init__(self, client: ClientSide) -> None:
        self._client = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._client.received(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._client.lost()

    def send(self, octets: bytes) -> None:
        self._transport.write(octets)

    def drop(self) -> None:
        self._transport.abort()


async def dial(endpoint: Endpoint, client: ClientSide) -> TcpStream:
    """Connect to a node. Raises LostError."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, stream = await loop.create_connection(partial(TcpStream, client), endpoint.host, endpoint.port)
    except (OSError, TimeoutError) as error:
        raise LostError(repr(error)) from error
    return stream


class Amqp10Transport:
    """Connects as a single user; `dial` connects a stream to a node."""

    protocol = "AMQP 1.0"

    def __init__(
        self,
        user: str,
        password: str,
        dial: Callable[[Endpoint, ClientSide], Awaitable[Stream]] = dial,
    ) -> None:
        self._user = user
        self._password = password
        self._dial = dial
        self._numbers = count(1)

    async def connect(self, endpoint: Endpoint, lost: Callable[[str], None]) -> Amqp10Connection:
        container = f"chaos-{next(self._numbers)}"
        engine = Engine(container, self._user, self._password, 2.0 * HEARTBEAT_S)
        connection = Amqp10Connection(engine, lost)
        await connection.open(partial(self._dial, endpoint))
        return connection


class Amqp10Connection:
    """A connection with a single session."""

    _stream: Stream

    def __init__(self, engine: Engine, lost: Callable[[str], None]) -> None:
        self._engine = engine
        self._lost = lost
        self._requests = PendingRequests()
        self._opened = False
        self._is_over = False
        """Whether the end of the connection was reported."""
        self._closed = asyncio.Event()
        self._channels: list[Amqp10Channel] = []

    async def open(self, dial: Callable[[ClientSide], Awaitable[Stream]]) -> None:
        """Open the connection. Raises LostError, and RefusedError if the node closes it at once.

        During an upgrade, a node may wait some seconds before it does either.
        """
        self._stream = await dial(self)
        try:
            await self._requests.request(lambda _: self._tick())
        finally:
            if not self._opened:
                self._is_over = True
                self._stream.drop()

    # Called by the stream

    def received(self, data: bytes) -> None:
        if not self._is_over:
            self._engine.receive(data)
            self.flush()

    def lost(self) -> None:
        self._closed.set()
        self.fail(LostError("the connection has ended"))

    def flush(self) -> None:
        """Write the engine's octets, and report news of the connection itself."""
        if self._is_over:
            return
        if octets := self._engine.output():
            self._stream.send(octets)
        if self._engine.is_closed:
            self._closed.set()
        if self._engine.failure is not None:
            self.fail((LostError if self._opened else RefusedError)(self._engine.failure))
        elif self._engine.is_open and not self._opened:
            self._opened = True
            self._requests.answer(None)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._is_over:
            self._engine.tick(loop.time())
            self.flush()
            loop.call_later(TICK_S, self._tick)

    def fail(self, failure: LostError) -> None:
        """End the connection: fail all requests, and report the reason once."""
        if self._is_over:
            return
        self._is_over = True
        self._engine.connection.close()
        self._stream.send(self._engine.output())
        self._stream.drop()
        self._requests.fail(failure)
        for channel in self._channels:
            channel.fail(failure)
        if self._opened:
            self._lost(str(failure))

    # Requests of clients

    async def open_channel(self, mode: Mode = "plain", prefetch: int = 0) -> Amqp10Channel:
        """Return the channel of the connection's session. Raises RefusedError for transactions."""
        if mode == "transactions":
            raise RefusedError(NO_TRANSACTIONS)
        channel = Amqp10Channel(self, self._engine, prefetch)
        self._channels.append(channel)
        return channel

    async def close(self) -> None:
        self._engine.connection.close()
        self.flush()
        with suppress(TimeoutError):  # its node may not answer
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._closed.wait()
        self.fail(LostError("closed"))


class Amqp10Channel:
    """The session of a connection, with its links."""

    number = CHANNEL

    def __init__(self, connection: Amqp10Connection, engine: Engine, prefetch: int) -> None:
        self._connection = connection
        self._engine = engine
        self._prefetch = prefetch
        self._names = count(1)
        self._tags = count(1)
        self._links: list[OwnedLink | ManagementLinks] = []
        self._publishing: dict[str | None, SendingLink] = {}
        """Links by address; `None` for messages that have an address each."""
        self._consuming: dict[str, ReceivingLink] = {}
        """Links by consumer tag."""
        self._getting: dict[str, tuple[ReceivingLink, list[Delivery]]] = {}
        """Links whose messages are gotten singly, by queue, with the messages that came."""
        self._held: dict[int, tuple[ReceivingLink, LinkDelivery]] = {}
        """Deliveries that are not settled, by tag."""
        self._management: ManagementLinks | None = None
        self._failure: LostError | None = None

    def fail(self, failure: LostError) -> None:
        """Fail all requests; the outcome of pending publishes is unknown."""
        self._failure = failure
        for link in self._links:
            link.fail(failure)

    def _own(self, link: OwnedLink | ManagementLinks) -> None:
        self._links.append(link)
        if self._failure is not None:
            link.fail(self._failure)

    # For links

    def attach(self, link: Link, owner: LinkEvents) -> None:
        self._engine.attach(link, owner)

    def flush(self) -> None:
        self._connection.flush()

    def end(self, reason: str) -> None:
        self._connection.fail(LostError(reason))

    # Requests of clients

    async def declare(self, queue: str, arguments: Mapping[str, Any]) -> None:
        body = {"durable": True, "arguments": dict(arguments)}
        await self._request("PUT", _queue_address(queue), body)

    async def count(self, queue: str) -> int:
        return (await self._request("GET", _queue_address(queue)))["message_count"]

    async def bind(self, queue: str, exchange: str, key: str) -> None:
        binding = {"source": exchange, "destination_queue": queue, "binding_key": key, "arguments": {}}
        await self._request("POST", "/bindings", binding)

    async def delete(self, queue: str) -> None:
        await self._request("DELETE", _queue_address(queue))

    async def _request(self, method: str, path: str, body: Any = None) -> Any:
        if self._management is None:
            session, name = self._engine.session, self._name()
            self._management = ManagementLinks(self, session.sender(name), session.receiver(name))
            self._own(self._management)
            await self._management.open()
        return await self._management.request(method, path, body)

    async def publish(self, message: Outgoing, key: str, exchange: str = "") -> Outcome:
        """Publish over a link to the queue; to an exchange over a link without an address."""
        address = None if exchange else _queue_address(key)
        link = self._publishing.get(address)
        if link is None:
            sender, forget = self._engine.session.sender(self._name()), partial(self._publishing.pop, address)
            link = SendingLink(self, sender, address, forget)
            self._publishing[address] = link
            self._own(link)
        encoded = _encoded(message)
        if exchange:
            encoded.address = f"/exchanges/{quote(exchange, safe='')}/{quote(key, safe='')}"
        return await link.publish(encoded)

    async def consume(
        self, queue: str, tag: str, receive: Callable[[Delivery], None], cancelled: Callable[[], None]
    ) -> None:
        link = self._receiving_link(tag, receive, cancelled)
        self._consuming[tag] = link
        await link.open(_queue_address(queue), self._prefetch)

    async def cancel(self, tag: str) -> None:
        link = self._consuming.pop(tag)
        await link.cancel()
        self._links.remove(link)

    async def get(self, queue: str) -> Delivery | None:
        if queue not in self._getting:
            messages: list[Delivery] = []
            forget = partial(self._getting.pop, queue)
            link = self._receiving_link(self._name(), messages.append, forget)
            self._getting[queue] = link, messages
            await link.open(_queue_address(queue))
        link, messages = self._getting[queue]
        await link.get()
        return messages.pop() if messages else None

    def _receiving_link(
        self, name: str, receive: Callable[[Delivery], None], deleted: Callable[[], object]
    ) -> ReceivingLink:
        def hold(delivery: LinkDelivery, message: Message) -> None:
            tag = next(self._tags)
            self._held[tag] = link, delivery
            receive(_decoded(message, tag))

        link = ReceivingLink(self, self._engine.session.receiver(name), hold, deleted)
        self._own(link)
        return link

    async def settle(self, tag: int, settling: Settling) -> None:
        """Settle a message. Every other time, wait until the node has settled it, too."""
        link, delivery = self._held.pop(tag)
        await link.settle(delivery, settling, is_confirmed=tag % 2 == 0)

    async def commit(self) -> None:
        raise RefusedError(NO_TRANSACTIONS)

    async def rollback(self) -> None:
        raise RefusedError(NO_TRANSACTIONS)

    def _name(self) -> str:
        return f"link-{next(self._names)}"


def _queue_address(queue: str) -> str:
    return f"/queues/{quote(queue, safe='')}"


def _encoded(message: Outgoing) -> Message:
    encoded = Message(message.body, inferred=True, id=message.id, durable=True)
    if message.priority is not None:
        encoded.priority = message.priority
    if message.ttl_ms is not None:
        encoded.ttl = message.ttl_ms / 1000
    if message.all_headers:
        encoded.annotations = {symbol(name): value for name, value in message.all_headers.items()}
    return encoded


def _decoded(message: Message, tag: int) -> Delivery:
    annotations = message.annotations or {}
    failures = annotations.get(symbol("x-delivery-count"), 0)
    deaths = annotations.get(symbol("x-opt-deaths"), ())
    # A dead letter is not new to its queue's consumers in AMQP 1.0, although none of them has had it.
    is_redelivered = not message.first_acquirer and bool(failures or not deaths)
    headers = {"x-delivery-count": failures, "x-death": deaths}
    message_id = None if message.id is None else str(message.id)
    body: Any = message.body
    return Delivery(tag, message_id, bytes(body), headers, is_redelivered, message.priority)
