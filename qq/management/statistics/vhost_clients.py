"""Counts of the clients in each virtual host that are not in the log: confirms to publishers, and octets.

A node counts for its own clients. It asks the other nodes for their counts every few seconds.

Invariant: only reads the state. The counts of a node that does not answer stay as they were, until the node is removed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from qq.management.statistics.rates import SAMPLE_INTERVAL_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from qq.management.node_queries import NodeQueries
    from qq.management.statistics.client_watch import ClientWatch
    from qq.sessions.broker import Broker

TOPIC = "clients-of-vhosts"
"""Topic of the question for a node's counts."""


class ClientCounts(NamedTuple):
    """Counts under RabbitMQ's names, since the nodes have started."""

    confirm: int = 0
    recv_oct: int = 0
    send_oct: int = 0


class VhostClients:
    """The counts of each virtual host, at all nodes together."""

    def __init__(self, broker: Broker, watch: ClientWatch, queries: NodeQueries) -> None:
        self._broker = broker
        self._watch = watch
        self._queries = queries
        self._of_nodes: dict[str, Mapping[str, ClientCounts]] = {}
        """Node -> virtual host -> counts, as of the last question."""
        queries.answer_rows(TOPIC, self._rows_after)

    async def watch(self) -> None:
        """Ask the other nodes for their counts every few seconds. Runs until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    async def refresh(self) -> None:
        """Ask the other nodes for their counts."""
        self._forget_deleted()
        answers = await self._queries.rows_of_all(TOPIC)
        self._of_nodes = {
            node: {vhost: ClientCounts(*counts) for vhost, *counts in rows} or self._of_nodes.get(node, {})
            for node, rows in answers.items()
        }

    def of_vhost(self, name: str) -> ClientCounts:
        """Return the counts of a virtual host: of this node up to its last sample, of other nodes some seconds old."""
        elsewhere = (counts[name] for counts in self._of_nodes.values() if name in counts)
        return ClientCounts(*map(sum, zip(self._own(name), *elsewhere, strict=True)))

    def _own(self, name: str) -> ClientCounts:
        octets = self._watch.octets_of.get(name, (0, 0))
        return ClientCounts(self._broker.counters.confirmed_in[name], *octets)

    def _forget_deleted(self) -> None:
        there = self._broker.machine.vhosts
        for counts in (self._broker.counters.confirmed_in, self._watch.octets_of):
            for name in counts.keys() - there.keys():
                del counts[name]

    def _rows_after(self, after: str | None) -> Iterator[tuple[str, Any]]:
        counted = self._broker.counters.confirmed_in.keys() | self._watch.octets_of.keys()
        for name in sorted(counted):
            if after is None or name > after:
                yield name, [name, *self._own(name)]
