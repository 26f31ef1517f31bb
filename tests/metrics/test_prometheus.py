"""The metrics in Prometheus' format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest
from prometheus_client import generate_latest

from cluster.runtime.histogram import LONG_BOUNDS_S, Histogram
from qq.metrics.counters import (
    MESSAGE_SIZE_BOUNDS,
    CertificateEnd,
    ClientTotals,
    ClusterTotals,
    Counters,
    DelayMetrics,
    DiskMetrics,
    MemoryMetrics,
    MessageCounters,
    MetricsSnapshot,
    RaftMetrics,
)
from qq.metrics.prometheus import node_registry

TOTALS = ClusterTotals(
    queues=3,
    queues_created=8,
    queues_deleted=5,
    messages_ready=10,
    messages_unacked=5,
)


def scrape(
    counters: Counters,
    clock_offset_s: float | None = -1.5,
    totals: ClusterTotals | None = TOTALS,
    peers: Mapping[str, bool] | None = None,
    clients: ClientTotals | None = None,
) -> dict[str, float]:
    raft = RaftMetrics(
        term=7,
        is_leader=True,
        standing="learner",
        first_index=40,
        last_index=100,
        synced_index=97,
        commit_index=99,
        applied_index=98,
        checkpoint_index=70,
        elections=2,
        snapshots_installed=3,
        members=3,
    )
    disk = DiskMetrics(log_bytes=5000, free_bytes=9000, free_limit_bytes=10_000, alarm=True)
    memory = MemoryMetrics(limit_bytes=7000, alarm=True)
    loop, log_write, commit, queueing = (Histogram() for _ in range(4))
    checkpoint = Histogram(LONG_BOUNDS_S)
    for seconds in (0.0001, 0.0005, 0.0006, 0.02, 7.0):
        loop.add(seconds)
    log_write.add(0.3)
    commit.add(0.2)
    commit.add(0.1)
    queueing.add(0.003)
    checkpoint.add(45.0)
    delays = DelayMetrics(
        Histogram(), loop, log_write, commit, queueing, checkpoint, Histogram(LONG_BOUNDS_S)
    )
    registry = node_registry(
        lambda: MetricsSnapshot(
            *(
                "n1",
                "qq",
                "0.1",
                counters,
                raft,
                disk,
                memory,
                delays,
                clock_offset_s,
                60.0,
                4,
                2,
                40,
                15,
                2,
                totals,
            ),
            peers=peers or {},
            clients=clients or ClientTotals(),
            certificates=[CertificateEnd("https", "cert", 1.7e9)],
        )
    )
    lines = generate_latest(registry).decode().splitlines()
    described = [line for line in lines if line.startswith("# TYPE")]
    assert len(set(described)) == len(described)
    samples = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in samples}


def test_gauges_have_the_names_of_rabbitmq() -> None:
    shown = scrape(Counters(connections_opened=5, connections_closed=2, channels_opened=9, channels_closed=8))
    expected = {
        (
            'rabbitmq_identity_info{rabbitmq_cluster="qq",rabbitmq_cluster_permanent_id="",'
            'rabbitmq_endpoint="aggregated",rabbitmq_node="n1"}'
        ): 1,
        "rabbitmq_erlang_uptime_seconds": 60,
        "rabbitmq_connections": 3,
        "rabbitmq_connections_opened_total": 5,
        "rabbitmq_connections_closed_total": 2,
        "rabbitmq_channels": 1,
        "rabbitmq_queues": 3,
        "rabbitmq_queues_created_total": 8,
        "rabbitmq_queues_deleted_total": 5,
        'rabbitmq_global_messages_routed_total{protocol="amqp091"}': 25,
        'rabbitmq_global_messages_routed_total{protocol="amqp10"}': 15,
        'rabbitmq_global_messages_unroutable_dropped_total{protocol="amqp091"}': 2,
        "rabbitmq_consumers": 4,
        "rabbitmq_connections_blocked": 2,
        "rabbitmq_queue_messages": 15,
        "rabbitmq_queue_messages_ready": 10,
        "rabbitmq_queue_messages_unacked": 5,
        "rabbitmq_raft_term": 7,
        "rabbitmq_raft_commit_latency_seconds": 0.1,
        "rabbitmq_raft_commit_seconds_count": 2,
        'rabbitmq_publish_queueing_seconds_bucket{le="0.002"}': 0,
        'rabbitmq_publish_queueing_seconds_bucket{le="0.005"}': 1,
        'rabbitmq_raft_checkpoint_seconds_bucket{le="30.0"}': 0,
        'rabbitmq_raft_checkpoint_seconds_bucket{le="60.0"}': 1,
        "rabbitmq_raft_checkpoint_seconds_sum": 45,
        "rabbitmq_raft_catch_up_seconds_count": 0,
        "rabbitmq_raft_members": 3,
        "rabbitmq_raft_leader": 1,
        "rabbitmq_raft_first_index": 40,
        "rabbitmq_raft_last_index": 100,
        "rabbitmq_raft_last_written_index": 97,
        "rabbitmq_raft_commit_index": 99,
        "rabbitmq_raft_last_applied": 98,
        "rabbitmq_raft_checkpoint_index": 70,
        "rabbitmq_raft_snapshot_index": 70,
        "rabbitmq_raft_elections_total": 2,
        "rabbitmq_raft_snapshots_installed_total": 3,
        'rabbitmq_raft_standing{standing="voter"}': 0,
        'rabbitmq_raft_standing{standing="learner"}': 1,
        'rabbitmq_raft_standing{standing="blank"}': 0,
        "rabbitmq_raft_log_bytes": 5000,
        "rabbitmq_disk_space_available_bytes": 9000,
        "rabbitmq_disk_space_available_limit_bytes": 10_000,
        "rabbitmq_alarms_free_disk_space_watermark": 1,
        "rabbitmq_alarms_memory_used_watermark": 1,
        "rabbitmq_resident_memory_limit_bytes": 7000,
        "rabbitmq_clock_offset_seconds": -1.5,
        'rabbitmq_certificate_not_after_seconds{file="cert",protocol="https"}': 1.7e9,
    }
    assert expected.items() <= shown.items()
    assert shown["rabbitmq_process_resident_memory_bytes"] > 0


def test_a_node_that_cannot_judge_its_clock_shows_no_offset() -> None:
    assert "rabbitmq_clock_offset_seconds" not in scrape(Counters(), clock_offset_s=None)


def test_cluster_wide_metrics_are_shown_only_by_the_leader() -> None:
    shown = scrape(Counters(), totals=None)
    assert "rabbitmq_connections" in shown
    assert {name for name in scrape(Counters()) if name not in shown} == {
        "rabbitmq_queues",
        "rabbitmq_queues_created_total",
        "rabbitmq_queues_deleted_total",
        "rabbitmq_queue_messages",
        "rabbitmq_queue_messages_ready",
        "rabbitmq_queue_messages_unacked",
    }


@pytest.mark.parametrize("sizes", [[10], [100, 99], [100, 101, 5000], [10**6] * 3 + [1]])
def test_sizes_are_counted_in_the_smallest_fitting_class(sizes: list[int]) -> None:
    counted = Histogram(MESSAGE_SIZE_BOUNDS)
    counted.add_all(sizes)
    shown = scrape(Counters(amqp091=MessageCounters(message_sizes=counted)))
    for bound, name in ((100, "100.0"), (1000, "1000.0"), (10**6, "1e+06"), (10**8, "1e+08")):
        below = sum(size <= bound for size in sizes)
        assert shown[f'rabbitmq_message_size_bytes_bucket{{le="{name}",protocol="amqp091"}}'] == below
    assert shown['rabbitmq_message_size_bytes_sum{protocol="amqp091"}'] == sum(sizes)
    assert shown['rabbitmq_message_size_bytes_count{protocol="amqp091"}'] == len(sizes)


@pytest.mark.parametrize(("protocol", "other"), [("amqp091", "amqp10"), ("amqp10", "amqp091")])
def test_messages_are_counted_by_protocol_and_queue_type(protocol: str, other: str) -> None:
    counts = MessageCounters(messages_received=7, messages_delivered_manual_ack=3, messages_got_auto_ack=2)
    shown = scrape(Counters(**{protocol: counts}))
    assert shown[f'rabbitmq_global_messages_received_total{{protocol="{protocol}"}}'] == 7
    assert shown[f'rabbitmq_global_messages_received_total{{protocol="{other}"}}'] == 0
    assert shown["rabbitmq_channel_messages_published_total"] == 7
    delivered = (
        f'rabbitmq_global_messages_delivered_total{{protocol="{protocol}",queue_type="rabbit_quorum_queue"}}'
    )
    assert shown[delivered] == 5


@pytest.mark.parametrize("protocol", ["amqp091", "amqp10"])
def test_every_message_counter_is_shown(protocol: str) -> None:
    for counter in fields(MessageCounters):
        value: Any = 12345
        if counter.name == "message_sizes":
            value = Histogram(MESSAGE_SIZE_BOUNDS)
            value.add(1)
        counters = Counters(**{protocol: MessageCounters(**{counter.name: value})})
        assert scrape(counters) != scrape(Counters()), counter.name


def test_every_counter_is_shown() -> None:
    for counter in fields(Counters):
        if counter.name in ("confirmed_in", "amqp091", "amqp10"):
            continue  # the first is for virtual hosts in the HTTP API; its sum is shown
        value: Any = 12345
        if counter.name == "dead_lettered":
            value = Counter({("expired", "at-most-once"): 12345})
        assert scrape(Counters(**{counter.name: value})) != scrape(Counters()), counter.name


def test_clients_are_counted_by_protocol() -> None:
    clients = ClientTotals()
    clients.count_connection(3, None)
    clients.count_connection(2, 9)
    clients.amqp10.consumers = 4
    shown = scrape(Counters(), clients=clients)
    families = {"connections": (1, 1), "channels": (3, 2), "links": (0, 9)}
    for name, (older, newer) in families.items():
        assert shown[f'rabbitmq_global_{name}{{protocol="amqp091"}}'] == older
        assert shown[f'rabbitmq_global_{name}{{protocol="amqp10"}}'] == newer
    labels = 'protocol="amqp10",queue_type="rabbit_quorum_queue"'
    assert shown[f"rabbitmq_global_consumers{{{labels}}}"] == 4


def test_dead_letters_are_counted_by_reason_and_strategy() -> None:
    dead_lettered = Counter(
        {
            ("maxlen", "at-most-once"): 1,
            ("rejected", "at-most-once"): 2,
            ("expired", "at-least-once"): 4,
            ("delivery_limit", "at-least-once"): 8,
        }
    )
    shown = scrape(Counters(dead_lettered=dead_lettered, replies_dropped=16))
    prefix = "rabbitmq_global_messages_dead_lettered_"
    values = {name.removeprefix(prefix): value for name, value in shown.items() if name.startswith(prefix)}
    most = '{dead_letter_strategy="at_most_once",queue_type="rabbit_quorum_queue"}'
    least = '{dead_letter_strategy="at_least_once",queue_type="rabbit_quorum_queue"}'
    replies = '{dead_letter_strategy="disabled",queue_type="rabbit_volatile_queue"}'
    assert values == {
        f"maxlen_total{most}": 1,
        f"expired_total{most}": 0,
        f"rejected_total{most}": 2,
        f"delivery_limit_total{most}": 0,
        f"expired_total{least}": 4,
        f"rejected_total{least}": 0,
        f"delivery_limit_total{least}": 8,
        f"confirmed_total{least}": 12,
        f"maxlen_total{replies}": 16,
    }


def test_direct_replies_are_delivered_messages_of_their_own() -> None:
    counts = MessageCounters(messages_delivered_auto_ack=3, replies_delivered=5)
    shown = scrape(Counters(amqp091=counts))
    for name in ("delivered", "delivered_consume_auto_ack"):
        labels = 'protocol="amqp091",queue_type='
        assert shown[f'rabbitmq_global_messages_{name}_total{{{labels}"rabbit_quorum_queue"}}'] == 3
        assert shown[f'rabbitmq_global_messages_{name}_total{{{labels}"rabbit_volatile_queue"}}'] == 5


def test_delays_are_counted_in_the_smallest_fitting_bucket() -> None:
    shown = scrape(Counters())
    buckets = {
        bound: shown[f'rabbitmq_loop_delay_seconds_bucket{{le="{bound}"}}'] for bound in ("0.0005", "0.001")
    }
    assert buckets == {"0.0005": 2, "0.001": 3}
    assert shown['rabbitmq_loop_delay_seconds_bucket{le="0.01"}'] == 3
    assert shown['rabbitmq_loop_delay_seconds_bucket{le="0.02"}'] == 4
    assert shown['rabbitmq_loop_delay_seconds_bucket{le="5.0"}'] == 4
    assert shown['rabbitmq_loop_delay_seconds_bucket{le="+Inf"}'] == 5
    assert shown["rabbitmq_loop_delay_seconds_count"] == 5
    assert round(shown["rabbitmq_loop_delay_seconds_sum"], 4) == 7.0212
    assert shown['rabbitmq_raft_log_write_seconds_bucket{le="0.2"}'] == 0
    assert shown['rabbitmq_raft_log_write_seconds_bucket{le="0.5"}'] == 1
    assert shown["rabbitmq_raft_commit_seconds_count"] == 2


def test_unroutable_messages_fire_public_alerts() -> None:
    older = MessageCounters(messages_unroutable_returned=1, messages_received=4)
    newer = MessageCounters(messages_unroutable_returned=3, messages_received=5)
    shown = scrape(Counters(amqp091=older, amqp10=newer))
    for of in ("channel", "exchange"):
        assert shown[f"rabbitmq_{of}_messages_unroutable_dropped_total"] == 2
        assert shown[f"rabbitmq_{of}_messages_unroutable_returned_total"] == 4
        assert shown[f"rabbitmq_{of}_messages_published_total"] == 9


def test_lost_peer_is_not_established() -> None:
    shown = scrape(Counters(), peers={"n2": True, "n3": False})
    assert shown['erlang_vm_dist_node_state{peer="n2"}'] == 3
    assert shown['erlang_vm_dist_node_state{peer="n3"}'] == 1
    assert shown["rabbitmq_unreachable_cluster_peers_count"] == 1
