"""The status and identity of a node, and logins to it, for the HTTP port.

Invariant: reads only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qq.management.reports.members import ClusterStatus, NodeState, NodeStatus
from qq.metrics.counters import infos

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cluster.group.group import Group
    from cluster.membership.peer_status import MemberStatus
    from qq.http.base.node_view import LoginProvider
    from qq.management.logins.http_logins import HttpLogins
    from qq.management.nodes.members import MemberChanges
    from qq.management.reports.members import ClusterMember
    from qq.node.node_metrics import NodeMetrics
    from qq.node.readiness import Readiness


class NodeInfo:
    """Implements `qq.http.base.node_view.NodeView`."""

    def __init__(
        self,
        group: Group,
        members: MemberChanges,
        readiness: Readiness,
        metrics: NodeMetrics,
        logins: HttpLogins,
        login_provider: LoginProvider | None,
    ) -> None:
        self._group = group
        self._members = members
        self._metrics = metrics
        self._logins = logins
        self.ready = readiness.why_not
        self.authenticate = logins.authenticate
        self.account = logins.account
        self.login_provider = login_provider

    @property
    def takes_tokens(self) -> bool:
        return self._logins.takes_tokens

    def cluster_status(self) -> ClusterStatus:
        report = self._members.report()
        members = {member.name: member for member in report.members}
        foreign = self._group.statuses.foreign
        return ClusterStatus(
            cluster=report.cluster,
            node=report.node,
            leader=report.leader,
            version=report.version,
            majority_lost=self._group.statuses.why_hopeless(),
            nodes=[
                _node_status(status, members[status.name], is_foreign=status.name in foreign)
                for status in self._group.statuses.all()
                if status.name in members  # a missing node is about to become a member
            ],
        )

    def infos(self, endpoint: str) -> Mapping[str, tuple[str, Mapping[str, str]]]:
        return infos(self._metrics.snapshot(), endpoint)


def _node_status(status: MemberStatus, member: ClusterMember, *, is_foreign: bool) -> NodeStatus:
    return NodeStatus(
        name=status.name,
        state=NodeState(status.state),
        standing=status.voter_status,
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
        lost_ms=member.lost_ms,
        rolled_back_ms=status.rolled_back_ms,
        other_directory=is_foreign,
    )
