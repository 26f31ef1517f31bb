"""What nobody refers to any more: to let go of very many objects at once takes long, so it is done bit by bit.

Invariant: it is no part of the state. What is in here has no effect on anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qq.machine.queue.queue import Queue


class Remains:
    """Queues and other things on their way out of memory."""

    __slots__ = ("_new", "_parts", "_queues")

    def __init__(self) -> None:
        self._new: list[dict[Any, Any] | list[Any]] = []
        """Containers that came with this entry, which has cost enough: they are emptied from the next one on."""
        self._queues: list[Queue] = []
        self._parts: list[dict[Any, Any] | list[Any]] = []

    def __bool__(self) -> bool:
        return bool(self._new or self._parts or self._queues)

    def add_queues(self, queues: Iterable[Queue]) -> None:
        self._queues += queues

    def add(self, *parts: dict[Any, Any] | list[Any]) -> None:
        """Take over containers to empty them: nobody else refers to what is in them, or it is small."""
        self._new += [part for part in parts if part]

    def let_go(self, most: int) -> None:
        """Let go of `most` objects between two entries: what is little is gone then."""
        self._parts += self._new
        self._new.clear()
        self.shrink(most)

    def shrink(self, most: int) -> None:
        """Let go of `most` objects; called once at the end of an entry."""
        while most > 0 and (self._parts or self._queues):
            if not self._parts:
                most -= 1
                self._parts += [part for part in self._queues.pop().take_apart() if part]
                continue
            part = self._parts[-1]
            number = min(len(part), most)
            most -= number
            if isinstance(part, list):
                del part[-number:]
            else:
                for _ in range(number):
                    part.popitem()
            if not part:
                self._parts.pop()
        self._parts += self._new
        self._new.clear()
