"""Several consumers of a queue of which one is active: everything comes in order, to one at a time.

Each cancels itself now and then, so another one becomes active without a fault.
"""

from __future__ import annotations

from chaos.workloads.clients import Consumer, Publisher
from chaos.workloads.world import QUORUM, Clients, QueuePlan, Workload, World

QUEUE = "single-active"
PUBLISHERS = 2
PERIOD_S = (1.0, 4.0)
"""How long a consumer stays, at least and at most."""


class SingleActive(Workload):
    name = "single_active"
    weight = 10
    library = "pika"

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
                    queue=QUEUE,
                    rate=world.rate / PUBLISHERS,
                    window=1,
                )
                for number in range(PUBLISHERS)
            ],
            consumers=[
                Consumer(world, f"single-active-con-{number + 1}", number, queue=QUEUE, period_s=PERIOD_S)
                for number in range(nodes)
            ],
        )
