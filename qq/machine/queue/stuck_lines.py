"""Where stuck dead letters are: which queues have a line for which target (`Queue.stuck`).

Invariant: follows from the queues, so it is not part of a dump. Each operation takes constant time for a line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from qq.machine.queue.queue import UNROUTED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qq.machine.queue.queue import Queue

T = TypeVar("T")


class Target(NamedTuple):
    """A queue that some dead letters wait for."""

    vhost: str
    name: str


class IndexedSet(Generic[T]):
    """A set whose members have positions. A removal moves the last member to the position that became free."""

    def __init__(self) -> None:
        self._members: list[T] = []
        self._positions: dict[T, int] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member: object) -> bool:
        return member in self._positions

    def __getitem__(self, position: int) -> T:
        return self._members[position]

    def add(self, member: T) -> None:
        if member not in self._positions:
            self._positions[member] = len(self._members)
            self._members.append(member)

    def discard(self, member: T) -> None:
        position = self._positions.pop(member, None)
        if position is None:
            return
        last = self._members.pop()
        if position < len(self._members):
            self._members[position] = last
            self._positions[last] = position


class StuckLines:
    """The lines of all queues."""

    def __init__(self) -> None:
        self.queues: IndexedSet[Queue] = IndexedSet()
        """The queues with lines."""
        self.targets: IndexedSet[Target] = IndexedSet()
        """The targets with lines; a line of messages without a target does not count."""
        self._lines: dict[Target, IndexedSet[Queue]] = {}

    def queues_of(self, target: Target) -> IndexedSet[Queue]:
        """Return the queues with a line for a target; the target must have lines."""
        return self._lines[target]

    def add(self, queue: Queue, names: Iterable[str]) -> None:
        """Record that a queue has lines for the targets with these names."""
        for name in names:
            self.queues.add(queue)
            if name != UNROUTED:
                target = Target(queue.vhost, name)
                self.targets.add(target)
                self._lines.setdefault(target, IndexedSet()).add(queue)

    def forget(self, queue: Queue) -> None:
        """Remove all lines of a queue, before they are emptied."""
        for name in queue.stuck:
            self._forget_line(queue, Target(queue.vhost, name))
        self.queues.discard(queue)

    def forget_emptied(self, queue: Queue, name: str) -> None:
        """Remove the line of a queue for the target with this name if it has no messages any more."""
        if name not in queue.stuck:
            self._forget_line(queue, Target(queue.vhost, name))
        if not queue.stuck:
            self.queues.discard(queue)

    def _forget_line(self, queue: Queue, target: Target) -> None:
        lines = self._lines.get(target)
        if lines is None:
            return
        lines.discard(queue)
        if not lines:
            del self._lines[target]
            self.targets.discard(target)
