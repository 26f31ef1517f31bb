"""Clients that use pika on an asyncio loop: a transport of live runs, and the transport of simulated runs.

Invariant: every error of the library about a lost connection becomes LostError here. It becomes RefusedError if the
broker has refused the pending request.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import pika
import pika.exceptions
from pika import frame, spec
from pika.adapters.asyncio_connection import AsyncioConnection

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
    from collections.abc import Callable, Mapping
    from typing import Any

    from pika.channel import Channel
    from pika.connection import Connection

    from chaos.workloads.messages import Outgoing
    from chaos.workloads.transport import Endpoint, Mode, Outcome, Settling


class PikaTransport:
    """Connects as a single user; `connecting` is the class of pika's connections."""

    protocol = "AMQP 0-9-1"

    def __init__(
        self, user: str, password: str, connecting: Callable[..., Connection] = AsyncioConnection
    ) -> None:
        self._credentials = pika.PlainCredentials(user, password)
        self._connecting = connecting
        # pika logs a failed connection as an error with a traceback; the history has a row for it.
        logging.getLogger("pika").setLevel(logging.CRITICAL)

    async def connect(self, endpoint: Endpoint, lost: Callable[[str], None]) -> PikaConnection:
        parameters = pika.ConnectionParameters(
            endpoint.host,
            endpoint.port,
            credentials=self._credentials,
            heartbeat=HEARTBEAT_S,
            socket_timeout=CONNECT_TIMEOUT_S,
            stack_timeout=CONNECT_TIMEOUT_S,
        )
        connection = PikaConnection(lost)
        await connection.open(partial(self._connecting, parameters))
        return connection


class PikaConnection:
    _connection: Connection

    def __init__(self, lost: Callable[[str], None]) -> None:
        self._requests = PendingRequests()
        self._lost = lost
        self._closed = asyncio.Event()
        self._channels: list[PikaChannel] = []

    async def open(self, connecting: Callable[..., Connection]) -> None:
        """Open the connection. Raises LostError."""
        self._connection = await self._requests.request(
            lambda answered: connecting(
                on_open_callback=answered,
                on_open_error_callback=self._not_opened,
                on_close_callback=self._ended,
            )
        )

    def _not_opened(self, _: object, error: BaseException | str) -> None:
        self._requests.fail(LostError(repr(error)))

    def _ended(self, _: object, error: BaseException) -> None:
        self._closed.set()
        self.lost(repr(error))

    def lost(self, reason: str) -> None:
        """Fail all requests because the connection, or a channel of it, is closed."""
        for channel in self._channels:
            channel.fail(LostError(reason))
        self._lost(reason)

    async def open_channel(self, mode: Mode = "plain", prefetch: int = 0) -> PikaChannel:
        channel = PikaChannel(self, mode)
        self._channels.append(channel)
        await channel.open(self._connection, prefetch)
        return channel

    async def close(self) -> None:
        try:
            self._connection.close()
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._closed.wait()
        except (pika.exceptions.ConnectionWrongStateError, TimeoutError):
            return  # it is closed already, or its node does not answer


class PikaChannel:
    _channel: Channel

    def __init__(self, connection: PikaConnection, mode: Mode) -> None:
        self.number = 0
        self._connection = connection
        self._mode: Mode = mode
        self._requests = PendingRequests()
        self._publishes = PendingRequests()
        self._tags = count(1)
        self._published: dict[int, Callable[[Outcome], None]] = {}
        """Callback for the confirm of each message, by delivery tag."""
        self._returned: dict[str | None, None] = {}
        """Ids of returned messages whose confirm has not come yet."""
        self._cancelled: dict[str, Callable[[], None]] = {}

    async def open(self, connection: Connection, prefetch: int) -> None:
        self._channel = await self._request(lambda answered: connection.channel(on_open_callback=answered))
        self.number = self._channel.channel_number
        self._channel.add_on_close_callback(self._on_closed)
        self._channel.add_on_cancel_callback(self._on_cancelled)
        self._channel.add_on_return_callback(self._on_returned)
        self._channel.add_callback(self._on_empty, [spec.Basic.GetEmpty], one_shot=False)
        if prefetch:
            await self._request(
                lambda answered: self._channel.basic_qos(prefetch_count=prefetch, callback=answered)
            )
        if self._mode == "confirms":
            await self._request(
                lambda answered: self._channel.confirm_delivery(self._on_confirmed, callback=answered)
            )
        if self._mode == "transactions":
            await self._request(lambda answered: self._channel.tx_select(callback=answered))

    async def _request(self, request: Callable[[Callable[[Any], None]], object]) -> Any:
        """Send a request through the library and return its answer. Raises LostError or RefusedError."""
        try:
            return await self._requests.request(request)
        except pika.exceptions.AMQPError as error:
            raise LostError(repr(error)) from error

    def fail(self, failure: LostError) -> None:
        """Fail all pending requests; the outcome of pending publishes is unknown."""
        self._requests.fail(failure)
        self._publishes.fail(LostError(str(failure)))

    # Callbacks of the library

    def _on_closed(self, _: object, reason: BaseException) -> None:
        if isinstance(reason, pika.exceptions.ChannelClosedByBroker):
            self.fail(RefusedError(repr(reason)))
            self._connection.lost(repr(reason))

    def _on_cancelled(self, notice: frame.Method[spec.Basic.Cancel]) -> None:
        self._cancelled[notice.method.consumer_tag]()

    def _on_returned(
        self, _: object, __: spec.Basic.Return, properties: pika.BasicProperties, ___: bytes
    ) -> None:
        self._returned[properties.message_id] = None

    def _on_confirmed(self, notice: frame.Method[spec.Basic.Ack | spec.Basic.Nack]) -> None:
        method = notice.method
        outcome: Outcome = "confirmed" if isinstance(method, spec.Basic.Ack) else "nacked"
        last = method.delivery_tag
        for tag in [tag for tag in self._published if tag == last or (method.multiple and tag < last)]:
            self._published.pop(tag)(outcome)

    def _on_empty(self, _: object) -> None:
        """Answer the only pending request."""
        self._requests.answer(None)

    # Requests of clients

    async def declare(self, queue: str, arguments: Mapping[str, Any]) -> None:
        declared = partial(self._channel.queue_declare, queue, durable=True, arguments=dict(arguments))
        await self._request(lambda answered: declared(callback=answered))

    async def count(self, queue: str) -> int:
        declared = await self._request(
            lambda answered: self._channel.queue_declare(queue, passive=True, callback=answered)
        )
        return declared.method.message_count

    async def bind(self, queue: str, exchange: str, key: str) -> None:
        await self._request(
            lambda answered: self._channel.queue_bind(queue, exchange, key, callback=answered)
        )

    async def delete(self, queue: str) -> None:
        await self._request(lambda answered: self._channel.queue_delete(queue, callback=answered))

    async def publish(self, message: Outgoing, key: str, exchange: str = "") -> Outcome:
        properties = pika.BasicProperties(
            message_id=message.id,
            delivery_mode=2,
            priority=message.priority,
            expiration=None if message.ttl_ms is None else str(message.ttl_ms),
            headers=message.all_headers or None,
        )
        try:
            self._channel.basic_publish(exchange, key, message.body, properties, mandatory=True)
        except pika.exceptions.AMQPError as error:
            raise LostError(repr(error)) from error
        if self._mode != "confirms":
            return "sent"
        tag = next(self._tags)
        outcome = await self._publishes.request(partial(self._published.__setitem__, tag))
        was_returned = message.id in self._returned
        self._returned.pop(message.id, None)
        return "returned" if was_returned else outcome

    async def consume(
        self, queue: str, tag: str, receive: Callable[[Delivery], None], cancelled: Callable[[], None]
    ) -> None:
        def on_message(
            _: object, method: spec.Basic.Deliver, properties: pika.BasicProperties, body: bytes
        ) -> None:
            receive(_delivery(method, properties, body))

        self._cancelled[tag] = cancelled
        await self._request(
            lambda answered: self._channel.basic_consume(
                queue, on_message, consumer_tag=tag, callback=answered
            )
        )

    async def cancel(self, tag: str) -> None:
        await self._request(lambda answered: self._channel.basic_cancel(tag, callback=answered))

    async def get(self, queue: str) -> Delivery | None:
        def request(answered: Callable[[Delivery], None]) -> None:
            def got(
                _: object, method: spec.Basic.GetOk, properties: pika.BasicProperties, body: bytes
            ) -> None:
                answered(_delivery(method, properties, body))

            self._channel.basic_get(queue, got)

        return await self._request(request)

    async def settle(self, tag: int, settling: Settling) -> None:
        try:
            match settling:
                case "ack":
                    self._channel.basic_ack(tag)
                case "nack":
                    self._channel.basic_nack(tag, requeue=True)
                case "reject":
                    self._channel.basic_reject(tag, requeue=False)
        except pika.exceptions.AMQPError as error:
            raise LostError(repr(error)) from error

    async def commit(self) -> None:
        await self._request(lambda answered: self._channel.tx_commit(callback=answered))

    async def rollback(self) -> None:
        await self._request(lambda answered: self._channel.tx_rollback(callback=answered))


def _delivery(
    method: spec.Basic.Deliver | spec.Basic.GetOk, properties: pika.BasicProperties, body: bytes
) -> Delivery:
    return Delivery(
        method.delivery_tag,
        properties.message_id,
        body,
        properties.headers or {},
        method.redelivered,
        properties.priority,
    )
