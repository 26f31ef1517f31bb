"""What Prometheus reads."""

from __future__ import annotations

from dataclasses import fields

from prometheus_client import generate_latest

from qq.metrics import Counters, DiskMetrics, MetricsSnapshot, RaftMetrics, node_registry


def scrape(counters: Counters) -> dict[str, float]:
    raft = RaftMetrics(
        term=7,
        is_leader=True,
        standing="learner",
        first_index=40,
        last_index=100,
        commit_index=99,
        applied_index=98,
        checkpoint_index=70,
        elections=2,
        snapshots_installed=3,
    )
    disk = DiskMetrics(log_bytes=5000, free_bytes=9000, free_limit_bytes=10_000, alarm=True)
    registry = node_registry(lambda: MetricsSnapshot("n1", "qq", "0.1", counters, raft, disk, 3, 10, 5, 4))
    lines = generate_latest(registry).decode().splitlines()
    described = [line for line in lines if line.startswith("# TYPE")]
    assert len(set(described)) == len(described)
    samples = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in samples}


def test_gauges_have_the_names_of_rabbitmq() -> None:
    shown = scrape(Counters(connections_opened=5, connections_closed=2, channels_opened=9, channels_closed=8))
    expected = {
        'rabbitmq_identity_info{rabbitmq_cluster="qq",rabbitmq_node="n1"}': 1,
        "rabbitmq_connections": 3,
        "rabbitmq_connections_opened_total": 5,
        "rabbitmq_connections_closed_total": 2,
        "rabbitmq_channels": 1,
        "rabbitmq_queues": 3,
        "rabbitmq_consumers": 4,
        "rabbitmq_queue_messages": 15,
        "rabbitmq_queue_messages_ready": 10,
        "rabbitmq_queue_messages_unacked": 5,
        "rabbitmq_raft_term": 7,
        "rabbitmq_raft_leader": 1,
        "rabbitmq_raft_first_index": 40,
        "rabbitmq_raft_last_index": 100,
        "rabbitmq_raft_commit_index": 99,
        "rabbitmq_raft_last_applied": 98,
        "rabbitmq_raft_checkpoint_index": 70,
        "rabbitmq_raft_elections_total": 2,
        "rabbitmq_raft_snapshots_installed_total": 3,
        'rabbitmq_raft_standing{standing="voter"}': 0,
        'rabbitmq_raft_standing{standing="learner"}': 1,
        'rabbitmq_raft_standing{standing="blank"}': 0,
        "rabbitmq_raft_log_bytes": 5000,
        "rabbitmq_disk_space_available_bytes": 9000,
        "rabbitmq_disk_space_available_limit_bytes": 10_000,
        "rabbitmq_alarms_free_disk_space_watermark": 1,
    }
    assert expected.items() <= shown.items()
    assert shown["rabbitmq_process_resident_memory_bytes"] > 0


def test_messages_are_counted_by_protocol_and_queue_type() -> None:
    shown = scrape(Counters(messages_received=7, messages_delivered_manual_ack=3, messages_got_auto_ack=2))
    assert shown['rabbitmq_global_messages_received_total{protocol="amqp091"}'] == 7
    delivered = (
        'rabbitmq_global_messages_delivered_total{protocol="amqp091",queue_type="rabbit_quorum_queue"}'
    )
    assert shown[delivered] == 5


def test_every_counter_is_shown() -> None:
    for counter in fields(Counters):
        assert scrape(Counters(**{counter.name: 12345})) != scrape(Counters()), counter.name
