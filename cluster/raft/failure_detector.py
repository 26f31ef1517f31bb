"""When a leader that is silent is to be suspected: after longer than it was ever silent of late.

A node that dies breaks its connections, which is noticed at once. One that is frozen, or behind a network that drops
everything, only falls silent. How long a silence is unusual depends on the machines, the network and the load, so it is
learnt from the gaps between signs of life. A suspicion only makes members ask for pre-votes (elections.py), so a wrong
one costs a message or two as long as a majority still hears the leader.

Only the time counts for which this node itself was awake. One that was not scheduled, or was busy for long with one
thing, has not read what came meanwhile: its own stall says nothing about others.

Invariant: pure; time is handed in. Nobody is suspected within the floor, and everybody from the ceiling on.
"""

from __future__ import annotations

HALF_LIFE_S = 30.0
"""The memory of a long gap fades: it counts for half as much after this time."""
UNUSUAL = 2.0
"""A silence that is longer than the longest gap by this factor is unusual."""


class AwakeClock:
    """The monotonic clock without the stalls of this node, as far as they are longer than a step."""

    def __init__(self, now_s: float, step_max_s: float) -> None:
        """The owner reads the clock more often than every `step_max_s` seconds, unless it is stalled."""
        self._step_max_s = step_max_s
        self._read_s = now_s
        self._awake_s = now_s

    def read(self, now_s: float) -> float:
        """Return the time awake at `now_s`, of the monotonic clock."""
        self._awake_s += min(now_s - self._read_s, self._step_max_s)
        self._read_s = now_s
        return self._awake_s


class FailureDetector:
    """Learns how long a node is usually silent, and suspects it when it is silent for longer."""

    def __init__(self, floor_s: float, ceiling_s: float) -> None:
        self._floor_s = min(floor_s, ceiling_s)
        self._ceiling_s = ceiling_s
        self._heard_s: float | None = None
        self._longest_gap_s = 0.0

    @property
    def patience_s(self) -> float:
        """The silence after which the node is suspected."""
        return min(max(self._floor_s, UNUSUAL * self._longest_gap_s), self._ceiling_s)

    def hear(self, now_s: float) -> None:
        """Note a sign of life. That the node was silent before it is usual from now on."""
        if self._heard_s is not None:
            gap_s = now_s - self._heard_s
            faded_s = self._longest_gap_s * 0.5 ** (gap_s / HALF_LIFE_S)
            self._longest_gap_s = min(max(gap_s, faded_s), self._ceiling_s)
        self._heard_s = now_s

    def forget(self) -> None:
        """Note that nothing is to be expected of the node until it is heard again; the gap until then is no usual one.

        What was learnt stays: machines and network are the same for its successor.
        """
        self._heard_s = None

    def suspects(self, now_s: float) -> bool:
        """Whether the node is silent for unusually long, or was never heard."""
        return self._heard_s is None or now_s - self._heard_s >= self.patience_s

    def gives_up(self, now_s: float) -> bool:
        """Whether the node is silent for so long that it does not count any more, whatever is usual."""
        return self._heard_s is None or now_s - self._heard_s >= self._ceiling_s
