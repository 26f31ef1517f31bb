"""Build and connect the parts of this package: the members, their statuses, leadership, and changes of the members.

Where two parts need each other, the earlier part gets a function that fetches the later part. That function is called
only after all parts are built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.log.free_space import FreeSpace
from cluster.membership.alarms import Alarms
from cluster.membership.discovery import Discovery
from cluster.membership.eviction import Evictions
from cluster.membership.joining import Joining
from cluster.membership.leadership import Leadership
from cluster.membership.maintenance import Maintenance
from cluster.membership.outages import Outages
from cluster.membership.peer_status import Peers
from cluster.membership.reconfiguration import Reconfiguration
from cluster.membership.rollbacks import Rollbacks
from cluster.membership.status import OwnStatus, Statuses
from cluster.membership.view import Members

if TYPE_CHECKING:
    from cluster.replica import Replica


class MembershipParts:
    """The parts that know the other members."""

    def __init__(self, replica: Replica, outages_since: int, losses_since: int) -> None:
        """`outages_since` is the first version of the state whose entries declare outages.

        `losses_since` is the first version whose configurations have the times of lost data directories.
        """
        config, configurations, now_s = replica.config, replica.configurations, replica.runtime.monotonic()
        self._turns = replica.turns
        self.peers = Peers(configurations.directories(config.name), now_s)
        space = FreeSpace(replica.disk, replica.journal, config.disk_free_limit_bytes, now_s)
        self.alarms = Alarms(configurations, self.peers, space)
        self.members = Members(replica, self.peers, self._members_changed)
        self.joining = Joining(
            config.timing.election_min_s,
            replica.versions.high,
            replaces_emptied=config.replaces_emptied,
            raises_version=config.raises_version,
        )
        self.discovery = Discovery(replica, self.members, self.joining)
        self.rollbacks = Rollbacks(replica, self.members)
        self.own_status = OwnStatus(replica, self.members, self.alarms)
        maintenance = Maintenance(config.name, configurations, now_s)
        self.statuses = Statuses(
            self.members,
            self.peers,
            maintenance,
            self.own_status,
            lambda: self.leadership.leader_term.leader,
            replica.rejoin.why_hopeless,
            lambda: replica.engine.committed_index,
        )
        self.leadership = Leadership(
            replica,
            members=self.members,
            peers=self.peers,
            statuses=self.statuses,
            maintenance=maintenance,
        )
        self.reconfiguration = Reconfiguration(
            replica,
            members=self.members,
            joining=self.joining,
            leadership=self.leadership,
            statuses=self.statuses,
            losses_since=losses_since,
        )
        self.evictions = Evictions(replica, self.members, self.peers)
        self.outages = Outages(replica, outages_since)

    def _members_changed(self) -> None:
        self.discovery.send_members()
        self._turns.request()
