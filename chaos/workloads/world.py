"""The parts that all workloads share: the cluster as clients see it, queue plans, and the base of a workload.

Invariant: this module never talks to a broker.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.history import Process, Recorder
    from chaos.workloads.lease_requests import LeaseConnector
    from chaos.workloads.transport import Endpoint, Transport

PREFETCH = 20
REST_MIN_S, REST_MAX_S = 0.05, 0.5
"""Seconds of the shortest and the longest rest between two attempts to connect, before random variation."""

QUORUM: Mapping[str, Any] = {"x-queue-type": "quorum", "x-delivery-limit": -1}
"""Without a delivery limit, so that broken connections never let a message die."""
CLASSIC: Mapping[str, Any] = {"x-queue-type": "classic"}


Library = Literal["aio-pika", "pika", "proton"]
"""The library of a client in live runs."""
Protocol = Literal["0-9-1", "1.0"]
"""A version of AMQP."""
PROTOCOLS: Sequence[Protocol] = get_args(Protocol)
MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """A queue of a workload: its arguments, and the facts that the check needs."""

    name: str
    arguments: Mapping[str, Any]
    dead_letters_to: str | None = None
    drained: bool = True
    """Whether it is consumed completely at the end, so that a missing message is lost."""
    dedup: bool = False
    moved_from: str | None = None
    """The queue whose messages are moved into this queue.

    Both queues together hold the same messages. The history records deliveries here under that name, so no message may
    be missing or doubled in the two together.
    """

    @property
    def known_as(self) -> str:
        """The queue's name in the history."""
        return self.moved_from or self.name

    def described(self, workload: str, *, drained: bool) -> dict[str, Any]:
        """Return the queue's entry in the run's meta.json; `drained` says whether it was consumed to its end."""
        limit = self.arguments.get("x-delivery-limit", -1)
        return {
            "workload": workload,
            "kind": self.arguments.get("x-queue-type", "classic"),
            "delivery_limit": None if limit < 0 else limit,
            "max_length": self.arguments.get("x-max-length"),
            "message_ttl": self.arguments.get("x-message-ttl"),
            "dead_letters_to": self.dead_letters_to,
            "drained": drained,
            "single_active": self.arguments.get("x-single-active-consumer", False),
            "priorities": "priority" in workload,
            "dedup": self.dedup,
        }


@dataclass(slots=True)
class World:
    """The environment of every client of a workload."""

    workload: str
    endpoints: Sequence[Endpoint]
    transports: Sequence[Transport]
    """A client draws from these for each connection."""
    recorder: Recorder
    seed: int
    rate: float
    """Messages per second that the workload publishes."""
    run: str
    """A name that is unique among the runs against the same cluster."""
    lease_connector: LeaseConnector | None = None
    """Connects readers of leases; None if the run has no such workload."""

    def random(self, client: str) -> Random:
        return Random(f"{self.seed}/{client}")

    def process(self, client: str) -> Process:
        return self.recorder.process(client, self.workload)


class Client(ABC):
    """Works until it is stopped and has finished its pending operations."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    async def run(self) -> None: ...

    @abstractmethod
    def stop(self) -> None:
        """Let `run` come to its end."""


@dataclass(frozen=True, slots=True)
class Clients:
    publishers: Sequence[Client]
    """The clients that make messages; they are stopped first."""
    consumers: Sequence[Client] = ()


class Workload(ABC):
    """Queues and clients that test a promise or several."""

    name: str
    weight: float
    """The workload's share of the messages, relative to the other workloads."""
    library: Library = "aio-pika"
    """The library of clients that speak AMQP 0-9-1; both libraries are used."""
    has_transactions: bool = False
    """Whether its clients always speak AMQP 0-9-1, because AMQP 1.0 has no transactions here."""
    owes: Sequence[str] = ()
    """The promises that its run must give evidence for."""
    reads_leases: bool = False
    """Whether it needs `World.lease_connector`."""

    def libraries(self, protocols: Sequence[Protocol]) -> Sequence[Library]:
        """Return the libraries of its clients in a run with these protocols."""
        if self.has_transactions:
            return [self.library]
        return ["proton" if protocol == "1.0" else self.library for protocol in protocols]

    @abstractmethod
    def queues(self) -> list[QueuePlan]: ...

    @abstractmethod
    def clients(self, world: World) -> Clients: ...


def protocols_of(name: str) -> tuple[Protocol, ...]:
    """Return the protocols of a run with this option: a version of AMQP, or `MIXED`."""
    return tuple(protocol for protocol in PROTOCOLS if name in (protocol, MIXED))


class Rotation:
    """Chooses the next endpoint: the home first, then the rest in turn; after a connection the home again."""

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
        """Return the seconds to rest before the next attempt."""
        self._failed += 1
        rounds = self._failed // len(self._order)
        return min(REST_MIN_S * (1 + rounds), REST_MAX_S) * self._random.uniform(0.5, 1.5)


class Pace:
    """Schedules events at a rate. A delayed client does not catch up."""

    def __init__(self, rate: float) -> None:
        self._interval_s = 1 / rate
        self._clock = asyncio.get_running_loop().time
        self._next_s = self._clock()

    def wait_s(self) -> float:
        """Count the next event, and return the seconds until it."""
        now_s = self._clock()
        self._next_s = max(self._next_s + self._interval_s, now_s)
        return self._next_s - now_s
