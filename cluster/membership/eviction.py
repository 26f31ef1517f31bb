"""Eviction of nodes that are dead or silent: the messages of their clients return to the queues.

A process is dead if its links have closed and its host refuses connections. A proxy before a live process may do the
same. So a majority must have no link with the node, and the node gets time to dial the other members. A leader without
such a majority evicts no node that another member hears. A paused process keeps its links, and its host continues to
accept connections.

Invariants: no node that may still be alive is evicted before `silent_origin_grace_s`. A node that is known to be dead
is evicted after `dead_origin_grace_s`. Only silence that this node has listened to counts: when this node continues
after a pause, all peers seem to have been silent for as long.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from cluster.membership.peer_status import Peers
    from cluster.membership.view import Members
    from cluster.replica import Replica

log = logging.getLogger(__name__)

UNDECIDED_S = 1.5
"""Seconds that the verdict on a member stays open after its link has ended; the leader needs less time."""
LATER_S = 0.001
"""Seconds that a timer is set beyond a grace period, because clock rounding may let the timer fire a moment early."""
STALL_S = 1.0
"""Seconds between two calls of `check` above which this node was paused or busy: it calls far more often."""


class Evictions:
    """Proposes, on the leader, the eviction of nodes that are dead or silent."""

    def __init__(self, replica: Replica, members: Members, peers: Peers) -> None:
        self._config = replica.config
        self._members = members
        self._peers = peers
        self._state = replica.state
        self._engine = replica.engine
        self._proposals = replica.proposals
        self._turns = replica.turns
        self._runtime = replica.runtime
        self._looked_s = replica.runtime.monotonic()
        self._lost_s = -UNDECIDED_S
        """When this node last lost a link, on the monotonic clock."""
        self._stalls: deque[tuple[float, float]] = deque()
        """`(end, length)` in seconds of each stall of this node, as far back as the grace period."""

    def record_lost_link(self) -> None:
        """Record that the link with a member has just ended."""
        self._lost_s = self._runtime.monotonic()

    def record_death(self) -> None:
        """Schedule a check for when a member that was just found dead may be evicted, before the next heartbeat."""
        self._runtime.call_later(self._config.dead_origin_grace_s + LATER_S, self.check)

    def undecided(self) -> Collection[str]:
        """Return the members whose links have just ended and whose verdict is pending; called on any member."""
        now_s = self._runtime.monotonic()
        if now_s - self._lost_s >= UNDECIDED_S:
            return ()
        return [peer for peer in self._members.peers if self._is_undecided(peer, now_s)]

    def check(self) -> None:
        """Propose once to evict each member that is dead or silent for too long; called in each heartbeat interval."""
        now_s = self._runtime.monotonic()
        if now_s - self._looked_s > STALL_S:
            self._stalls.append((now_s, now_s - self._looked_s))
        self._looked_s = now_s
        while self._stalls and now_s - self._stalls[0][0] > self._config.silent_origin_grace_s:
            self._stalls.popleft()
        if self._engine.is_leader:
            self._propose(now_s)

    def _propose(self, now_s: float) -> None:
        for peer in self._members.peers:
            origin = self._state.origins.get(peer)
            if origin is None or origin.evicted:
                continue
            is_silent = self._silent_s(peer, now_s) > self._config.silent_origin_grace_s
            is_gone = is_silent or self._is_dead(peer, now_s)
            if is_gone and self._proposals.evict(peer, origin.incarnation):
                log.warning("node %s is gone: its consumers' messages return", peer)
                self._turns.request()

    def _is_undecided(self, peer: str, now_s: float) -> bool:
        lost_s, origin = self._peers.lost_s(peer, now_s), self._state.origins.get(peer)
        return lost_s is not None and lost_s < UNDECIDED_S and origin is not None and not origin.evicted

    def _is_dead(self, peer: str, now_s: float) -> bool:
        """Return whether a peer's host has refused connections for long enough, and the other members confirm it."""
        dead_s, members = self._peers.dead_s(peer, now_s), self._members
        if dead_s is None or dead_s < self._config.dead_origin_grace_s:
            return False
        misses = {
            other: peer in status.misses
            for other in members.peers
            if other not in (peer, *members.of_release_0_1)
            and members.hears(other)
            and (status := self._peers.status(other)) is not None
        }
        without = [members.name, *(other for other, does_miss in misses.items() if does_miss)]
        if members.configurations.membership.is_majority(without):
            return True
        return all(misses.values()) and dead_s >= self._config.doubted_origin_grace_s

    def _silent_s(self, peer: str, now_s: float) -> float:
        """Return for how many seconds a peer has been silent, without the stalls of this node."""
        silent_s = self._peers.silent_s(peer, now_s)
        return silent_s - sum(length_s for end_s, length_s in self._stalls if now_s - end_s < silent_s)
