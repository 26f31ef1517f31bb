"""Claims: queues, consumers and shares of limits that clients of a node hold, and that block other clients.

Invariant: this module only reads the state; entries have the same effect with and without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.machine.catalog.limits import MAX_CHANNELS, MAX_CONNECTIONS, MAX_QUEUES, limit_of
from qq.machine.handlers.declaring import stripped
from qq.machine.protocol.commands import (
    AttachConsumer,
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
from qq.machine.protocol.queue_types import CLASSIC

if TYPE_CHECKING:
    from collections.abc import Container

    from qq.machine.catalog.vhost import VirtualHost
    from qq.machine.handlers.core import Core
    from qq.machine.protocol.commands import Command
    from qq.machine.queue.queue import Queue


class Claims:
    """The claims of all nodes."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @property
    def is_any_leaving(self) -> bool:
        """Whether claims of an evicted node are still ending, because very many claims end in portions."""
        return bool(self._core.lost or self._core.abandoned)

    def bar(self, origin: str, vhost_name: str, command: Command, nodes: Container[str]) -> bool:
        """Return whether a claim of these nodes, or of an evicted node, blocks a command.

        Node `origin` is about to submit the command for a client in this virtual host.
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
            case _:
                queue = self._queue(origin, vhost, command)
        if queue is not None:
            return self._bar_queue(queue, command, nodes)
        return isinstance(command, DeclareQueue) and not command.passive and self._bar_new_queue(vhost, nodes)

    def is_locked(self, origin: str, vhost_name: str, command: Command) -> bool:
        """Whether a client of another node than `origin` excludes all other clients from the queue of a command.

        That is the owner of an exclusive queue, or an exclusive consumer if the command is a basic.consume.
        """
        vhost = self._core.catalog.vhosts.get(vhost_name)
        queue = None if vhost is None else self._queue(origin, vhost, command)
        if queue is None:
            return False
        if queue.owner is not None:
            return queue.owner[0] != origin
        # A queue that is consumed exclusively has one live consumer.
        return (
            isinstance(command, Checkout | AttachConsumer)
            and queue.exclusively_consumed
            and any(holder.live and holder.node != origin for holder in queue.holders)
        )

    def _queue(self, origin: str, vhost: VirtualHost, command: Command) -> Queue | None:
        """Return the existing queue that a command names, or None."""
        match command:
            case DeclareQueue() | DeleteQueue() | PurgeQueue():
                name = command.name
            case BindQueue() | UnbindQueue() | Checkout() | AttachConsumer() | Get() | GetMessages():
                name = command.queue
            case _:
                return None
        session = self._core.sessions.get((origin, command.session))
        return vhost.queues.get(stripped(name) or (session.queue if session is not None else ""))

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
                # The queue might be removed right after its declaration, or has other arguments.
                return self._goes_with(queue, nodes)
            case Checkout(exclusive=is_exclusive):
                # Other types ignore the flag.
                minds_others = queue.kind == CLASSIC and (is_exclusive or queue.exclusively_consumed)
            case AttachConsumer():
                minds_others = queue.kind == CLASSIC and queue.exclusively_consumed
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
        # Abandoned queues, and auto-delete queues that lose their consumers, make room, too.
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
