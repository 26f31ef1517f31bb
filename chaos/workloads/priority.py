"""Bursts of high and normal messages in a queue: while both wait, two high messages come for each normal message.

The consumer is slow, so that the queue decides which message comes next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.workloads.clients import ConsumePlan, Consumer, Link, Publisher, PublishPlan
from chaos.workloads.messages import Outgoing
from chaos.workloads.world import QUORUM, Clients, QueuePlan, Workload, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

QUEUE = "priority"
BURST = 100
WINDOW = BURST
PREFETCH = 3
DELAY_S = 0.005
PRIORITIES = range(10)


class Bursts(Publisher):
    """Keeps the rate on average: a burst, then a pause."""

    async def outgoing(self, link: Link) -> AsyncIterator[Outgoing]:
        while True:
            pause_s = 0.0
            for _ in range(BURST):
                if self.stopping or link.broken is not None:
                    return
                message = next(self.messages)
                message.priority = self.random.choice(PRIORITIES)
                pause_s = self.pace.wait_s()
                yield message
            await self.rest(link, pause_s)


class Priority(Workload):
    name = "priority"
    weight = 10
    owes = ("priority_ratio", "priority_order")

    def queues(self) -> list[QueuePlan]:
        return [QueuePlan(QUEUE, QUORUM)]

    def clients(self, world: World) -> Clients:
        return Clients(
            publishers=[Bursts(world, "priority-pub", 0, PublishPlan(QUEUE, rate=world.rate, window=WINDOW))],
            consumers=[
                Consumer(world, "priority-con", 1, ConsumePlan(QUEUE, prefetch=PREFETCH, delay_s=DELAY_S))
            ],
        )
