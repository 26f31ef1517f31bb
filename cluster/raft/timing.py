"""Raft timing: how often a leader is heard, and when a member stands for leader.

Invariant: pure; randomness is handed in, as a number from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

SUSPICION_HEARTBEATS = 5
"""A leader is suspected only after it has missed about this many heartbeats."""
STORES = 3
"""So many times a term or a vote is stored, one after the other, until a member is elected: once there, twice by a
voter. A member does nothing else meanwhile."""
STORE_MAX_S = 3.0
"""A disk that takes longer may hang: nobody waits for it for so long that others could not be elected."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Raft timing in seconds. Elections are rare: a killed process is noticed by its closed connection, at once.

    A leader that is silent is suspected at the latest after `election_min_s`, and usually earlier
    (failure_detector.py).
    """

    election_min_s: float = 1.0
    election_max_s: float = 2.0
    heartbeat_s: float = 0.1
    campaign_jitter_s: float = 0.03
    """After the leader's connection broke, a member campaigns at a random moment within this time."""
    campaign_retry_s: float = 0.15
    """A member waits at least this long between two campaigns."""
    learner_bytes_per_s: float = 64 * 1024 * 1024
    """A learner is fed about so fast, or at twice the rate at which the log grows if that is more."""

    @property
    def suspicion_min_s(self) -> float:
        """A leader that was heard within this time is not suspected, however often it is heard."""
        return SUSPICION_HEARTBEATS * self.heartbeat_s

    def retry_s(self, draw: float, store_s: float) -> float:
        """How long a member waits before it campaigns again; `draw` is random, or votes would split again.

        To store a vote takes it `store_s`, and the others may have such disks: who campaigned before they have voted
        would make their votes void, and who stood for leader then would do so again and again.
        """
        return max(self.campaign_retry_s, _election_s(store_s)) * (1 + draw)

    def result_s(self, draw: float, store_s: float) -> float:
        """How long a member that has voted waits for a leader; `draw` is random."""
        least_s = max(self.election_min_s, _election_s(store_s))
        return least_s + (self.election_max_s - self.election_min_s) * draw


def _election_s(store_s: float) -> float:
    return STORES * min(store_s, STORE_MAX_S)
