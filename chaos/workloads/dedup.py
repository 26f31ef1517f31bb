"""Publishers that repeat each message with an unknown outcome, with its number: it must arrive exactly once.

They follow docs/how-to/publish-exactly-once.md: in order, on a single channel at a time, and after a lost connection
from the first unconfirmed message on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from chaos.workloads.clients import ConsumePlan, Consumer, Link, Publisher, PublishPlan
from chaos.workloads.messages import Outgoing
from chaos.workloads.world import QUORUM, Clients, QueuePlan, Workload, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

QUEUE = "dedup"
PUBLISHERS = 2
WINDOW = 10


class Insistent(Publisher):
    """A publisher that finishes when all its messages are confirmed."""

    def __init__(self, world: World, name: str, home: int, *, rate: float) -> None:
        super().__init__(world, name, home, PublishPlan(QUEUE, rate, WINDOW))
        self._unknown: dict[int, Outgoing] = {}

    @property
    def is_finished(self) -> bool:
        return self.stopping and not self._unknown

    async def outgoing(self, link: Link) -> AsyncIterator[Outgoing]:
        for sequence in sorted(self._unknown):
            if link.broken is not None:
                return
            message = self._unknown.pop(sequence)
            yield replace(message, attempt=message.attempt + 1)
        async for message in super().outgoing(link):
            message.dedup = True
            message.headers = {
                "x-publisher-id": f"{self.world.run}/{self.name}",
                "x-publish-seq": message.sequence,
            }
            yield message

    def unconfirmed(self, link: Link, message: Outgoing) -> None:
        self._unknown[message.sequence] = message
        # No message may overtake it: the next message is published after it, on a new channel.
        link.breaks(f"{message.id} is not confirmed")


class Dedup(Workload):
    name = "dedup"
    weight = 10
    owes = ("dedup_duplicate",)

    def queues(self) -> list[QueuePlan]:
        return [QueuePlan(QUEUE, QUORUM, dedup=True)]

    def clients(self, world: World) -> Clients:
        nodes = len(world.endpoints)
        return Clients(
            publishers=[
                Insistent(world, f"dedup-pub-{number + 1}", number % nodes, rate=world.rate / PUBLISHERS)
                for number in range(PUBLISHERS)
            ],
            consumers=[Consumer(world, "dedup-con", 2 % nodes, ConsumePlan(QUEUE))],
        )
