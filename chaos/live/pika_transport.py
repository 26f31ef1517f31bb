"""Clients that use pika, whose connections block: each has a thread of its own. The transport of a live run.

Law: only the thread of a connection touches it; the loop of the clients hears of it by callbacks of its own.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import pika
import pika.exceptions
from pika import frame, spec
from pika.adapters.utils.connection_workflow import AMQPConnectorException

from chaos.live.aio_transport import CLOSE_TIMEOUT_S, CONNECT_TIMEOUT_S, HEARTBEAT_S
from chaos.workloads.messages import Delivery
from chaos.workloads.transport import LostError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from pika.adapters.blocking_connection import BlockingChannel

    from chaos.workloads.messages import Outgoing
    from chaos.workloads.transport import Endpoint, Mode, Outcome, Settling

T = TypeVar("T")

_LOST = (pika.exceptions.AMQPError, AMQPConnectorException, OSError)
"""What pika raises when a connection or a channel is gone, or a connection cannot be made."""
_NOT_CONNECTED = (*_LOST, ValueError)
"""The last one comes of a socket that is reset as soon as it is connected."""


class PikaTransport:
    """Connects as one user."""

    def __init__(self, user: str, password: str) -> None:
        self._credentials = pika.PlainCredentials(user, password)

    async def connect(self, endpoint: Endpoint, lost: Callable[[str], None]) -> PikaConnection:
        parameters = pika.ConnectionParameters(
            endpoint.host,
            endpoint.port,
            credentials=self._credentials,
            heartbeat=HEARTBEAT_S,
            socket_timeout=CONNECT_TIMEOUT_S,
            stack_timeout=CONNECT_TIMEOUT_S,
        )
        connection = PikaConnection(parameters, lost)
        await connection.opened
        return connection


class PikaConnection:
    _connection: pika.BlockingConnection

    def __init__(self, parameters: pika.ConnectionParameters, lost: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = self._loop.create_future()
        """Done when there is a connection; raises LostError if there will be none."""
        self._lost = lost
        self._asked: dict[asyncio.Future[Any], None] = {}
        self._ended = asyncio.Event()
        # A daemon: an answer that never comes must not keep the harness from ending.
        threading.Thread(target=self._live, args=(parameters,), name="pika", daemon=True).start()

    # In the thread

    def _live(self, parameters: pika.ConnectionParameters) -> None:
        try:
            self._connection = pika.BlockingConnection(parameters)
        except _NOT_CONNECTED as error:
            self.tell(self._resolve, self.opened, None, LostError(repr(error)))
            return
        self.tell(self._resolve, self.opened, None, None)
        why = "closed"
        try:
            while self._connection.is_open:
                self._connection.process_data_events(None)
        except _LOST as error:
            why = repr(error)
        self.tell(self._over, why)

    def tell(self, callback: Callable[..., None], *arguments: object) -> None:
        """Have something called where the clients live."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(callback, *arguments)

    # Where the clients live

    async def ask(self, request: Callable[[], T]) -> T:
        """Have the thread do something, and wait for it. Raises LostError or RefusedError."""
        answer: asyncio.Future[T] = self._loop.create_future()

        def carry_out() -> None:
            result, failure = None, None
            try:
                result = request()
            except pika.exceptions.ChannelClosedByBroker as error:
                failure = RefusedError(repr(error))
            except _LOST as error:
                failure = LostError(repr(error))
            except Exception as unexpected:  # noqa: BLE001 -- it is raised where this is awaited
                failure = unexpected
            self.tell(self._resolve, answer, result, failure)

        if self._ended.is_set():
            raise LostError("the connection is gone")
        self._asked[answer] = None
        try:
            self._connection.add_callback_threadsafe(carry_out)
            return await answer
        except pika.exceptions.ConnectionWrongStateError as error:
            raise LostError(repr(error)) from error
        finally:
            del self._asked[answer]

    @staticmethod
    def _resolve(answer: asyncio.Future[T], result: T, failure: BaseException | None) -> None:
        if answer.done():
            return
        if failure is None:
            answer.set_result(result)
        else:
            answer.set_exception(failure)

    def _over(self, why: str) -> None:
        self._ended.set()
        for answer in self._asked:
            self._resolve(answer, None, LostError(why))
        self._lost(why)

    async def open_channel(self, mode: Mode = "plain", prefetch: int = 0) -> PikaChannel:
        def open_it() -> BlockingChannel:
            channel = self._connection.channel()
            if prefetch:
                channel.basic_qos(prefetch_count=prefetch)
            match mode:
                case "confirms":
                    channel.confirm_delivery()
                case "transactions":
                    channel.tx_select()
                case "plain":
                    pass
            return channel

        return PikaChannel(self, await self.ask(open_it), mode)

    async def close(self) -> None:
        with suppress(LostError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.ask(self._connection.close)


class PikaChannel:
    def __init__(self, connection: PikaConnection, channel: BlockingChannel, mode: Mode) -> None:
        self.number = channel.channel_number
        self._connection = connection
        self._channel = channel
        self._mode: Mode = mode
        self._cancelled: dict[str, Callable[[], None]] = {}
        channel.add_on_cancel_callback(self._on_cancelled)

    def _on_cancelled(self, notice: frame.Method[spec.Basic.Cancel]) -> None:
        self._connection.tell(self._cancelled[notice.method.consumer_tag])

    async def declare(self, queue: str, arguments: Mapping[str, Any]) -> None:
        await self._connection.ask(
            lambda: self._channel.queue_declare(queue, durable=True, arguments=dict(arguments))
        )

    async def count(self, queue: str) -> int:
        declared = await self._connection.ask(lambda: self._channel.queue_declare(queue, passive=True))
        return declared.method.message_count

    async def bind(self, queue: str, exchange: str) -> None:
        await self._connection.ask(lambda: self._channel.queue_bind(queue, exchange, queue))

    async def delete(self, queue: str) -> None:
        await self._connection.ask(lambda: self._channel.queue_delete(queue))

    async def publish(self, message: Outgoing, key: str, exchange: str = "") -> Outcome:
        properties = pika.BasicProperties(
            message_id=message.id,
            delivery_mode=2,
            priority=message.priority,
            headers=message.headers or None,
        )

        def publish() -> Outcome:
            try:
                self._channel.basic_publish(exchange, key, message.body, properties, mandatory=True)
            except pika.exceptions.UnroutableError:
                return "returned"
            except pika.exceptions.NackError:
                return "nacked"
            return "confirmed" if self._mode == "confirms" else "sent"

        return await self._connection.ask(publish)

    async def consume(
        self, queue: str, tag: str, receive: Callable[[Delivery], None], cancelled: Callable[[], None]
    ) -> None:
        def on_message(
            _: BlockingChannel, method: spec.Basic.Deliver, properties: pika.BasicProperties, body: bytes
        ) -> None:
            self._connection.tell(receive, _delivery(method, properties, body))

        self._cancelled[tag] = cancelled
        await self._connection.ask(lambda: self._channel.basic_consume(queue, on_message, consumer_tag=tag))

    async def cancel(self, tag: str) -> None:
        await self._connection.ask(lambda: self._channel.basic_cancel(tag))

    async def get(self, queue: str) -> Delivery | None:
        method, properties, body = await self._connection.ask(lambda: self._channel.basic_get(queue))
        if method is None or properties is None or body is None:
            return None
        return _delivery(method, properties, body)

    async def settle(self, tag: int, settling: Settling) -> None:
        match settling:
            case "ack":
                await self._connection.ask(lambda: self._channel.basic_ack(tag))
            case "nack":
                await self._connection.ask(lambda: self._channel.basic_nack(tag, requeue=True))
            case "reject":
                await self._connection.ask(lambda: self._channel.basic_reject(tag, requeue=False))

    async def commit(self) -> None:
        await self._connection.ask(self._channel.tx_commit)

    async def rollback(self) -> None:
        await self._connection.ask(self._channel.tx_rollback)


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
