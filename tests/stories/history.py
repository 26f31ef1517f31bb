"""The history that clients of a system test observed, and the search for violations in it.

A publisher numbers its messages 1, 2, 3 ... and each reaches every queue. Publishers and consumers have a new name
for each connection, so no row about them spans a lost connection.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple


class Message(NamedTuple):
    publisher: str
    number: int

    @classmethod
    def read(cls, body: bytes) -> Message:
        publisher, number = body.decode().split("/")
        return cls(publisher, int(number))

    @property
    def body(self) -> bytes:
        return f"{self.publisher}/{self.number}".encode()


class Confirm(NamedTuple):
    message: Message
    published_s: float
    confirmed_s: float

    @property
    def latency_s(self) -> float:
        return self.confirmed_s - self.published_s


class Delivery(NamedTuple):
    queue: str
    consumer: str
    message: Message
    redelivered: bool


@dataclass
class History:
    """Observations of clients, appended from many threads; `changed` wakes threads that wait for an event."""

    confirms: list[Confirm] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter, init=False)
    """How many of these each client has had, over all its connections."""
    lost_consumers: set[str] = field(default_factory=set)
    """Consumers whose node died: their unacknowledged messages are requeued."""
    incidents: list[str] = field(default_factory=list)
    """Forbidden events: a nack, a return, a closed channel, a connection lost to a live node."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def confirmed(self, confirm: Confirm) -> None:
        with self.changed:
            self.confirms.append(confirm)
            self.done[client_of(confirm.message.publisher)] += 1
            self.changed.notify_all()

    def delivered(self, delivery: Delivery) -> None:
        with self.changed:
            self.deliveries.append(delivery)
            self.done[client_of(delivery.consumer)] += 1
            self.changed.notify_all()

    def incident(self, incident_text: str) -> None:
        with self.changed:
            self.incidents.append(incident_text)
            self.changed.notify_all()

    def longest_wait_s(self, since_s: float) -> float:
        """Of the messages published from then on or not yet confirmed then, the slowest confirm."""
        return max((c.latency_s for c in self.confirms if c.confirmed_s > since_s), default=0.0)


def client_of(identity: str) -> str:
    """Return the name of a client, without its connection."""
    return identity.partition("#")[0]


def violations(history: History, queues: list[str], ordered_queues: list[str]) -> list[str]:
    """Return all violations as sentences. `ordered_queues` have had a single consumer at a time."""
    found = list(history.incidents)
    for queue in queues:
        deliveries = [delivery for delivery in history.deliveries if delivery.queue == queue]
        found += _losses(history.confirms, deliveries, queue)
        found += _repetitions(deliveries, history.lost_consumers)
        found += _disorder(deliveries, per_consumer=queue not in ordered_queues)
    found += [
        f"{message} was confirmed {count} times"
        for message, count in Counter(confirm.message for confirm in history.confirms).items()
        if count > 1
    ]
    return found


def _losses(confirms: list[Confirm], deliveries: list[Delivery], queue: str) -> list[str]:
    seen = {delivery.message for delivery in deliveries}
    return [
        f"{confirm.message} was confirmed and never came out of {queue}"
        for confirm in confirms
        if confirm.message not in seen
    ]


def _repetitions(deliveries: list[Delivery], lost_consumers: set[str]) -> list[str]:
    found: list[str] = []
    holders: dict[Message, str] = {}
    for delivery in deliveries:
        holder = holders.get(delivery.message)
        if holder is not None and not delivery.redelivered:
            found.append(f"{delivery} repeats one to {holder} and is not marked")
        elif holder is not None and holder not in lost_consumers:
            found.append(f"{delivery} repeats one to {holder}, which lives")
        holders[delivery.message] = delivery.consumer
    return found


def _disorder(deliveries: list[Delivery], *, per_consumer: bool) -> list[str]:
    """Return violations of order: first deliveries of a publisher's messages ascend, except those requeued from a
    dead consumer.
    """
    found: list[str] = []
    last: dict[tuple[str, str], int] = defaultdict(int)
    for delivery in deliveries:
        publisher, number = delivery.message
        stream = (publisher, delivery.consumer if per_consumer else "")
        if not delivery.redelivered:
            if number < last[stream]:
                found.append(f"{delivery} came after number {last[stream]}")
            last[stream] = number
    return found
