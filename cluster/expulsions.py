"""When a leader stops waiting for a node: what its clients hold returns to the queues.

Lives here: who has been away for too long. Not here: since when a node is away (peers.py), what an expulsion does
(applying.py), how the node goes on when it is back (group.py).

Laws: nobody is expelled who may still be there before `silent_origin_grace_s`; who is known to be dead is after
`dead_origin_grace_s`. Silence is what this node has listened to: when it goes on after a pause, everybody seems to have
been silent for as long.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.group_config import GroupConfig
    from cluster.members import Members
    from cluster.peers import Peers
    from cluster.ports import Runtime
    from cluster.state import GroupState
    from cluster.submission import Proposals
    from cluster.turns import TurnTimer

log = logging.getLogger(__name__)

STALL_S = 1.0
"""A node that does not look for longer was paused, or busy: it looks far more often."""


class Expulsions:
    """Proposes that the cluster gives up nodes that are gone; for a leader."""

    def __init__(
        self,
        config: GroupConfig,
        members: Members,
        peers: Peers,
        state: GroupState,
        proposals: Proposals,
        turns: TurnTimer,
        runtime: Runtime,
    ) -> None:
        self._config = config
        self._members = members
        self._peers = peers
        self._state = state
        self._proposals = proposals
        self._turns = turns
        self._runtime = runtime
        self._looked_s = runtime.monotonic()
        self._stalls: deque[tuple[float, float]] = deque()
        """When this node has not listened: the end of each time, as far as it matters, and how long that was."""

    def look(self, *, is_leader: bool) -> None:
        """Propose to expel each member that has been away for too long, once. To be called with each beat."""
        now_s = self._runtime.monotonic()
        if now_s - self._looked_s > STALL_S:
            self._stalls.append((now_s, now_s - self._looked_s))
        self._looked_s = now_s
        while self._stalls and now_s - self._stalls[0][0] > self._config.silent_origin_grace_s:
            self._stalls.popleft()
        if is_leader:
            self._propose(now_s)

    def _propose(self, now_s: float) -> None:
        for peer in self._members.peers:
            origin = self._state.origins.get(peer)
            if origin is None or origin.expelled:
                continue
            is_silent = self._silent_s(peer, now_s) > self._config.silent_origin_grace_s
            is_dead = self._peers.dead_s(peer, now_s) > self._config.dead_origin_grace_s
            if (is_silent or is_dead) and self._proposals.expel(peer, origin.incarnation):
                log.warning("node %s is gone: its consumers' messages return", peer)
                self._turns.ask()

    def _silent_s(self, peer: str, now_s: float) -> float:
        """For how long this node has listened to a peer's silence."""
        silent_s = self._peers.silent_s(peer, now_s)
        return silent_s - sum(length_s for end_s, length_s in self._stalls if now_s - end_s < silent_s)
