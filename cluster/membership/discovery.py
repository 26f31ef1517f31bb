"""Discovery between linked nodes: each tells its data directory, and the members by its configuration.

Invariant: a node tells the members on every link, and believes such a message only if its own log has no configuration.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.configuration.configuration import Versions
from cluster.log.hardstate import VoterStatus
from cluster.raft.messages import Introduction, MembersReport

if TYPE_CHECKING:
    from cluster.membership.joining import Joining
    from cluster.membership.view import Members
    from cluster.replica import Replica

log = logging.getLogger(__name__)

FORGOTTEN_AFTER_S = 10.0
"""Seconds without a link to a member, after which a node that has not yet joined forgets the reported members."""


class Discovery:
    """Exchanges introductions and configurations with linked nodes.

    This node tells its own directory, address and versions, and the members. It learns the members from its peers.
    """

    def __init__(self, replica: Replica, members: Members, joining: Joining) -> None:
        config = replica.config
        self._members = members
        self._address = config.nodes[config.name]
        self._joins = config.joins
        self._versions = replica.versions
        self._unsettled = config.listed_configuration(replica.versions.low, lists_members=False)
        """The configuration that counts until the log or a peer has reported the members."""
        self._rejoin = replica.rejoin
        self._joining = joining
        self._engine = replica.engine
        self._fail_stop = replica.fail_stop
        self._transmit = replica.outbox.transmit
        self._received_index = 0
        """Log index of the configuration that a peer reported last."""
        self._linked_s = 0.0
        """When this node last had a link with a member, or nothing to forget, on the monotonic clock."""

    # Telling

    def introduce(self) -> None:
        """Introduce this node on all links, because it has started or its own data has changed."""
        self._members.record_past(has_past=self._has_past)
        self._joining.record_introduction(self._members.name, self._own())
        for peer in self._members.linked.names:
            self._transmit(peer, self._own())

    def introduce_to(self, peer: str) -> None:
        """Tell a node, on its new link, the members and this node's own data."""
        self._send_members_to(peer)
        self._transmit(peer, self._own())

    def send_members(self) -> None:
        """Tell the members on all links."""
        for peer in self._members.linked.names:
            self._send_members_to(peer)

    def _send_members_to(self, peer: str) -> None:
        """Tell a peer the members, because its log may hold no configuration.

        A learner gets the newest configuration even if that is not committed: it has promised nothing so far, so it may
        begin. All other nodes get the committed configuration.
        """
        held = self._members.configurations
        if self._members.linked.is_member(peer) and peer in held.membership.learners:
            self._transmit(peer, MembersReport(self._engine.term, held.newest_index, held.newest))
        elif held.is_settled:
            self._transmit(peer, MembersReport(self._engine.term, held.committed_index, held.committed))

    @property
    def _has_past(self) -> bool:
        return self._rejoin.has_past(self._engine.journal.last_index)

    def _own(self) -> Introduction:
        may_join = not self._has_past or bool(self._members.configurations.cluster)
        return Introduction(
            self._members.id, *self._address, *self._versions, int(may_join), int(self._joins)
        )

    def versions_of(self, name: str) -> Versions | None:
        """Return the versions of the state that a node's program can run, or None if the node has no link."""
        if name in self._members.of_release_0_1:
            return Versions(self._versions.low, self._versions.low)
        return self._joining.versions(name)

    # Reports of peers

    def members_received(self, _peer: str, report: MembersReport) -> None:
        """Learn the members from a peer if the own log has no configuration; stop if they have removed this node."""
        held = self._members.configurations
        if report.configuration.is_removed(self._members.id):
            self._fail_stop.removed()
            return
        if held.newest_index == 0 and report.index > self._received_index:
            self._received_index = report.index
            held.begin(report.configuration)
            self._members.follow()
        if held.received(report.index, report.configuration):
            self._members.configure_links()
        self._rejoin.admit(report.configuration, report.term, self._engine)

    def forget_lost_cluster(self, now_s: float) -> None:
        """Forget the reported configuration if this node has not yet joined and hears no member; called once a second.

        That cluster may be gone, and a new cluster may be in its place, which this node would refuse as foreign.
        This node has promised nothing, so it continues as after a restart.
        """
        is_only_reported = self._received_index > 0 and self._rejoin.voter_status is VoterStatus.BLANK
        if not is_only_reported or self._members.linked.members:
            self._linked_s = now_s
        elif now_s - self._linked_s >= FORGOTTEN_AFTER_S:
            log.info(
                "no member of the discovered cluster has answered for %d s; searching for a cluster again",
                FORGOTTEN_AFTER_S,
            )
            self._received_index = 0
            self._members.configurations.begin(self._unsettled)
            self._members.follow()
