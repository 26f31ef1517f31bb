"""What all workloads share: the cluster as clients see it, and what a workload consists of.

Invariant: nothing here talks to a broker.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.history import Process, Recorder
    from chaos.workloads.transport import Endpoint, Transport

PREFETCH = 20
REST_MIN_S, REST_MAX_S = 0.05, 0.5
"""The shortest and the longest rest between two attempts to connect, before it is varied at random."""

QUORUM: Mapping[str, Any] = {"x-queue-type": "quorum", "x-delivery-limit": -1}
"""However often a connection breaks, no message of such a queue dies of it."""
CLASSIC: Mapping[str, Any] = {"x-queue-type": "classic"}


Library = Literal["aio-pika", "pika"]
"""The AMQP library that a workload's clients use with a cluster of processes, so that both libraries are tried."""


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """A queue of a workload: what it is declared with, and what the check has to know of it."""

    name: str
    arguments: Mapping[str, Any]
    dead_letters_to: str | None = None
    drained: bool = True
    """Whether everything in it is consumed at the end, so that what is missing is lost."""
    dedup: bool = False
    moved_from: str | None = None
    """The queue whose messages are moved into this one. They stay the same messages: what is consumed here is written
    down under that name, so nothing may be missing or come twice in both together."""

    @property
    def known_as(self) -> str:
        """The name under which the history has it."""
        return self.moved_from or self.name

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
    transport: Transport
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
    """Works until it is told to stop and has finished what it began."""

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
    """The clients that make messages; they are stopped first."""
    consumers: Sequence[Client] = ()


class Workload(ABC):
    """Queues and clients that look after one promise or more."""

    name: str
    weight: float
    """The workload's share of the messages, in proportion to the others."""
    library: Library = "aio-pika"

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
    """Schedules events at a rate. A client that was kept waiting does not catch up."""

    def __init__(self, rate: float) -> None:
        self._interval_s = 1 / rate
        self._clock = asyncio.get_running_loop().time
        self._next_s = self._clock()

    def wait_s(self) -> float:
        """Seconds until the next event; counts it."""
        now_s = self._clock()
        self._next_s = max(self._next_s + self._interval_s, now_s)
        return self._next_s - now_s
