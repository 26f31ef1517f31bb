"""What clients send and get: messages whose bodies prove themselves.

Invariant: what a history says of a message is what is in the message, and of one that is damaged only that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from random import Random

    from chaos.history import Arrived, Published


class Delivery(NamedTuple):
    """A message as a client gets it."""

    tag: int
    """The delivery tag, by which the message is settled on its channel."""
    message_id: str | None
    body: bytes
    headers: Mapping[str, Any]
    redelivered: bool
    priority: int | None


@dataclass(slots=True)
class Outgoing:
    """A message to publish."""

    publisher: str
    sequence: int
    attempt: int = 1
    size_bytes: int = 0
    priority: int | None = None
    headers: dict[str, Any] = field(default_factory=dict)
    dedup: bool | None = None

    @property
    def id(self) -> str:
        return f"{self.publisher}:{self.sequence}"

    @property
    def body(self) -> bytes:
        return body_of(self.id, self.size_bytes)

    def fields(self) -> Published:
        fields: Published = {
            "id": self.id,
            "publisher": self.publisher,
            "sequence": self.sequence,
            "attempt": self.attempt,
        }
        if self.priority is not None:
            fields["priority"] = self.priority
        if self.dedup:
            fields["dedup"] = True
        return fields


def messages_of(publisher: str, random: Random) -> Iterator[Outgoing]:
    """The messages of a publisher: most small, some of tens of kilobytes."""
    for sequence in count(1):
        size_bytes = random.randrange(10_000, 50_000) if random.random() < 0.02 else random.randrange(20, 400)
        yield Outgoing(publisher, sequence, size_bytes=size_bytes)


def body_of(message_id: str, size_bytes: int) -> bytes:
    """The id and the size, repeated up to the size but at least once: it can be told whether it is whole."""
    unit = f"{message_id} {size_bytes} ".encode()
    return (unit * (size_bytes // len(unit) + 1))[: max(size_bytes, len(unit))]


def _is_whole(message_id: str, body: bytes) -> bool:
    size = body.removeprefix(f"{message_id} ".encode()).partition(b" ")[0]
    return size.isdigit() and body == body_of(message_id, int(size))


def arrived(delivery: Delivery) -> Arrived:
    """Describe a delivered message for the history; one that is damaged gets an id that nobody published."""
    message_id, headers = str(delivery.message_id), delivery.headers
    fields: Arrived = {
        "id": message_id,
        "redelivered": delivery.redelivered,
        "delivery_count": int(headers.get("x-delivery-count", 0)),
    }
    publisher, colon, sequence = message_id.rpartition(":")
    if colon and _is_whole(message_id, delivery.body):
        fields["publisher"] = publisher
        fields["sequence"] = int(sequence)
    else:
        fields["id"] = f"corrupt {message_id}"
    if delivery.priority is not None:
        fields["priority"] = delivery.priority
    if deaths := headers.get("x-death"):
        fields["deaths"] = [
            {"queue": str(death["queue"]), "reason": str(death["reason"]), "count": int(death["count"])}
            for death in deaths
        ]
    return fields
