"""Short-lived queues: declare, bind, publish, get some messages, delete, and soon declare the same name again.

The messages in a deleted queue are lost legally, so losses are not judged here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.workloads.clients import ConnectingClient, Link, request_of
from chaos.workloads.messages import Outgoing, messages_of
from chaos.workloads.world import CLASSIC, QUORUM, Clients, Pace, QueuePlan, Workload, World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chaos.workloads.transport import Channel

EXCHANGE = "amq.direct"
CLIENTS = 2
NAMES = 20
"""Queue names per client; after the last name the client starts again with the first."""
PUBLISHED = 3
GOT = 2


class Churner(ConnectingClient):
    """Declares, uses and deletes its queues in turn."""

    def __init__(self, world: World, name: str, home: int, *, plans: list[QueuePlan], rate: float) -> None:
        super().__init__(world, name, home)
        self._pace = Pace(rate)
        self._plans = plans
        self._next = 0
        self._messages: dict[str, Iterator[Outgoing]] = {
            plan.name: messages_of(f"{name}.{number}", self.random) for number, plan in enumerate(plans, 1)
        }

    async def work(self, link: Link) -> None:
        channel = await link.open_channel("confirms")
        while not (self.stopping or link.broken):
            plan = self._plans[self._next % len(self._plans)]
            self._next += 1
            await self._live(link, channel, plan)
            await self.rest(link, self._pace.wait_s())

    async def _live(self, link: Link, channel: Channel, plan: QueuePlan) -> None:
        queue = plan.name
        async with request_of(self.process.invoke("declare", **link.where, queue=queue)):
            await channel.declare(queue, plan.arguments)
            await channel.bind(queue, EXCHANGE, queue)
        for _ in range(PUBLISHED):
            await self.publish(link, channel, queue, next(self._messages[queue]), EXCHANGE)
        for _ in range(GOT):
            got = await self.get(link, channel, queue)
            if got is None:
                break
            tag, arrival = got
            async with request_of(self.process.invoke("ack", **link.where, queue=queue, id=arrival["id"])):
                await channel.settle(tag, "ack")
        async with request_of(self.process.invoke("delete", **link.where, queue=queue)):
            await channel.delete(queue)


class Churn(Workload):
    name = "churn"
    weight = 7
    owes = ("resurrected",)
    library = "pika"

    def queues(self) -> list[QueuePlan]:
        return [plan for number in range(CLIENTS) for plan in _plans(number)]

    def clients(self, world: World) -> Clients:
        nodes = len(world.endpoints)
        rate = world.rate / (CLIENTS * PUBLISHED)
        return Clients(
            [
                Churner(world, f"churn-{number + 1}", (number + 1) % nodes, plans=_plans(number), rate=rate)
                for number in range(CLIENTS)
            ]
        )


def _plans(client: int) -> list[QueuePlan]:
    return [
        QueuePlan(f"churn-{client + 1}-{number + 1}", CLASSIC if number % 4 == 0 else QUORUM, drained=False)
        for number in range(NAMES)
    ]
