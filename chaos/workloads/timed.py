"""Messages that expire and messages that are delayed: none comes too early or too late.

Messages of the first queue are consumed; a third of them is delayed, and a third would expire after half a minute.
Messages of the second queue expire in it, because it has no consumer until the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.workloads.clients import ConsumePlan, Consumer, Link, Publisher, PublishPlan
from chaos.workloads.world import QUORUM, Clients, QueuePlan, Workload, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from chaos.workloads.messages import Outgoing

QUEUE, SHORT, EXPIRED = "timed", "timed-short", "timed-expired"
WINDOW = 10
DELAY_MS = 400
LONG_TTL_MS = 30_000
SHORT_TTL_MS = 500


class TimedPublisher(Publisher):
    """Delays a third of its messages, and gives a third a time-to-live."""

    async def outgoing(self, link: Link) -> AsyncIterator[Outgoing]:
        async for message in super().outgoing(link):
            match message.sequence % 3:
                case 0:
                    message.delay_ms = DELAY_MS
                case 1:
                    message.ttl_ms = LONG_TTL_MS
                case _:
                    pass
            yield message


class Timed(Workload):
    name = "timed"
    weight = 8
    owes = ("ttl", "delay")

    def queues(self) -> list[QueuePlan]:
        dead = {**QUORUM, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": EXPIRED}
        return [
            QueuePlan(QUEUE, dead, dead_letters_to=EXPIRED),
            QueuePlan(SHORT, {**dead, "x-message-ttl": SHORT_TTL_MS}, dead_letters_to=EXPIRED),
            QueuePlan(EXPIRED, QUORUM),
        ]

    def clients(self, world: World) -> Clients:
        nodes = len(world.endpoints)
        rate = world.rate / 2
        return Clients(
            publishers=[
                TimedPublisher(world, "timed-pub-1", 0, PublishPlan(QUEUE, rate=rate, window=WINDOW)),
                Publisher(world, "timed-pub-2", 1 % nodes, PublishPlan(SHORT, rate=rate, window=WINDOW)),
            ],
            consumers=[
                Consumer(world, "timed-con-1", 2 % nodes, ConsumePlan(QUEUE)),
                Consumer(world, "timed-con-2", 0, ConsumePlan(EXPIRED)),
            ],
        )
