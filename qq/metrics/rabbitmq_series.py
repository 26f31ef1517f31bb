"""Metrics that only RabbitMQ's boards and public alert rules read: values of a node under further names of RabbitMQ.

RabbitMQ adds up the counts of its channels, connections, exchanges and queues in `/metrics`. Here they are counts of
the node, which do not fall when a channel is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from qq.metrics.counters import MetricsSnapshot

PEER_IS_UP, PEER_IS_PENDING = 3, 1
"""The states of a connection between Erlang nodes."""


def rabbitmq_series(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    """Return the metrics of a scrape."""
    for name, (text, value) in _gauges(snapshot).items():
        yield GaugeMetricFamily(name, text, value=value)
    for name, (text, value) in _counters(snapshot).items():
        yield CounterMetricFamily(name, text, value=value)
    links = "State of the connection to a peer: 3 if it is up, else 1"
    family = GaugeMetricFamily("erlang_vm_dist_node_state", links, labels=["peer"])
    for peer, is_up in snapshot.peers.items():
        family.add_metric([peer], PEER_IS_UP if is_up else PEER_IS_PENDING)
    yield family


def _gauges(snapshot: MetricsSnapshot) -> dict[str, tuple[str, float]]:
    clients, raft, counters = snapshot.clients, snapshot.raft, snapshot.counters
    open_channels = counters.channels_opened - counters.channels_closed
    unreachable = sum(not is_up for is_up in snapshot.peers.values())
    return {
        "rabbitmq_channel_consumers": ("Consumers of this node's clients", snapshot.consumers),
        "rabbitmq_channel_messages_unacked": (
            "Messages that this node's clients have not acknowledged yet",
            clients.unacknowledged,
        ),
        "rabbitmq_channel_messages_unconfirmed": (
            "Messages of this node's clients without a confirm yet",
            clients.unconfirmed,
        ),
        "rabbitmq_channel_messages_uncommitted": ("Messages in open transactions", clients.uncommitted),
        "rabbitmq_channel_acks_uncommitted": (
            "Acknowledgements in open transactions",
            clients.uncommitted_acks,
        ),
        "rabbitmq_connection_channels": ("Channels of this node", open_channels),
        "rabbitmq_queue_consumers": ("Consumers of this node's clients", snapshot.consumers),
        "rabbitmq_alarms_file_descriptor_limit": (
            "Always 0: a node without file descriptors refuses connections, without an alarm",
            0,
        ),
        "rabbitmq_unreachable_cluster_peers_count": ("Members that do not answer this node", unreachable),
        "rabbitmq_raft_log_commit_index": ("Last entry known to be committed", raft.commit_index),
        "rabbitmq_raft_log_last_applied_index": ("Last entry applied to the state", raft.applied_index),
        "rabbitmq_raft_log_last_written_index": ("Last entry on the disk", raft.synced_index),
        "rabbitmq_raft_log_snapshot_index": ("Entry of the newest checkpoint", raft.checkpoint_index),
        "rabbitmq_raft_entry_commit_latency_seconds": (
            "From the submission of the newest batch until it was applied",
            snapshot.delays.commit.last,
        ),
    }


def _counters(snapshot: MetricsSnapshot) -> dict[str, tuple[str, float]]:
    total, traffic = snapshot.counters.total, snapshot.clients.traffic
    published = ("Received from publishers", total("messages_received"))
    confirmed = ("Confirmed to publishers", total("messages_confirmed"))
    dropped = ("Reached no queue, and were not mandatory", snapshot.dropped)
    returned = ("Returned as unroutable", total("messages_unroutable_returned"))
    consumed = {
        "messages_delivered": ("Delivered without acknowledgement", total("messages_delivered_auto_ack")),
        "messages_delivered_ack": ("Delivered, to be acknowledged", total("messages_delivered_manual_ack")),
        "messages_redelivered": ("Delivered again", total("messages_redelivered")),
        "messages_acked": ("Acknowledged", total("messages_acknowledged")),
        "get": ("Fetched without acknowledgement", total("messages_got_auto_ack")),
        "get_ack": ("Fetched, to be acknowledged", total("messages_got_manual_ack")),
        "get_empty": ("Fetches that found the queue empty", total("get_empty")),
    }
    log_writes = snapshot.delays.log_write
    return {
        **{
            f"rabbitmq_{of}_messages_{name}": value
            for of in ("channel", "exchange")
            for name, value in {
                "published": published,
                "confirmed": confirmed,
                "unroutable_dropped": dropped,
                "unroutable_returned": returned,
            }.items()
        },
        **{f"rabbitmq_{of}_{name}": value for of in ("channel", "queue") for name, value in consumed.items()},
        "rabbitmq_queue_messages_published": (
            "Went into queues, counted once for each queue",
            snapshot.routed,
        ),
        "rabbitmq_connection_incoming_bytes": ("Received from clients", traffic.octets_in),
        "rabbitmq_connection_incoming_packets": ("Reads from sockets of clients", traffic.reads),
        "rabbitmq_connection_outgoing_bytes": ("Sent to clients", traffic.octets_out),
        "rabbitmq_connection_outgoing_packets": ("Writes to sockets of clients", traffic.writes),
        "rabbitmq_raft_term": ("Term of this node", snapshot.raft.term),
        "rabbitmq_io_sync_ops": ("Writes to the log, each with its sync", sum(log_writes.counts)),
        "rabbitmq_io_sync_time_seconds": ("Time of these writes", log_writes.total),
    }
