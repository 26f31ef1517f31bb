"""Who may campaign: what the checks know of pre-votes and of leaders that resign, from the frames that arrive.

Invariant: nothing is asked of the node itself. What is told to a process is void once it ends, and when it has
campaigned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.raft.messages import PreVote, TimeoutNow, decode, encode

if TYPE_CHECKING:
    from cluster.configuration.voters import Membership

KINDS = {encode(message)[0][0] for message in (PreVote(0, 0, granted=False), TimeoutNow(0))}
"""The first bytes of the frames that count."""


class Campaigns:
    """The nodes that were asked to lead, or would be voted for by a majority."""

    def __init__(self) -> None:
        self._granted: dict[str, dict[int, set[str]]] = {}
        """Who has granted each round of a node's pre-votes."""
        self._may: set[str] = set()

    def begin(self, name: str) -> None:
        """Begin the life of a process, which knows of no rounds of an earlier one."""
        self._granted[name] = {}
        self._may.discard(name)

    def received(self, name: str, members: Membership, peer: str, frame: bytes) -> None:
        """Note what a node, which goes by these members now, hears from a peer."""
        if not frame or frame[0] not in KINDS:
            return
        message = decode(frame)
        if isinstance(message, PreVote) and message.granted:
            granted = self._granted[name].setdefault(message.round, {name})
            granted.add(peer)
            is_won = members.is_majority(granted)
        else:
            is_won = isinstance(message, TimeoutNow)
        if is_won:
            self._may.add(name)

    def take(self, name: str, members: Membership) -> bool:
        """Whether a node, which campaigns now, may do so: once for all that it was told before."""
        may = name in self._may or members.is_majority({name})
        self.begin(name)
        return may
