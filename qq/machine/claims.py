"""What clients of nodes that may be gone hold, as far as a command of somebody else would be refused for it.

Lives here: whether to wait with a command is of use. Not here: how such a node is given up (cluster/expulsions.py), what
goes then (core.py), how long a command waits (qq/sessions/verdicts.py).

Law: looks, and changes nothing; nothing that the log does follows from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.machine.commands import (
    BindQueue,
    Checkout,
    Connect,
    ConnectVouched,
    DeclareQueue,
    DeleteQueue,
    Get,
    GetMessages,
    OpenChannel,
    PurgeQueue,
    UnbindQueue,
)
from qq.machine.declaring import stripped
from qq.machine.limits import MAX_CHANNELS, MAX_CONNECTIONS, MAX_QUEUES, limit_of

if TYPE_CHECKING:
    from collections.abc import Container

    from qq.machine.commands import Command
    from qq.machine.core import Core
    from qq.machine.queue import Queue
    from qq.machine.vhost import VirtualHost


class Claims:
    """What nodes hold for their clients."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @property
    def is_any_leaving(self) -> bool:
        """Whether a node was given up of which not everything is gone yet, because that is very much."""
        return bool(self._core.lost or self._core.abandoned)

    def bar(self, origin: str, vhost_name: str, command: Command, nodes: Container[str]) -> bool:
        """Whether something that one of these nodes holds, or one that was given up, is in the way of a command.

        Node `origin` would submit it for a client in this virtual host.
        """
        vhost = self._core.catalog.vhosts.get(vhost_name)
        if vhost is None:
            return False
        match command:
            case Connect() | ConnectVouched():
                return self._bar_connection(vhost, command.user, nodes)
            case OpenChannel():
                connection = self._core.catalog.connections.get((origin, command.connection))
                return connection is not None and self._bar_channel(connection.user, nodes)
            case DeclareQueue() | DeleteQueue() | PurgeQueue():
                name = command.name
            case BindQueue() | UnbindQueue() | Checkout() | Get() | GetMessages():
                name = command.queue
            case _:
                return False
        session = self._core.sessions.get((origin, command.session))
        name = stripped(name) or (session.queue if session is not None else "")
        queue = vhost.queues.get(name)
        if queue is not None:
            return self._bar_queue(queue, command, nodes)
        return isinstance(command, DeclareQueue) and not command.passive and self._bar_new_queue(vhost, nodes)

    def _is_going(self, node: str, nodes: Container[str]) -> bool:
        return node in nodes or node in self._core.lost

    def _bar_connection(self, vhost: VirtualHost, user: str, nodes: Container[str]) -> bool:
        catalog = self._core.catalog
        limit = limit_of(vhost.limits, MAX_CONNECTIONS)
        vhost_is_full = limit is not None and vhost.connections >= limit
        limit = limit_of(catalog.access.limits.get(user, {}), MAX_CONNECTIONS)
        user_is_full = limit is not None and catalog.connections_of(user) >= limit
        return (vhost_is_full or user_is_full) and any(
            connection.node in nodes
            and ((vhost_is_full and connection.vhost is vhost) or (user_is_full and connection.user == user))
            for connection in catalog.connections.values()
        )

    def _bar_channel(self, user: str, nodes: Container[str]) -> bool:
        catalog = self._core.catalog
        limit = limit_of(catalog.access.limits.get(user, {}), MAX_CHANNELS)
        if limit is None or catalog.channels_of(user) < limit:
            return False
        return any(
            session.user == user and self._is_going(node, nodes)
            for (node, _), session in self._core.sessions.items()
        )

    def _bar_queue(self, queue: Queue, command: Command, nodes: Container[str]) -> bool:
        if queue.owner is not None:
            return self._is_going(queue.owner[0], nodes)
        match command:
            case DeclareQueue(passive=False):
                return self._goes_with(
                    queue, nodes
                )  # it would go after it was declared, or has other arguments
            case Checkout(exclusive=is_exclusive):
                minds_others = is_exclusive or queue.exclusively_consumed
            case DeleteQueue(if_unused=minds_others):
                pass
            case _:
                return False
        return minds_others and any(
            holder.live and self._is_going(holder.node, nodes) for holder in queue.holders
        )

    def _bar_new_queue(self, vhost: VirtualHost, nodes: Container[str]) -> bool:
        limit = limit_of(vhost.limits, MAX_QUEUES)
        if limit is None or len(vhost.queues) < limit:
            return False
        # Also those that a node given up has left, and queues that go with their last consumer.
        return any(
            queue in self._core.abandoned or self._goes_with(queue, nodes) for queue in vhost.queues.values()
        )

    def _goes_with(self, queue: Queue, nodes: Container[str]) -> bool:
        if queue.owner is not None:
            return self._is_going(queue.owner[0], nodes)
        holders = [holder for holder in queue.holders if holder.live]
        return (
            queue.auto_delete and bool(holders) and all(self._is_going(each.node, nodes) for each in holders)
        )
