"""Publishing sessions that end when the queue of their target is removed.

Invariant: the log's state never depends on the watchers. They are notified of a removal after the effects of the entry,
so they may submit commands. A snapshot notifies no watcher, even if it lacks a watched queue.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Protocol


class RemovalWatcher(Protocol):
    """A session that watches a queue."""

    def queue_removed(self) -> None: ...


class QueueRemovals:
    """The watchers of a node, by virtual host and queue."""

    __slots__ = ("_watchers", "to_notify")

    def __init__(self) -> None:
        self._watchers: defaultdict[tuple[str, str], dict[RemovalWatcher, None]] = defaultdict(dict)
        self.to_notify: dict[tuple[str, str], None] = {}
        """Watched queues that the present entry has removed."""

    def add(self, vhost: str, queue: str, watcher: RemovalWatcher) -> None:
        self._watchers[vhost, queue][watcher] = None

    def discard(self, vhost: str, queue: str, watcher: RemovalWatcher) -> None:
        """Forget a watcher. No effect if it is unknown."""
        watchers = self._watchers.get((vhost, queue), {})
        watchers.pop(watcher, None)
        if not watchers:
            self._watchers.pop((vhost, queue), None)

    def removed(self, vhost: str, queue: str) -> None:
        """Record that the present entry removes a queue."""
        if (vhost, queue) in self._watchers:
            self.to_notify[vhost, queue] = None

    def notify(self) -> None:
        """Notify the watchers of the queues that the present entry has removed."""
        removed, self.to_notify = self.to_notify, {}
        for queue in removed:
            for watcher in list(self._watchers.pop(queue, {})):
                watcher.queue_removed()
