"""Raft timing: how often a leader is heard, and when a member stands for leader.

Lives here: the times, and what is random about them. Not here: when a silent leader is suspected (failure_detector.py),
who may stand (elections.py), deadlines (engine.py).

Law: pure; randomness is handed in, as a number from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

SUSPICION_HEARTBEATS = 5
"""A leader is suspected only after it has missed about this many heartbeats."""


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

    def retry_s(self, draw: float) -> float:
        """How long a member waits before it campaigns again; `draw` is random, or votes would split again."""
        return self.campaign_retry_s * (1 + draw)
