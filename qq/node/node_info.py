"""The status and metrics of a node, as the HTTP server shows them.

Invariant: reads only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.raft.messages import Alarm
from qq.http.view import ClusterStatus, NodeState, NodeStatus
from qq.management.http_logins import HttpLogins
from qq.metrics.counters import DelayMetrics, DiskMetrics, MemoryMetrics, MetricsSnapshot, RaftMetrics, infos

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cluster.group.group import Group
    from cluster.membership.peer_status import MemberStatus
    from cluster.runtime.asyncio_runtime import RealDisk
    from qq.config import NodeConfig
    from qq.http.view import ClusterMember
    from qq.management import Management
    from qq.node.readiness import Readiness
    from qq.oauth2.code_flow import CodeFlow
    from qq.sessions.broker import Broker
    from qq.tracing.tracer import OpenTelemetryTracer


class ShownNode:
    """Implements `qq.http.view.NodeView`."""

    def __init__(
        self,
        config: NodeConfig,
        group: Group,
        broker: Broker,
        management: Management,
        disk: RealDisk,
        readiness: Readiness,
        *,
        memory_limit_bytes: int,
        http_connections: int,
        login_provider: CodeFlow | None,
        tracer: OpenTelemetryTracer | None,
    ) -> None:
        self._config = config
        self._group = group
        self._broker = broker
        self._management = management
        self._disk = disk
        self._memory_limit_bytes = memory_limit_bytes
        self._tracer = tracer
        self.ready = readiness.why_not
        self.authenticate = HttpLogins(broker, http_connections).authenticate
        self.login_provider = login_provider

    @property
    def takes_tokens(self) -> bool:
        return self._broker.logins.verifier is not None

    def cluster_status(self) -> ClusterStatus:
        agreed = self._management.cluster_members()
        members = {member.name: member for member in agreed.members}
        return ClusterStatus(
            cluster=self._config.cluster_name,
            node=self._config.name,
            leader=self._group.leader,
            version=agreed.version,
            nodes=[
                _node_status(status, members[status.name])
                for status in self._group.statuses.all()
                if status.name in members  # a missing node is about to become a member
            ],
        )

    def infos(self, endpoint: str) -> Mapping[str, tuple[str, Mapping[str, str]]]:
        return infos(self.metrics(), endpoint)

    def metrics(self) -> MetricsSnapshot:
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
                standing=own.standing or "",
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
                free_limit_bytes=self._config.limits.disk_free_limit_bytes,
                alarm=Alarm.DISK in group.alarms.active,
            ),
            memory=MemoryMetrics(self._memory_limit_bytes, alarm=Alarm.MEMORY in group.alarms.active),
            delays=DelayMetrics(
                group.apply_times,
                group.beat_delays,
                self._disk.write_times,
                self._broker.submissions.commit_times,
                self._broker.submissions.queueing_times,
                group.housekeeping.checkpoint_times,
                group.catch_up_times,
            ),
            clock_offset_s=None if own.clock_offset_ms is None else own.clock_offset_ms / 1000,
            uptime_s=self._management.uptime_s,
            consumers=self._management.own_consumers,
            blocked=self._management.client_watch.blocked,
            routed=self._broker.routed,
            dropped=self._broker.dropped,
            totals=self._management.totals if engine.is_leader else None,
            cluster_id=group.configurations.newest.cluster.hex(),
            spans=None if self._tracer is None else self._tracer.counts,
        )


def _node_status(status: MemberStatus, member: ClusterMember) -> NodeStatus:
    return NodeStatus(
        name=status.name,
        state=NodeState(status.state),
        standing=status.standing,
        role=member.role,
        term=status.term,
        first_index=status.first_index,
        last_index=status.last_index,
        commit_index=status.commit_index,
        applied_index=status.applied_index,
        checkpoint_index=status.checkpoint_index,
        disk_free_bytes=status.disk_free_bytes,
        alarm=status.alarm,
        clock_offset_ms=status.clock_offset_ms,
        versions=member.versions,
        drained=member.drained,
        disk_hangs=status.disk_hangs,
        misses=status.misses,
        hears_leader=status.hears_leader,
    )
