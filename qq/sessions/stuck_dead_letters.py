"""The choice of stuck dead letters that the leader tries again, because a target may take them now.

With at-least-once, a stuck dead letter waits in a line of the queue in which it died: there is a line for each full
target, and a line for dead letters without a target (`Queue.stuck`). A line has no cost while its target is full. When
the target has room, the leader tries as many messages of its lines as fit. A change of queues, exchanges, bindings or
settings can concern each stuck message, so a *pass* examines all of them.

Invariant: a look at the lines is bounded, however many messages are stuck in however many queues for however many
targets. A line that must be read from the disk comes first in the next look.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from qq.machine.queue.stuck_lines import Target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qq.machine.machine import PendingDeadLetters, QueueMachine, Room
    from qq.machine.policy.queue_options import QueueSettings
    from qq.machine.protocol.commands import DeadLetter
    from qq.machine.queue.queue import Queue

TARGETS_MAX = 100
"""Targets in a look."""
LINES_MAX = 50
"""Lines of targets with room in a look: about 0.3 ms."""
PASS_LINES_MAX = 500
"""Lines that the passes examine in a look."""
QUEUES_MAX = 100
"""Queues in a look for which a pass may begin."""
EXAMINED_MAX = 200
"""Messages that the passes examine in a look: about 4 ms."""
RANGES_MAX = 500
"""Ranges of a line in a look."""
DELAY_MAX = 50
"""Rounds (`StuckDeadLetters.round`) at most until a target is tried again that took none of its messages."""


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
        self.round = 0
        """Number of the regular look. Further looks follow it at once while messages move."""
        self._next_target = self._next_line = self._next_queue = 0
        """The positions of the first target, line and queue of the next look, modulo their number."""
        self._awaited: tuple[Target, Queue] | None = None
        """The line that is tried first, because its entry is being read."""
        self._begins_with_passes = False
        self._passes: dict[Queue, _Pass] = {}
        """The last pass of each queue."""
        self._under_way: dict[Queue, _Pass] = {}
        self._left = 0
        """Messages that may still be examined in this look."""
        self._delays: dict[Target, _Delay] = {}
        """The targets that took none of the messages tried last."""

    def forget(self) -> None:
        """Forget which messages were examined, because this node becomes the leader or is not the leader any more."""
        self._passes, self._under_way, self._delays = {}, {}, {}
        self._awaited = None

    def candidates(self) -> Iterator[Candidates]:
        """Yield the messages for a look. Call `examined` for those of them that are not certain.

        If the look ends at messages that must be read first, call `wait_for`.
        """
        parts = [self._of_targets_with_room(), self._to_be_examined()]
        if self._begins_with_passes:
            parts.reverse()
        self._begins_with_passes = not self._begins_with_passes  # the look may end before the second part
        yield from chain(*parts)

    def wait_for(self, candidates: Candidates) -> None:
        """Let the next look begin with these messages."""
        self._begins_with_passes = not candidates.is_certain
        if candidates.is_certain:
            self._awaited = Target(candidates.queue.vhost, candidates.target), candidates.queue

    def examined(self, queue: Queue, command: DeadLetter) -> None:
        """Record that the messages of a command were examined."""
        self._under_way[queue].next_number = command.first + command.count
        self._left -= command.count

    def tried(self, target: Target, *, moved: bool) -> None:
        """Record whether a target took messages that were tried."""
        if moved or target not in self._machine.stuck_lines.targets:
            self._delays.pop(target, None)
            return
        last = self._delays.get(target)
        rounds = 1 if last is None else min(2 * last.rounds, DELAY_MAX)
        self._delays[target] = _Delay(self._machine.room_for_stuck(target), rounds, self.round + rounds)
        if len(self._delays) > len(self._machine.stuck_lines.targets):
            known = self._machine.stuck_lines.targets
            self._delays = {target: delay for target, delay in self._delays.items() if target in known}

    def _of_targets_with_room(self) -> Iterator[Candidates]:
        lines = self._machine.stuck_lines
        awaited, self._awaited = self._awaited, None
        if awaited is not None and awaited[0] in lines.targets and awaited[1] in lines.queues_of(awaited[0]):
            target, queue = awaited
            yield from self._of_line(queue, target, self._machine.room_for_stuck(target))
        left = LINES_MAX
        for _ in range(min(TARGETS_MAX, len(lines.targets))):
            target = lines.targets[self._next_target % len(lines.targets)]
            room = self._machine.room_for_stuck(target)
            if self._must_wait(target, room):
                self._next_target += 1
                continue
            queues = lines.queues_of(target)
            for _ in range(min(left, len(queues))):
                if not room.fits(0):
                    break
                queue = queues[self._next_line % len(queues)]
                self._next_line += 1
                left -= 1
                yield from self._of_line(queue, target, room)
            self._next_target += 1
            if not left:
                return

    def _of_line(self, queue: Queue, target: Target, room: Room) -> Iterator[Candidates]:
        pending = self._machine.stuck_dead_letters(queue, target.name, 0, RANGES_MAX)
        first = pending.parts[0][1]
        size = first.part(0, 1).size
        count = room.fits(size)
        if count:
            room.take(min(count, sum(part.count for _, part in pending.parts)), size)
            yield Candidates(queue, target.name, pending, count, is_certain=True)

    def _must_wait(self, target: Target, room: Room) -> bool:
        """Return whether the target is full, or took no message when it had the same room."""
        delay = self._delays.get(target)
        if delay is not None and delay.room != room:
            del self._delays[target]
            delay = None
        return not room.fits(0) or (delay is not None and self.round < delay.until)

    def _begin_passes(self) -> None:
        """Begin the passes that some of the queues need."""
        queues = self._machine.stuck_lines.queues
        for _ in range(min(QUEUES_MAX, len(queues))):
            queue = queues[self._next_queue % len(queues)]
            self._next_queue += 1
            revision = self._machine.vhosts[queue.vhost].routing_revision
            last = self._passes.get(queue)
            if last is None or not (last.targets or last.is_of(revision, queue.settings)):
                new = _Pass(revision, queue.settings, list(queue.stuck))
                self._passes[queue] = self._under_way[queue] = new
        if len(self._passes) > 2 * len(queues):
            self._passes = {queue: last for queue, last in self._passes.items() if queue in queues}

    def _to_be_examined(self) -> Iterator[Candidates]:
        self._begin_passes()
        self._left = EXAMINED_MAX
        for _ in range(PASS_LINES_MAX):
            if not self._under_way or self._left <= 0:
                return
            queue, under_way = next(iter(self._under_way.items()))
            if queue not in self._machine.stuck_lines.queues:
                del self._under_way[queue]
                self._passes.pop(queue, None)  # unless `_begin_passes` has forgotten it
                continue
            if not under_way.targets:
                del self._under_way[queue]
                continue
            target = under_way.targets[-1]
            pending = self._machine.stuck_dead_letters(queue, target, under_way.next_number, self._left)
            if pending.parts:
                yield Candidates(queue, target, pending, self._left, is_certain=False)
                if self._left <= 0:
                    # The next look begins with the other queues.
                    self._under_way[queue] = self._under_way.pop(queue)
            else:
                under_way.targets.pop()
                under_way.next_number = 0


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


class _Delay(NamedTuple):
    """The delay of a target that took none of the messages tried."""

    room: Room
    """Its room afterwards: when this changes, the target is tried again at once."""
    rounds: int
    until: int
    """Number of the round in which it is tried again."""
