"""Answers of commands that would leave the state as it is, without an entry of the log.

The caller must have made sure that this node has applied all that was committed before the command (`Log.read`).

Invariant: no call changes the state. `None` means that the command needs an entry, also if it is refused: then the log
says why. The queue that a session declared last is unknown here, because a declaration without an entry does not record
it: the commands must name their queues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qq.machine.catalog.reply_names import REPLY_TO
from qq.machine.handlers.declaring import exchange_binding, queue_binding, stripped
from qq.machine.protocol import commands as c
from qq.machine.protocol.effects import Done, GetEmpty, Got, QueueDeclared
from qq.machine.protocol.refusals import Refused
from qq.machine.protocol.work_meter import GOT_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from qq.machine.catalog.vhost import VirtualHost
    from qq.machine.handlers.core import Core
    from qq.machine.protocol.effects import Result
    from qq.machine.queue.queue import Queue


class ReadAnswers:
    """Answers commands from the state."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._find: dict[type, Callable[[str, VirtualHost, Any], Result | None]] = {
            c.Get: self._empty_get,
            c.GetMessages: self._empty_get,
            c.DeclareQueue: self._declared_queue,
            c.DeclareExchange: _declared_exchange,
            c.BindQueue: self._bound_queue,
            c.BindExchange: _bound_exchange,
        }

    def answer(self, origin: str, command: c.Method) -> Result | None:
        """Return the answer of a node's command that would change nothing, or `None` if the command needs an entry."""
        session = self._core.sessions.get((origin, command.session))
        return None if session is None or session.failed else self.answer_in(origin, session.vhost, command)

    def answer_in(self, origin: str, vhost: VirtualHost, command: c.Method) -> Result | None:
        """Return the answer as `answer` does, to a command for a virtual host from a session that has begun or not."""
        find = self._find.get(type(command))
        if find is None or vhost.is_deleted:
            return None
        try:
            return find(origin, vhost, command)
        except Refused:
            return None

    def count(self, origin: str, command: c.Method) -> None:
        """Count a command that was answered without an entry, for the statistics of its queue at this node."""
        if isinstance(command, c.Get | c.GetMessages):
            queue = self._core.sessions[origin, command.session].vhost.queues.get(command.queue)
            if queue is not None:
                count = command.count if isinstance(command, c.GetMessages) else 1
                queue.count_empty_gets(min(count, GOT_AT_ONCE))

    def _empty_get(
        self, origin: str, vhost: VirtualHost, command: c.Get | c.GetMessages
    ) -> GetEmpty | Got | None:
        queue = vhost.queue(command.queue, (origin, command.connection))
        if (
            not self._is_at_rest(queue)
            or queue.backlog.count
            or queue.returning
            or queue.settings.single_active_consumer
            or queue.groups
        ):
            return None
        if isinstance(command, c.Get):
            return GetEmpty()
        return Got(command.consumer, [], 0, {}, queue.count_contract)

    def _declared_queue(
        self, origin: str, vhost: VirtualHost, command: c.DeclareQueue
    ) -> QueueDeclared | None:
        name, owner = stripped(command.name), (origin, command.connection)
        if name == REPLY_TO or name in vhost.requesters:
            return QueueDeclared(name, 0, 1)
        queue = vhost.queue(name, owner)
        if not self._is_at_rest(queue) or vhost.is_unreviewed:
            return None
        if not command.passive:
            vhost.declare_queue(command, name, owner, self._core.version)
        return QueueDeclared(name, queue.ready, queue.consumers)

    def _is_at_rest(self, queue: Queue) -> bool:
        """Return whether no entry must serve the queue first, and no use of the queue must be recorded."""
        core = self._core
        return (
            queue not in core.dirty
            and queue not in core.behind
            and queue not in core.abandoned
            and queue.settings.expires_ms is None
        )

    def _bound_queue(self, origin: str, vhost: VirtualHost, command: c.BindQueue) -> Done | None:
        name = stripped(command.queue)
        if vhost.queues.get(name) in self._core.abandoned:
            return None
        binding = queue_binding(command, name, origin)
        if not vhost.is_bound(*binding[:4]):
            return None
        vhost.bind(*binding)
        return Done()


def _declared_exchange(_origin: str, vhost: VirtualHost, command: c.DeclareExchange) -> Done | None:
    name = stripped(command.name)
    if name not in vhost.exchanges:
        return None
    vhost.declare_exchange(command, name, "")
    return Done()


def _bound_exchange(_origin: str, vhost: VirtualHost, command: c.BindExchange) -> Done | None:
    binding = exchange_binding(command)
    if not vhost.is_bound(*binding[:4]):
        return None
    vhost.bind(*binding)
    return Done()
