"""Messages of a topic exchange: each arrives in every queue that its routing key is bound to, and in no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.workloads.clients import ConsumePlan, Consumer, Link, Publisher, PublishPlan, request_of
from chaos.workloads.transport import LostError
from chaos.workloads.world import QUORUM, Clients, QueuePlan, Workload, World

if TYPE_CHECKING:
    from chaos.workloads.messages import Outgoing
    from chaos.workloads.transport import Channel

EXCHANGE = "amq.topic"
KEYS = ("routed.odd", "routed.even.last", "routed.odd", "routed.even")
"""The key of a message, by its number."""
BINDINGS = {
    "routed-all": ("routed.#", set(KEYS)),
    "routed-odd": ("*.odd", {"routed.odd"}),
    "routed-even": ("routed.even.*", {"routed.even.last"}),
}
"""The pattern of each queue, and the keys that it matches."""
WINDOW = 5


class Router(Publisher):
    """Publishes to the exchange; the history has a publish for each queue that the message is meant for."""

    async def prepare(self, channel: Channel) -> None:
        for queue, (pattern, _) in BINDINGS.items():
            async with request_of():
                await channel.bind(queue, EXCHANGE, pattern)

    async def _publish(self, link: Link, channel: Channel, message: Outgoing) -> None:
        key = KEYS[message.sequence % len(KEYS)]
        calls = [
            self.process.invoke("publish", **link.where, queue=queue, **message.fields())
            for queue, (_, keys) in BINDINGS.items()
            if key in keys
        ]
        try:
            async with request_of():
                outcome = await channel.publish(message, key, EXCHANGE)
        except LostError as error:
            for call in calls:
                call.unknown(str(error))
            link.breaks(str(error))
            return
        for call in calls:
            match outcome:
                case "returned":
                    call.fail("returned")
                case "nacked":
                    call.unknown("basic.nack")
                case _:
                    call.ok()


class Routed(Workload):
    name = "routed"
    weight = 6
    owes = ("routing",)

    def queues(self) -> list[QueuePlan]:
        return [QueuePlan(queue, QUORUM) for queue in BINDINGS]

    def clients(self, world: World) -> Clients:
        plan = PublishPlan(EXCHANGE, rate=world.rate, window=WINDOW)
        return Clients(
            publishers=[Router(world, "routed-pub", 0, plan)],
            consumers=[
                Consumer(world, f"routed-con-{number}", number % len(world.endpoints), ConsumePlan(queue))
                for number, queue in enumerate(BINDINGS, 1)
            ],
        )
