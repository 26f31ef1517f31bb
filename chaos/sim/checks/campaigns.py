"""Checks the right to campaign: records pre-votes and leaders' handover requests from arriving frames.

Invariant: the node itself is never asked. A grant to a process is void when the process ends or has campaigned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.raft.messages import PreVote, TimeoutNow, decode, encode

if TYPE_CHECKING:
    from cluster.configuration.quorum import Membership

KINDS = {encode(message)[0][0] for message in (PreVote(0, 0, granted=False), TimeoutNow(0))}
"""First bytes of the frames that grant a campaign."""


class Campaigns:
    """The nodes that won a pre-vote, or that their leader asked to campaign."""

    def __init__(self) -> None:
        self._granted: dict[str, dict[int, set[str]]] = {}
        """Voters that granted each round of a node's pre-votes."""
        self._may: set[str] = set()

    def begin(self, name: str) -> None:
        """Begin a process start, to which earlier rounds do not apply."""
        self._granted[name] = {}
        self._may.discard(name)

    def received(self, name: str, members: Membership, peer: str, frame: bytes) -> None:
        """Record a frame that a node receives from a peer; `members` is the node's present membership."""
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
        """Return whether a node may campaign now, and use up its grants."""
        may = name in self._may or members.is_majority({name})
        self.begin(name)
        return may
