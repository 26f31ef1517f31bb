"""Frees the memory of removed objects in portions, because freeing very many objects at once takes long.

Invariant: this is not part of the state, and has no effect on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qq.machine.queue.queue import Queue


class DeferredFree:
    """Removed queues and containers that wait to be freed."""

    __slots__ = ("_new", "_parts", "_queues")

    def __init__(self) -> None:
        self._new: list[dict[Any, Any] | list[Any]] = []
        """Containers added by the current entry, which has done enough work: they are emptied from the next entry
        on."""
        self._queues: list[Queue] = []
        self._parts: list[dict[Any, Any] | list[Any]] = []

    def __bool__(self) -> bool:
        return bool(self._new or self._parts or self._queues)

    def add_queues(self, queues: Iterable[Queue]) -> None:
        self._queues += queues

    def add(self, *parts: dict[Any, Any] | list[Any]) -> None:
        """Take over containers to empty them. Their contents must be small, or referenced only here."""
        self._new += [part for part in parts if part]

    def free_between_entries(self, most: int) -> None:
        """Free `most` objects between two entries, so that small amounts are freed at once."""
        self._parts += self._new
        self._new.clear()
        self.free(most)

    def free(self, most: int) -> None:
        """Free `most` objects; called once at the end of an entry."""
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
