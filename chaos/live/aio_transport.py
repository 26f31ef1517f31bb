"""Clients that use aio-pika: the transport of a live run.

Invariant: every error of the library about a lost connection or channel becomes LostError here.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import aio_pika
import aiormq
import aiormq.exceptions
from aio_pika.connection import make_url
from aio_pika.exceptions import DeliveryError

from chaos.workloads.messages import Delivery
from chaos.workloads.transport import CLOSE_TIMEOUT_S, CONNECT_TIMEOUT_S, HEARTBEAT_S, LostError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from typing import Any

    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage
    from aiormq.abc import AbstractChannel as UnderlayChannel

    from chaos.workloads.messages import Outgoing
    from chaos.workloads.transport import Endpoint, Mode, Outcome, Settling

_LOST = (aiormq.exceptions.AMQPError, aiormq.exceptions.ChannelInvalidStateError, OSError, TimeoutError)


@contextmanager
def _as_lost() -> Generator[None]:
    """Turn the libraries' errors about lost connections and channels into LostError."""
    try:
        yield
    except _LOST as error:
        raise LostError(repr(error)) from error
    except asyncio.CancelledError:
        # aiormq also cancels the tasks that wait for an answer on a connection that it closes.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise LostError("the client library gave up waiting") from None
    except Exception as error:
        if type(error) is not Exception:
            raise
        raise LostError("the client library closed the channel") from error  # aiormq's only sign of that


class AioTransport:
    """Connects as a single user."""

    protocol = "AMQP 0-9-1"

    def __init__(self, user: str, password: str) -> None:
        self._user = user
        self._password = password

    async def connect(self, endpoint: Endpoint, lost: Callable[[str], None]) -> AioConnection:
        url = make_url(
            host=endpoint.host,
            port=endpoint.port,
            login=self._user,
            password=self._password,
            heartbeat=HEARTBEAT_S,
        )
        connection = aio_pika.Connection(url)
        try:
            with _as_lost():
                await connection.connect(timeout=CONNECT_TIMEOUT_S)
        except LostError:
            # Otherwise the garbage collector closes it, in an arbitrary thread.
            await connection.close()
            raise
        return AioConnection(connection, lost)


class AioConnection:
    def __init__(self, connection: AbstractConnection, lost: Callable[[str], None]) -> None:
        self._connection = connection
        self._lost = lost
        connection.close_callbacks.add(self._closed)

    def _closed(self, _: object, error: BaseException | None) -> None:
        self._lost(repr(error))

    async def open_channel(self, mode: Mode = "plain", prefetch: int = 0) -> AioChannel:
        confirms = mode == "confirms"
        with _as_lost():
            channel = await self._connection.channel(publisher_confirms=confirms, on_return_raises=confirms)
            underlay = await channel.get_underlay_channel()
            if prefetch:
                await channel.set_qos(prefetch_count=prefetch)
            if mode == "transactions":
                await underlay.tx_select()
        channel.close_callbacks.add(self._closed)
        return AioChannel(channel, underlay, mode)

    async def introduction(self) -> Mapping[str, Any]:
        """Return the server properties of the broker. Raises LostError."""
        with _as_lost():
            channel = await self._connection.channel()
            return (await channel.get_underlay_channel()).connection.server_properties

    async def close(self) -> None:
        """Close the connection. If its node is frozen, stop waiting; the library gives up later by itself."""
        await asyncio.wait({asyncio.ensure_future(self._close())}, timeout=CLOSE_TIMEOUT_S)

    async def _close(self) -> None:
        with suppress(LostError), _as_lost():
            await self._connection.close()


class AioChannel:
    def __init__(self, channel: AbstractChannel, underlay: UnderlayChannel, mode: Mode) -> None:
        self.number = underlay.number
        self._channel = channel
        self._underlay = underlay
        self._mode: Mode = mode

    async def declare(self, queue: str, arguments: Mapping[str, Any]) -> None:
        with _as_lost():
            await self._channel.declare_queue(queue, durable=True, arguments=dict(arguments))

    async def count(self, queue: str) -> int:
        with _as_lost():
            declared = await self._channel.declare_queue(queue, passive=True)
        return declared.declaration_result.message_count or 0

    async def bind(self, queue: str, exchange: str, key: str) -> None:
        with _as_lost():
            await self._underlay.queue_bind(queue, exchange, key)

    async def delete(self, queue: str) -> None:
        with _as_lost():
            await self._channel.queue_delete(queue)

    async def publish(self, message: Outgoing, key: str, exchange: str = "") -> Outcome:
        packed = aio_pika.Message(
            message.body,
            headers=message.all_headers,
            priority=message.priority,
            expiration=None if message.ttl_ms is None else timedelta(milliseconds=message.ttl_ms),
            message_id=message.id,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        with _as_lost():
            target = await self._channel.get_exchange(exchange, ensure=False)
            try:
                await target.publish(packed, key, mandatory=True)
            except aiormq.exceptions.PublishError:
                return "returned"
            except DeliveryError:
                return "nacked"
        return "confirmed" if self._mode == "confirms" else "sent"

    async def consume(
        self, queue: str, tag: str, receive: Callable[[Delivery], None], cancelled: Callable[[], None]
    ) -> None:
        async def on_message(message: AbstractIncomingMessage) -> None:
            receive(_delivery(message))

        def on_cancelled(frame: aiormq.spec.Basic.Cancel) -> None:
            if frame.consumer_tag == tag:
                cancelled()

        with _as_lost():
            self._underlay.on_consumer_cancel_callbacks.add(on_cancelled)
            consumed = await self._channel.get_queue(queue, ensure=False)
            await consumed.consume(on_message, consumer_tag=tag)

    async def cancel(self, tag: str) -> None:
        with _as_lost():
            await self._underlay.basic_cancel(tag)

    async def get(self, queue: str) -> Delivery | None:
        with _as_lost():
            asked = await self._channel.get_queue(queue, ensure=False)
            message = await asked.get(fail=False)
        return None if message is None else _delivery(message)

    async def settle(self, tag: int, settling: Settling) -> None:
        with _as_lost():
            match settling:
                case "ack":
                    await self._underlay.basic_ack(tag)
                case "nack":
                    await self._underlay.basic_nack(tag, requeue=True)
                case "reject":
                    await self._underlay.basic_reject(tag, requeue=False)

    async def commit(self) -> None:
        with _as_lost():
            await self._underlay.tx_commit()

    async def rollback(self) -> None:
        with _as_lost():
            await self._underlay.tx_rollback()


def _delivery(message: AbstractIncomingMessage) -> Delivery:
    return Delivery(
        message.delivery_tag or 0,
        message.message_id,
        message.body,
        message.headers,
        bool(message.redelivered),
        message.priority,
    )
