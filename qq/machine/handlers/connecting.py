"""Handlers of opening and closing connections and channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.machine.protocol.effects import Connected
from qq.machine.protocol.refusals import Refused, internal_error

if TYPE_CHECKING:
    from qq.machine.handlers.core import Core
    from qq.machine.protocol.commands import (
        CloseConnection,
        Connect,
        ConnectionDown,
        ConnectVouched,
        OpenChannel,
        SessionDown,
    )


class Connecting:
    """Carries out the commands that open and close connections and channels."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def connect(self, command: Connect) -> Connected:
        core = self._core
        core.catalog.connect(core.origin, *command)
        return Connected()

    def connect_vouched(self, command: ConnectVouched) -> Connected:
        core = self._core
        core.catalog.connect(core.origin, *command, is_vouched=True)
        return Connected()

    def open_channel(self, command: OpenChannel) -> None:
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

    def session_down(self, command: SessionDown) -> None:
        self._core.end_session(command.session)

    def connection_down(self, command: ConnectionDown) -> None:
        core = self._core
        owner = core.origin, command.connection
        connection = core.catalog.connections.get(owner)
        vhost = core.catalog.default_vhost if connection is None else connection.vhost
        core.end_session(command.connection)
        core.catalog.disconnect(*owner)
        core.abandon(vhost.owned_queues(owner))

    def close_connection(self, command: CloseConnection) -> None:
        connection = self._core.catalog.connections.get((command.node, command.connection))
        if connection is not None:
            self._core.close(connection, command.reason)
