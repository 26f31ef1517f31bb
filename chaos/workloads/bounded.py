"""A queue with a length: it never has more ready messages, and the oldest are dead-lettered.

Its consumer is slow and comes anew every few seconds, so the messages that it finds ready can be counted.
"""

from __future__ import annotations

from chaos.workloads.clients import ConsumePlan, Consumer, Publisher, PublishPlan
from chaos.workloads.world import QUORUM, Clients, QueuePlan, Workload, World

QUEUE, DROPPED = "bounded", "bounded-dropped"
LENGTH = 5
WINDOW = 10
DELAY_S = 0.4
PERIOD_S = (0.5, 2.0)


class Bounded(Workload):
    name = "bounded"
    weight = 6
    owes = ("max_length",)

    def queues(self) -> list[QueuePlan]:
        bounded = {
            **QUORUM,
            "x-max-length": LENGTH,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": DROPPED,
        }
        return [QueuePlan(QUEUE, bounded, dead_letters_to=DROPPED), QueuePlan(DROPPED, QUORUM)]

    def clients(self, world: World) -> Clients:
        slow = ConsumePlan(QUEUE, prefetch=1, delay_s=DELAY_S, period_s=PERIOD_S)
        return Clients(
            publishers=[
                Publisher(world, "bounded-pub", 0, PublishPlan(QUEUE, rate=world.rate, window=WINDOW))
            ],
            consumers=[
                Consumer(world, "bounded-con", 1 % len(world.endpoints), slow),
                Consumer(world, "bounded-dropped-con", 0, ConsumePlan(DROPPED)),
            ],
        )
