"""What a node counts.

Invariant: the hot path adds to plain integers and knows nothing of Prometheus, whose library a node imports with HTTP.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class SizeHistogram:
    """How many messages had which size, by RabbitMQ's bounds."""

    bounds = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)
    """The upper bounds of the counted classes, in bytes, each included."""

    def __init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0
        """The sizes of all messages together, in bytes."""

    def add(self, messages: Sequence[bytes]) -> None:
        """Count messages that came together, which mostly have one size or nearly so."""
        sizes = list(map(len, messages))
        self.total += sum(sizes)
        largest = bisect_left(self.bounds, max(sizes))
        if bisect_left(self.bounds, min(sizes)) == largest:
            self.counts[largest] += len(sizes)
        else:
            for size in sizes:
                self.counts[bisect_left(self.bounds, size)] += 1


@dataclass(slots=True)
class Counters:
    """What has happened on this node since it started. Each only grows."""

    connections_opened: int = 0
    connections_closed: int = 0
    channels_opened: int = 0
    channels_closed: int = 0
    logins_succeeded: int = 0
    logins_failed: int = 0
    queues_declared: int = 0
    """How often clients have declared a queue, whether it was there before or not."""
    publishers: int = 0
    """How many channels there are now on which something was published."""
    messages_received: int = 0
    message_sizes: SizeHistogram = field(default_factory=SizeHistogram)
    """The sizes of these messages, with their headers and frames."""
    messages_received_confirm: int = 0
    """How many of `messages_received` came on a channel in confirm mode."""
    messages_confirmed: int = 0
    messages_unroutable_returned: int = 0
    messages_delivered_manual_ack: int = 0
    messages_delivered_auto_ack: int = 0
    messages_got_manual_ack: int = 0
    messages_got_auto_ack: int = 0
    get_empty: int = 0
    messages_redelivered: int = 0
    """How many of the deliveries and gets above had been delivered before."""
    messages_acknowledged: int = 0
    replies_delivered: int = 0
    """Direct replies that were delivered; they do not count among the deliveries above."""
    replies_dropped: int = 0
    """Direct replies that a client was too slow for."""
    dead_lettered: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Messages that this node has seen off as dead letters, by reason and strategy."""


@dataclass(slots=True)
class SpanCounts:
    """What has become of the spans of traces since this node started. Each only grows."""

    made: int = 0
    exported: int = 0
    failed: int = 0
    """How many the collector has not taken."""
    dropped: int = 0
    """How many were not made, because of their rate or because too many waited for the collector."""


@dataclass(frozen=True, slots=True)
class RaftMetrics:
    """The node's place in the log."""

    term: int
    is_leader: bool
    standing: str
    """The node's standing, one of `STANDINGS` (prometheus.py)."""
    first_index: int
    last_index: int
    synced_index: int
    """Up to where the log is known to be on the disk."""
    commit_index: int
    applied_index: int
    checkpoint_index: int
    elections: int
    """Changes of leader that this node has seen."""
    snapshots_installed: int
    """How often this node took another's state, because what it lacked was no longer in the leader's log."""
    members: int


@dataclass(frozen=True, slots=True)
class DiskMetrics:
    """The node's disk, in bytes."""

    log_bytes: int
    free_bytes: int
    free_limit_bytes: int
    alarm: bool
    """Whether publishers wait, because this node's disk or too many of the others' are full or nearly so."""


@dataclass(frozen=True, slots=True)
class MemoryMetrics:
    """The node's memory, in bytes."""

    limit_bytes: int
    alarm: bool
    """Whether publishers wait, because this node or too many of the others take more memory than their limit."""


class TimesCounted(Protocol):
    """A histogram: how often something took how long."""

    @property
    def bounds_s(self) -> Sequence[float]:
        """The upper bounds of the counted classes, in seconds, each included."""
        ...

    @property
    def counts(self) -> Sequence[int]:
        """For each bound how often it was the least one that was not exceeded; and then how often all were."""
        ...

    @property
    def total_s(self) -> float:
        """All lengths of time together, in seconds."""
        ...

    @property
    def last_s(self) -> float:
        """What was counted last, in seconds."""
        ...


@dataclass(frozen=True, slots=True)
class DelayMetrics:
    """What messages have waited for at this node."""

    apply: TimesCounted
    """How long it took to apply each entry of the log to the state."""
    loop: TimesCounted
    """How late timers of the event loop were: as late as everything else that was to be done then."""
    log_write: TimesCounted
    """How long the disk took to write to the log, with its sync."""
    commit: TimesCounted
    """How long it took from the submission of a batch of commands until it was applied here, and so confirmed."""
    queueing: TimesCounted
    """How long publishes have waited until they were submitted, the first message of each run of them."""
    checkpoint: TimesCounted
    """How long checkpoints have taken until they were on the disk."""
    catch_up: TimesCounted
    """How long it took this node to be given another's snapshot, each from its offer until it was installed."""


@dataclass(frozen=True, slots=True)
class ClusterTotals:
    """What is the same at every node, so that the leader alone shows it: RabbitMQ's boards add up what nodes show."""

    queues: int
    queues_created: int
    """How many queues were ever created; and so for those that are gone."""
    queues_deleted: int
    messages_ready: int
    messages_unacked: int


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """Everything that one scrape shows."""

    node: str
    cluster: str
    version: str
    counters: Counters
    raft: RaftMetrics
    disk: DiskMetrics
    memory: MemoryMetrics
    delays: DelayMetrics
    clock_offset_s: float | None
    """How many seconds the node's wall clock is ahead of the cluster's time; None if the node cannot tell."""
    uptime_s: float
    consumers: int
    """The consumers of this node's clients."""
    blocked: int
    """How many of its clients' connections wait with publishing, because of an alarm or a limit."""
    routed: int
    """How many messages of its clients went into queues since this process began, each as often as there were queues
    for it."""
    dropped: int
    """How many messages of its clients that were not mandatory have reached no queue since then."""
    totals: ClusterTotals | None
    """None if this node does not lead, or has not counted yet."""
    cluster_id: str = ""
    """The id of the cluster, in hexadecimal; empty as long as it has none."""
    spans: SpanCounts | None = None
    """None if messages are not traced."""


def infos(snapshot: MetricsSnapshot, endpoint: str) -> dict[str, tuple[str, dict[str, str]]]:
    """The metrics that say what a node is: texts and labels. `endpoint` is RabbitMQ's name for what is scraped."""
    identity = {
        "rabbitmq_node": snapshot.node,
        "rabbitmq_cluster": snapshot.cluster,
        "rabbitmq_cluster_permanent_id": snapshot.cluster_id,
        "rabbitmq_endpoint": endpoint,
    }
    build = {"rabbitmq_version": snapshot.version}
    return {"identity_info": ("This node and its cluster", identity), "build_info": ("What runs here", build)}
