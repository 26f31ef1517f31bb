"""Prometheus metrics of single queues, exchanges and virtual hosts.

Invariant: only reads the machine. A row costs microseconds, because there may be tens of thousands. For queues without
a change since the last scrape (`Queue.revision`), the former text is used again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from qq.management.objects.sorted_objects import BLOCK, QueueBlocks
from qq.management.reports.object_metrics import ObjectMetric, ObjectRows, ObjectTable

if TYPE_CHECKING:
    from cluster.group.entry_times import EntryTimes
    from cluster.group.group import Group
    from qq.machine.catalog.vhost import VirtualHost
    from qq.machine.machine import QueueMachine
    from qq.machine.queue.queue import Queue
    from qq.management.reports.object_metrics import ObjectRow
    from qq.sessions.broker import Broker

ROWS_AT_ONCE = 64
"""Rows made at a time for objects other than queues: some tenths of a millisecond."""
_QUEUE = ("vhost", "queue")
_EXCHANGE = ("vhost", "exchange", "type")
_SINK = ("vhost", "sink")


class _QueueFamily(NamedTuple):
    """A family of metrics of queues, as RabbitMQ groups them."""

    metrics: Sequence[ObjectMetric]
    values: Callable[[Queue], Sequence[float | None]]


def _gauge(name: str, text: str) -> ObjectMetric:
    return ObjectMetric(name, "gauge", text)


def _counter(name: str, text: str) -> ObjectMetric:
    return ObjectMetric(f"{name}_total", "counter", text)


def _depth(queue: Queue) -> tuple[float, ...]:
    return queue.ready, queue.unacked, queue.ready + queue.unacked


def _consumers(queue: Queue) -> tuple[float, ...]:
    return (queue.consumers,)


def _sizes(queue: Queue) -> tuple[float, ...]:
    ready, unacked = queue.backlog.size, queue.unacked_size
    others = queue.backlog.delayed, queue.dead_count, queue.leased, len(queue.groups)
    return queue.consumers, ready + unacked, ready, unacked, *others


def _ages(times: EntryTimes, now_ms: int, blocks: Iterable[list[Queue]]) -> Iterator[ObjectRows]:
    """Yield the age of the oldest ready message of each queue that has ready messages."""
    for queues in blocks:
        rows: list[ObjectRow] = []
        for queue in queues:
            index = queue.backlog.oldest_index() if queue.backlog.count else None
            if index is not None:
                rows.append(((queue.vhost, queue.name), (times.age_ms(index, now_ms) / 1000,)))
        yield ObjectRows(rows.copy)


def _deliveries(queue: Queue) -> tuple[float, ...]:
    tally = queue.tally
    delivered = tally.delivered + tally.delivered_no_ack
    return tally.got + tally.got_no_ack, delivered, tally.redelivered, tally.acknowledged


def _published(queue: Queue) -> tuple[float, ...]:
    return (queue.tally.published,)


_CONSUMERS = _gauge("queue_consumers", "Consumers on a queue")
_QUEUE_FAMILIES = {
    "queue_coarse_metrics": _QueueFamily(
        [
            _gauge("queue_messages_ready", "Messages ready to be delivered to consumers"),
            _gauge("queue_messages_unacked", "Messages delivered to consumers but not yet acknowledged"),
            _gauge("queue_messages", "Ready and unacknowledged messages"),
        ],
        _depth,
    ),
    "queue_consumer_count": _QueueFamily([_CONSUMERS], _consumers),
    "queue_metrics": _QueueFamily(
        [
            _CONSUMERS,
            _gauge("queue_messages_bytes", "Size in bytes of ready and unacknowledged messages"),
            _gauge("queue_messages_ready_bytes", "Size in bytes of ready messages"),
            _gauge("queue_messages_unacked_bytes", "Size in bytes of unacknowledged messages"),
            _gauge("queue_messages_delayed", "Messages that are not ready yet"),
            _gauge("queue_messages_dlx", "Dead messages that are on their way to another queue"),
            _gauge("queue_messages_leased", "Messages in open leases of groups"),
            _gauge("queue_groups", "Groups that lease messages of a queue"),
        ],
        _sizes,
    ),
    "queue_delivery_metrics": _QueueFamily(
        [
            _counter("queue_get", "Messages fetched from a queue"),
            _counter("queue_messages_delivered", "Messages delivered from a queue to consumers"),
            _counter("queue_messages_redelivered", "Messages redelivered from a queue to consumers"),
            _counter("queue_messages_acked", "Messages acknowledged by consumers on a queue"),
        ],
        _deliveries,
    ),
    "queue_exchange_metrics": _QueueFamily(
        [_counter("queue_messages_published", "Messages published into a queue")],
        _published,
    ),
}
_AGE = _gauge("queue_oldest_message_age_seconds", "How long the oldest ready message has waited, at least")
_SINK_METRICS = [
    _gauge("sink_attempts", "Attempts of a sink that are not committed"),
    _gauge("sink_messages_staged", "Messages of a sink that are not committed"),
    _gauge("sink_bytes_staged", "Size in bytes of messages of a sink that are not committed"),
    _gauge("sink_oldest_message_age_seconds", "How long the oldest of these messages is stored, at least"),
]
_DIED = _counter("queue_messages_dead_lettered", "Messages that died in a queue, by reason")


class ObjectMetrics:
    """Makes the metrics of single objects."""

    def __init__(self, broker: Broker, group: Group) -> None:
        self._broker = broker
        self._group = group
        self._blocks = QueueBlocks()

    def tables(self, families: Collection[str], vhosts: Collection[str] | None) -> Iterator[ObjectTable]:
        """Yield the metrics of objects by RabbitMQ's names of their families, of some virtual hosts or of all.

        Only the leader shows metrics that are equal at all nodes.
        """
        if not self._group.engine.is_leader:
            self._blocks.clear()
            return
        machine, wanted = self._broker.machine, set(families)
        if "queue_metrics" in wanted:
            wanted.discard("queue_consumer_count")  # included in queue_metrics

        def blocks() -> Iterator[list[Queue]]:
            return self._blocks.blocks(_vhosts(machine, vhosts), machine.vhosts)

        for name in sorted(wanted & _QUEUE_FAMILIES.keys()):
            metrics, values = _QUEUE_FAMILIES[name]
            yield ObjectTable(False, _QUEUE, metrics, _queue_rows(name, values, blocks()))
        if "queue_metrics" in wanted:
            ages = _ages(self._group.entry_times, self._group.time_ms(), blocks())
            yield ObjectTable(False, _QUEUE, [_AGE], ages)
        if "queue_delivery_metrics" in wanted:
            yield ObjectTable(False, (*_QUEUE, "reason"), [_DIED], _died(blocks()))
        if "vhost_status" in wanted:
            up = _gauge("vhost_status", "Whether a virtual host is running")
            rows = (((vhost.name,), (1,)) for vhost in _vhosts(machine, vhosts))
            yield ObjectTable(True, ("vhost",), [up], _parts(rows))
        if "sink_metrics" in wanted:
            rows = _sinks(machine, vhosts, self._group.entry_times, self._group.time_ms())
            yield ObjectTable(False, _SINK, _SINK_METRICS, _parts(rows))
        if "exchange_names" in wanted:
            there = _gauge("exchange_name", "Enumerates exchanges without any additional info")
            yield ObjectTable(True, _EXCHANGE, [there], _parts(_exchanges(machine, vhosts)))
        if "exchange_bindings" in wanted:
            count = _gauge("exchange_bindings", "Number of bindings for an exchange")
            yield ObjectTable(True, _EXCHANGE, [count], _parts(_bindings(machine, vhosts)))


def _vhosts(machine: QueueMachine, names: Collection[str] | None) -> Iterator[VirtualHost]:
    for vhost in list(machine.vhosts.values()):
        if names is None or vhost.name in names:
            yield vhost


def _queue_rows(
    family: str, values: Callable[[Queue], Sequence[float | None]], blocks: Iterable[list[Queue]]
) -> Iterator[ObjectRows]:
    for queues in blocks:
        make = partial(_rows_of, queues, values)
        if queues:
            first = queues[0]
            served = [queue.revision for queue in queues]
            yield ObjectRows(make, (family, first.vhost, first.number // BLOCK), (queues, served))
        else:
            yield ObjectRows(make)


def _rows_of(queues: list[Queue], values: Callable[[Queue], Sequence[float | None]]) -> Iterator[ObjectRow]:
    return (((queue.vhost, queue.name), values(queue)) for queue in queues)


def _parts(rows: Iterator[ObjectRow]) -> Iterator[ObjectRows]:
    """Yield rows without a revision, which are rendered anew each time."""
    while part := list(islice(rows, ROWS_AT_ONCE)):
        yield ObjectRows(partial(iter, part))


def _died(blocks: Iterable[list[Queue]]) -> Iterator[ObjectRows]:
    for queues in blocks:
        rows: list[ObjectRow] = [
            ((queue.vhost, queue.name, reason), (count,))
            for queue in queues
            if queue.tally.died
            for reason, count in queue.tally.died.items()
        ]
        yield ObjectRows(rows.copy)


def _sinks(
    machine: QueueMachine, vhosts: Collection[str] | None, times: EntryTimes, now_ms: int
) -> Iterator[ObjectRow]:
    for vhost in _vhosts(machine, vhosts):
        for sink in list(vhost.sinks.values()):
            oldest = sink.oldest_index()
            age_s = 0 if oldest is None else times.age_ms(oldest, now_ms) / 1000
            yield (vhost.name, sink.name), (len(sink.attempts), sink.messages, sink.size, age_s)


def _exchanges(machine: QueueMachine, vhosts: Collection[str] | None) -> Iterator[ObjectRow]:
    for vhost in _vhosts(machine, vhosts):
        for exchange in list(vhost.exchanges.values()):
            yield (vhost.name, exchange.name, exchange.type), (1,)


def _bindings(machine: QueueMachine, vhosts: Collection[str] | None) -> Iterator[ObjectRow]:
    for vhost in _vhosts(machine, vhosts):
        counts = Counter(binding.source for binding in vhost.bindings)
        for exchange in list(vhost.exchanges.values()):
            yield (vhost.name, exchange.name, exchange.type), (counts[exchange.name],)
