"""Readers of leases in a recorded run: their requests run in a node's process, below the node's HTTP interface.

Invariant: a request and its answer take time, and get lost with the node's process. A paused node answers later.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from chaos.sim.world.client_socket import DELAY_MAX_S, NOTICED_AFTER_S
from chaos.sim.world.loop import ProcessLoop
from chaos.workloads.lease_requests import GroupState, LeasedMessage
from chaos.workloads.messages import Delivery
from chaos.workloads.transport import LostError, RefusedError
from qq.machine.protocol import commands as c
from qq.management.changes.leases import LeasePath, Leases
from qq.management.changes.request_session import until_applied
from qq.management.errors import RequestRefused, Unavailable
from qq.sessions.entries import MessagesGone
from qq.stored.editing import content

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeVar

    from chaos.sim.world.brokers import Brokers
    from chaos.sim.world.cluster import SimulatedNode
    from chaos.sim.world.world import SimulatedWorld
    from qq.management.changes.leases import LeasedMessages
    from qq.management.reports.leases import GroupStatus
    from qq.sessions.broker import Broker

    T = TypeVar("T")

USER = "guest"
BYTES_MAX = 2**20
"""Bytes of a lease."""


class SimulatedLeases:
    """The requests of a reader, which stays at a node until a request is lost."""

    def __init__(self, world: SimulatedWorld, brokers: Brokers) -> None:
        self._world = world
        self._brokers = brokers
        self._node: SimulatedNode | None = None
        self._generations: dict[str, int] = {}
        """Group -> generation of the group that this reader has opened."""

    async def group(self, queue: str, group: str) -> GroupState | None:
        async def find(broker: Broker, leases: Leases) -> GroupState | None:
            place = c.DEFAULT_VHOST, queue, group
            found = leases.group(*place)
            if found is None:
                await until_applied(broker, [], lambda: None)
                found = leases.group(*place)
            return None if found is None else _state(found)

        return await self._request(find)

    async def open(self, queue: str, group: str, fence: int, owner: str) -> GroupState:
        command = c.OpenGroup(c.DEFAULT_VHOST, queue, group, fence, owner, USER, "ready", False, 0)
        opened = await self._request(lambda _, leases: leases.open(command))
        self._generations[group] = opened.generation
        return _state(opened)

    async def close(self, queue: str, group: str, fence: int) -> None:
        command = c.CloseGroup(c.DEFAULT_VHOST, queue, group, fence, True, self._generations[group])
        await self._request(lambda _, leases: leases.end(command))

    async def take(self, queue: str, group: str, fence: int, lease: int, messages: int) -> int:
        bounds = messages, BYTES_MAX
        command = c.LeaseMessages(
            c.DEFAULT_VHOST, queue, group, fence, lease, *bounds, self._generations[group]
        )
        found = await self._request(lambda _, leases: leases.lease(command))
        return 0 if found is None else found.messages

    async def read(self, queue: str, group: str, lease: int, parts: int) -> list[LeasedMessage]:
        """Read a lease at any node, which may be behind."""
        path = LeasePath(c.DEFAULT_VHOST, queue, group, lease, self._generations[group])

        async def read(_: Broker, leases: Leases) -> list[LeasedMessage]:
            return [
                message
                for part in range(parts)
                async for some in leases.read(await leases.part(path, part, parts))
                for message in _messages(some)
            ]

        self._node = None
        return await self._request(read)

    async def commit(self, queue: str, group: str, fence: int, up_to: int) -> None:
        command = c.CommitLeases(c.DEFAULT_VHOST, queue, group, fence, up_to, self._generations[group])
        await self._request(lambda _, leases: leases.end(command))

    async def release(self, queue: str, group: str, fence: int, lease: int) -> None:
        command = c.ReleaseLease(c.DEFAULT_VHOST, queue, group, fence, lease, self._generations[group])
        await self._request(lambda _, leases: leases.end(command))

    async def disconnect(self) -> None:
        """Do nothing: there are no connections."""

    async def _request(self, request: Callable[[Broker, Leases], Awaitable[T]]) -> T:
        """Carry out a request at a node, and return its answer. Raises RefusedError, LostError."""
        try:
            return (await self._carried_out(request)).result()
        except RequestRefused as refused:
            raise RefusedError(str(refused)) from refused
        except (Unavailable, MessagesGone) as error:
            self._node = None
            raise LostError(str(error)) from error
        except (LostError, asyncio.CancelledError):
            self._node = None
            raise

    async def _carried_out(self, request: Callable[[Broker, Leases], Awaitable[T]]) -> asyncio.Task[T]:
        """Return the task that has carried out the request in a node's process. Raises LostError."""
        random = self._brokers.random
        node, broker = self._place()
        incarnation = node.incarnation
        answer: asyncio.Future[asyncio.Task[T]] = asyncio.get_running_loop().create_future()

        async def serve() -> T:
            return await request(broker, Leases(broker, node.group))

        def send(task: asyncio.Task[T]) -> None:
            self._world.after(random.uniform(0.0, DELAY_MAX_S), partial(receive, task))

        def receive(task: asyncio.Task[T]) -> None:
            if not answer.done():
                answer.set_result(task)

        await asyncio.sleep(random.uniform(0.0, DELAY_MAX_S))
        if node.incarnation == incarnation:
            loop = ProcessLoop(self._world, node.runtime)
            node.runtime.enter(lambda: loop.create_task(serve()).add_done_callback(send))
        while not answer.done():
            await asyncio.wait([answer], timeout=random.uniform(0.0, NOTICED_AFTER_S))
            if not answer.done() and not (node.up and node.incarnation == incarnation):
                raise LostError(f"the process of {node.name} has ended")
        return answer.result()

    def _place(self) -> tuple[SimulatedNode, Broker]:
        """Return the reader's node, or any that listens, and its broker. Raises LostError."""
        listening = self._brokers.listening()
        if not listening:
            raise LostError("no node listens")
        if self._node not in listening:
            self._node = self._brokers.random.choice(listening)
        return self._node, self._brokers.broker(self._node)


def _state(group: GroupStatus) -> GroupState:
    last_lease = -1 if group.last_lease is None else group.last_lease
    return GroupState(group.fence, last_lease, [each.lease for each in group.leases])


def _messages(some: LeasedMessages) -> list[LeasedMessage]:
    found: list[LeasedMessage] = []
    for position, message in enumerate(some.messages, some.position):
        properties, body = content(message)
        delivery = Delivery(
            0,
            properties.message_id,
            body,
            properties.headers or {},
            some.is_redelivered,
            properties.priority,
        )
        found.append(LeasedMessage(position, delivery, some.deliveries))
    return found
