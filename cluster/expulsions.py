"""When a leader stops waiting for a node: what its clients hold returns to the queues.

Lives here: who has been away for too long. Not here: since when a node is away (peers.py), what an expulsion does
(applying.py), how the node goes on when it is back (group.py).

Law: nobody is expelled who may still be there before `silent_origin_grace_s`; who is known to be dead is after
`dead_origin_grace_s`.
"""

from __future__ import annotations

import logging
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

    def propose(self) -> None:
        """Propose to expel each member that has been away for too long, once."""
        now_s = self._runtime.monotonic()
        for peer in self._members.peers:
            origin = self._state.origins.get(peer)
            if origin is None or origin.expelled:
                continue
            is_silent = self._peers.silent_s(peer, now_s) > self._config.silent_origin_grace_s
            is_dead = self._peers.dead_s(peer, now_s) > self._config.dead_origin_grace_s
            if (is_silent or is_dead) and self._proposals.expel(peer, origin.incarnation):
                log.warning("node %s is gone: its consumers' messages return", peer)
                self._turns.ask()
