"""The Prometheus metrics of a node, under RabbitMQ's names.

Invariant: names and labels are made only during a scrape.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from qq.metrics.counters import infos
from qq.metrics.rabbitmq_series import rabbitmq_series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from prometheus_client import Metric

    from cluster.runtime.histogram import Histogram
    from qq.metrics.counters import (
        CertificateEnd,
        ClusterTotals,
        Counters,
        DelayMetrics,
        DiskMetrics,
        MemoryMetrics,
        MetricsSnapshot,
        RaftMetrics,
        SpanCounts,
    )

STANDINGS = ("voter", "learner", "blank")
FamilyT = TypeVar("FamilyT", CounterMetricFamily, GaugeMetricFamily)
_NO_LABELS: dict[str, str] = {}
_PROTOCOLS = ("amqp091", "amqp10")
"""RabbitMQ's names of protocols. Fields of `Counters` and `ClientTotals` have the same names."""
_QUORUM, _VOLATILE = {"queue_type": "rabbit_quorum_queue"}, {"queue_type": "rabbit_volatile_queue"}
"""Labels of queues, and of direct replies, whose consumers RabbitMQ counts as queues of that type."""
_DEAD_LETTER_TEXTS = {
    "maxlen": "Dead-lettered because their queue was full",
    "expired": "Dead-lettered because they expired",
    "rejected": "Dead-lettered because a consumer rejected them",
    "delivery_limit": "Dead-lettered because they were delivered too often",
}
"""The help texts of dead-letter metrics, by reason."""
_DEAD_LETTER_LABELS = [*_QUORUM, "dead_letter_strategy"]
_DEAD_LETTER_REASONS = {
    "at-most-once": ("maxlen", "expired", "rejected", "delivery_limit"),
    # An at-least-once queue does not drop messages above its length limit: it has no "maxlen".
    "at-least-once": ("expired", "rejected", "delivery_limit"),
}
"""The reasons for which queues dead-letter, by strategy."""


def node_registry(snapshot: Callable[[], MetricsSnapshot]) -> CollectorRegistry:
    """Make the registry of /metrics; `snapshot` is called at every scrape."""
    registry = CollectorRegistry()
    ProcessCollector(namespace="rabbitmq", registry=registry)
    registry.register(_NodeCollector(snapshot))
    return registry


class _NodeCollector(Collector):
    def __init__(self, snapshot: Callable[[], MetricsSnapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterator[Metric]:
        """Return no descriptions at registration, because the node may not exist yet."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        yield from _infos(snapshot)
        yield from _gauges(snapshot)
        if snapshot.totals is not None:
            yield from _totals(snapshot.totals)
        yield from _raft(snapshot.raft)
        yield from _disk(snapshot.disk)
        yield from _memory(snapshot.memory)
        if snapshot.clock_offset_s is not None:
            yield _clock(snapshot.clock_offset_s)
        yield from _delays(snapshot.delays)
        yield from _connections(snapshot.counters)
        yield from _clients(snapshot)
        yield from _messages(snapshot)
        yield from _dead_letters(snapshot.counters)
        if snapshot.spans is not None:
            yield _spans(snapshot.spans)
        if snapshot.certificates:
            yield _certificates(snapshot.certificates)
        yield from rabbitmq_series(snapshot)


def _gauge(name: str, text: str, value: float, labels: dict[str, str] = _NO_LABELS) -> Metric:
    family = GaugeMetricFamily(f"rabbitmq_{name}", text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _counter(name: str, text: str, value: int, labels: dict[str, str] = _NO_LABELS) -> Metric:
    family = CounterMetricFamily(f"rabbitmq_{name}", text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _infos(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    for name, (text, labels) in infos(snapshot, "aggregated").items():
        yield _gauge(name, text, 1, labels)
    # RabbitMQ's board reads the start time of a node under this name.
    yield _gauge("erlang_uptime_seconds", "For how long this node has been up", snapshot.uptime_s)


def _gauges(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    counters = snapshot.counters
    connections = counters.connections_opened - counters.connections_closed
    yield _gauge("connections", "Client connections of this node", connections)
    blocked = "Client connections of this node that wait with publishing, for an alarm or a limit"
    yield _gauge("connections_blocked", blocked, snapshot.blocked)
    yield _gauge("channels", "Channels of this node", counters.channels_opened - counters.channels_closed)
    yield _gauge("consumers", "Consumers of this node's clients", snapshot.consumers)
    declared = "Declarations of queues by this node's clients, also of queues that were there"
    yield _counter("queues_declared", declared, counters.queues_declared)


def _totals(totals: ClusterTotals) -> Iterator[Metric]:
    ready, unacked = totals.messages_ready, totals.messages_unacked
    yield _gauge("queues", "Queues of the cluster", totals.queues)
    yield _counter("queues_created", "Queues created in the cluster, ever", totals.queues_created)
    yield _counter("queues_deleted", "Queues deleted in the cluster, ever", totals.queues_deleted)
    yield _gauge("queue_messages_ready", "Messages that wait for a consumer", ready)
    yield _gauge("queue_messages_unacked", "Messages delivered and not acknowledged", unacked)
    yield _gauge("queue_messages", "Ready and unacked messages", ready + unacked)


def _raft(raft: RaftMetrics) -> Iterator[Metric]:
    yield _gauge("raft_term", "Term of this node", raft.term)
    yield _gauge("raft_members", "Nodes that this node's cluster has, up or down", raft.members)
    yield _gauge("raft_leader", "1 if this node is the leader", int(raft.is_leader))
    yield _standing(raft.standing)
    yield _gauge("raft_first_index", "First entry in this node's log", raft.first_index)
    yield _gauge("raft_last_index", "Last entry in this node's log", raft.last_index)
    written = "Last entry that is on this node's disk"
    yield _gauge("raft_last_written_index", written, raft.synced_index)
    yield _gauge("raft_commit_index", "Last entry that this node knows to be committed", raft.commit_index)
    yield _gauge("raft_last_applied", "Last entry applied to this node's state", raft.applied_index)
    checkpoint = "Entry of this node's newest checkpoint"
    yield _gauge("raft_checkpoint_index", checkpoint, raft.checkpoint_index)
    # RabbitMQ's board computes the length of logs from this name.
    yield _gauge("raft_snapshot_index", checkpoint, raft.checkpoint_index)
    yield _counter("raft_elections", "Changes of leader that this node has seen", raft.elections)
    installed = "Snapshots of other nodes that this node has installed"
    yield _counter("raft_snapshots_installed", installed, raft.snapshots_installed)


def _standing(current: str) -> Metric:
    text = "1 for what this node is: a voter, or (learner, blank) one whose log is being repaired"
    family = GaugeMetricFamily("rabbitmq_raft_standing", text, labels=["standing"])
    for standing in STANDINGS:
        family.add_metric([standing], int(standing == current))
    return family


def _disk(disk: DiskMetrics) -> Iterator[Metric]:
    yield _gauge("raft_log_bytes", "Size of this node's log and stored messages on disk", disk.log_bytes)
    yield _gauge("disk_space_available_bytes", "Free space on this node's disk", disk.free_bytes)
    limit = "Free space below which publishers wait"
    yield _gauge("disk_space_available_limit_bytes", limit, disk.free_limit_bytes)
    alarm = "1 while publishers wait because disks are full or nearly so"
    yield _gauge("alarms_free_disk_space_watermark", alarm, int(disk.alarm))


def _memory(memory: MemoryMetrics) -> Iterator[Metric]:
    yield _gauge("resident_memory_limit_bytes", "Memory above which publishers wait", memory.limit_bytes)
    alarm = "1 while publishers wait because nodes are short of memory"
    yield _gauge("alarms_memory_used_watermark", alarm, int(memory.alarm))


def _clock(offset_s: float) -> Metric:
    text = "By how much this node's wall clock is ahead of the cluster's time"
    return _gauge("clock_offset_seconds", text, offset_s)


def _delays(delays: DelayMetrics) -> Iterator[Metric]:
    yield _durations("loop_delay", "How late this node's event loop does what is due", delays.loop)
    yield _durations("raft_log_write", "Each write to this node's log, with its sync", delays.log_write)
    yield _durations("raft_apply", "Each entry's application to this node's state", delays.apply)
    queueing = "From a client's publish until it was submitted, the first of each run of messages"
    yield _durations("publish_queueing", queueing, delays.queueing)
    yield _durations(
        "raft_checkpoint", "Each checkpoint of this node, until it was on the disk", delays.checkpoint
    )
    catch_up = "Each snapshot of another node that this one was given, until it was installed"
    yield _durations("raft_catch_up", catch_up, delays.catch_up)
    commit = "From the submission of a batch of commands until this node has applied it"
    yield _durations("raft_commit", commit, delays.commit)
    latest = "The same of the newest batch"
    yield _gauge("raft_commit_latency_seconds", latest, delays.commit.last)


def _durations(name: str, text: str, durations: Histogram) -> Metric:
    return _histogram(f"{name}_seconds", text, durations, _NO_LABELS)


def _histogram(name: str, text: str, values: Histogram, labels: Mapping[str, str]) -> Metric:
    family = HistogramMetricFamily(f"rabbitmq_{name}", text, labels=list(labels))
    family.add_metric(list(labels.values()), _buckets(values), values.total)
    return family


def _buckets(values: Histogram) -> list[tuple[str, int]]:
    """Return the bounds of the buckets, and the number of values up to each."""
    bounds = [*map(floatToGoString, values.bounds), "+Inf"]
    return list(zip(bounds, accumulate(values.counts), strict=True))


def _connections(counters: Counters) -> Iterator[Metric]:
    succeeded, failed = counters.logins_succeeded, counters.logins_failed
    yield _counter("connections_opened", "Client connections opened", counters.connections_opened)
    yield _counter("connections_closed", "Client connections closed", counters.connections_closed)
    yield _counter("channels_opened", "Channels opened", counters.channels_opened)
    yield _counter("channels_closed", "Channels closed", counters.channels_closed)
    yield _counter("auth_attempts", "Logins", succeeded + failed)
    yield _counter("auth_attempts_succeeded", "Logins that succeeded", succeeded)
    yield _counter("auth_attempts_failed", "Logins that failed", failed)


def _by_protocol(
    kind: type[FamilyT],
    name: str,
    text: str,
    value: Callable[[str], int],
    labels: dict[str, str] = _NO_LABELS,
) -> FamilyT:
    """Return a metric with a value for each protocol."""
    family = kind(f"rabbitmq_global_{name}", text, labels=["protocol", *labels])
    for protocol in _PROTOCOLS:
        family.add_metric([protocol, *labels.values()], value(protocol))
    return family


def _clients(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    """Return the clients of each protocol."""

    def clients(name: str, text: str, labels: dict[str, str] = _NO_LABELS) -> Metric:
        def value(protocol: str) -> int:
            return getattr(getattr(snapshot.clients, protocol), name)

        return _by_protocol(GaugeMetricFamily, name, text, value, labels)

    yield clients("connections", "Client connections of this node")
    yield clients("channels", "Channels of AMQP 0-9-1, or sessions of AMQP 1.0")
    yield clients("links", "Links of AMQP 1.0")
    yield clients("consumers", "Consumers of this node's clients", _QUORUM)

    def publishers(protocol: str) -> int:
        return getattr(snapshot.counters, protocol).publishers

    text = "Channels on which something was published, or links of publishers"
    yield _by_protocol(GaugeMetricFamily, "publishers", text, publishers)


def _messages(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    counters = snapshot.counters

    def counted(
        name: str, text: str, fields: Sequence[str], labels: dict[str, str] = _NO_LABELS
    ) -> CounterMetricFamily:
        def value(protocol: str) -> int:
            of = getattr(counters, protocol)
            return sum(getattr(of, field) for field in fields)

        return _by_protocol(CounterMetricFamily, f"messages_{name}", text, value, labels)

    def published(name: str, text: str) -> Metric:
        return counted(name, text, [f"messages_{name}"])

    def consumed(name: str, text: str, *fields: str) -> CounterMetricFamily:
        return counted(name, text, fields, _QUORUM)

    yield published("received", "Received from publishers")
    yield _sizes(counters)
    yield published("received_confirm", "Received from publishers that want a confirm")
    yield published("confirmed", "Confirmed to publishers")
    routed = {"amqp091": snapshot.routed - snapshot.routed10, "amqp10": snapshot.routed10}
    text = "Went into queues, each as often as there were queues for it"
    yield _by_protocol(CounterMetricFamily, "messages_routed", text, routed.__getitem__)
    text = "Reached no queue and were not mandatory, so nobody has them"
    dropped = {"amqp091": snapshot.dropped, "amqp10": 0}  # a link of AMQP 1.0 learns of each message
    yield _by_protocol(CounterMetricFamily, "messages_unroutable_dropped", text, dropped.__getitem__)
    yield published("unroutable_returned", "Returned or released as unroutable")

    def sent(name: str, text: str, *fields: str) -> Metric:
        family = consumed(name, text, *fields)
        for protocol in _PROTOCOLS:
            replies = getattr(counters, protocol).replies_delivered
            family.add_metric([protocol, *_VOLATILE.values()], replies)
        return family

    manual, auto = "messages_delivered_manual_ack", "messages_delivered_auto_ack"
    got_manual, got_auto = "messages_got_manual_ack", "messages_got_auto_ack"
    yield sent("delivered", "Delivered and fetched", manual, auto, got_manual, got_auto)
    yield consumed("delivered_consume_manual_ack", "Delivered, to be acknowledged", manual)
    yield sent("delivered_consume_auto_ack", "Delivered without acknowledgement", auto)
    yield consumed("delivered_get_manual_ack", "Fetched, to be acknowledged", got_manual)
    yield consumed("delivered_get_auto_ack", "Fetched without acknowledgement", got_auto)
    yield consumed("get_empty", "Fetches that found the queue empty", "get_empty")
    yield consumed("redelivered", "Delivered again", "messages_redelivered")
    yield consumed("acknowledged", "Acknowledged", "messages_acknowledged")


def _sizes(counters: Counters) -> Metric:
    text = "Sizes of the messages received from publishers, with their properties and frames"
    family = HistogramMetricFamily("rabbitmq_message_size_bytes", text, labels=["protocol"])
    for protocol in _PROTOCOLS:
        sizes = getattr(counters, protocol).message_sizes
        family.add_metric([protocol], _buckets(sizes), sizes.total)
    return family


def _spans(counts: SpanCounts) -> Metric:
    text = "Spans of traces, by what has become of them"
    family = CounterMetricFamily("rabbitmq_trace_spans", text, labels=["outcome"])
    for outcome in ("exported", "failed", "dropped"):
        family.add_metric([outcome], getattr(counts, outcome))
    return family


def _dead_letters(counters: Counters) -> Iterator[Metric]:
    """Return the counts of dead letters; a single node of the cluster counts each dead letter.

    A message that has left an at-least-once queue is in its target queues, so it counts as confirmed.
    """
    families = {
        name: CounterMetricFamily(
            f"rabbitmq_global_messages_dead_lettered_{name}", text, labels=_DEAD_LETTER_LABELS
        )
        for name, text in _DEAD_LETTER_TEXTS.items()
    }
    for strategy, reasons in _DEAD_LETTER_REASONS.items():
        labels = [*_QUORUM.values(), strategy.replace("-", "_")]
        for reason in reasons:
            families[reason].add_metric(labels, counters.dead_lettered[reason, strategy])
    families["maxlen"].add_metric([*_VOLATILE.values(), "disabled"], counters.replies_dropped)
    yield from families.values()
    labels = _QUORUM | {"dead_letter_strategy": "at_least_once"}
    confirmed = sum(
        count for (_, strategy), count in counters.dead_lettered.items() if strategy == "at-least-once"
    )
    yield _counter(
        "global_messages_dead_lettered_confirmed", "Dead-lettered and in a queue", confirmed, labels
    )


def _certificates(ends: Sequence[CertificateEnd]) -> Metric:
    text = "When the first certificate in a file of this node ends, in seconds since unix epoch"
    family = GaugeMetricFamily("rabbitmq_certificate_not_after_seconds", text, labels=["protocol", "file"])
    for protocol, file, ends_s in ends:
        family.add_metric([protocol, file], ends_s)
    return family
