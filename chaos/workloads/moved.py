"""Messages that a move in the log carries to a second queue, for as long as the run lasts.

They are published to the source and consumed from the destination, and from both queues at the end. Without a move
(live/run.py begins it), they wait in the source until then.
"""

from __future__ import annotations

from chaos.workloads.clients import ConsumePlan, Consumer, Publisher, PublishPlan
from chaos.workloads.world import QUORUM, Clients, QueuePlan, Workload, World

SOURCE, DESTINATION = "moved-from", "moved-to"
WINDOW = 20


class Moved(Workload):
    name = "moved"
    weight = 10

    def queues(self) -> list[QueuePlan]:
        return [QueuePlan(SOURCE, QUORUM), QueuePlan(DESTINATION, QUORUM, moved_from=SOURCE)]

    def clients(self, world: World) -> Clients:
        nodes = len(world.endpoints)
        return Clients(
            publishers=[
                Publisher(world, "moved-pub", 0, PublishPlan(SOURCE, rate=world.rate, window=WINDOW))
            ],
            consumers=[
                Consumer(
                    world, f"moved-con-{number}", number % nodes, ConsumePlan(DESTINATION, known_as=SOURCE)
                )
                for number in (1, 2)
            ],
        )
