"""Readers of leases over HTTP: the client of `qq_spark`, whose requests run on threads.

Invariant: a request that changes a lease is sent once. A read goes on at the next node when its node fails.
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from chaos.workloads.lease_requests import GroupState, LeasedMessage
from chaos.workloads.messages import Delivery
from chaos.workloads.transport import LostError, RefusedError
from qq_spark import Access, LeaseClient, Parts, QueueSourceError, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeVar

    from qq_spark import Group

    T = TypeVar("T")

ONCE_S = -1.0
READ_S = 5.0
"""Seconds for which a failed read goes on."""
THREADS = 8
"""Requests of a reader at a time, at most: it waits for the first, but a frozen node may still have earlier ones."""
COLUMNS = ("position", "body", "redelivered", "deliveries", "properties", "headers")
BYTES_MAX = 2**20
"""Bytes of a lease."""


class HttpLeases:
    """The requests of a reader, at any node."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._threads = ThreadPoolExecutor(THREADS)
        self._once = LeaseClient(access._replace(retry_s=ONCE_S))
        self._patient = LeaseClient(access._replace(retry_s=READ_S))

    async def group(self, queue: str, group: str) -> GroupState | None:
        found = await self._run(partial(self._once.group, queue, group))
        return None if found is None else _state(found)

    async def open(self, queue: str, group: str, fence: int, owner: str) -> GroupState:
        return _state(await self._run(partial(self._once.open_group, queue, group, fence, owner)))

    async def close(self, queue: str, group: str, fence: int) -> None:
        await self._run(partial(self._once.end_group, queue, group, fence, release=True))

    async def take(self, queue: str, group: str, fence: int, lease: int, messages: int) -> int:
        found = await self._run(partial(self._once.take, queue, group, fence, lease, messages, BYTES_MAX))
        return 0 if found is None else found.messages

    async def read(self, queue: str, group: str, lease: int, parts: int) -> list[LeasedMessage]:
        def rows() -> list[dict[str, Any]]:
            return [
                row
                for part in range(parts)
                for batch in self._patient.read(queue, group, lease, Parts(part, parts), COLUMNS)
                for row in batch.to_pylist()
            ]

        return [_message(row) for row in await self._run(rows)]

    async def commit(self, queue: str, group: str, fence: int, up_to: int) -> None:
        await self._run(partial(self._once.commit, queue, group, fence, up_to))

    async def release(self, queue: str, group: str, fence: int, lease: int) -> None:
        await self._run(partial(self._once.release, queue, group, fence, lease))

    async def disconnect(self) -> None:
        _close((self._once, self._patient))
        self._threads.shutdown(wait=False)

    async def _run(self, request: Callable[[], T]) -> T:
        """Run a request on a thread. When its caller is cancelled, it ends on connections of its own."""
        running = self._threads.submit(request)
        try:
            return await asyncio.wrap_future(running)
        except Refusal as refusal:
            raise RefusedError(str(refusal)) from refusal
        except QueueSourceError as error:
            raise LostError(str(error)) from error
        except asyncio.CancelledError:
            abandoned = self._once, self._patient
            running.add_done_callback(lambda _: _close(abandoned))
            first, *others = self._access.urls
            self._access = self._access._replace(urls=(*others, first))
            self._once = LeaseClient(self._access._replace(retry_s=ONCE_S))
            self._patient = LeaseClient(self._access._replace(retry_s=READ_S))
            raise


def _close(clients: Iterable[LeaseClient]) -> None:
    for client in clients:
        client.close()


def _state(group: Group) -> GroupState:
    return GroupState(group.fence, group.last_lease, [lease.number for lease in group.leases])


def _message(row: dict[str, Any]) -> LeasedMessage:
    properties = json.loads(row["properties"] or "{}")
    headers = json.loads(row["headers"] or "{}")
    delivery = Delivery(
        0,
        properties.get("message_id"),
        row["body"],
        headers,
        row["redelivered"],
        properties.get("priority"),
    )
    return LeasedMessage(row["position"], delivery, row["deliveries"])
