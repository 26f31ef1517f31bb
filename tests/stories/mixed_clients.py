"""Clients of AMQP 1.0 and of AMQP 0-9-1 that share a queue."""

from __future__ import annotations

import asyncio
import sys
from itertools import count, cycle, islice, product
from typing import TYPE_CHECKING, Any, TypeVar

from chaos.workloads.amqp10_transport import Amqp10Transport
from chaos.workloads.messages import Outgoing, arrived
from chaos.workloads.pika_transport import PikaTransport
from chaos.workloads.transport import Endpoint, LostError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from chaos.workloads.transport import Connection, Transport
    from qq.testing import ClusterNode

T = TypeVar("T")

QUEUE = "mixed"
QUORUM = {"x-queue-type": "quorum"}
NEW, OLD = Amqp10Transport("guest", "guest"), PikaTransport("guest", "guest")
PATIENCE_S = 30.0


class MixedClients:
    """Publish and consume by both protocols; each call uses connections of its own."""

    def __init__(self) -> None:
        self.published: list[str] = []
        self._numbers = count(1)

    def declare(self, node: ClusterNode) -> None:
        async def declare() -> None:
            connection = await _connect(node, OLD)
            await (await connection.open_channel()).declare(QUEUE, QUORUM)
            await connection.close()

        _run(declare())

    def refusal(self, node: ClusterNode) -> str:
        """Return why a client of AMQP 1.0 cannot connect to the node; an empty text if it can."""

        async def connect() -> str:
            try:
                connection = await _connect(node, NEW)
            except LostError as error:
                return str(error)
            await connection.close()
            return ""

        return _run(connect())

    def publish(self, node: ClusterNode, *transports: Transport) -> None:
        """Publish a message by each protocol."""

        async def publish() -> None:
            for transport in transports or (OLD, NEW):
                connection = await _connect(node, transport)
                channel = await connection.open_channel("confirms")
                message = Outgoing("mixed", next(self._numbers), size_bytes=1000)
                assert await channel.publish(message, QUEUE) == "confirmed"
                self.published.append(message.id)
                await connection.close()

        _run(publish())

    def consume(self, nodes: Sequence[ClusterNode], most: int = sys.maxsize) -> list[str]:
        """Consume single messages over all nodes and protocols in turn, and return their ids."""

        async def consume() -> list[str]:
            ids: list[str] = []
            places = product(nodes, (OLD, NEW))
            connections = [await _connect(node, transport) for node, transport in places]
            channels = [await connection.open_channel() for connection in connections]
            for channel in islice(cycle(channels), most):
                delivery = await channel.get(QUEUE)
                if delivery is None:
                    break
                ids.append(arrived(delivery)["id"])
                await channel.settle(delivery.tag, "ack")
            for connection in connections:
                await connection.close()
            return ids

        return _run(consume())


async def _connect(node: ClusterNode, transport: Transport) -> Connection:
    return await transport.connect(Endpoint(node.name, "127.0.0.1", node.amqp_port), lambda _: None)


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, PATIENCE_S))
