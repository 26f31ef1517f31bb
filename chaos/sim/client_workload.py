"""AMQP clients at production sessions: what a client is told is what is judged.

Lives here: the broker of each node's life, over the simulated group, the clients of a run and their history. Not here:
what clients do and believe (amqp_client.py), what is right (chaos/judge.py).

Law: everything between the clients' octets and the ports of cluster/ports.py is production code, built as production
builds it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from chaos.history import KeptRows, Process
from chaos.judge import violations
from chaos.sim.amqp_client import AmqpClient
from chaos.sim.client_socket import ClientSocket
from chaos.sim.dead_letters import TaggedLog
from chaos.sim.queue_checks import messages_of
from chaos.sim.workload import Client, Generations
from chaos.sim.world import WorldClock
from cluster.applying import Confirmed, Expelled
from cluster.strangers import Places
from qq.amqp.connection import Settings
from qq.amqp_server.server import AmqpServer, complaints
from qq.config import Limits
from qq.machine.commands import DEFAULT_VHOST, PutUser, SetPermissions
from qq.sessions.broker import Broker
from qq.sessions.login import hash_password
from qq.stored.layout import frame_stop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chaos.sim.checks import Checks
    from chaos.sim.cluster import Options, SimulatedNode
    from chaos.sim.world import World
    from qq.machine.machine import QueueMachine

CLIENTS = 6
SALT = b"salt"
PUBLISH_TIMEOUTS_MS = (0, 0, 300, 2_000)
"""How long a message of a run may be unconfirmed until it is refused; 0: for ever."""
FIRST_USER_S = 0.1
"""Time between attempts of a leader to make the first user."""


@dataclass(slots=True)
class NodeShell:
    """What one life of a node has above its group."""

    life: int
    broker: Broker
    server: AmqpServer
    told: list[Any] = field(default_factory=list)
    """Effects of the entry that is being applied."""
    is_serving: bool = False
    """It has begun to listen, and goes on until its end."""


class LoggedMessages:
    """Which messages of clients are in the log. It is the `AppliedListener` of the checks."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        self._fail = fail
        self._idents: set[str] = set()

    def check(self, ident: str) -> None:
        """A client is told that this message is safe."""
        if ident not in self._idents:
            self._fail(f"message {ident} is confirmed, and not in the log")

    def batch(
        self,
        machine: Any,  # noqa: ARG002
        origin: str,  # noqa: ARG002
        index: int,  # noqa: ARG002
        ordinal: int,  # noqa: ARG002
        time_ms: int,  # noqa: ARG002
        payload: memoryview,
        effects: Sequence[Any],  # noqa: ARG002
    ) -> None:
        for message in messages_of(bytes(payload)).values():
            body_at = frame_stop(message, 0) + 7
            self._idents.add(message[body_at : message.index(b" ", body_at)].decode())

    def entry_ended(self, machine: Any, time_ms: int, effects: Sequence[Any]) -> None:
        """The end of an entry adds no messages."""

    def origin_down(self, machine: Any, origin: str, time_ms: int, effects: Sequence[Any]) -> None:
        """The end of a node adds no messages."""


class ClientWorkload(Generations[Client]):
    """AMQP clients, each at one node at a time, and wherever it is let in when it has lost that.

    What submits batches is the broker of a node: those that it makes are numbered and their confirms compared.
    """

    def __init__(self, world: World, checks: Checks, options: Options) -> None:
        super().__init__(checks)
        self.world = world
        self.logged = LoggedMessages(checks.fail)
        self.history = KeptRows(WorldClock(world))
        timeout_ms = world.random("limits").choice(PUBLISH_TIMEOUTS_MS)
        self._limits = Limits(write_buffer_bytes=16_384, publish_timeout_ms=timeout_ms)
        self._nodes: dict[str, SimulatedNode] = {}
        self._shells: dict[str, NodeShell] = {}
        """The shell of the latest life of each node."""
        self._sockets = world.random("sockets")
        self._interval_s = options.submit_interval_s
        self._amqp_clients = [self._new_amqp_client(f"a{number}") for number in range(CLIENTS)]
        for client in self._amqp_clients:
            client.start()

    def _new_amqp_client(self, name: str) -> AmqpClient:
        return AmqpClient(
            name,
            self.world,
            Process(self.history, name),
            self.logged.check,
            self.checks.fail,
            self._connect,
            self._interval_s,
        )

    # The course of a run

    def new_client(self, node: SimulatedNode, number: int) -> Client:
        return Client(node, number, self.checks)

    def stop(self) -> None:
        for client in self._amqp_clients:
            client.stop()

    def submit_once(self) -> None:
        for client in self._amqp_clients:
            client.publish_once()

    @property
    def complaint(self) -> str:
        """Who waits for what; empty at rest."""
        return next((client.complaint for client in self._amqp_clients if client.complaint), "")

    def settle(self) -> None:
        for client in self._amqp_clients:
            client.settle()

    def drain(self) -> None:
        for client in self._amqp_clients:
            client.drain()

    def judge(self) -> None:
        """After the drain: what clients have seen breaks no promise."""
        found = sorted(violations(self.history.rows))
        if found:
            self.checks.fail(f"{len(found)} violations, the first are {found[:5]}")

    def left(self) -> int:
        """Messages in the queues, at the node that has most."""
        return max((self._messages(node) for node in self._nodes.values()), default=0)

    def _messages(self, node: SimulatedNode) -> int:
        machine = cast("QueueMachine", node.machine.inner)
        return sum(queue.ready + queue.unacked for queue in machine.queues())

    # Connections

    def _connect(self, client: AmqpClient) -> ClientSocket | None:
        """Connect to some node that listens; None if none does, or if the node has no place left."""
        nodes = [node for node in self._nodes.values() if self._listens(node)]
        if not nodes:
            return None
        node = self._sockets.choice(nodes)
        server = self._shells[node.name].server
        place = server.places.take("10.0.0.1")
        if place is None:
            return None
        return ClientSocket(self.world, self._sockets, node, server, place, client)

    def _listens(self, node: SimulatedNode) -> bool:
        """Whether the node listens: once it has caught up, takes full part and has a user, it does so until its end."""
        shell = self._shell(node)
        if not node.up or shell is None:
            return False
        if not shell.is_serving:
            has_caught_up = shell.broker.live and node.group.describe_standing() is None
            shell.is_serving = has_caught_up and bool(shell.broker.machine.users)
        return shell.is_serving

    def _make_first_user(self, node: SimulatedNode, life: int) -> None:
        """Have the node make the first user once it leads, as a node's composition root does it."""
        shell = self._shell(node)
        if shell is None or node.life != life or shell.broker.machine.users:
            return
        broker = shell.broker
        if broker.live and node.group.leader == node.name:
            hashed = hash_password(SALT, b"guest")
            broker.submissions.add(PutUser("guest", SALT, hashed, ["administrator"]))
            broker.submissions.add(SetPermissions("guest", DEFAULT_VHOST, ".*", ".*", ".*"))
        node.runtime.call_later(FIRST_USER_S, partial(self._make_first_user, node, life))

    # NodeEvents: what the group tells, as one `GroupEvents`

    def started(self, node: SimulatedNode) -> None:
        super().started(node)
        self._nodes[node.name] = node
        machine = cast("QueueMachine", node.machine.inner)
        log = TaggedLog(node, partial(self.submit, node))
        broker = Broker(node.name, machine, log, node.disk, node.runtime, (), self._limits)
        server = AmqpServer(broker, Settings(), Places(100, 1000), complaints())
        self._shells[node.name] = NodeShell(node.life, broker, server)
        self._make_first_user(node, node.life)

    def _shell(self, node: SimulatedNode) -> NodeShell | None:
        """None while a new life begins: it has told nobody anything yet."""
        shell = self._shells.get(node.name)
        return shell if shell is not None and shell.life == node.life else None

    def expelled(self, node: SimulatedNode) -> None:
        super().expelled(node)
        self._tell(node, Expelled())

    def confirmed(self, node: SimulatedNode, sequence: int) -> None:
        super().confirmed(node, sequence)
        self._tell(node, Confirmed(sequence))

    def effect(self, node: SimulatedNode, effect: Any) -> None:
        self._tell(node, effect)

    def _tell(self, node: SimulatedNode, effect: Any) -> None:
        shell = self._shell(node)
        if shell is not None:
            shell.told.append(effect)

    def entry_applied(self, node: SimulatedNode) -> None:
        shell = self._shell(node)
        if shell is not None:
            effects = list(shell.told)
            shell.told.clear()
            shell.broker.applied(node.group.engine.applied_index, effects)

    def resumed(self, node: SimulatedNode, sequence: int, outstanding: Sequence[Any]) -> None:
        super().resumed(node, sequence, outstanding)
        shell = self._shell(node)
        if shell is not None:
            shell.broker.resumed(sequence, outstanding)

    def leader_changed(self, node: SimulatedNode, leader: str | None) -> None:
        shell = self._shell(node)
        if shell is not None:
            shell.broker.leader_changed(leader, node.group.engine.term)

    def alarm_changed(self, node: SimulatedNode, reason: str | None) -> None:
        shell = self._shell(node)
        if shell is not None:
            shell.broker.alarm_changed(reason)

    def needed_from(self, node: SimulatedNode) -> int | None:
        shell = self._shell(node)
        return shell.broker.needed_from() if shell is not None else None
