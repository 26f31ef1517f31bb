"""Pre-votes of Raft (thesis 9.6): when a member campaigns, and which member it would vote for.

A campaign raises the term of all members. So a member first asks whether a majority would vote for it. A member that
hears a leader refuses. So a member that was cut off disturbs no leader when it returns. If two members ask at the same
time and their logs end alike, the smaller name goes first, so votes do not split.

Invariant: pure; the time is an argument (`now_s` or `awake_s`, the time awake of this node). A round that has ended
cannot be won, and each peer counts once.
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
    """The last term and index of a log. The greater of two log ends is the more complete log (Raft paper, 5.4.1)."""

    term: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here


class ElectionStep(Enum):
    """The action of a member whose election deadline has passed."""

    CAMPAIGN = auto()
    """Raise the term and ask for votes."""
    PRE_VOTE = auto()
    """Ask for pre-votes."""
    READ = auto()
    """Read the waiting messages first, because this member was stalled and has heard a leader lately."""
    WAIT = auto()
    """Leave the election to other members."""


class VoteAnswer(NamedTuple):
    """The answer to a pre-vote request, and its consequence for this member."""

    granted: bool
    campaigns_instead: bool
    """Whether this member asks for pre-votes soon. It refuses the peer because of its log, but may win itself."""


class Elections:
    """A member's knowledge of leaders, and its own pre-votes and votes."""

    def __init__(self, name: str, configurations: Configurations, detector: FailureDetector) -> None:
        """A leader counts as alive until `detector` suspects it."""
        self.is_won = False
        """Whether this member has won a pre-vote round, and has heard no leader since. Then it may campaign."""
        self._name = name
        self._configurations = configurations
        self._detector = detector
        self._heard_term = 0
        """Term of the last leader that was heard."""
        self._round = 0
        """Number of the current round. Answers to earlier rounds do not count."""
        self._is_asking = False
        self._granted_by: set[str] = set()
        self._votes: set[str] = set()

    # Leaders

    @property
    def patience_s(self) -> float:
        """Seconds of silence after which a leader is suspected."""
        return self._detector.patience_s

    def hear_leader(self, term: int, now_s: float) -> bool:
        """Record a sign of life of the leader of `term`. Return True if it is a new leader.

        A pre-vote round that was won during its silence becomes void.
        """
        is_another = term != self._heard_term
        if is_another:
            self._detector.forget()
        self._heard_term = term
        self._detector.hear(now_s)
        self.is_won = False
        return is_another

    def leader_is_lost(self) -> None:
        """Record that the link to the leader is broken. The leader counts as dead at once."""
        self._detector.forget()

    def has_heard_leader(self, now_s: float) -> bool:
        """Return whether the last sign of life of a leader is recent enough to count it as alive."""
        return not self._detector.suspects(now_s)

    def leader_is_dead(self, now_s: float) -> bool:
        """Return whether no leader was heard for so long that waiting is useless."""
        return self._detector.presumes_dead(now_s)

    # Rounds

    def next_step(
        self,
        awake_s: float,
        *,
        follows: bool,
        is_promotable: bool,
        campaigns_on_timeout: bool,
        is_asked: bool,
    ) -> ElectionStep:
        """Return the action of this member after its election deadline. CAMPAIGN uses up the round that was won.

        WAIT ends the current round: this member could not win it, and while it asks, it would refuse members that could
        win.

        `follows`: this member knows a leader. `is_promotable`: it is a voter that may vote and lead, so it may campaign
        at all. `campaigns_on_timeout`: it may also campaign without a request of its leader. `is_asked`: its leader has
        asked it to campaign.
        """
        if is_promotable and (is_asked or self.is_won):
            self.is_won = False
            return ElectionStep.CAMPAIGN
        if follows and self.has_heard_leader(awake_s):
            return ElectionStep.READ
        if is_promotable and campaigns_on_timeout:
            return ElectionStep.PRE_VOTE
        self.end_round()
        return ElectionStep.WAIT

    def begin_round(self) -> int | None:
        """Begin a round. Return its number, or None if this member alone is a majority and need not ask."""
        self._round += 1
        self._granted_by = {self._name}
        if self._configurations.membership.is_majority(self._granted_by):
            return None
        self._is_asking = True
        return self._round

    def end_round(self) -> None:
        """End the current round, if any."""
        self._round += 1
        self._is_asking = False

    def count_pre_vote(self, peer: str, number: int) -> bool:
        """Count a pre-vote that `peer` granted in round `number`. Return True if that wins the round."""
        if number != self._round:
            return False
        self._granted_by.add(peer)
        if not self._configurations.membership.is_majority(self._granted_by):
            return False
        self.end_round()
        self.is_won = True
        return True

    def answer_pre_vote(
        self,
        peer: str,
        theirs: LogEnd,
        ours: LogEnd,
        *,
        may_vote: bool,
        is_later_term: bool,
        hears_leader: bool,
    ) -> VoteAnswer:
        """Decide whether to grant a peer its pre-vote.

        A grant ends this member's own round, because two elections at the same time split the votes.

        The peer's log must hold more than its first entry if the cluster has a configuration. A rightful candidate has
        that configuration in its log, but a new member only knows it from a peer. Otherwise an emptied node whose file
        lists a new member could found a second cluster with it.
        """
        is_better = self.is_better(peer, theirs, ours)
        is_empty = theirs.index <= 1 and bool(self._configurations.newest.cluster)
        granted = may_vote and is_better and is_later_term and not hears_leader and not is_empty
        if granted:
            self.end_round()
        return VoteAnswer(granted, campaigns_instead=not is_better and not hears_leader)

    # Campaigns

    def campaign(self) -> None:
        """Begin a campaign. This member votes for itself."""
        self._votes = {self._name}

    def count_vote(self, peer: str) -> bool:
        """Count a peer's vote in the current campaign. Return True if a majority has voted for this member."""
        self._votes.add(peer)
        return self._configurations.membership.is_majority(self._votes)

    def is_better(self, peer: str, theirs: LogEnd, ours: LogEnd) -> bool:
        """Return whether a peer that asks for a vote should lead rather than this member, judged by their logs.

        Between equal logs the peer wins, unless this member is asking too and has the smaller name.
        """
        goes_first = self._is_asking and self._name < peer
        return theirs > ours or (theirs == ours and not goes_first)
