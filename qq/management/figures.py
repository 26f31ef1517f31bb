"""What Prometheus is shown of single queues, exchanges and virtual hosts.

Lives here: which figures there are, in RabbitMQ's families and under its names
(prometheus_rabbitmq_core_metrics_collector). Not here: their text (qq/http/exposition.py), the node's own metrics
(qq/metrics.py).

Law: only looks at the machine, and a row costs microseconds: there may be tens of thousands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from qq.http.view import ObjectMetric, ObjectTable

if TYPE_CHECKING:
    from cluster.group import Group
    from qq.machine.machine import QueueMachine
    from qq.machine.queue import Queue
    from qq.machine.vhost import VirtualHost
    from qq.management.entry_times import EntryTimes
    from qq.sessions.broker import Broker

_Row = tuple[Sequence[str], Sequence[float | None]]


class _QueueFamily(NamedTuple):
    """A family of metrics of queues."""

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
    return queue.consumers, ready + unacked, ready, unacked, queue.backlog.delayed, queue.dying_count


def _ages(
    times: EntryTimes, now_ms: int, machine: QueueMachine, vhosts: Collection[str] | None
) -> Iterator[_Row]:
    """How old the oldest ready message of each queue is, where there is one."""
    for queue in _queues(machine, vhosts):
        index = queue.backlog.oldest_index()
        if index is not None:
            yield (queue.vhost, queue.name), (times.age_ms(index, now_ms) / 1000,)


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
_DIED = _counter("queue_messages_dead_lettered", "Messages that died in a queue, by reason")


class ObjectFigures:
    """The part of `qq.http.view.ManagementView` that is about metrics of single objects."""

    def __init__(self, broker: Broker, group: Group, entry_times: EntryTimes) -> None:
        self._broker = broker
        self._group = group
        self._entry_times = entry_times

    def object_tables(
        self, families: Collection[str], vhosts: Collection[str] | None
    ) -> Iterator[ObjectTable]:
        if not self._group.engine.is_leader:
            return
        machine, told = self._broker.machine, set(families)
        if "queue_metrics" in told:
            told.discard("queue_consumer_count")  # it is among the others
        for name in sorted(told & _QUEUE_FAMILIES.keys()):
            family = _QUEUE_FAMILIES[name]
            yield ObjectTable(
                is_of_cluster=False,
                labels=("vhost", "queue"),
                metrics=family.metrics,
                rows=_queue_rows(machine, family.values, vhosts),
            )
        if "queue_metrics" in told:
            rows = _ages(self._entry_times, self._group.time_ms(), machine, vhosts)
            yield ObjectTable(is_of_cluster=False, labels=("vhost", "queue"), metrics=[_AGE], rows=rows)
        if "queue_delivery_metrics" in told:
            labels = ("vhost", "queue", "reason")
            yield ObjectTable(
                is_of_cluster=False, labels=labels, metrics=[_DIED], rows=_died(machine, vhosts)
            )
        if "vhost_status" in told:
            up = _gauge("vhost_status", "Whether a virtual host is running")
            rows = (((vhost.name,), (1,)) for vhost in _vhosts(machine, vhosts))
            yield ObjectTable(is_of_cluster=True, labels=("vhost",), metrics=[up], rows=rows)
        if "exchange_names" in told:
            there = _gauge("exchange_name", "Enumerates exchanges without any additional info")
            exchange = ("vhost", "exchange", "type")
            yield ObjectTable(
                is_of_cluster=True, labels=exchange, metrics=[there], rows=_exchanges(machine, vhosts)
            )
        if "exchange_bindings" in told:
            count = _gauge("exchange_bindings", "Number of bindings for an exchange")
            exchange = ("vhost", "exchange", "type")
            yield ObjectTable(
                is_of_cluster=True, labels=exchange, metrics=[count], rows=_bindings(machine, vhosts)
            )


def _vhosts(machine: QueueMachine, names: Collection[str] | None) -> Iterator[VirtualHost]:
    for vhost in list(machine.vhosts.values()):
        if names is None or vhost.name in names:
            yield vhost


def _queues(machine: QueueMachine, vhosts: Collection[str] | None) -> Iterator[Queue]:
    for vhost in _vhosts(machine, vhosts):
        yield from list(vhost.queues.values())


def _queue_rows(
    machine: QueueMachine, values: Callable[[Queue], Sequence[float | None]], vhosts: Collection[str] | None
) -> Iterator[_Row]:
    return (((queue.vhost, queue.name), values(queue)) for queue in _queues(machine, vhosts))


def _died(machine: QueueMachine, vhosts: Collection[str] | None) -> Iterator[_Row]:
    for queue in _queues(machine, vhosts):
        for reason, count in list(queue.tally.died.items()):
            yield (queue.vhost, queue.name, reason), (count,)


def _exchanges(machine: QueueMachine, vhosts: Collection[str] | None) -> Iterator[_Row]:
    for vhost in _vhosts(machine, vhosts):
        for exchange in list(vhost.exchanges.values()):
            yield (vhost.name, exchange.name, exchange.type), (1,)


def _bindings(machine: QueueMachine, vhosts: Collection[str] | None) -> Iterator[_Row]:
    for vhost in _vhosts(machine, vhosts):
        counts = Counter(binding.source for binding in vhost.bindings)
        for exchange in list(vhost.exchanges.values()):
            yield (vhost.name, exchange.name, exchange.type), (counts[exchange.name],)
