"""The port between a client and its node; besides the time, a run's world must supply only this.

Invariant: a request ends with its answer; with RefusedError if it was certainly not carried out; or with LostError if
the outcome is unknown, and then the client reconnects. A request that waits too long is cancelled, and its outcome is
unknown.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

from qq.errors import OperatingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chaos.workloads.messages import Delivery, Outgoing

T = TypeVar("T")

HEARTBEAT_S = 3
"""Seconds between heartbeats; short, so that a client soon notices that its node is frozen or cut off."""
CONNECT_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 3.0

Mode = Literal["plain", "confirms", "transactions"]
"""The mode of a channel: how it learns the outcome of its publishes."""
Outcome = Literal["confirmed", "returned", "nacked", "sent"]
"""The outcome of a publish; always "sent" in modes other than "confirms"."""
Settling = Literal["ack", "nack", "reject"]
"""nack: requeued; reject: dead-lettered."""


class LostError(OperatingError):
    """The connection or the channel is closed, or the answer did not come in time."""


class RefusedError(LostError):
    """The node has closed the channel because it refuses the request."""


class Endpoint(NamedTuple):
    """The address of a node for AMQP clients; in a simulation, the host is the node's name."""

    node: str
    host: str
    port: int


class Channel(Protocol):
    """A channel. Every request raises LostError or RefusedError."""

    @property
    def number(self) -> int: ...

    async def declare(self, queue: str, arguments: Mapping[str, Any]) -> None:
        """Declare a durable queue."""

    async def count(self, queue: str) -> int:
        """Return the number of ready messages."""
        ...

    async def bind(self, queue: str, exchange: str, key: str) -> None: ...

    async def delete(self, queue: str) -> None: ...

    async def publish(self, message: Outgoing, key: str, exchange: str = "") -> Outcome: ...

    async def consume(
        self, queue: str, tag: str, receive: Callable[[Delivery], None], cancelled: Callable[[], None]
    ) -> None:
        """Begin to consume. `cancelled` is called if the node ends the consumer."""

    async def cancel(self, tag: str) -> None: ...

    async def get(self, queue: str) -> Delivery | None: ...

    async def settle(self, tag: int, settling: Settling) -> None: ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...


class Connection(Protocol):
    """An open connection. `lost` is called when the connection or a channel of it is closed."""

    async def open_channel(self, mode: Mode = "plain", prefetch: int = 0) -> Channel:
        """Open a channel. Raises LostError."""
        ...

    async def close(self) -> None:
        """Close the connection without an error, even if the node does not answer."""


class Transport(Protocol):
    """Opens connections."""

    protocol: str
    """Name and version, as the history shows them."""

    async def connect(self, endpoint: Endpoint, lost: Callable[[str], None]) -> Connection:
        """Connect once; `lost` is called with the reason when the client should reconnect. Raises LostError."""
        ...


class PendingRequests:
    """The pending requests of a connection or channel whose library answers by callbacks."""

    def __init__(self) -> None:
        self._pending: dict[asyncio.Future[Any], None] = {}

    async def request(self, send: Callable[[Callable[[T], None]], object]) -> T:
        """Begin a request with a callback for its answer, and return that answer. Raises the error given to `fail`."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._pending[answer] = None
        try:
            send(partial(_resolve, answer))
            return await answer
        finally:
            del self._pending[answer]

    def answer(self, result: object) -> None:
        """Answer all pending requests."""
        for pending in self._pending:
            _resolve(pending, result)

    def fail(self, failure: LostError) -> None:
        """End all pending requests with this error."""
        for pending in self._pending:
            if not pending.done():
                pending.set_exception(failure)


def _resolve(answer: asyncio.Future[T], result: T) -> None:
    if not answer.done():
        answer.set_result(result)
