"""The state of replication at both ends: a leader's view of a follower, and a follower's answers to its leader.

A leader keeps a `Progress` for each peer. As in etcd's raft, it has three states:

replicating   appends follow each other without waiting
probing       the peer refused an append: the leader sends a single append at a time until an append matches
lacking       the leader's log begins after the entry that the peer needs: the peer gets a snapshot
              (cluster/snapshots/sender.py); empty appends meanwhile keep it from campaigning

Invariant: pure; indexes and times are arguments. An acknowledgement of a voter counts for the whole leadership, even
when its link breaks, unless the voter reports that its log may lack the entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.raft.learner_pace import Pace
    from cluster.raft.messages import AppendResponse


@dataclass(slots=True)
class Progress:
    """A leader's view of a peer, during a single leadership."""

    heard_s: float
    """Time awake at which the leader last heard the peer, in seconds; at first, the begin of the leadership."""
    next_index: int
    """Index of the next entry to send to the peer."""
    acknowledged: int = 0
    """Index of the last entry that the peer has acknowledged to this leader; 0 before the first acknowledgement."""
    probed: int | None = None
    """Index of the earliest refused append, while the peer is being probed; else `None`."""
    lacks_from: int | None = None
    """Index of the entry that the peer needs next, if the log no longer holds it; else `None`."""
    useless_end: tuple[int, int] = (0, 0)
    """Index and term of the peer's last entry when it last needed entries from before this log."""
    pace: Pace | None = None
    """Rate limit of a learner; None for a voter, which gets missing entries at once."""

    def record_match(self) -> bool:
        """Record that an append matched, which ends probing. Return True if the peer was being probed."""
        was_probing = self.probed is not None
        self.probed = self.lacks_from = None
        return was_probing

    def acknowledge(self, index: int) -> bool:
        """Record that the peer holds all entries up to `index`. Return True if that is news."""
        if index <= self.acknowledged:
            return False
        self.acknowledged = index
        return True

    def lower_to(self, index: int) -> bool:
        """Record that the peer may lack entries after `index`. Return True if it had acknowledged such entries."""
        if index >= self.acknowledged:
            return False
        self.acknowledged = index
        return True

    def refuse(self, refusal: AppendResponse, first_index: int) -> bool:
        """Record that the peer refused an append. Return True if the leader should send a new append.

        `first_index` is the first index of the leader's log. The peer also refuses all appends that follow the refused
        one. If each refusal caused all entries to be sent again, refusals and appends would multiply without end.
        """
        next_index, log_end = refusal.next_index, (refusal.last_index, refusal.last_term)
        if next_index <= first_index:
            self.lacks_from = next_index
            self.useless_end = log_end
        elif self.lacks_from is not None:
            if self.useless_end == log_end:
                return False  # the leader has tried this log of the peer: it differs where both overlap
            self.probe_again()  # the peer has installed a snapshot, so it has a new log
        if self.probed is not None and next_index >= self.probed:
            return False
        self.probed = next_index
        return True

    def probe_again(self) -> None:
        """Let a lacking peer report again which entry it needs: its log has changed, or it has not taken a snapshot."""
        if self.lacks_from is not None:
            self.probed = self.lacks_from = None

    def spend(self, sent_bytes: int, now_s: float) -> None:
        """Count bytes sent to the peer against its pace."""
        if self.pace is not None:
            self.pace.spend(sent_bytes, now_s)

    def rest_s(self, now_s: float) -> float:
        """Return the seconds that the leader should wait before it sends to the peer; 0 if it may send now."""
        return 0.0 if self.pace is None else self.pace.rest_s(now_s)


class Acknowledgements:
    """Decides when a follower sends acknowledgements and `HeartbeatResponse` messages to its leader."""

    def __init__(self, quiet_s: float) -> None:
        """Repeat an acknowledgement without news only after `quiet_s` seconds."""
        self._quiet_s = quiet_s
        self._last: tuple[str, AppendResponse] | None = None
        self._acknowledged_s = 0.0
        self._responded_s = 0.0
        self._matched = (0, 0)

    def is_due(self, leader: str, answer: AppendResponse, now_s: float) -> bool:
        """Return whether to send this answer now. If so, it counts as sent.

        An append that only carries a commit index causes an unchanged answer, which waits until `quiet_s` has passed.
        """
        is_repeated = (leader, answer) == self._last and answer.success
        if is_repeated and now_s - self._acknowledged_s <= self._quiet_s:
            return False
        self._last = (leader, answer)
        self._acknowledged_s = now_s
        return True

    def heartbeat_response_is_due(self, now_s: float) -> bool:
        """Return whether to send the leader a `HeartbeatResponse` now. If so, it counts as sent."""
        if now_s - self._responded_s <= self._quiet_s:
            return False
        self._responded_s = now_s
        return True

    def forget(self) -> None:
        """Forget the last answer, because it may be lost or outdated. The next answer is due at once."""
        self._last = None

    def match(self, term: int, index: int) -> None:
        """Record that this log equals the log of the leader of `term` up to `index`."""
        self._matched = (term, index)

    def matched_index(self, term: int) -> int:
        """Return the last index up to which this log is known to equal that of the leader of `term`; 0 if unknown."""
        matched_term, index = self._matched
        return index if matched_term == term else 0
