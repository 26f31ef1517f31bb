"""The choice of stuck dead letters that the leader tries again, because a target may take them now.

With at-least-once, a stuck dead letter waits in a line of the queue in which it died: there is a line for each full
target, and a line for dead letters without a target (`Queue.stuck`). A line has no cost while its target is full. When
the target has room, the leader tries as many messages of the line as fit. A change of queues, exchanges, bindings or
settings can concern each stuck message, so a *pass* examines all of them.

Invariant: a look at the lines is bounded, however many messages are stuck in however many queues.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from qq.machine.queue.queue import UNROUTED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qq.machine.machine import PendingDeadLetters, QueueMachine
    from qq.machine.policy.queue_options import QueueSettings
    from qq.machine.protocol.commands import DeadLetter
    from qq.machine.queue.queue import Queue

LINES_MAX = 1_000
"""Lines in a look: about 2 ms."""
EXAMINED_MAX = 200
"""Messages that the passes examine in a look: about 4 ms."""
RANGES_MAX = 500
"""Ranges of a line in a look."""


class Candidates(NamedTuple):
    """Stuck messages of a line that may be tried again."""

    queue: Queue
    target: str
    pending: PendingDeadLetters
    count_max: int
    """The number of messages to be tried or examined at most."""
    is_certain: bool
    """Whether they are to be tried in any case, and not only those that no longer have to wait for the target."""


class StuckDeadLetters:
    """Chooses stuck dead letters for the leader's next step."""

    def __init__(self, machine: QueueMachine) -> None:
        self._machine = machine
        self._first = 0
        """Ordinal number of the line that comes first in the next look."""
        self._passes: dict[Queue, _Pass] = {}
        self._left = 0
        """Messages that may still be examined in this look."""

    def forget(self) -> None:
        """Forget which messages were examined, because this node becomes the leader or is not the leader any more."""
        self._passes = {}

    def candidates(self) -> Iterator[Candidates]:
        """Yield the messages for a look. Call `examined` for those of them that are not certain."""
        machine = self._machine
        lines = [
            (queue, target)
            for queue in machine.queues_with_stuck
            for target in queue.stuck
            if target != UNROUTED
        ]
        start = self._first % len(lines) if lines else 0
        self._first = start + LINES_MAX
        for queue, target in islice(lines[start:] + lines[:start], LINES_MAX):
            room = machine.room_for_stuck(queue, target)
            if room:
                pending = machine.stuck_dead_letters(queue, target, 0, RANGES_MAX)
                yield Candidates(queue, target, pending, room, is_certain=True)
        yield from self._to_be_examined()

    def examined(self, queue: Queue, command: DeadLetter) -> None:
        """Record that the messages of a command were examined."""
        self._passes[queue].next_number = command.first + command.count
        self._left -= command.count

    def _to_be_examined(self) -> Iterator[Candidates]:
        known, self._passes = self._passes, {}
        for queue in self._machine.queues_with_stuck:
            revision = self._machine.vhosts[queue.vhost].routing_revision
            last = known.get(queue)
            if last is None or not (last.targets or last.is_of(revision, queue.settings)):
                last = _Pass(revision, queue.settings, list(queue.stuck))
            self._passes[queue] = last
        self._left = EXAMINED_MAX
        for queue, under_way in [*self._passes.items()]:
            while under_way.targets and self._left > 0:
                target, first = under_way.targets[-1], under_way.next_number
                pending = self._machine.stuck_dead_letters(queue, target, first, self._left)
                if not pending.parts:
                    under_way.targets.pop()
                    under_way.next_number = 0
                    continue
                yield Candidates(queue, target, pending, self._left, is_certain=False)
                if under_way.next_number == first:
                    return  # their entry is being read
            if self._left <= 0:
                self._passes[queue] = self._passes.pop(queue)  # the next look begins with the other queues
                return


class _Pass:
    """The examination of all messages that were stuck in a queue when it began."""

    def __init__(self, revision: int, settings: QueueSettings, targets: list[str]) -> None:
        self._revision = revision
        self._settings = settings
        self.targets = targets
        """The targets of the lines that are still to be examined, the next target last."""
        self.next_number = 0
        """The lowest number of the next line's messages that are still to be examined."""

    def is_of(self, revision: int, settings: QueueSettings) -> bool:
        """Return whether routes and settings are as they were when the pass began."""
        return self._revision == revision and self._settings is settings
