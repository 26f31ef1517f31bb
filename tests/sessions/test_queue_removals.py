"""Watchers of queues: notified once, after the entry, and forgotten with their queue."""

from __future__ import annotations

from qq.sessions.queue_removals import QueueRemovals


class Watcher:
    """Counts the removals of its queue, and begins to watch the queue again."""

    def __init__(self, watch: QueueRemovals) -> None:
        self.removals = 0
        self._watch = watch

    def queue_removed(self) -> None:
        self.removals += 1
        self._watch.add("/", "q", self)


def test_watchers_are_notified_of_their_queue_only() -> None:
    watch = QueueRemovals()
    first, second, other = (Watcher(watch) for _ in range(3))
    watch.add("/", "q", first)
    watch.add("/", "q", second)
    watch.add("/", "p", other)
    watch.discard("/", "q", second)
    watch.discard("/", "unknown", second)
    watch.removed("x", "q")
    assert not watch.to_notify
    watch.removed("/", "q")
    assert first.removals == 0
    watch.notify()
    watch.notify()
    assert (first.removals, second.removals, other.removals) == (1, 0, 0)
    watch.removed("/", "q")
    watch.notify()
    assert first.removals == 2


def test_watchers_of_a_queue_are_forgotten_with_the_last() -> None:
    watch = QueueRemovals()
    watcher = Watcher(watch)
    watch.add("/", "q", watcher)
    watch.discard("/", "q", watcher)
    watch.removed("/", "q")
    assert not watch.to_notify
