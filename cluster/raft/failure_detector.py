"""Suspect a silent leader when its silence is longer than usual.

A node that dies breaks its connections, and its peers notice at once. A frozen node, or a node behind a network that
drops all packets, only falls silent. The usual length of a silence depends on machines, network and load, so it is
learnt from the gaps between signs of life. A suspicion only makes members ask for pre-votes (elections.py). So a false
suspicion costs a message or two, while a majority still hears the leader.

Only this node's time awake counts. A node that was not scheduled, or busy for long, has not read its messages, so its
own stall says nothing about the leader.

Invariant: pure; the time is an argument. A leader is never suspected within the floor, and always from the ceiling on.
"""

from __future__ import annotations

HALF_LIFE_S = 30.0
"""Seconds after which a long gap counts for half as much."""
UNUSUAL = 2.0
"""Factor on the longest remembered gap. A longer silence is unusual."""


class AwakeClock:
    """The monotonic clock of this node without its stalls: each reading advances it by one step at most."""

    def __init__(self, now_s: float, step_max_s: float) -> None:
        """The owner must read the clock more often than every `step_max_s` seconds. Longer pauses count as stalls."""
        self._step_max_s = step_max_s
        self._read_s = now_s
        self._awake_s = now_s

    def read(self, now_s: float) -> float:
        """Return the seconds awake at `now_s`, a time of the monotonic clock."""
        self._awake_s += min(now_s - self._read_s, self._step_max_s)
        self._read_s = now_s
        return self._awake_s


class FailureDetector:
    """Learns the usual length of a node's silences, and suspects the node after a longer silence."""

    def __init__(self, floor_s: float, ceiling_s: float) -> None:
        self._floor_s = min(floor_s, ceiling_s)
        self._ceiling_s = ceiling_s
        self._heard_s: float | None = None
        self._longest_gap_s = 0.0

    @property
    def patience_s(self) -> float:
        """Seconds of silence after which the node is suspected."""
        return min(max(self._floor_s, UNUSUAL * self._longest_gap_s), self._ceiling_s)

    def hear(self, now_s: float) -> None:
        """Record a sign of life. The silence before it counts as usual from now on."""
        if self._heard_s is not None:
            gap_s = now_s - self._heard_s
            faded_s = self._longest_gap_s * 0.5 ** (gap_s / HALF_LIFE_S)
            self._longest_gap_s = min(max(gap_s, faded_s), self._ceiling_s)
        self._heard_s = now_s

    def forget(self) -> None:
        """Suspect the node until it is heard again. The gap until then is not learnt.

        The learnt gaps stay, because machines and network are the same for the next leader.
        """
        self._heard_s = None

    def suspects(self, now_s: float) -> bool:
        """Return whether the node is silent for unusually long, or was never heard."""
        return self._heard_s is None or now_s - self._heard_s >= self.patience_s

    def presumes_dead(self, now_s: float) -> bool:
        """Return whether the node is silent for at least the ceiling, whatever length is usual, or was never heard."""
        return self._heard_s is None or now_s - self._heard_s >= self._ceiling_s
