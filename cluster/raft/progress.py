"""How far each follower has come, and what a follower has told: the two ends of replication, as values.

A leader keeps one `Progress` for each peer. It is in one of three ways of sending, as in etcd's raft:

replicating   appends follow each other without waiting
probing       an append was refused: one at a time, until one matches
lacking       the log of this leader begins behind what the peer needs: it is sent a snapshot (catch_up.py), and only
              empty appends meanwhile, which keep it from campaigning

Invariant: pure; indexes and times are handed in. What a voter has acknowledged in a reign counts throughout it, however
often its link breaks, unless it says itself that its log may lack it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.raft.learner_pace import Pace
    from cluster.raft.messages import Appended


@dataclass(slots=True)
class Progress:
    """What a leader knows of one peer, in this reign."""

    heard_s: float
    """When the peer was last heard, by the time for which this node was awake; at first, when the reign began."""
    next_index: int
    """The entry that the peer is sent next."""
    acknowledged: int = 0
    """The last entry that the peer has told this leader to hold; 0 if none."""
    probed: int | None = None
    """The earliest entry at which an append was refused; None if the peer is not being probed."""
    lacks_from: int | None = None
    """The entry that the peer needs next, if it is not in the log any more; else None."""
    useless_end: tuple[int, int] = (0, 0)
    """Index and term of the end of the peer's log when it was last found to need entries from before this log."""
    pace: Pace | None = None
    """How fast the peer is sent the log, if it is a learner; the others are sent what they lack at once."""

    def matched(self) -> bool:
        """Note that an append has matched. True if the peer was being probed, which ends with that."""
        was_probing = self.probed is not None
        self.probed = self.lacks_from = None
        return was_probing

    def acknowledge(self, index: int) -> bool:
        """Note that the peer holds everything up to `index`. True if that is more than was known."""
        if index <= self.acknowledged:
            return False
        self.acknowledged = index
        return True

    def lose(self, index: int) -> bool:
        """Note that the peer has lost what it held behind `index`. True if that changes what was known."""
        if index >= self.acknowledged:
            return False
        self.acknowledged = index
        return True

    def refuse(self, refusal: Appended, first_index: int) -> bool:
        """Note that an append was refused. True if another one is to be tried.

        `first_index` is where the log of this leader begins.
        Whatever was on its way behind the append that was refused is refused as well. If each refusal had everything
        sent again, refusals and appends would multiply without end.
        """
        next_index, log_end = refusal.next_index, (refusal.last_index, refusal.last_term)
        if next_index <= first_index:
            self.lacks_from = next_index
            self.useless_end = log_end
        elif self.lacks_from is not None:
            if self.useless_end == log_end:
                return False  # this log of the peer has been tried: where it overlaps with the leader's, it differs
            self.ask_again()  # the peer has another log: it has installed a snapshot
        if self.probed is not None and next_index >= self.probed:
            return False
        self.probed = next_index
        return True

    def ask_again(self) -> None:
        """Let a peer that is lacking say again what it needs: its log has changed, or it has not taken a snapshot."""
        if self.lacks_from is not None:
            self.probed = self.lacks_from = None

    def spend(self, sent_bytes: int, now_s: float) -> None:
        """Count what the peer is sent."""
        if self.pace is not None:
            self.pace.spend(sent_bytes, now_s)

    def rest_s(self, now_s: float) -> float:
        """How long the peer should be sent nothing; 0 if it may be sent something now."""
        return 0.0 if self.pace is None else self.pace.rest_s(now_s)


class Answers:
    """When a follower tells its leader what it holds, or at least that it follows."""

    def __init__(self, quiet_s: float) -> None:
        """An acknowledgement that says nothing new is repeated after `quiet_s` seconds."""
        self._quiet_s = quiet_s
        self._last: tuple[str, Appended] | None = None
        self._told_s = 0.0
        self._told_hearing_s = 0.0
        self._matched = (0, 0)

    def is_due(self, leader: str, answer: Appended, now_s: float) -> bool:
        """Whether to give this answer, which then counts as given.

        A mere notice of the commit index has no news to answer with, unless it has been quiet.
        """
        is_repeated = (leader, answer) == self._last and answer.success
        if is_repeated and now_s - self._told_s <= self._quiet_s:
            return False
        self._last = (leader, answer)
        self._told_s = now_s
        return True

    def hearing_is_due(self, now_s: float) -> bool:
        """Whether to send the leader a `Hearing` now, which then counts as sent."""
        if now_s - self._told_hearing_s <= self._quiet_s:
            return False
        self._told_hearing_s = now_s
        return True

    def forget(self) -> None:
        """Forget the last answer, which may not have arrived or not hold any more: the next one is due at once."""
        self._last = None

    def match(self, term: int, index: int) -> None:
        """Note that up to `index` this log is that of the leader of `term`."""
        self._matched = (term, index)

    def matched_index(self, term: int) -> int:
        """The last entry up to which this log is known to be that of the leader of `term`; 0 if none is."""
        matched_term, index = self._matched
        return index if matched_term == term else 0
