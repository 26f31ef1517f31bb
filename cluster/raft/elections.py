"""Who stands for leader, and whom a member would vote for: the pre-votes of Raft (thesis 9.6).

Before a member campaigns, which raises the term of all others, it asks whether a majority would vote for it. Whoever
hears a leader would not, so a member that was cut off disturbs nobody when it comes back; and of two whose logs end
alike and who ask at the same time the one with the smaller name goes first, so votes do not split.

Invariant: pure; time is handed in (`now_s`, for which this node was awake). A round that has ended is won by nobody,
and nobody's vote counts twice.
"""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cluster.configuration.history import Configurations
    from cluster.raft.failure_detector import FailureDetector


class Role(IntEnum):
    """pysyncobj's numbers for the Raft states."""

    FOLLOWER = 0
    CANDIDATE = 1
    LEADER = 2


class LogEnd(NamedTuple):
    """Where a log ends; of two logs the one with the greater end is the more complete (Raft paper, 5.4.1)."""

    term: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here


class Move(Enum):
    """What a member does whose election deadline has passed."""

    CAMPAIGN = auto()
    """It raises the term and asks for votes."""
    ASK = auto()
    """It asks for pre-votes."""
    LISTEN = auto()
    """It was stalled, and a leader was heard lately: it reads first what has come meanwhile."""
    REST = auto()
    """It leaves standing for leader to others."""


class VoteAnswer(NamedTuple):
    """The answer to a request for a pre-vote, and what follows from it here."""

    granted: bool
    stands_instead: bool
    """Whether this member asks for pre-votes soon itself: the other does not win here, but this one might there."""


class Elections:
    """What one member knows of leaders and of its own pre-votes."""

    def __init__(self, name: str, configurations: Configurations, detector: FailureDetector) -> None:
        """A leader counts as alive until `detector` suspects it."""
        self.is_won = False
        """Whether this member may campaign: it has won a pre-vote round, and has heard no leader since."""
        self._name = name
        self._configurations = configurations
        self._detector = detector
        self._heard_term = 0
        """The term of the leader that was heard last."""
        self._round = 0
        """The number of the current round; answers to earlier ones do not count."""
        self._is_asking = False
        self._granted_by: set[str] = set()
        self._votes: set[str] = set()

    # Leaders

    @property
    def patience_s(self) -> float:
        """The silence after which a leader is suspected."""
        return self._detector.patience_s

    def hear_leader(self, term: int, now_s: float) -> bool:
        """Note that the leader of `term` was heard; True if it is another one than before.

        A round that was won while it was silent is void.
        """
        is_another = term != self._heard_term
        if is_another:
            self._detector.forget()
        self._heard_term = term
        self._detector.hear(now_s)
        self.is_won = False
        return is_another

    def leader_is_lost(self) -> None:
        """Note that the link to the leader is broken: it counts as dead at once."""
        self._detector.forget()

    def has_heard_leader(self, now_s: float) -> bool:
        """Whether a leader was heard so lately that it counts as alive."""
        return not self._detector.suspects(now_s)

    def has_given_leader_up(self, now_s: float) -> bool:
        """Whether no leader was heard for so long that there is none to wait for."""
        return self._detector.gives_up(now_s)

    # Rounds

    def move(
        self, awake_s: float, *, follows: bool, may_campaign: bool, stands: bool, is_asked: bool
    ) -> Move:
        """What to do now that the election deadline has passed; to campaign takes up the round that was won.

        Who rests ends its round: it could not win it, and would refuse those that could, because it asks, too.

        `follows`: this member knows a leader. `may_campaign`: it is allowed to stand for leader at all; `stands`: also
        without having been asked to by its leader, who does so with `is_asked`.
        """
        if may_campaign and (is_asked or self.is_won):
            self.is_won = False
            return Move.CAMPAIGN
        if follows and self.has_heard_leader(awake_s):
            return Move.LISTEN
        if may_campaign and stands:
            return Move.ASK
        self.give_up()
        return Move.REST

    def ask(self) -> int | None:
        """Begin a round. Returns its number, or None if this member is a majority by itself and need not ask."""
        self._round += 1
        self._granted_by = {self._name}
        if self._configurations.membership.is_majority(self._granted_by):
            return None
        self._is_asking = True
        return self._round

    def give_up(self) -> None:
        """End the round that is under way, if any."""
        self._round += 1
        self._is_asking = False

    def count(self, peer: str, number: int) -> bool:
        """Count a peer that would vote for this member, in answer to round `number`. True if that wins the round."""
        if number != self._round:
            return False
        self._granted_by.add(peer)
        if not self._configurations.membership.is_majority(self._granted_by):
            return False
        self.give_up()
        self.is_won = True
        return True

    def answer(
        self,
        peer: str,
        theirs: LogEnd,
        ours: LogEnd,
        *,
        may_vote: bool,
        is_later_term: bool,
        hears_leader: bool,
    ) -> VoteAnswer:
        """Whether to grant a peer its pre-vote, for a term that is later than this member's or not.

        If so, it may campaign and this member does not meanwhile: two elections at once split the votes.

        A new member has nothing in its log yet, but has been told of its cluster, so that there is a configuration in
        the log of whoever may lead it. An emptied node, whose file lists the new one, would make a cluster of the two.
        """
        is_better = self.is_better(peer, theirs, ours)
        is_empty = theirs.index <= 1 and bool(self._configurations.newest.cluster)
        granted = may_vote and is_better and is_later_term and not hears_leader and not is_empty
        if granted:
            self.give_up()
        return VoteAnswer(granted, stands_instead=not is_better and not hears_leader)

    # Campaigns

    def campaign(self) -> None:
        """Begin a campaign, in which this member has its own vote."""
        self._votes = {self._name}

    def elects(self, peer: str) -> bool:
        """Count a peer's vote in the current campaign. True if a majority has voted for this member."""
        self._votes.add(peer)
        return self._configurations.membership.is_majority(self._votes)

    def is_better(self, peer: str, theirs: LogEnd, ours: LogEnd) -> bool:
        """Whether a peer that asks for a vote should lead rather than this member, as far as their logs tell."""
        goes_first = self._is_asking and self._name < peer
        return theirs > ours or (theirs == ours and not goes_first)
