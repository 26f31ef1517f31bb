"""Handlers of opening and closing connections and channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.machine.handlers.cost_estimate import COMMAND_STEPS, QUEUES_PER_STEP
from qq.machine.handlers.registry import answers, handles
from qq.machine.protocol import commands as c
from qq.machine.protocol.effects import Connected
from qq.machine.protocol.refusals import Refused, internal_error
from qq.machine.protocol.work_meter import QUEUES_GONE_MAX

if TYPE_CHECKING:
    from qq.machine.handlers.core import Core
    from qq.machine.handlers.cost_estimate import Costs


def _session_down_steps(costs: Costs, origin: str, command: c.SessionDown) -> int:
    return costs.session_steps(origin, command.session)


def _connection_down_steps(costs: Costs, origin: str, command: c.ConnectionDown) -> int:
    owner = (origin, command.connection)
    connection = costs.core.catalog.connections.get(owner)
    owned = connection.vhost.owned_queues(owner) if connection is not None else []
    at_once = sum(map(costs.queue_removal_steps, owned[:QUEUES_GONE_MAX]))
    return costs.session_steps(origin, command.connection) + at_once + len(owned) // QUEUES_PER_STEP


class ConnectionHandlers:
    """Carries out the commands that open and close connections and channels."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @answers(c.Connect, cost=COMMAND_STEPS)
    def connect(self, command: c.Connect) -> Connected:
        core = self._core
        core.catalog.connect(core.origin, *command)
        return Connected()

    @answers(c.ConnectVouched, cost=COMMAND_STEPS)
    def connect_vouched(self, command: c.ConnectVouched) -> Connected:
        core = self._core
        core.catalog.connect(core.origin, *command, is_vouched=True)
        return Connected()

    @handles(c.OpenChannel, cost=COMMAND_STEPS)
    def open_channel(self, command: c.OpenChannel) -> None:
        """Open a channel without an answer.

        The node has already answered its client, whose next commands follow this command in the log.
        """
        core = self._core
        if core.has_failed(command.session):
            return
        try:
            if (core.origin, command.session) in core.sessions:
                raise internal_error(f"session {command.session} of node {core.origin} is there already")
            connection = core.catalog.open_channel(core.origin, command.connection)
        except Refused as refused:
            core.fail(command, refused)
            return
        session = core.session(core.origin, command.session)
        session.vhost, session.user = connection.vhost, connection.user

    @handles(c.SessionDown, cost=_session_down_steps)
    def session_down(self, command: c.SessionDown) -> None:
        self._core.end_session(command.session)

    @handles(c.ConnectionDown, cost=_connection_down_steps)
    def connection_down(self, command: c.ConnectionDown) -> None:
        core = self._core
        owner = core.origin, command.connection
        connection = core.catalog.connections.get(owner)
        vhost = core.catalog.default_vhost if connection is None else connection.vhost
        core.end_session(command.connection)
        core.catalog.disconnect(*owner)
        core.abandon(vhost.owned_queues(owner))

    @handles(c.CloseConnection, cost=COMMAND_STEPS)
    def close_connection(self, command: c.CloseConnection) -> None:
        connection = self._core.catalog.connections.get((command.node, command.connection))
        if connection is not None:
            self._core.close(connection, command.reason)
