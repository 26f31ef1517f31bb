"""A client's connections in a second virtual host, which is created, protected and deleted during the run.

Invariant: a connection that the machine wants closed gets a request to close, or several after a snapshot install. The
client closes each such connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from qq.machine.protocol.commands import (
    CloseConnection,
    Command,
    Connect,
    ConnectionDown,
    DeclareQueue,
    DeleteUser,
    DeleteVhost,
    OpenChannel,
    ProtectVhost,
    PutGlobalParameter,
    PutParameter,
    PutUser,
    PutVhost,
    SessionDown,
    SetPermissions,
)
from qq.machine.protocol.effects import Connected, Reply

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from chaos.sim.world.cluster import SimulatedNode
    from qq.machine.machine import QueueMachine

VHOST = "other"
USER = "somebody"
QUEUE = "q1"
"""The default virtual host has a queue of the same name."""
CONNECTIONS_MAX = 3


class Tenants:
    """The connections of a client generation, with their channels."""

    def __init__(self, node: SimulatedNode, random: Random, fresh_id: Callable[[], int]) -> None:
        self._node = node
        self._random = random
        self._fresh_id = fresh_id
        self._channels: dict[int, list[int]] = {}
        """Channels of each connection that the log has opened and that is not closed yet."""
        self._pending: dict[int, None] = {}

    def act(self) -> list[Command]:
        """Return the commands of the next random step, for a single batch."""
        random = self._random
        choice = random.random()
        known = list(self._channels)
        if choice < 0.4 and len(known) + len(self._pending) < CONNECTIONS_MAX:
            number = self._fresh_id()
            self._pending[number] = None
            return [
                PutVhost(VHOST, "", [], "quorum"),
                PutUser(USER, b"", b"", []),
                SetPermissions(USER, VHOST, "", "", ""),
                Connect(number, VHOST, USER),
                *self._since_version_8(
                    PutParameter(VHOST, "connections", self._node.name, str(number)),
                    PutGlobalParameter(self._node.name, str(number)),
                ),
            ]
        if choice < 0.75 and known:
            return self._open_channel(random.choice(known), is_exclusive=random.random() < 0.3)
        if choice < 0.85 and known:
            return self._close(random.choice(known))
        if choice < 0.86:
            return self._since_version_8(ProtectVhost(VHOST, True)) or [DeleteVhost(VHOST)]
        if choice < 0.9:
            return [*self._since_version_8(ProtectVhost(VHOST, False)), DeleteVhost(VHOST)]
        if choice < 0.95:
            return [DeleteUser(USER)]
        number = random.choice(known) if known else 0
        return [CloseConnection(self._node.name, number, "an operator wants it")]

    def _since_version_8(self, *commands: Command) -> list[Command]:
        """Return these commands, or none before the agreed version has them."""
        return list(commands) if self._machine.version >= 8 else []

    @property
    def _machine(self) -> QueueMachine:
        return cast("QueueMachine", cast("Any", self._node.machine).inner)

    def _open_channel(self, connection: int, *, is_exclusive: bool) -> list[Command]:
        session = self._fresh_id()
        self._channels[connection].append(session)
        flags = {"passive": False, "durable": True, "exclusive": is_exclusive, "auto_delete": False}
        name = f"{self._node.name} {session}" if is_exclusive else QUEUE
        queue = DeclareQueue(session, connection, name, **flags, server_named=False, arguments={})
        return [OpenChannel(session, connection), queue]

    def _close(self, connection: int) -> list[Command]:
        sessions = self._channels.pop(connection)
        return [*map(SessionDown, sessions), ConnectionDown(connection)]

    def answered(self, reply: Reply) -> None:
        if type(reply.result) is Connected and self._pending.pop(reply.session, 0) is None:
            self._channels[reply.session] = []

    def close_requested(self, connection: int) -> list[Command]:
        """Return the commands that close a connection, or none if the client does not have it any more."""
        return self._close(connection) if connection in self._channels else []

    def problem(self) -> str:
        """Return the first connection in a wrong state at rest, or "" if all are right."""
        if self._pending:
            return f"connections {list(self._pending)} were neither opened nor refused"
        there = {
            number: connection
            for (node, number), connection in self._machine.catalog.connections.items()
            if node == self._node.name
        }
        for number in self._channels:
            if number not in there:
                return f"connection {number} is not there any more"
            if there[number].closing:
                return f"connection {number} was not told to close"
        unknown = [number for number in there if number not in self._channels]
        return f"connections {unknown} were not closed" if unknown else ""
