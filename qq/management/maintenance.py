"""Maintenance: a node that serves no clients for a while, and tells those that it has to go.

Lives here: what becomes of clients. Not here: how maintenance begins and ends (management/members.py), who leads
meanwhile (cluster/maintenance.py), what balancers are told (node.py).

Law: nobody is told to go before it can be known that this node takes nobody in.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.group import Group
    from qq.sessions.broker import Broker

log = logging.getLogger(__name__)

LOOK_S = 0.1
"""How often it is looked whether maintenance has begun or ended, and whether clients are left."""
TOLD_AT_ONCE = 100
"""So many clients are told to go before other tasks run: some milliseconds of work."""


class Maintenance:
    """The maintenance of this node."""

    def __init__(self, name: str, group: Group, broker: Broker, grace_s: float) -> None:
        self._name = name
        self._group = group
        self._broker = broker
        self._grace_s = grace_s

    @property
    def is_on(self) -> bool:
        """Whether the cluster has agreed that this node is under maintenance."""
        member = self._group.configurations.committed.member(self._name)
        return member is not None and member.is_drained

    async def watch(self) -> None:
        """Turn clients away whenever there is maintenance, until cancelled."""
        while True:
            # The group is not asynchronous: it has no event to wait for.
            while not self.is_on:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
            text = f"node {self._name} was put into maintenance mode: connect to another node"
            self._broker.turned_away = text
            log.info("maintenance begins: clients are told to go in %g s", self._grace_s)
            await self._wait()
            while self.is_on:
                await self._tell_clients(text)
                await asyncio.sleep(LOOK_S)
            self._broker.turned_away = None
            log.info("maintenance has ended")

    async def _wait(self) -> None:
        """Let the grace pass, unless maintenance ends before."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._grace_s
        while self.is_on and loop.time() < end_s:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)

    async def _tell_clients(self, text: str) -> None:
        connections = [each for each in self._broker.connections.values() if each.is_admitted]
        for number, connection in enumerate(connections):
            connection.shut_down(text)
            if number % TOLD_AT_ONCE == TOLD_AT_ONCE - 1:
                await asyncio.sleep(0)
