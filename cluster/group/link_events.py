"""React to link events: a link to a peer begins, ends, or drains. Each connection is an *epoch*.

Invariant: messages of an earlier epoch count as unsent if they may not have arrived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.engine.engine import Engine
    from cluster.engine.rejoin import Recovery
    from cluster.membership.discovery import Discovery
    from cluster.membership.eviction import Evictions
    from cluster.membership.joining import Joining
    from cluster.membership.leadership import Leadership
    from cluster.membership.peer_status import Peers
    from cluster.membership.status import OwnStatus
    from cluster.membership.view import Members
    from cluster.raft.cluster_clock import ClusterClock
    from cluster.raft.proposals import PendingProposals
    from cluster.runtime.ports import Runtime
    from cluster.runtime.turn_timer import TurnTimer
    from cluster.snapshots.receiver import SnapshotReceiver
    from cluster.transport.outbox import PeerOutbox
    from cluster.transport.ports import Links
    from cluster.transport.queries import Queries


class Epochs:
    """Passes the events of links to the parts of a group."""

    def __init__(
        self,
        links: Links,
        members: Members,
        peers: Peers,
        engine: Engine,
        clock: ClusterClock,
        outbox: PeerOutbox,
        discovery: Discovery,
        joining: Joining,
        evictions: Evictions,
        recovery: Recovery,
        own_status: OwnStatus,
        leadership: Leadership,
        queries: Queries,
        receiver: SnapshotReceiver,
        pending: PendingProposals,
        turns: TurnTimer,
        runtime: Runtime,
        campaign_jitter_s: float,
    ) -> None:
        """`campaign_jitter_s` after the loss of the leader, a turn is asked for, because a campaign is due by then."""
        self._links = links
        self._members = members
        self._linked = members.linked
        self._peers = peers
        self._engine = engine
        self._clock = clock
        self._outbox = outbox
        self._discovery = discovery
        self._joining = joining
        self._evictions = evictions
        self._recovery = recovery
        self._own_status = own_status
        self._leadership = leadership
        self._queries = queries
        self._receiver = receiver
        self._pending = pending
        self._turns = turns
        self._runtime = runtime
        self._campaign_jitter_s = campaign_jitter_s

    def begins(self, peer: str) -> None:
        """Handle a new link. No message of an earlier link will arrive any more."""
        self._linked.link_began(peer, self._links.peer_id(peer))
        self._outbox.drop(peer)
        self._queries.peer_lost(peer)
        if not self._members.follow():
            self._members.meet()
        if not self._linked.is_member(peer):
            self._engine.non_member_connected()
        self._discovery.greet(peer)
        # All peers get it. Otherwise they would believe for up to a second that this link is missing.
        self._outbox.transmit_to_all(self._own_status.now())
        self._receiver.connected(peer)
        self._pending.mark_unsent(peer)
        self._turns.ask()

    def ends(self, peer: str) -> None:
        """Handle the loss of a link."""
        self._members.follow()
        self._outbox.drop(peer)
        self._clock.forget(peer)
        self._joining.left(peer)
        self._recovery.left(peer)
        self._queries.peer_lost(peer)
        if peer in self._engine.progress:
            self._engine.peer_lost(peer)
        self._linked.link_ended(peer)
        self._members.meet()
        if peer in self._members.known:
            self._peers.lost(peer, self._runtime.monotonic())
            self._evictions.lost()
        # The leader counts the members that have lost the link, before it considers the process dead.
        self._outbox.transmit_to_all(self._own_status.now())
        if self._leadership.leader_term.leader == peer:
            self._runtime.call_later(self._campaign_jitter_s, self._turns.ask)
        self._turns.ask()

    def died(self, peer: str) -> None:
        """Record that the process of a peer without a link has ended, or did not run when this node started.

        `ends` has already handled the lost link. A second campaign now would disturb a member that is campaigning.
        """
        self._members.follow()
        if peer in self._members.known:
            self._peers.died(peer, self._runtime.monotonic())
            self._evictions.died()

    def has_room(self, peer: str) -> None:
        """Handle the end of a link's congestion."""
        self._members.follow()
        if self._linked.is_member(peer):
            self._engine.peer_resumed(peer)
            self._turns.ask()
