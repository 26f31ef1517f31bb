"""AMQP clients at production sessions: what a client is told is what is judged.

Lives here: the broker of each node's life, over the simulated group, and the clients of a run. Not here: what clients
do and believe (amqp_client.py), what is right (told.py).

Law: everything between the clients' octets and the ports of cluster/ports.py is production code, built as production
builds it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from chaos.sim.amqp_client import AmqpClient
from chaos.sim.client_socket import ClientSocket
from chaos.sim.dead_letters import TaggedLog
from chaos.sim.told import Told
from chaos.sim.workload import Client, Generations
from cluster.applying import Confirmed, Expelled
from cluster.strangers import Places
from qq.amqp.connection import Settings
from qq.amqp_server.server import AmqpServer, complaints
from qq.config import Limits
from qq.machine.commands import DEFAULT_VHOST, PutUser, SetPermissions
from qq.sessions.broker import Broker
from qq.sessions.login import hash_password

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.sim.checks import Checks
    from chaos.sim.cluster import Options, SimulatedNode
    from chaos.sim.world import World
    from qq.machine.machine import QueueMachine

CLIENTS = 6
SALT = b"salt"
LIMITS = Limits(write_buffer_bytes=16_384, publish_timeout_ms=0)
FIRST_USER_S = 0.1
"""Between attempts of a leader to make the first user."""


class NodeShell(NamedTuple):
    """What one life of a node has above its group."""

    life: int
    broker: Broker
    server: AmqpServer
    told: list[Any]
    """Effects of the entry that is being applied."""


class ClientWorkload(Generations[Client]):
    """AMQP clients, each at one node at a time, and wherever it is let in when it has lost that.

    What submits batches is the broker of a node: those that it makes are numbered and their confirms compared.
    """

    def __init__(self, world: World, checks: Checks, options: Options) -> None:
        super().__init__(checks)
        self.world = world
        self.told = Told(checks.fail)
        self._nodes: dict[str, SimulatedNode] = {}
        self._shells: dict[str, NodeShell] = {}
        """Of the present life of each node."""
        self._sockets = world.random("sockets")
        self._amqp_clients = [
            AmqpClient(f"a{number}", world, self.told, self._connect, options.submit_interval_s)
            for number in range(CLIENTS)
        ]
        for client in self._amqp_clients:
            client.start()

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

    def drain(self) -> None:
        self.told.draining = True
        for client in self._amqp_clients:
            client.drain()

    def left(self) -> int:
        """Messages in the queues, at the node that has most."""
        return max((self._messages(node) for node in self._nodes.values()), default=0)

    def _messages(self, node: SimulatedNode) -> int:
        machine = cast("QueueMachine", node.machine.inner)
        return sum(queue.ready + queue.unacked for queue in machine.queues())

    # Connections

    def _connect(self, client: AmqpClient) -> ClientSocket | None:
        """Where somebody listens: as a node does, when it has caught up."""
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
        shell = self._shell(node)
        return node.up and shell is not None and shell.broker.live and bool(shell.broker.machine.users)

    def _make_first_user(self, node: SimulatedNode, life: int) -> None:
        """As a node's composition root does it."""
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
        broker = Broker(node.name, machine, log, node.disk, node.runtime, (), LIMITS)
        server = AmqpServer(broker, Settings(), Places(100, 1000), complaints())
        self._shells[node.name] = NodeShell(node.life, broker, server, [])
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
            shell.broker.applied(0, effects)

    def resumed(self, node: SimulatedNode, sequence: int, outstanding: Sequence[Any]) -> None:
        super().resumed(node, sequence, outstanding)
        shell = self._shell(node)
        if shell is not None:
            shell.broker.resumed(sequence, outstanding)

    def leader_changed(self, node: SimulatedNode, leader: str | None) -> None:
        shell = self._shell(node)
        if shell is not None:
            shell.broker.leader_changed(leader, 0)

    def needed_from(self, node: SimulatedNode) -> int | None:
        shell = self._shell(node)
        return shell.broker.needed_from() if shell is not None else None
