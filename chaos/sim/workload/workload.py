"""Load: clients at every node that submit batches and compare confirms.

Invariant: a client knows only the confirms and effects of its own node, like a real client. A new process start of the
node, or the node's eviction, begins a new client.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from chaos.sim.workload.ledger import make_batch
from chaos.sim.world.cluster import NodeEvents
from chaos.sim.world.compared_machines import TAG

if TYPE_CHECKING:
    from chaos.sim.checks.checks import Checks
    from chaos.sim.world.cluster import SimulatedNode, SimulationOptions
    from chaos.sim.world.world import SimulatedWorld
    from cluster.runtime.ports import Buffer

PENDING_MAX = 100
"""Pending batches of a node, at most; clients submit no further batches before some are confirmed."""
READS = 0.3
"""Probability that a client reads without an entry when it acts."""
MAY_WAIT = 0.2
"""Probability that the leader may keep a batch for its next entry."""
DISOBEDIENCE = 0.1
"""Probability that a client publishes although its node has raised an alarm."""


class SimulatedClient:
    """A client generation of a node."""

    def __init__(self, node: SimulatedNode, number: int, checks: Checks) -> None:
        self.node = node
        self.incarnation = node.incarnation
        self.live = False
        """Whether the present incarnation has applied anything; earlier effects belong to an earlier client."""
        self.number = number
        self._checks = checks
        self._submitted = 0
        self._unconfirmed: dict[int, int] = {}

    def submit(self, payload: Sequence[Buffer], *, may_wait: bool = False) -> int:
        self._submitted += 1
        tagged = [TAG.pack(self.number, self._submitted), *payload]
        sequence = self.node.group.propose(tagged, may_wait=may_wait)
        self._unconfirmed[sequence] = self._submitted
        return sequence

    def confirmed(self, sequence: int) -> None:
        number = self._unconfirmed.pop(sequence, None)
        if number is not None:
            self._checks.confirmed(self.node.name, self.number, number)

    def resumed(self, sequence: int, outstanding: Sequence[Any]) -> None:  # noqa: ARG002 - a ledger owes nothing
        """Handle a gap in the entries: batches up to `sequence` took effect meanwhile."""
        for applied in [known for known in self._unconfirmed if known <= sequence]:
            self.confirmed(applied)

    def needed_from(self) -> int | None:
        """Return the lowest log index that this client will still read, or None."""
        return None

    def effect(self, effect: Any) -> None:
        """Handle an effect of an entry."""


class ActingClient(SimulatedClient, ABC):
    """A client that acts at random times."""

    def __init__(self, node: SimulatedNode, number: int, workload: SimulatedWorkload[Any]) -> None:
        super().__init__(node, number, workload.checks)
        self.random = workload.random

    @abstractmethod
    def act(self) -> None: ...

    def read(self) -> None:
        """Read without an entry. The node must then have applied all entries that were committed before."""
        self.node.group.read(self._checks.read_begins(self.node), lambda: None)

    def must_wait(self) -> bool:
        """Return whether this client obeys its node's alarm."""
        return self.node.group.alarms.reason is not None and self.random.random() > DISOBEDIENCE


class LedgerClient(ActingClient):
    def __init__(self, node: SimulatedNode, number: int, workload: LedgerWorkload) -> None:
        super().__init__(node, number, workload)
        self._large_batches = workload.options.large_batches
        self._largest_bytes = workload.options.largest_bytes

    def act(self) -> None:
        random = self.random
        if not self.must_wait():
            largest = self._largest_bytes
            large = random.random() < self._large_batches
            size = random.randint(largest // 10, largest) if large else random.randint(1, 200)
            self.submit([make_batch(random.randbytes(size))], may_wait=random.random() < MAY_WAIT)


C = TypeVar("C", bound=SimulatedClient)
A = TypeVar("A", bound=ActingClient)


class Generations(NodeEvents, ABC, Generic[C]):
    """The clients of all nodes, in successive generations."""

    def __init__(self, checks: Checks) -> None:
        self.checks = checks
        self.clients: dict[str, C] = {}
        self._generations: dict[str, int] = {}

    def submit(self, node: SimulatedNode, payload: Sequence[Buffer], *, may_wait: bool = False) -> int:
        """Submit a batch for the node's present client."""
        return self.clients[node.name].submit(payload, may_wait=may_wait)

    @abstractmethod
    def new_client(self, node: SimulatedNode, number: int) -> C: ...

    def started(self, node: SimulatedNode) -> None:
        self._begin_anew(node)

    def evicted(self, node: SimulatedNode) -> None:
        self._begin_anew(node)

    def retired(self, node: SimulatedNode) -> None:
        self.clients.pop(node.name, None)

    def _begin_anew(self, node: SimulatedNode) -> None:
        generation = self._generations.get(node.name, 0) + 1
        self._generations[node.name] = generation
        self.clients[node.name] = self.new_client(node, generation)

    def confirmed(self, node: SimulatedNode, sequence: int) -> None:
        client = self.clients[node.name]
        client.live = True
        client.confirmed(sequence)

    def effect(self, node: SimulatedNode, effect: Any) -> None:
        client = self.clients[node.name]
        if client.live:
            client.effect(effect)

    def resumed(self, node: SimulatedNode, sequence: int, outstanding: Sequence[Any]) -> None:
        client = self.clients[node.name]
        client.live = True
        client.resumed(sequence, outstanding)

    def needed_from(self, node: SimulatedNode) -> int | None:
        client = self.clients.get(node.name)
        return None if client is None or client.incarnation != node.incarnation else client.needed_from()


class Submitters(Generations[SimulatedClient]):
    """Clients that submit the batches of brokers, so that these batches are numbered and their confirms checked too."""

    def new_client(self, node: SimulatedNode, number: int) -> SimulatedClient:
        return SimulatedClient(node, number, self.checks)


class SimulatedWorkload(Generations[A]):
    """Load: each client acts at random times."""

    def __init__(self, world: SimulatedWorld, checks: Checks, options: SimulationOptions) -> None:
        super().__init__(checks)
        self.world = world
        self.random = world.random("workload")
        self._random_of_reads = world.random("reads")
        self.options = options
        self._interval_s = options.submit_interval_s
        self._stopped = False

    def stop(self) -> None:
        """Let clients start no further actions."""
        self._stopped = True

    def go_on(self, interval_s: float) -> None:
        """Let the present clients act again."""
        self._stopped = False
        self._interval_s = interval_s
        for client in self.clients.values():
            self._later(client)

    def submit_once(self) -> None:
        """Let every client act once more, to see that the cluster serves."""
        for client in list(self.clients.values()):
            client.node.runtime.enter(client.act)

    def _begin_anew(self, node: SimulatedNode) -> None:
        super()._begin_anew(node)
        self._later(self.clients[node.name])

    def _later(self, client: A) -> None:
        delay_s = self.random.expovariate(1 / self._interval_s)
        client.node.runtime.call_later(delay_s, lambda: self._act(client))

    def _act(self, client: A) -> None:
        if self._stopped or self.clients.get(client.node.name) is not client:
            return
        if self._random_of_reads.random() < READS:
            client.read()
        if client.node.group.pending_batches < PENDING_MAX:
            client.act()
        self._later(client)


class LedgerWorkload(SimulatedWorkload[LedgerClient]):
    def new_client(self, node: SimulatedNode, number: int) -> LedgerClient:
        return LedgerClient(node, number, self)
