"""Maintenance mode: a node that serves no clients for a while and closes their connections.

Its AMQP ports are closed meanwhile, as in RabbitMQ, so a connecting client tries the next address at once. Some clients
do not: they take a connection that is closed before it is open for a refused login.

Invariant: clients are closed only while the node's ports are closed.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cluster.group.group import Group
    from qq.sessions.broker import Broker

log = logging.getLogger(__name__)

POLL_S = 0.1
"""Seconds between searches for clients that connected meanwhile."""
CLOSED_AT_ONCE = 100
"""Connections closed before other tasks run: some milliseconds of work."""


class ClientDrain:
    """Closes the ports and the clients of this node while it is under maintenance."""

    def __init__(self, group: Group, broker: Broker, grace_s: float) -> None:
        self._group = group
        self._broker = broker
        self._grace_s = grace_s
        self._committed = asyncio.Event()
        group.configurations.when_committed(self._committed.set)

    @property
    def is_on(self) -> bool:
        """Return whether the committed configuration has this node under maintenance."""
        member = self._group.configurations.committed.member(self._broker.name)
        return member is not None and member.is_drained

    async def watch(
        self, open_ports: Callable[[], Awaitable[None]], close_ports: Callable[[], Awaitable[None]]
    ) -> None:
        """Open the ports outside of maintenance; during maintenance close them and all clients.

        Runs until cancelled.
        """
        while True:
            if not self.is_on:
                await open_ports()
                await self._until(begun=True)
                await close_ports()
            log.info("this node is under maintenance: clients are disconnected in %g s", self._grace_s)
            await self._until(begun=False, within_s=self._grace_s)
            while self.is_on:
                await self._close_clients()
                await asyncio.sleep(POLL_S)
            log.info("this node is not under maintenance any more")

    async def _until(self, *, begun: bool, within_s: float | None = None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self.is_on != begun:
                    self._committed.clear()
                    await self._committed.wait()

    async def _close_clients(self) -> None:
        text = f"node {self._broker.name} was put into maintenance mode: connect to another node"
        connections = [each for each in self._broker.connections.values() if each.is_admitted]
        for number, connection in enumerate(connections, 1):
            connection.shut_down(text)
            if number % CLOSED_AT_ONCE == 0:
                await asyncio.sleep(0)
