"""Transactions: two publishes to two queues and the acknowledgements of gotten messages, all or none of them.

Every fifth transaction is rolled back. Acknowledgements of a transaction that was rolled back or failed are repeated in
the next transaction.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from chaos.workloads.clients import ConnectingClient, Link, request_of
from chaos.workloads.messages import Outgoing, messages_of
from chaos.workloads.transport import LostError, RefusedError
from chaos.workloads.world import QUORUM, Clients, Pace, QueuePlan, Workload, World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chaos.history import Call
    from chaos.workloads.transport import Channel

QUEUES = ("tx-a", "tx-b")
CLIENTS = 2
ROLLED_BACK = 5
"""A transaction out of so many is rolled back."""


class Transactions(ConnectingClient):
    """Carries out transactions in sequence; it stops between two of them."""

    def __init__(self, world: World, name: str, home: int, *, rate: float) -> None:
        super().__init__(world, name, home)
        self._pace = Pace(rate)
        self._numbers = count(1)
        self._messages: dict[str, Iterator[Outgoing]] = {
            queue: messages_of(f"{name}{queue.removeprefix('tx')}", self.random) for queue in QUEUES
        }

    async def work(self, link: Link) -> None:
        channel = await link.open_channel("transactions")
        held: dict[int, tuple[str, str]] = {}
        while not (self.stopping or link.broken):
            await self._transact(link, channel, next(self._numbers), held)
            await self.rest(link, self._pace.wait_s())

    async def _transact(
        self, link: Link, channel: Channel, number: int, held: dict[int, tuple[str, str]]
    ) -> None:
        """Carry out a transaction; `held` has queue and id of each unacknowledged message, by delivery tag."""
        tx = f"{self.name}/{number}"
        parts: list[Call] = []
        try:
            for queue in QUEUES:
                message = next(self._messages[queue])
                call = self.process.invoke("publish", **link.where, queue=queue, tx=tx, **message.fields())
                parts.append(call)
                async with request_of():
                    await channel.publish(message, queue)
                if (got := await self.get(link, channel, queue)) is not None:
                    tag, arrival = got
                    held[tag] = (queue, arrival["id"])
            for tag, (queue, message_id) in held.items():
                parts.append(self.process.invoke("ack", **link.where, queue=queue, id=message_id, tx=tx))
                async with request_of():
                    await channel.settle(tag, "ack")
        except LostError as error:
            # It was never committed, even if the broker received parts of it.
            self._fail(parts, str(error))
            raise
        if number % ROLLED_BACK == 0:
            try:
                async with request_of(self.process.invoke("tx_rollback", **link.where, tx=tx)):
                    await channel.rollback()
            finally:
                self._fail(parts, "rolled back")
        else:
            await self._commit(link, channel, tx, parts)
            held.clear()

    async def _commit(self, link: Link, channel: Channel, tx: str, parts: list[Call]) -> None:
        try:
            async with request_of(self.process.invoke("tx_commit", **link.where, tx=tx)):
                await channel.commit()
        except RefusedError as error:
            self._fail(parts, str(error))
            raise
        except LostError as error:
            for part in parts:
                part.unknown(str(error))
            raise
        for part in parts:
            part.ok()

    def _fail(self, parts: list[Call], detail: str) -> None:
        for part in parts:
            part.fail(detail)


class Tx(Workload):
    name = "tx"
    weight = 8
    library = "pika"
    has_transactions = True
    owes = ("tx_atomic",)

    def queues(self) -> list[QueuePlan]:
        return [QueuePlan(queue, QUORUM) for queue in QUEUES]

    def clients(self, world: World) -> Clients:
        nodes = len(world.endpoints)
        rate = world.rate / (len(QUEUES) * CLIENTS)
        return Clients(
            [Transactions(world, f"tx-{number + 1}", number % nodes, rate=rate) for number in range(CLIENTS)]
        )
