"""Messages that stay in their queue until the end: a long backlog must survive all faults."""

from __future__ import annotations

from chaos.workloads.clients import Publisher, PublishPlan
from chaos.workloads.world import QUORUM, Clients, QueuePlan, Workload, World

QUEUE = "backlog"
WINDOW = 50


class Backlog(Workload):
    name = "backlog"
    weight = 10

    def queues(self) -> list[QueuePlan]:
        return [QueuePlan(QUEUE, QUORUM)]

    def clients(self, world: World) -> Clients:
        home = 2 % len(world.endpoints)
        return Clients(
            [Publisher(world, "backlog-pub", home, PublishPlan(QUEUE, rate=world.rate, window=WINDOW))]
        )
