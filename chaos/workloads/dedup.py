"""Publishers that publish again, with its number, whatever they do not know the outcome of: it arrives exactly once.

They do what docs/how-to/publish-exactly-once.md asks of an application: in order, on one channel at a time, and
after a lost connection from the first unconfirmed message on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from chaos.workloads.clients import Consumer, Link, Publisher
from chaos.workloads.messages import Outgoing
from chaos.workloads.world import QUORUM, Clients, QueuePlan, Workload, World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

QUEUE = "dedup"
PUBLISHERS = 2
WINDOW = 10


class Insistent(Publisher):
    """Is finished when everything that it ever published is confirmed."""

    def __init__(self, world: World, name: str, home: int, *, rate: float) -> None:
        super().__init__(world, name, home, queue=QUEUE, rate=rate, window=WINDOW)
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
        # Nothing may overtake it: what comes next is published after it, on another channel.
        link.breaks(f"{message.id} is not confirmed")


class Dedup(Workload):
    name = "dedup"
    weight = 10

    def queues(self) -> list[QueuePlan]:
        return [QueuePlan(QUEUE, QUORUM, dedup=True)]

    def clients(self, world: World) -> Clients:
        nodes = len(world.endpoints)
        return Clients(
            publishers=[
                Insistent(world, f"dedup-pub-{number + 1}", number % nodes, rate=world.rate / PUBLISHERS)
                for number in range(PUBLISHERS)
            ],
            consumers=[Consumer(world, "dedup-con", 2 % nodes, queue=QUEUE)],
        )
