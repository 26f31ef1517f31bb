"""Queues, publishes that wait for their outcomes, and a consumer that settles a message at a time."""

from __future__ import annotations

from typing import Any

from qq.amqp10.performatives import DeliveryState, DispositionFrame
from qq.amqp10.values import Int
from qq.amqp10_server.attaching import PRIORITY
from tests.amqp10_server.messages import ACCEPTED, outcomes
from tests.amqp10_server.socket_client import SocketClient

QUORUM = {"x-queue-type": "quorum"}


def quorum(channel: Any, name: str, **arguments: Any) -> None:
    """Declare an empty queue."""
    given = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    channel.queue_delete(name)
    channel.queue_declare(name, durable=True, arguments={**QUORUM, **given})


def send(client: SocketClient, queue: str, *messages: bytes, handle: int = 0) -> None:
    """Publish messages to a queue, and wait until all are accepted."""
    client.attach_sender(f"/queues/{queue}", handle)
    for number, message in enumerate(messages):
        client.transfer(number, message, handle)
    assert outcomes(client, len(messages)) == [ACCEPTED] * len(messages)
    client.detach(handle)


class Consumer:
    """A link that gets a message at a time."""

    def __init__(self, client: SocketClient, queue: str, handle: int, priority: int | None = None) -> None:
        self._client, self._handle, self._count = client, handle, 0
        properties = None if priority is None else {PRIORITY: Int(priority)}
        attach = client.attach_receiver(queue, handle, properties=properties)
        self.initial = attach.initial_delivery_count or 0
        self.delivery_id = -1

    def get(self) -> bytes:
        count = (self.initial + self._count) % 2**32
        self._client.credit(1, handle=self._handle, delivery_count=count)
        self._count += 1
        transfer, message = self._client.message()
        assert transfer.handle == self._handle
        self.delivery_id = transfer.delivery_id
        return message

    def settle(self, state: DeliveryState) -> None:
        self._client.send(DispositionFrame(True, self.delivery_id, settled=True, state=state))
