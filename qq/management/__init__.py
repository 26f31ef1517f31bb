"""The broker as operators see it: reports on its state and changes to it, behind the HTTP interface.

Invariant: management only reads the machine. Each change goes through the log, like any client's request.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from qq.management.backups import Backups
from qq.management.catalog import CatalogReports
from qq.management.changes import Changes
from qq.management.charts import Charts
from qq.management.clients import ClientReports
from qq.management.diagnosis import Diagnoses
from qq.management.figures import ObjectFigures
from qq.management.leadership import LeadershipTransfers
from qq.management.members import MemberChanges
from qq.management.nodes import NodeReports
from qq.management.others import OtherNodes
from qq.management.queues import QueueReports
from qq.management.rates import SAMPLE_INTERVAL_S
from qq.management.shovels import ShovelReports
from qq.management.web_sessions import WebSessions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.group.group import Group
    from qq.http.view import Product
    from qq.management.members import Doors
    from qq.management.nodes import OwnNode
    from qq.management.shovels import Carries
    from qq.sessions.broker import Broker


class Management(
    QueueReports,
    ClientReports,
    CatalogReports,
    ObjectFigures,
    NodeReports,
    Changes,
    LeadershipTransfers,
    MemberChanges,
    ShovelReports,
    Backups,
    WebSessions,
    Diagnoses,
    Charts,
):
    """Implements `qq.http.view.ManagementView`."""

    def __init__(
        self,
        broker: Broker,
        group: Group,
        product: Product,
        own: OwnNode,
        doors: Doors,
        cluster_secrets: Callable[[], Sequence[bytes]],
        carrier: Carries,
    ) -> None:
        """`cluster_secrets` returns the secrets of the cluster in use now.

        `carrier` carries out shovels.
        """
        self.others = OtherNodes(
            group.queries, lambda: [name for name in group.members.names if name != broker.name]
        )
        QueueReports.__init__(self, broker, group)
        ClientReports.__init__(self, broker, group, self.others)
        CatalogReports.__init__(self, broker, product, self.in_order)
        ObjectFigures.__init__(self, broker, group, self.entry_times)
        NodeReports.__init__(self, broker, group, own, self.others)
        Changes.__init__(self, broker)
        LeadershipTransfers.__init__(self, group)
        Backups.__init__(self, broker, group, own.data_dir)
        MemberChanges.__init__(self, broker, group, doors)
        ShovelReports.__init__(self, broker, self.others, self.change, carrier)
        WebSessions.__init__(self, broker, self.others, product.cluster, cluster_secrets)
        Diagnoses.__init__(
            self, broker, group, own, self.others, self.client_watch, self, self.cluster_members, self.shovels
        )
        Charts.__init__(self, broker, group, own.write_times, self._numbers_of)

    async def watch(self) -> None:
        """Sample rates, judge the samples and record histories every few seconds, until cancelled."""
        while True:
            await self._sample_queues()
            await self._sample_clients()
            await self.diagnose()
            if self._broker.live:  # messages of replayed entries were counted before the restart
                await self._note_histories()
            await asyncio.sleep(SAMPLE_INTERVAL_S)
