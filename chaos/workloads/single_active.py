"""Consumers of a queue with a single active consumer: messages come in order, to a single consumer at a time.

Each consumer cancels itself now and then, so the active consumer changes without a fault.
"""

from __future__ import annotations

from chaos.workloads.clients import ConsumePlan, Consumer, Publisher, PublishPlan
from chaos.workloads.world import QUORUM, Clients, QueuePlan, Workload, World

QUEUE = "single-active"
PUBLISHERS = 2
PERIOD_S = (1.0, 4.0)
"""Seconds that a consumer stays, at least and at most."""


class SingleActive(Workload):
    name = "single_active"
    weight = 10
    library = "pika"
    owes = ("single_active",)

    def queues(self) -> list[QueuePlan]:
        return [QueuePlan(QUEUE, {**QUORUM, "x-single-active-consumer": True})]

    def clients(self, world: World) -> Clients:
        nodes = len(world.endpoints)
        return Clients(
            publishers=[
                Publisher(
                    world,
                    f"single-active-pub-{number + 1}",
                    number % nodes,
                    PublishPlan(QUEUE, rate=world.rate / PUBLISHERS, window=1),
                )
                for number in range(PUBLISHERS)
            ],
            consumers=[
                Consumer(
                    world, f"single-active-con-{number + 1}", number, ConsumePlan(QUEUE, period_s=PERIOD_S)
                )
                for number in range(nodes)
            ],
        )
