"""What all workloads share: the cluster as clients see it, what a workload consists of, and what a message looks like.

Lives here: endpoints and the order in which a client tries them, rates, plans of queues, bodies that prove themselves.
Not here: connections (aio_clients.py, pika_clients.py), what is published and consumed (the other modules).

Law: nothing here talks to a broker.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from chaos.history import Arrived, Process, Published, Recorder

HEARTBEAT_S = 3
"""Short, so that a client notices within seconds that its node is frozen or cut off."""
CONNECT_TIMEOUT_S = 5.0
CONFIRM_TIMEOUT_S = 10.0
"""A publisher that waits for longer takes the outcome for unknown and connects anew."""
PREFETCH = 20
REST_MIN_S, REST_MAX_S = 0.05, 0.5
"""Between two attempts to connect."""

QUORUM: Mapping[str, Any] = {"x-queue-type": "quorum", "x-delivery-limit": -1}
"""However often a connection breaks, no message of such a queue dies of it."""
CLASSIC: Mapping[str, Any] = {"x-queue-type": "classic"}


class Endpoint(NamedTuple):
    """Where the AMQP clients of a node connect to."""

    node: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """A queue of a workload: what it is declared with, and what the check has to know of it."""

    name: str
    arguments: Mapping[str, Any]
    dead_letters_to: str | None = None
    drained: bool = True
    """Whether everything in it is consumed at the end, so that what is missing is lost."""
    dedup: bool = False

    def described(self, workload: str, *, drained: bool) -> dict[str, Any]:
        """What the run's meta.json says of it; `drained`, if it was consumed to its end."""
        limit = self.arguments.get("x-delivery-limit", -1)
        return {
            "workload": workload,
            "delivery_limit": None if limit < 0 else limit,
            "max_length": self.arguments.get("x-max-length"),
            "dead_letters_to": self.dead_letters_to,
            "drained": drained,
            "single_active": self.arguments.get("x-single-active-consumer", False),
            "priorities": "priority" in workload,
            "dedup": self.dedup,
        }


@dataclass(slots=True)
class World:
    """What every client of one workload gets."""

    workload: str
    endpoints: Sequence[Endpoint]
    user: str
    password: str
    recorder: Recorder
    seed: int
    rate: float
    """Messages a second that the workload publishes."""
    run: str
    """A name that no other run against the same cluster has."""

    def random(self, client: str) -> Random:
        return Random(f"{self.seed}/{client}")

    def process(self, client: str) -> Process:
        return self.recorder.process(client, self.workload)


class Client(ABC):
    """Works, in whatever thread, until it is told to stop and has finished what it began."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    async def run(self) -> None: ...

    @abstractmethod
    def stop(self) -> None:
        """Have `run` come to its end."""


@dataclass(frozen=True, slots=True)
class Clients:
    publishers: Sequence[Client]
    """Those that make messages; they are stopped first."""
    consumers: Sequence[Client] = ()


class Workload(ABC):
    """Queues and clients that look after one promise or more."""

    name: str
    weight: float
    """Its share of the messages, in proportion to the others."""

    @abstractmethod
    def queues(self) -> list[QueuePlan]: ...

    @abstractmethod
    def clients(self, world: World) -> Clients: ...


class Rotation:
    """Which endpoint a client tries next: its home, then one after the other; after a connection its home again."""

    def __init__(self, world: World, home: int, client: str, *, pinned: bool) -> None:
        order = [*world.endpoints[home:], *world.endpoints[:home]]
        self._order = order[:1] if pinned else order
        self._random = world.random(f"{client}/rest")
        self._failed = 0

    def next(self) -> Endpoint:
        return self._order[self._failed % len(self._order)]

    def worked(self) -> None:
        self._failed = 0

    def failed(self) -> float:
        """Seconds to rest before the next attempt."""
        self._failed += 1
        rounds = self._failed // len(self._order)
        return min(REST_MIN_S * (1 + rounds), REST_MAX_S) * self._random.uniform(0.5, 1.5)


class Pace:
    """So many events a second. Who was kept waiting does not make up for it."""

    def __init__(self, rate: float) -> None:
        self._interval_s = 1 / rate
        self._next_s = time.monotonic()

    def wait_s(self) -> float:
        """Seconds until the next event; counts it."""
        now_s = time.monotonic()
        self._next_s = max(self._next_s + self._interval_s, now_s)
        return self._next_s - now_s


# Messages


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


def arrived(
    *,
    message_id: str | None,
    body: bytes,
    headers: Mapping[str, Any] | None,
    redelivered: bool,
    priority: int | None,
) -> Arrived:
    """What the history says of a delivered message; one that is damaged gets an id that nobody published."""
    headers = headers or {}
    fields: Arrived = {
        "id": str(message_id),
        "redelivered": redelivered,
        "delivery_count": int(headers.get("x-delivery-count", 0)),
    }
    publisher, colon, sequence = str(message_id).rpartition(":")
    if colon and _is_whole(str(message_id), body):
        fields["publisher"] = publisher
        fields["sequence"] = int(sequence)
    else:
        fields["id"] = f"corrupt {message_id}"
    if priority is not None:
        fields["priority"] = priority
    if deaths := headers.get("x-death"):
        fields["deaths"] = [
            {"queue": str(death["queue"]), "reason": str(death["reason"]), "count": int(death["count"])}
            for death in deaths
        ]
    return fields
