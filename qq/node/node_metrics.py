"""The metrics of a node.

Invariant: reads only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.raft.messages import Alarm
from qq.metrics.counters import DelayMetrics, DiskMetrics, MemoryMetrics, MetricsSnapshot, RaftMetrics

if TYPE_CHECKING:
    from cluster.group.group import Group
    from qq.config import NodeConfig
    from qq.management.management import Management
    from qq.management.nodes.node_reports import OwnNode
    from qq.sessions.broker import Broker
    from qq.tracing.tracer import OpenTelemetryTracer


class NodeMetrics:
    """Reads the present values for `/metrics`."""

    def __init__(
        self,
        config: NodeConfig,
        group: Group,
        broker: Broker,
        management: Management,
        own: OwnNode,
        tracer: OpenTelemetryTracer | None,
    ) -> None:
        self._config = config
        self._group = group
        self._broker = broker
        self._management = management
        self._own = own
        self._tracer = tracer

    def snapshot(self) -> MetricsSnapshot:
        """Return the present values for `/metrics`."""
        group = self._group
        engine, journal = group.engine, group.journal
        own = group.statuses.own()
        return MetricsSnapshot(
            node=self._config.name,
            cluster=self._config.cluster_name,
            version=self._config.version,
            counters=self._broker.counters,
            raft=RaftMetrics(
                term=engine.term,
                is_leader=engine.is_leader,
                standing=own.voter_status or "",
                first_index=journal.first_index,
                last_index=journal.last_index,
                synced_index=journal.synced_index,
                commit_index=engine.commit_index,
                applied_index=engine.applied_index,
                checkpoint_index=group.housekeeping.newest_index,
                elections=self._broker.elections,
                snapshots_installed=group.snapshots_installed,
                members=len(group.members.names),
            ),
            disk=DiskMetrics(
                log_bytes=journal.disk_bytes,
                free_bytes=own.disk_free_bytes or 0,
                free_limit_bytes=self._own.live.disk_free_limit_bytes,
                alarm=Alarm.DISK in group.alarms.active,
            ),
            memory=MemoryMetrics(
                self._own.live.memory_limit_bytes, alarm=Alarm.MEMORY in group.alarms.active
            ),
            delays=DelayMetrics(
                group.apply_times,
                group.heartbeat_delays,
                self._own.write_times,
                self._broker.submissions.commit_times,
                self._broker.submissions.queueing_times,
                group.housekeeping.checkpoint_times,
                group.catch_up_times,
            ),
            clock_offset_s=None if own.clock_offset_ms is None else own.clock_offset_ms / 1000,
            uptime_s=self._management.nodes.uptime_s,
            consumers=self._management.statistics.own_consumers,
            blocked=self._management.clients.watch.blocked,
            routed=self._broker.routed,
            routed10=self._broker.routed10,
            dropped=self._broker.dropped,
            totals=self._management.statistics.totals if engine.is_leader else None,
            cluster_id=group.configurations.newest.cluster.hex(),
            certificates=list(self._management.doctor.certificate_ends()),
            clients=self._management.clients.totals,
            peers={name: group.members.hears(name) for name in group.members.peers},
            spans=None if self._tracer is None else self._tracer.counts,
        )
