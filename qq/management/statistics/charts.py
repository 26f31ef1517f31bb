"""Histories that operators see as charts: of the cluster, of virtual hosts and of queues.

Invariant: only reads the state, in slices, and visits only objects that have a history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from qq.management.statistics.history import NumberHistories, Shape
from qq.management.time_slices import Slices
from qq.process import memory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cluster.group.group import Group
    from cluster.runtime.histogram import Histogram
    from qq.management.statistics.queue_statistics import QueueStatistics
    from qq.sessions.broker import Broker

ALL_UP_TO = 200
"""Maximum number of queues for histories of all queues. With more, a history begins when a client asks for it."""
_HAPPENED = ("publish", "deliver_get", "redeliver", "ack")
_LENGTHS = ("messages_ready", "messages_unacknowledged")


class _ClusterNumbers(NamedTuple):
    """Numbers of the cluster, and of this node, that have a history."""

    publish: int
    deliver_get: int
    redeliver: int
    ack: int
    dropped: int
    """Messages that were routed to no queue."""
    commits: int
    """Batches of this node's clients that were committed; `commit_ms` is the sum of their times."""
    commit_ms: float
    writes: int
    """Writes to this node's log, each with its sync; `write_ms` is the sum of their times."""
    write_ms: float
    messages_ready: int
    messages_unacknowledged: int
    connections: int
    channels: int
    consumers: int
    queues: int
    memory_bytes: int
    disk_free_bytes: int


_COUNTS_OF_CLUSTER = _ClusterNumbers._fields.index("messages_ready")
_SHAPES = {
    "all": Shape(_ClusterNumbers._fields[:_COUNTS_OF_CLUSTER], _ClusterNumbers._fields[_COUNTS_OF_CLUSTER:]),
    "vhost": Shape(_HAPPENED, _LENGTHS),
    "queue": Shape((*_HAPPENED, "dead_letter", "waited_ms"), _LENGTHS),
}
_ALL = ("all",)


class Charts:
    """Records and shows histories of the cluster, of virtual hosts and of queues."""

    def __init__(
        self,
        broker: Broker,
        group: Group,
        write_times: Histogram,
        statistics: QueueStatistics,
    ) -> None:
        self._broker = broker
        self._group = group
        self._write_times = write_times
        self._statistics = statistics
        self._histories = NumberHistories(_SHAPES)
        self._histories.begin(_ALL)

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that the samples take."""
        return self._histories.held_bytes

    def history(self, key: tuple[str, ...], age_s: int) -> Mapping[str, Sequence[float]]:
        """Return the numbers of an object in the last `age_s` seconds by name, the oldest first, with their times.

        `times` are in ms. A key is ("queue", VHOST, NAME), ("vhost", NAME) or ("all",), and its object must exist.
        Counts are shown as rates. A history begins with the node, or with the first request for it if there are many
        objects.
        """
        return self._histories.begin(key).since(age_s, self._group.time_ms())

    def newest_sample(self, key: tuple[str, ...]) -> Mapping[str, float]:
        """Return the newest numbers of `history`, with their `time`; {} before the first sample."""
        return self._histories.begin(key).newest()

    async def sample(self) -> None:
        """Take a sample of each object that has a history, unless the node still replays its log."""
        if not self._broker.live:  # messages of replayed entries were counted before the restart
            return
        slices, machine = Slices(), self._broker.machine
        for vhost in list(machine.vhosts.values()):
            self._histories.begin_if_room(("vhost", vhost.name))
            await slices.give_way()
        if machine.catalog.queue_count <= ALL_UP_TO:
            for queue in list(machine.queues()):
                self._histories.begin_if_room(("queue", queue.vhost, queue.name))
        for key, history in self._histories.all():
            numbers = self._cluster_numbers() if key == _ALL else self._statistics.numbers(key)
            if numbers is None:
                self._histories.drop(key)
            else:
                history.record(self._group.time_ms(), numbers)
            await slices.give_way()

    def _cluster_numbers(self) -> _ClusterNumbers:
        totals = self._statistics.vhost_totals()
        machine, catalog = self._broker.machine, self._broker.machine.catalog
        commits, writes = self._broker.submissions.commit_times, self._write_times
        return _ClusterNumbers(
            publish=totals.publish,
            deliver_get=totals.deliver_get,
            redeliver=totals.redeliver,
            ack=totals.ack,
            dropped=sum(machine.dropped.values()),
            commits=sum(commits.counts),
            commit_ms=commits.total * 1000,
            writes=sum(writes.counts),
            write_ms=writes.total * 1000,
            messages_ready=totals.messages_ready,
            messages_unacknowledged=totals.messages_unacknowledged,
            connections=len(catalog.connections),
            channels=catalog.channels_of(None),
            consumers=sum(vhost.consumers for vhost in machine.vhosts.values()),
            queues=catalog.queue_count,
            memory_bytes=memory.resident_bytes(),
            disk_free_bytes=self._group.alarms.free_bytes,
        )
