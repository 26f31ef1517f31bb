"""How a client speaks to its node: with the time, all that the world of a run has to supply.

Invariant: a request ends with its answer; with RefusedError if it certainly was not carried out; or with LostError, if
nobody knows, and then the client connects anew. One that has to wait too long is cancelled, and nobody knows.
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
"""Short, so that a client notices within seconds that its node is frozen or cut off."""
CONNECT_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 3.0

Mode = Literal["plain", "confirms", "transactions"]
"""The mode of a channel: how it learns what became of a message that it publishes."""
Outcome = Literal["confirmed", "returned", "nacked", "sent"]
"""The outcome of a publish; in modes other than "confirms" it is only sent."""
Settling = Literal["ack", "nack", "reject"]
"""nack: requeued; reject: dead-lettered."""


class LostError(OperatingError):
    """The connection or the channel is gone, or the answer did not come in time."""


class RefusedError(LostError):
    """The node has closed the channel, because it does not do what was asked for."""


class Endpoint(NamedTuple):
    """The address that AMQP clients of a node connect to; in a simulation, the host is the node's name."""

    node: str
    host: str
    port: int


class Channel(Protocol):
    """One channel. Every request raises LostError or RefusedError."""

    @property
    def number(self) -> int: ...

    async def declare(self, queue: str, arguments: Mapping[str, Any]) -> None:
        """Declare a durable queue."""

    async def count(self, queue: str) -> int:
        """How many messages are ready."""
        ...

    async def bind(self, queue: str, exchange: str) -> None:
        """Bind the queue with its name as key."""

    async def delete(self, queue: str) -> None: ...

    async def publish(self, message: Outgoing, key: str, exchange: str = "") -> Outcome: ...

    async def consume(
        self, queue: str, tag: str, receive: Callable[[Delivery], None], cancelled: Callable[[], None]
    ) -> None:
        """Begin to consume. `cancelled` is called if the node ends that by itself."""

    async def cancel(self, tag: str) -> None: ...

    async def get(self, queue: str) -> Delivery | None: ...

    async def settle(self, tag: int, settling: Settling) -> None: ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...


class Connection(Protocol):
    """A connection that was made. When it is gone, or a channel of it is, `lost` has been called."""

    async def open_channel(self, mode: Mode = "plain", prefetch: int = 0) -> Channel:
        """Raises LostError."""
        ...

    async def close(self) -> None:
        """Raises nothing; a node that does not answer is not waited for."""


class Transport(Protocol):
    """Makes connections."""

    async def connect(self, endpoint: Endpoint, lost: Callable[[str], None]) -> Connection:
        """Connect once; `lost` is told why, when the client should connect anew. Raises LostError."""
        ...


class Questions:
    """What was asked on a connection or a channel, for those who carry it out by callbacks."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[Any], None] = {}

    async def ask(self, request: Callable[[Callable[[T], None]], object]) -> T:
        """Begin a request, which is given what to call with the answer, and wait for that; raises what `fail` says."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting[answer] = None
        try:
            request(partial(_resolve, answer))
            return await answer
        finally:
            del self._waiting[answer]

    def answer(self, result: object) -> None:
        """Answer whatever was asked."""
        for waiting in self._waiting:
            _resolve(waiting, result)

    def fail(self, failure: LostError) -> None:
        """Whatever was asked is not answered any more."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(failure)


def _resolve(answer: asyncio.Future[T], result: T) -> None:
    if not answer.done():
        answer.set_result(result)
