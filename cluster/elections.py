"""Who stands for leader, and whom a member would vote for: the pre-votes of Raft (thesis 9.6).

Before a member campaigns, which raises the term of all others, it asks whether a majority would vote for it. Whoever
hears a leader would not, so a member that was cut off disturbs nobody when it comes back; and of two whose logs end
alike and who ask at the same time the one with the smaller name goes first, so votes do not split.

Lives here: the rounds of pre-votes, what decides an answer, and the votes of a campaign. Not here: deadlines, terms and
whom this member has voted for (engine.py), who is counted (membership.py), who may vote at all (recovery.py).

Law: pure; time is handed in (`now_s`, of the monotonic clock). A round that has ended is won by nobody, and nobody's
vote counts twice.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cluster.membership import Membership

NEVER_S = -1.0e9


class Role(IntEnum):
    """pysyncobj's numbers for the Raft states."""

    FOLLOWER = 0
    CANDIDATE = 1
    LEADER = 2


class LogEnd(NamedTuple):
    """Of two logs the one with the greater end is the more complete (Raft paper, 5.4.1)."""

    term: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here


class Elections:
    """What one member knows of leaders and of its own pre-votes."""

    def __init__(self, name: str, membership: Membership, patience_s: float) -> None:
        """Whoever was heard within `patience_s` still leads."""
        self.is_won = False
        """A majority would vote for this member, and no leader has been heard of since: it may campaign."""
        self._name = name
        self._membership = membership
        self._patience_s = patience_s
        self._heard_s = NEVER_S
        """When a leader was heard last."""
        self._round = 0
        """Answers to an earlier one do not count any more."""
        self._is_asking = False
        self._granted_by: set[str] = set()
        self._votes: set[str] = set()

    # Leaders

    def hear_leader(self, now_s: float) -> None:
        """A leader speaks: what was won, was won against a silent one."""
        self._heard_s = now_s
        self.is_won = False

    def leader_is_lost(self) -> None:
        """The link to it is broken, which says more than any silence."""
        self._heard_s = NEVER_S

    def has_heard_leader(self, now_s: float) -> bool:
        """Whether one was heard so lately that nobody else need lead."""
        return now_s - self._heard_s < self._patience_s

    # Rounds

    def ask(self) -> int | None:
        """Begin a round: what to ask the other voters for; None if this member is a majority by itself."""
        self._round += 1
        self._granted_by = {self._name}
        if self._membership.is_majority(self._granted_by):
            return None
        self._is_asking = True
        return self._round

    def give_up(self) -> None:
        """End the round that is under way, if any."""
        self._round += 1
        self._is_asking = False

    def count(self, peer: str, number: int) -> bool:
        """A peer would vote for this member, it says in answer to this round. True if that wins the round."""
        if number != self._round:
            return False
        self._granted_by.add(peer)
        if not self._membership.is_majority(self._granted_by):
            return False
        self.give_up()
        self.is_won = True
        return True

    # Campaigns

    def campaign(self) -> None:
        """Begin one, with the vote of this member itself."""
        self._votes = {self._name}

    def elects(self, peer: str) -> bool:
        """A peer votes for this member in the campaign that is on. True if a majority has now."""
        self._votes.add(peer)
        return self._membership.is_majority(self._votes)

    def is_better(self, peer: str, theirs: LogEnd, ours: LogEnd) -> bool:
        """Whether a peer that asks should lead rather than this member, as far as their logs tell."""
        goes_first = self._is_asking and self._name < peer
        return theirs > ours or (theirs == ours and not goes_first)
