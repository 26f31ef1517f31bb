"""The counters and measured values of a node.

Invariant: the hot path adds to plain integers without Prometheus, whose library a node imports together with HTTP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cluster.runtime.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Sequence

MESSAGE_SIZE_BOUNDS = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)
"""RabbitMQ's upper bounds of message sizes, in bytes."""


@dataclass(slots=True)
class MessageCounters:
    """Messages of the clients of a protocol on this node since it started.

    Each counter only grows, except `publishers`.
    """

    publishers: int = 0
    """Open channels that have published a message, or open links of AMQP 1.0 that may publish."""
    messages_received: int = 0
    message_sizes: Histogram = field(default_factory=partial(Histogram, MESSAGE_SIZE_BOUNDS))
    """Sizes of the received messages in bytes, with their headers and frames."""
    messages_received_confirm: int = 0
    """Messages among `messages_received` that came on a channel in confirm mode."""
    messages_confirmed: int = 0
    messages_unroutable_returned: int = 0
    messages_delivered_manual_ack: int = 0
    messages_delivered_auto_ack: int = 0
    messages_got_manual_ack: int = 0
    messages_got_auto_ack: int = 0
    get_empty: int = 0
    messages_redelivered: int = 0
    """Messages among the deliveries and gets above that had been delivered before."""
    messages_acknowledged: int = 0
    replies_delivered: int = 0
    """Direct replies that were delivered; they do not count among the deliveries above."""


@dataclass(slots=True)
class Counters:
    """Events on this node since it started. Each counter only grows, except the publishers of a protocol."""

    connections_opened: int = 0
    connections_closed: int = 0
    channels_opened: int = 0
    channels_closed: int = 0
    logins_succeeded: int = 0
    logins_failed: int = 0
    queues_declared: int = 0
    """Declarations of queues by clients, whether or not the queue existed before."""
    amqp091: MessageCounters = field(default_factory=MessageCounters)
    """Messages of clients of AMQP 0-9-1, and those that HTTP requests publish."""
    amqp10: MessageCounters = field(default_factory=MessageCounters)
    confirmed_in: Counter[str] = field(default_factory=Counter)
    """The confirmed messages of all protocols, by virtual host."""
    replies_dropped: int = 0
    """Direct replies that were dropped because a client read too slowly."""
    dead_lettered: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Messages that this node has dead-lettered, by reason and strategy."""

    def total(self, name: str) -> int:
        """Return the sum of a message counter over all protocols."""
        return sum(getattr(each, name) for each in (self.amqp091, self.amqp10))


@dataclass(slots=True)
class SpanCounts:
    """The spans of traces since this node started. Each counter only grows."""

    made: int = 0
    exported: int = 0
    failed: int = 0
    """Spans that the collector has not accepted."""
    dropped: int = 0
    """Spans that were not made, because of their rate or because too many waited for the collector."""


@dataclass(frozen=True, slots=True)
class RaftMetrics:
    """The node's place in the log."""

    term: int
    is_leader: bool
    standing: str
    """The node's voter status, a value of `STANDINGS` (prometheus.py)."""
    first_index: int
    last_index: int
    synced_index: int
    """The last log index that is known to be on the disk."""
    commit_index: int
    applied_index: int
    checkpoint_index: int
    elections: int
    """Changes of leader that this node has seen."""
    snapshots_installed: int
    """Snapshots that this node has installed because the leader's log no longer had the entries it needed."""
    members: int


@dataclass(frozen=True, slots=True)
class DiskMetrics:
    """The node's disk, in bytes."""

    log_bytes: int
    free_bytes: int
    free_limit_bytes: int
    alarm: bool
    """Whether publishers wait because this node's disk, or the disks of too many peers, are full or nearly so."""


@dataclass(frozen=True, slots=True)
class MemoryMetrics:
    """The node's memory, in bytes."""

    limit_bytes: int
    alarm: bool
    """Whether publishers wait because this node, or too many peers, use more memory than their limit."""


@dataclass(frozen=True, slots=True)
class DelayMetrics:
    """Histograms of the delays that messages meet at this node."""

    apply: Histogram
    """Durations of applying an entry of the log to the state."""
    loop: Histogram
    """Delays of timers of the event loop, which delay all other work of that moment as much."""
    log_write: Histogram
    """Durations of writing to the log, with the sync."""
    commit: Histogram
    """Times from the submission of a batch of commands until this node has applied it, and so confirmed it."""
    queueing: Histogram
    """Times that publishes waited for their submission: the first message of each run."""
    checkpoint: Histogram
    """Durations of checkpoints until they were on the disk."""
    catch_up: Histogram
    """Durations of catching up by a snapshot, from its offer until it was installed."""


@dataclass(slots=True)
class Transferred:
    """Octets and calls on the sockets of all clients since this node started, as of the last sample."""

    octets_in: int = 0
    reads: int = 0
    octets_out: int = 0
    writes: int = 0


@dataclass(slots=True)
class ProtocolClients:
    """The clients of a protocol at this node, as of the last sample."""

    connections: int = 0
    channels: int = 0
    """Channels of AMQP 0-9-1, or sessions of AMQP 1.0."""
    links: int = 0
    """Links of AMQP 1.0."""
    consumers: int = 0


@dataclass(slots=True)
class ClientTotals:
    """Totals of this node's clients, as of the last sample."""

    unacknowledged: int = 0
    unconfirmed: int = 0
    uncommitted: int = 0
    """Messages in open transactions; `uncommitted_acks` are the acknowledgements in them."""
    uncommitted_acks: int = 0
    traffic: Transferred = field(default_factory=Transferred)
    amqp091: ProtocolClients = field(default_factory=ProtocolClients)
    amqp10: ProtocolClients = field(default_factory=ProtocolClients)

    def count_connection(self, channels: int, links: int | None) -> None:
        """Count a connection; `links` is None if its protocol has no links."""
        clients = self.amqp091 if links is None else self.amqp10
        clients.connections += 1
        clients.channels += channels
        clients.links += links or 0


@dataclass(frozen=True, slots=True)
class ClusterTotals:
    """Totals that are equal at every node.

    Only the leader shows them: RabbitMQ's boards add up the values of all nodes.
    """

    queues: int
    queues_created: int
    """Queues ever created; `queues_deleted` counts the queues ever deleted."""
    queues_deleted: int
    messages_ready: int
    messages_unacked: int


class CertificateEnd(NamedTuple):
    """When the first certificate in a file ends."""

    protocol: str
    """The protocol of the port that uses the file, as in `Listener`."""
    file: str
    """"cert", or "ca" for the authorities that verify the other side."""
    ends_s: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """All values of a single scrape."""

    node: str
    cluster: str
    version: str
    counters: Counters
    raft: RaftMetrics
    disk: DiskMetrics
    memory: MemoryMetrics
    delays: DelayMetrics
    clock_offset_s: float | None
    """Seconds that the node's wall clock is ahead of the cluster's time; None if the node cannot tell."""
    uptime_s: float
    consumers: int
    """The consumers of this node's clients."""
    blocked: int
    """Client connections of this node that must wait with publishing, because of an alarm or a limit."""
    routed: int
    """Messages of this node's clients routed to queues since this process began, counted once for each queue."""
    routed10: int
    """The messages in `routed` that clients of AMQP 1.0 have published."""
    dropped: int
    """Messages of this node's clients that were not mandatory and have reached no queue since then."""
    totals: ClusterTotals | None
    """None if this node does not lead, or has not counted yet."""
    cluster_id: str = ""
    """The id of the cluster, in hexadecimal; empty until it has an id."""
    spans: SpanCounts | None = None
    """None if messages are not traced."""
    certificates: Sequence[CertificateEnd] = ()
    """The certificates of this node's ports."""
    clients: ClientTotals = field(default_factory=ClientTotals)
    peers: Mapping[str, bool] = field(default_factory=dict)
    """Name of each other member -> whether it answers."""


def infos(snapshot: MetricsSnapshot, endpoint: str) -> dict[str, tuple[str, dict[str, str]]]:
    """Return the info metrics of a node: name -> (help text, labels).

    `endpoint` is RabbitMQ's name of the scraped endpoint.
    """
    identity = {
        "rabbitmq_node": snapshot.node,
        "rabbitmq_cluster": snapshot.cluster,
        "rabbitmq_cluster_permanent_id": snapshot.cluster_id,
        "rabbitmq_endpoint": endpoint,
    }
    build = {"rabbitmq_version": snapshot.version}
    return {"identity_info": ("This node and its cluster", identity), "build_info": ("What runs here", build)}
