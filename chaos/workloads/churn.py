"""Queues that come and go: declare, bind, publish, get some, delete with what is left, and soon the same name again.

What was in a queue when it was deleted is gone, so nothing is said of losses here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.workloads.pika_clients import PikaClient, asking
from chaos.workloads.world import (
    CLASSIC,
    QUORUM,
    Clients,
    Outgoing,
    Pace,
    QueuePlan,
    Workload,
    World,
    messages_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pika
    from pika.adapters.blocking_connection import BlockingChannel

EXCHANGE = "amq.direct"
CLIENTS = 2
NAMES = 20
"""Per client; then the first name comes again."""
PUBLISHED = 3
GOT = 2


class Churner(PikaClient):
    """One queue after the other."""

    def __init__(self, world: World, name: str, home: int, *, plans: list[QueuePlan], rate: float) -> None:
        super().__init__(world, name, home)
        self._pace = Pace(rate)
        self._plans = plans
        self._next = 0
        self._messages: dict[str, Iterator[Outgoing]] = {
            plan.name: messages_of(f"{name}.{number}", self.random) for number, plan in enumerate(plans, 1)
        }

    def work(self, connection: pika.BlockingConnection) -> None:
        channel = self.open_channel(connection)
        channel.confirm_delivery()
        while not self.stopping.is_set():
            plan = self._plans[self._next % len(self._plans)]
            self._next += 1
            self._live(channel, plan)
            connection.sleep(self._pace.wait_s())

    def _live(self, channel: BlockingChannel, plan: QueuePlan) -> None:
        queue = plan.name
        with asking(self.process.invoke("declare", **self.where, queue=queue)):
            channel.queue_declare(queue, durable=True, arguments=dict(plan.arguments))
            channel.queue_bind(queue, EXCHANGE, queue)
        for _ in range(PUBLISHED):
            self.publish(channel, queue, next(self._messages[queue]), EXCHANGE)
        for _ in range(GOT):
            got = self.get(channel, queue)
            if got is None:
                break
            tag, fields = got
            with asking(self.process.invoke("ack", **self.where, queue=queue, id=fields["id"])):
                channel.basic_ack(tag)
        with asking(self.process.invoke("delete", **self.where, queue=queue)):
            channel.queue_delete(queue)


class Churn(Workload):
    name = "churn"
    weight = 7

    def queues(self) -> list[QueuePlan]:
        return [plan for number in range(CLIENTS) for plan in _plans(number)]

    def clients(self, world: World) -> Clients:
        nodes = len(world.endpoints)
        rate = world.rate / (CLIENTS * PUBLISHED)
        return Clients(
            [
                Churner(world, f"churn-{number + 1}", (number + 1) % nodes, plans=_plans(number), rate=rate)
                for number in range(CLIENTS)
            ]
        )


def _plans(client: int) -> list[QueuePlan]:
    return [
        QueuePlan(f"churn-{client + 1}-{number + 1}", CLASSIC if number % 4 == 0 else QUORUM, drained=False)
        for number in range(NAMES)
    ]
