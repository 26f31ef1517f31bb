"""The messages that clients publish and get: a body shows whether it is complete.

Invariant: the history's fields of a message are those in the message itself; a damaged message is recorded as damaged.
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
    """A message as delivered to a client."""

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
    ttl_ms: int | None = None
    delay_ms: int | None = None

    @property
    def all_headers(self) -> dict[str, Any]:
        return self.headers if self.delay_ms is None else {**self.headers, "x-delay": self.delay_ms}

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
        if self.ttl_ms is not None:
            fields["ttl_ms"] = self.ttl_ms
        if self.delay_ms is not None:
            fields["delay_ms"] = self.delay_ms
        return fields


def messages_of(publisher: str, random: Random) -> Iterator[Outgoing]:
    """Yield the messages of a publisher: most small, some of tens of kilobytes."""
    for sequence in count(1):
        size_bytes = random.randrange(10_000, 50_000) if random.random() < 0.02 else random.randrange(20, 400)
        yield Outgoing(publisher, sequence, size_bytes=size_bytes)


def body_of(message_id: str, size_bytes: int) -> bytes:
    """Return the id and the size, repeated up to the size but at least once, so that damage is visible."""
    unit = f"{message_id} {size_bytes} ".encode()
    return (unit * (size_bytes // len(unit) + 1))[: max(size_bytes, len(unit))]


def _is_whole(message_id: str, body: bytes) -> bool:
    size = body.removeprefix(f"{message_id} ".encode()).partition(b" ")[0]
    return size.isdigit() and body == body_of(message_id, int(size))


def arrived(delivery: Delivery) -> Arrived:
    """Return the history fields of a delivered message; a damaged message gets an id that no publisher uses."""
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
