"""Raft timing: heartbeats, suspicion of a leader, and delays of elections.

Invariant: pure; randomness is an argument, a number from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

SUSPICION_HEARTBEATS = 5
"""Heartbeats that a leader must miss, about, before it is suspected."""
STORES = 3
"""Stores of a term or a vote, in sequence, until a member is elected: one at the candidate, two at a voter. A
member waits for each store."""
STORE_MAX_S = 3.0
"""Seconds of a store that count at most. A slower disk may hang, and must not delay the election of other members."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Raft timing in seconds. Elections are rare, because the closed connection of a killed process is noticed at once.

    A silent leader is suspected after `election_min_s` at the latest, and usually earlier (failure_detector.py).
    """

    election_min_s: float = 1.0
    election_max_s: float = 2.0
    heartbeat_s: float = 0.1
    campaign_jitter_s: float = 0.03
    """Longest random delay of a campaign, in seconds, after the connection to the leader broke."""
    campaign_retry_s: float = 0.15
    """Shortest pause between two campaigns of a member, in seconds."""
    learner_bytes_per_s: float = 64 * 1024 * 1024
    """Bytes per second sent to a learner, about. The rate is twice the growth of the log, if that is more."""

    @property
    def suspicion_min_s(self) -> float:
        """Seconds after its last sign of life during which a leader is never suspected."""
        return SUSPICION_HEARTBEATS * self.heartbeat_s

    def retry_s(self, draw: float, store_s: float) -> float:
        """Return the seconds that a member waits before it campaigns again.

        `draw` is random, so votes do not split again.

        `store_s` is the time that storing a vote takes here; disks of other members may be as slow. A campaign in a new
        term voids votes that are still being written, and members that campaign too early would void each other's votes
        for ever.
        """
        return max(self.campaign_retry_s, _election_s(store_s)) * (1 + draw)

    def result_s(self, draw: float, store_s: float) -> float:
        """Return the seconds that a member waits for a leader after its vote. `draw` is random."""
        least_s = max(self.election_min_s, _election_s(store_s))
        return least_s + (self.election_max_s - self.election_min_s) * draw


def _election_s(store_s: float) -> float:
    return STORES * min(store_s, STORE_MAX_S)
