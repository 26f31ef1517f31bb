"""Publishes with confirms and consumes with acknowledgements on every node: no message may be lost or duplicated.

A second delivery must be marked as redelivered. On each node a publisher and a consumer connect to that node only; a
second pair connects to other nodes when it must.
"""

from __future__ import annotations

from chaos.workloads.clients import ConsumePlan, Consumer, Publisher, PublishPlan
from chaos.workloads.world import CLASSIC, QUORUM, Clients, QueuePlan, Workload, World

QUEUES = ("confirm-1", "confirm-2", "confirm-classic")
WINDOW = 10


class Confirm(Workload):
    name = "confirm"
    weight = 35
    owes = (
        "lost",
        "phantom",
        "routing",
        "causality",
        "unmarked_duplicate",
        "acknowledged",
        "two_holders",
        "redelivery",
        "cancelled",
        "order",
        "liveness",
    )

    def queues(self) -> list[QueuePlan]:
        return [QueuePlan(queue, CLASSIC if "classic" in queue else QUORUM) for queue in QUEUES]

    def clients(self, world: World) -> Clients:
        nodes = len(world.endpoints)
        publishers, consumers = [], []
        for number in range(2 * nodes):
            lap, home = divmod(number, nodes)
            pinned = lap == 0
            publishers.append(
                Publisher(
                    world,
                    f"confirm-pub-{number + 1}",
                    home,
                    PublishPlan(_queue(number + lap), rate=world.rate / (2 * nodes), window=WINDOW),
                    pinned=pinned,
                )
            )
            consumers.append(
                Consumer(
                    world,
                    f"confirm-con-{number + 1}",
                    home,
                    ConsumePlan(_queue(number + lap + 1)),
                    pinned=pinned,
                )
            )
        return Clients(publishers, consumers)


def _queue(number: int) -> str:
    return QUEUES[number % len(QUEUES)]
