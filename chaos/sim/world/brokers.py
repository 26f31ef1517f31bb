"""The production brokers of simulated nodes, above the simulated group, and the connections of clients to them.

Invariant: everything between the clients' octets and the ports of cluster/runtime/ports.py is production code, built as
production builds it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

from chaos.sim.world.client_socket import ClientSocket
from chaos.sim.world.cluster import NodeEvents
from chaos.sim.world.tagged_log import TaggedLog
from cluster.net.connection_slots import ConnectionSlots, SlotLimits
from cluster.state.apply import Confirmed, Evicted
from qq.amqp.connection import Settings
from qq.amqp10.connection import LIMITS, Settings10
from qq.amqp10_server.connection import Amqp10Connection
from qq.amqp10_server.server import Amqp10Server
from qq.amqp_server.connection import AmqpConnection
from qq.amqp_server.server import AmqpServer
from qq.client_sockets.partial_messages import PartialMessages
from qq.client_sockets.shared import Arrival, ClientSockets, connection_log
from qq.client_sockets.turns import ProcessorTurns
from qq.machine.protocol.commands import DEFAULT_VHOST, PutUser, PutVhost, SetPermissions
from qq.sessions.broker import Broker, QueueReplica
from qq.sessions.login import hash_password

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chaos.sim.world.client_socket import ClientSide
    from chaos.sim.world.cluster import SimulatedNode
    from chaos.sim.world.world import SimulatedWorld
    from qq.client_sockets.client_connection import ClientConnection
    from qq.config import NodeLimits
    from qq.machine.machine import QueueMachine

AmqpVersion: TypeAlias = Literal["0-9-1", "1.0"]
USER, PASSWORD = "guest", "guest"
SALT = b"salt"
LARGE_BYTES = (64, 512, 2**21)
"""Size in octets from which a message is stored in fragments; drawn for each run."""
CLOCK_STEP_S = 0.0004
"""Seconds by which a node's processor time advances with each look at it. So a turn ends after a few steps of work, and
some connections must wait for their turn."""
HEARTBEAT_S = 60
"""Seconds of silence after which a client of AMQP 1.0 counts as dead."""
CREDITS, WINDOWS = (3, 20, 1024), (200, 2048)
"""Credit of links to nodes, and transfers of a session's window; drawn for each run.

Proton goes on to send when an alarm closes the window with transfers under way, so a client must never need more.
"""
FIRST_USER_S = 0.1
"""Seconds between a leader's attempts to create the first users."""


class Login(NamedTuple):
    """A virtual host, and the user who owns it."""

    vhost: str
    user: str
    password: str


GUEST = Login(DEFAULT_VHOST, USER, PASSWORD)


@dataclass(slots=True)
class NodeShell:
    """The broker and AMQP servers of a single process start of a node."""

    incarnation: int
    broker: Broker
    sockets: ClientSockets
    makes: Mapping[AmqpVersion, Callable[[Arrival], ClientConnection[Any]]]
    """Makes the connection of a client, by its version of AMQP."""
    effects: list[Any] = field(default_factory=list)
    """Effects of the entry that is being applied."""
    is_serving: bool = False
    """Whether the node has begun to listen; it listens until its process ends."""


class Brokers(NodeEvents):
    """The brokers of all nodes, which also carry out dead-lettering; `submit` submits a batch at a node."""

    def __init__(
        self,
        world: SimulatedWorld,
        submit: Callable[..., int],
        limits: NodeLimits,
        logins: Sequence[Login] = (GUEST,),
    ) -> None:
        """`logins` are the first users, which the leader creates; without a user no client can connect."""
        self.nodes: dict[str, SimulatedNode] = {}
        """All nodes that have ever started and may start again."""
        self.random = world.random("sockets")
        self._large_bytes = world.random("fragments").choice(LARGE_BYTES)
        limits10 = world.random("limits of AMQP 1.0")
        receiving = LIMITS.receiving._replace(link_credit=limits10.choice(CREDITS))
        session = LIMITS._replace(incoming_window=limits10.choice(WINDOWS), receiving=receiving)
        self._settings10 = Settings10(session=session)
        self._world = world
        self._submit = submit
        self._limits = limits
        self._logins = logins
        self._shells: dict[str, NodeShell] = {}
        """The shell of each node's latest process start."""

    # Connections

    def connect(
        self, node: SimulatedNode, client: ClientSide, version: AmqpVersion = "0-9-1"
    ) -> ClientSocket | None:
        """Connect a client to a listening node; return None if the node has no free slot."""
        shell = self._shells[node.name]
        slot = shell.sockets.slots.take("10.0.0.1")
        if slot is None:
            return None
        return ClientSocket(self._world, self.random, node, shell.makes[version], slot, client)

    def listening(self) -> list[SimulatedNode]:
        """Return the nodes that clients can connect to now."""
        return [node for node in self.nodes.values() if self._listens(node)]

    def _listens(self, node: SimulatedNode) -> bool:
        """Return whether the node listens.

        A node begins to listen when it has caught up, has no flaw in its status and has all users. It listens until
        its process ends.
        """
        shell = self._shell(node)
        if not node.up or shell is None:
            return False
        if not shell.is_serving:
            has_caught_up = shell.broker.live and node.group.own_status.flaw() is None
            shell.is_serving = has_caught_up and len(shell.broker.machine.users) >= len(self._logins)
        return shell.is_serving

    def _make_users(self, node: SimulatedNode, incarnation: int) -> None:
        """Let the node create the first users when it leads, as the composition root of a node does."""
        shell = self._shell(node)
        if shell is None or node.incarnation != incarnation or shell.broker.machine.users:
            return
        broker = shell.broker
        if broker.live and node.group.leader == node.name:
            for vhost, user, password in self._logins:
                if vhost != DEFAULT_VHOST:
                    broker.submissions.add(PutVhost(vhost, "", [], ""))
                hashed = hash_password(SALT, password.encode())
                broker.submissions.add(PutUser(user, SALT, hashed, ["administrator"]))
                broker.submissions.add(SetPermissions(user, vhost, ".*", ".*", ".*"))
        node.runtime.call_later(FIRST_USER_S, partial(self._make_users, node, incarnation))

    # NodeEvents: reports of the group, forwarded to the broker

    def started(self, node: SimulatedNode) -> None:
        self.nodes[node.name] = node
        machine = cast("QueueMachine", node.machine.inner)
        log = TaggedLog(node, partial(self._submit, node))
        broker = Broker(QueueReplica(node.name, machine, log, node.disk, node.runtime), (), self._limits)
        broker.submissions.large_bytes = self._large_bytes
        partial_messages = PartialMessages(node.runtime, sys.maxsize, lambda: len(broker.connections))
        slots = ConnectionSlots(SlotLimits(100, 1000), clock=node.runtime.monotonic)
        turns = ProcessorTurns(
            lambda callback, _: node.runtime.call_soon(callback), partial(next, count(0.0, CLOCK_STEP_S))
        )
        sockets = ClientSockets(slots, connection_log(), partial_messages, turns, self._limits)
        server = AmqpServer(broker, Settings(), sockets)
        server10 = Amqp10Server(
            broker,
            self._settings10,
            sockets,
            heartbeat_s=HEARTBEAT_S,
            anonymous_user="",
            permits_v1=False,
            members=lambda: list(self.nodes),
        )
        makes: dict[AmqpVersion, Callable[[Arrival], ClientConnection[Any]]] = {
            "0-9-1": partial(AmqpConnection, server),
            "1.0": partial(Amqp10Connection, server10),
        }
        self._shells[node.name] = NodeShell(node.incarnation, broker, sockets, makes)
        if self._logins:
            self._make_users(node, node.incarnation)

    def retired(self, node: SimulatedNode) -> None:
        self.nodes.pop(node.name, None)

    def broker(self, node: SimulatedNode) -> Broker:
        """Return the broker of a node's latest process start."""
        return self._shells[node.name].broker

    def _shell(self, node: SimulatedNode) -> NodeShell | None:
        """Return the shell of a node, or None until a new process start has reported for the first time."""
        shell = self._shells.get(node.name)
        return shell if shell is not None and shell.incarnation == node.incarnation else None

    def evicted(self, node: SimulatedNode) -> None:
        self._add_effect(node, Evicted())

    def confirmed(self, node: SimulatedNode, sequence: int) -> None:
        self._add_effect(node, Confirmed(sequence))

    def effect(self, node: SimulatedNode, effect: Any) -> None:
        self._add_effect(node, effect)

    def _add_effect(self, node: SimulatedNode, effect: Any) -> None:
        shell = self._shell(node)
        if shell is not None:
            shell.effects.append(effect)

    def entry_applied(self, node: SimulatedNode, index: int) -> None:
        shell = self._shell(node)
        if shell is not None:
            effects = list(shell.effects)
            shell.effects.clear()
            shell.broker.applied(index, effects)

    def resumed(self, node: SimulatedNode, sequence: int, outstanding: Sequence[Any]) -> None:
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
