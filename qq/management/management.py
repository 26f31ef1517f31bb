"""The broker as operators see it: reports on its state and changes to it, behind the HTTP interface.

Invariants: reports are copies, because the HTTP interface reads them after other tasks have run. Management only reads
the machine; each change goes through the log, like any client's request.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qq.management.changes.changes import Changes
from qq.management.changes.leases import Leases
from qq.management.changes.operations import Operations
from qq.management.changes.sinks import Sinks
from qq.management.logins.web_sessions import WebSessions
from qq.management.node_queries import NodeQueries
from qq.management.nodes.backups import Backups
from qq.management.nodes.diagnosis import Doctor, MemberFindings
from qq.management.nodes.leadership import LeadershipTransfers
from qq.management.nodes.members import MemberChanges
from qq.management.nodes.node_reports import NodeReports
from qq.management.nodes.vitals import NodeVitals
from qq.management.objects.catalog import CatalogReports
from qq.management.objects.clients import ClientReports
from qq.management.objects.consumers import ConsumerReports
from qq.management.objects.object_metrics import ObjectMetrics
from qq.management.objects.queues import QueueReports
from qq.management.objects.shovels import ShovelReports
from qq.management.objects.sorted_objects import SortedObjects
from qq.management.statistics.charts import Charts
from qq.management.statistics.queue_statistics import QueueStatistics
from qq.management.statistics.rates import SAMPLE_INTERVAL_S
from qq.management.statistics.vhost_clients import VhostClients

if TYPE_CHECKING:
    from cluster.group.group import Group
    from qq.management.nodes.node_reports import OwnNode
    from qq.management.objects.shovels import ShovelRunner
    from qq.sessions.broker import Broker


@dataclass
class Management:
    """The parts of management, each with its own subject; made by `make_management`."""

    queues: QueueReports
    leases: Leases
    sinks: Sinks
    consumers: ConsumerReports
    clients: ClientReports
    catalog: CatalogReports
    shovels: ShovelReports
    metrics: ObjectMetrics
    statistics: QueueStatistics
    vhost_clients: VhostClients
    charts: Charts
    changes: Changes
    operations: Operations
    nodes: NodeReports
    members: MemberChanges
    leadership: LeadershipTransfers
    backups: Backups
    sessions: WebSessions
    doctor: Doctor

    async def watch(self) -> None:
        """Sample rates, judge the samples and record histories every few seconds, until cancelled."""
        while True:
            await self.statistics.sample()
            await self.clients.sample()
            self.nodes.sample()
            await self.doctor.sample()
            await self.charts.sample()
            await asyncio.sleep(SAMPLE_INTERVAL_S)


def make_management(broker: Broker, group: Group, own: OwnNode, shovel_runner: ShovelRunner) -> Management:
    """Make the management of a node. `shovel_runner` runs shovels while this node leads."""
    queries = NodeQueries(
        group.queries, lambda: [name for name in group.members.names if name != broker.name]
    )
    sorted_objects = SortedObjects()
    clients = ClientReports(broker, group, queries)
    vhost_clients = VhostClients(broker, clients.watch, queries)
    statistics = QueueStatistics(broker, group, vhost_clients)
    charts = Charts(broker, group, own.write_times, statistics)
    changes = Changes(broker)
    members = MemberChanges(broker, group, own.peers)
    shovels = ShovelReports(broker, queries, changes.apply, shovel_runner)
    vitals = NodeVitals(broker, group, own, clients.watch, clients.session_watch)
    member_findings = MemberFindings(group, own.peers, members)
    return Management(
        queues=QueueReports(broker, group, statistics, sorted_objects),
        leases=Leases(broker, group),
        sinks=Sinks(broker, group),
        consumers=ConsumerReports(broker),
        clients=clients,
        catalog=CatalogReports(broker, own.product, sorted_objects),
        shovels=shovels,
        metrics=ObjectMetrics(broker, group),
        statistics=statistics,
        vhost_clients=vhost_clients,
        charts=charts,
        changes=changes,
        operations=Operations(broker),
        nodes=NodeReports(broker, group, own, queries, charts),
        members=members,
        leadership=LeadershipTransfers(group),
        backups=Backups(broker, group, own.data_dir),
        sessions=WebSessions(broker, queries, own.product.cluster, own.cluster_secrets),
        doctor=Doctor(group, queries, vitals, member_findings, statistics, shovels),
    )
