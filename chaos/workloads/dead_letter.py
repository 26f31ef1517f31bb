"""A chain of three queues: rejected and over-delivered messages move to the next queue exactly once.

The number of a message decides its fate. In the first queue a fifth of the messages returns until the delivery limit
ends it, and a fifth is rejected; in the second queue half of the messages are rejected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.workloads.clients import ConsumePlan, Consumer, Publisher, PublishPlan
from chaos.workloads.transport import Settling
from chaos.workloads.world import QUORUM, Clients, QueuePlan, Workload, World

if TYPE_CHECKING:
    from chaos.history import Arrived

FIRST, SECOND, LAST = "dead-letter-first", "dead-letter-second", "dead-letter-last"
FIRST_LIMIT, SECOND_LIMIT = 3, 5
WINDOW = 5


def settle_first(delivery: Arrived) -> Settling:
    match delivery.get("sequence", 0) % 5:
        case 0:
            return "nack"
        case 1:
            return "reject"
        case _:
            return "ack"


def settle_second(delivery: Arrived) -> Settling:
    return "reject" if delivery.get("sequence", 0) % 2 else "ack"


class DeadLetter(Workload):
    name = "dead_letter"
    weight = 10
    owes = ("delivery_limit", "dead_letter", "x_death")

    def queues(self) -> list[QueuePlan]:
        first = {
            "x-queue-type": "quorum",
            "x-delivery-limit": FIRST_LIMIT,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": SECOND,
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        }
        second = {
            "x-queue-type": "quorum",
            "x-delivery-limit": SECOND_LIMIT,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": LAST,
        }
        return [
            QueuePlan(FIRST, first, dead_letters_to=SECOND),
            QueuePlan(SECOND, second, dead_letters_to=LAST),
            QueuePlan(LAST, QUORUM),
        ]

    def clients(self, world: World) -> Clients:
        nodes = len(world.endpoints)
        return Clients(
            publishers=[
                Publisher(
                    world,
                    f"dead-letter-pub-{number + 1}",
                    number,
                    PublishPlan(FIRST, rate=world.rate / 2, window=WINDOW),
                )
                for number in range(2)
            ],
            consumers=[
                Consumer(world, "dead-letter-con-1", 0, ConsumePlan(FIRST, settling=settle_first)),
                Consumer(world, "dead-letter-con-2", 1 % nodes, ConsumePlan(FIRST, settling=settle_first)),
                Consumer(world, "dead-letter-con-3", 2 % nodes, ConsumePlan(SECOND, settling=settle_second)),
                Consumer(world, "dead-letter-con-4", 1 % nodes, ConsumePlan(LAST)),
            ],
        )
