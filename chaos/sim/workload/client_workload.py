"""AMQP clients at production sessions; the checks judge the answers that these clients get.

Invariant: every answer to a client is compared with the log before it counts as true.
"""

from __future__ import annotations

from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, cast

from chaos.history import KeptRows, Process
from chaos.judge.memory import violations
from chaos.sim.checks.queue_checks import QueueOracle
from chaos.sim.workload.declaring_client import DeclaringClient, KnownQueues
from chaos.sim.workload.published import Published, ident_in
from chaos.sim.workload.requesting_client import FOREIGN, ForeignClient, Replies, RequestingClient
from chaos.sim.workload.shared_queues import MORE_QUEUES, QUEUES
from chaos.sim.workload.simulated_client import ConnectionHooks, SimulatedClient
from chaos.sim.workload.working_client import WorkingClient
from chaos.sim.workload.workload import Submitters
from chaos.sim.world.brokers import GUEST, Brokers
from chaos.sim.world.world import WorldClock
from qq.config import NodeLimits
from qq.machine.protocol.codec import decode_batch
from qq.machine.protocol.commands import Enqueue, JoinFragments, Publish, StoreFragment
from qq.stored.kinds import has_sections
from qq.stored.layout import frame_stop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chaos.sim.checks.checks import Checks
    from chaos.sim.world.client_socket import ClientSocket
    from chaos.sim.world.cluster import SimulatedNode, SimulationOptions
    from chaos.sim.world.world import SimulatedWorld
    from qq.machine.machine import QueueMachine

CLIENTS = 6
REQUESTS, DECLARATIONS = 2, 4
"""Actions of a client that requests, and of a client that declares, for each action of a working client."""
PUBLISH_TIMEOUTS_MS = (0, 0, 300, 2_000)
"""Milliseconds after which a run refuses an unconfirmed message; 0 is never."""

MAJORITY_TIMEOUTS_MS = (30_000, 3_000, 1_000)
"""Milliseconds without progress of the log after which a node of a run closes the connections of waiting clients."""


class LoggedMessages(QueueOracle):
    """An oracle that also knows which client messages are in the log."""

    def __init__(self, fail: Callable[[str], None], majority_s: Callable[[], float]) -> None:
        super().__init__(fail, majority_s)
        self._idents: set[str] = set()
        self._stored: dict[tuple[str, int], bytes] = {}
        """Fragments that the sessions of each node have stored and not published yet."""

    def check(self, ident: str) -> None:
        """Check that a confirmed message is in the log."""
        if ident not in self._idents:
            self._fail(f"message {ident} is confirmed, and not in the log")

    def batch(
        self,
        machine: QueueMachine,
        origin: str,
        index: int,
        ordinal: int,
        time_ms: int,
        payload: memoryview,
        effects: Sequence[Any],
    ) -> None:
        super().batch(machine, origin, index, ordinal, time_ms, payload, effects)
        commands, offsets = decode_batch(bytes(payload))
        messages = (bytes(payload[start:end]) for start, end in pairwise(offsets))
        rest = b""
        for command in commands:
            if isinstance(command, StoreFragment):
                key = origin, command.session
                self._stored[key] = self._stored.get(key, b"") + next(messages)
            elif isinstance(command, JoinFragments):
                rest = self._stored.pop((origin, command.session), b"")
            elif isinstance(command, Enqueue | Publish):
                for beginning in islice(messages, command.count):
                    message, rest = beginning + rest, b""
                    body_at = 0 if has_sections(message) else frame_stop(message, 0) + 7
                    self._idents.add(ident_in(message[body_at:]))

    def origin_down(self, machine: QueueMachine, origin: str, time_ms: int, effects: Sequence[Any]) -> None:
        super().origin_down(machine, origin, time_ms, effects)
        self._stored = {key: stored for key, stored in self._stored.items() if key[0] != origin}


class ClientWorkload(Submitters):
    """AMQP clients, each connected to a single node, and to any node that accepts it after a loss."""

    def __init__(
        self, world: SimulatedWorld, checks: Checks, options: SimulationOptions, logged: LoggedMessages
    ) -> None:
        random = world.random("limits")
        timeout_ms, majority_ms = random.choice(PUBLISH_TIMEOUTS_MS), random.choice(MAJORITY_TIMEOUTS_MS)
        super().__init__(checks)
        # After a jump of all clocks every delivery would time out.
        limits = NodeLimits(
            write_buffer_bytes=16_384,
            publish_timeout_ms=timeout_ms,
            majority_timeout_ms=majority_ms,
            consumer_timeout_ms=0,
        )
        logins = (GUEST, FOREIGN) if options.requesters else (GUEST,)
        self.brokers = Brokers(world, self.submit, limits, logins)
        self.history = KeptRows(WorldClock(world))
        self.replies = Replies()
        hooks, interval_s = ConnectionHooks(checks.fail, self._connect), options.submit_interval_s
        self._queues = MORE_QUEUES if options.linking_clients else QUEUES
        published = Published(checks.fail)
        working = [
            WorkingClient(
                name,
                world,
                Process(self.history, name),
                logged.check,
                published,
                hooks,
                interval_s,
                self._queues,
            )
            for name in (f"a{number}" for number in range(CLIENTS - options.linking_clients))
        ]
        self._working = working
        self._amqp_clients: list[SimulatedClient] = [*working]
        if options.linking_clients:
            # Imported late, because it needs Proton, which the rest does not need.
            from chaos.sim.workload.linking_client import Knowledge, LinkingClient  # noqa: PLC0415

            knowledge = Knowledge(logged.check, self._ready, published)
            self._amqp_clients += [
                LinkingClient(name, world, Process(self.history, name), knowledge, hooks, interval_s)
                for name in (f"l{number}" for number in range(options.linking_clients))
            ]
        if options.requesters:
            self._amqp_clients += [
                *(
                    RequestingClient(f"r{number}", world, hooks, interval_s / REQUESTS, self.replies)
                    for number in range(options.requesters)
                ),
                ForeignClient("f0", world, hooks, interval_s, self.replies, FOREIGN),
            ]
        if options.requesters and options.linking_clients:
            from chaos.sim.workload.linking_requester import LinkingRequester  # noqa: PLC0415

            self._amqp_clients.append(
                LinkingRequester("q0", world, hooks, interval_s / REQUESTS, self.replies)
            )
        queues = KnownQueues()
        self._amqp_clients += [
            DeclaringClient(f"d{number}", world, hooks, interval_s / DECLARATIONS, queues)
            for number in range(options.declarers)
        ]
        for client in self._amqp_clients:
            client.start()

    def _connect(self, client: SimulatedClient) -> ClientSocket | None:
        """Connect to a random listening node; return None if no node listens or if it has no free slot."""
        nodes = self.brokers.listening()
        is_early = client.VERSION == "1.0" and not any(each.has_declared for each in self._working)
        if not nodes or is_early:
            return None
        return self.brokers.connect(self.brokers.random.choice(nodes), client, client.VERSION)

    # The course of a run

    def stop(self) -> None:
        for client in self._amqp_clients:
            client.stop()

    def submit_once(self) -> None:
        for client in self._amqp_clients:
            client.publish_once()

    @property
    def problem(self) -> str:
        """The first client's pending answers; empty when all clients are at rest."""
        return next((client.problem for client in self._amqp_clients if client.problem), "")

    def settle(self) -> None:
        for client in self._amqp_clients:
            client.settle()

    def drain(self) -> None:
        for client in self._amqp_clients:
            client.drain()

    def judge(self) -> None:
        """Check, after the drain, that the clients' history breaks no promise."""
        found = sorted(violations(self.history.rows, self._queues.judged))
        if found:
            self.checks.fail(f"{len(found)} violations, the first are {found[:5]}")

    def left(self) -> int:
        """Return the number of messages in the queues, at the node with the most."""
        return max((self._messages(node) for node in self.brokers.nodes.values()), default=0)

    def _ready(self, queue: str) -> int:
        """Return how many messages of a queue are ready, at the node with the fewest."""
        machines = [cast("QueueMachine", node.machine.inner) for node in self.brokers.nodes.values()]
        counts = [each.ready for machine in machines for each in machine.queues() if each.name == queue]
        return min(counts, default=0)

    def _messages(self, node: SimulatedNode) -> int:
        machine = cast("QueueMachine", node.machine.inner)
        return sum(queue.ready + queue.unacked for queue in machine.queues())
