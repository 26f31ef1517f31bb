"""Transactions: two publishes to two queues and the acknowledgements of what was got from them, all or nothing.

Every fifth is rolled back. What a transaction that was rolled back, or whose commit failed, had acknowledged is
acknowledged again in the next one.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pika.exceptions

from chaos.workloads.pika_clients import LOST, PikaClient, asking, properties_of
from chaos.workloads.world import QUORUM, Clients, Outgoing, Pace, QueuePlan, Workload, World, messages_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pika.adapters.blocking_connection import BlockingChannel

    from chaos.history import Call

QUEUES = ("tx-a", "tx-b")
CLIENTS = 2
ROLLED_BACK = 5
"""One of so many."""


class Transactions(PikaClient):
    """One after the other; stopped between two of them."""

    def __init__(self, world: World, name: str, home: int, *, rate: float) -> None:
        super().__init__(world, name, home)
        self._pace = Pace(rate)
        self._numbers = count(1)
        self._messages: dict[str, Iterator[Outgoing]] = {
            queue: messages_of(f"{name}{queue.removeprefix('tx')}", self.random) for queue in QUEUES
        }

    def work(self, connection: pika.BlockingConnection) -> None:
        channel = self.open_channel(connection)
        channel.tx_select()
        held: dict[int, tuple[str, str]] = {}
        while not self.stopping.is_set():
            self._transact(channel, next(self._numbers), held)
            connection.sleep(self._pace.wait_s())

    def _transact(self, channel: BlockingChannel, number: int, held: dict[int, tuple[str, str]]) -> None:
        """Carry out one; `held` is what has been got and not been acknowledged: queue and id by delivery tag."""
        tx = f"{self.name}/{number}"
        parts: list[Call] = []
        try:
            for queue in QUEUES:
                parts.append(self._publish(channel, queue, tx))
                if (got := self.get(channel, queue)) is not None:
                    tag, fields = got
                    held[tag] = (queue, fields["id"])
            for tag, (queue, message_id) in held.items():
                parts.append(self.process.invoke("ack", **self.where, queue=queue, id=message_id, tx=tx))
                channel.basic_ack(tag)
        except LOST as error:
            # It was never committed, whatever of it the broker has heard.
            self._fail(parts, repr(error))
            raise
        if number % ROLLED_BACK == 0:
            try:
                with asking(self.process.invoke("tx_rollback", **self.where, tx=tx)):
                    channel.tx_rollback()
            finally:
                self._fail(parts, "rolled back")
        else:
            self._commit(channel, tx, parts)
            held.clear()

    def _publish(self, channel: BlockingChannel, queue: str, tx: str) -> Call:
        message = next(self._messages[queue])
        call = self.process.invoke("publish", **self.where, queue=queue, tx=tx, **message.fields())
        channel.basic_publish("", queue, message.body, properties_of(message))
        return call

    def _commit(self, channel: BlockingChannel, tx: str, parts: list[Call]) -> None:
        call = self.process.invoke("tx_commit", **self.where, tx=tx)
        try:
            with asking(call):
                channel.tx_commit()
        except pika.exceptions.ChannelClosedByBroker as error:
            self._fail(parts, repr(error))
            raise
        except LOST as error:
            for part in parts:
                part.unknown(repr(error))
            raise
        for part in parts:
            part.ok()

    def _fail(self, parts: list[Call], detail: str) -> None:
        for part in parts:
            part.fail(detail)


class Tx(Workload):
    name = "tx"
    weight = 8

    def queues(self) -> list[QueuePlan]:
        return [QueuePlan(queue, QUORUM) for queue in QUEUES]

    def clients(self, world: World) -> Clients:
        nodes = len(world.endpoints)
        rate = world.rate / (len(QUEUES) * CLIENTS)
        return Clients(
            [Transactions(world, f"tx-{number + 1}", number % nodes, rate=rate) for number in range(CLIENTS)]
        )
