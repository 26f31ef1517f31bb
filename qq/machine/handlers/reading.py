"""Answers of commands that would leave the state as it is, without an entry of the log.

The caller must have made sure that this node has applied all that was committed before the command (`Log.read`).

Invariant: no call changes the state. `None` means that the command needs an entry, also if it is refused: then the log
says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.machine.protocol import commands as c
from qq.machine.protocol.effects import GetEmpty, Got
from qq.machine.protocol.work_meter import GOT_AT_ONCE

if TYPE_CHECKING:
    from qq.machine.handlers.core import Core
    from qq.machine.queue.queue import Queue


class ReadAnswers:
    """Answers commands from the state."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def empty_get(self, origin: str, command: c.Get | c.GetMessages) -> GetEmpty | Got | None:
        """Return the answer of a get from a queue without ready messages, or `None` if the get needs an entry.

        A get from a queue that expires is a use of the queue, so it needs an entry.
        """
        queue = self._queue(origin, command)
        if (
            queue is None
            or queue.backlog.count
            or queue.returning
            or queue in self._core.dirty
            or queue.settings.expires_ms is not None
            or queue.settings.single_active_consumer
        ):
            return None
        if isinstance(command, c.Get):
            return GetEmpty()
        return Got(command.consumer, [], 0, {}, queue.count_contract)

    def count_empty_gets(self, origin: str, command: c.Get | c.GetMessages) -> None:
        """Count a get that was answered without an entry, for the statistics of the queue at this node."""
        queue = self._queue(origin, command)
        if queue is not None:
            queue.count_empty_gets(
                min(command.count, GOT_AT_ONCE) if isinstance(command, c.GetMessages) else 1
            )

    def _queue(self, origin: str, command: c.Get | c.GetMessages) -> Queue | None:
        """Return the queue that a command names, or `None` if the log must refuse the command."""
        session = self._core.sessions.get((origin, command.session))
        if session is None or session.failed or session.vhost.is_deleted:
            return None
        queue = session.vhost.queues.get(command.queue or session.queue)
        if queue is None or (queue.owner is not None and queue.owner != (origin, command.connection)):
            return None
        return queue
