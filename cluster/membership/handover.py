"""The state of a leadership handover from this leader to a peer (Raft thesis 3.10).

Invariant: a handover ends by itself after `HANDOVER_S`, so the leader leads on if no peer takes over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

HANDOVER_S = 1.0
"""Seconds that a leader that hands over proposes no entry, at most. A handover takes two or three syncs."""
PAUSE_S = 10.0
"""Seconds between a failed handover and the next that the node starts by itself. An operator may ask for it sooner."""


class Handover:
    """The handover of this leader, if it is handing over now."""

    def __init__(self) -> None:
        self._ends_s = -math.inf
        self._is_asked = False
        self._to: Sequence[str] = ()

    def begin(self, now_s: float, to: Sequence[str] = ()) -> None:
        """Begin a handover to any of the peers `to`, or to any successor if `to` is empty."""
        self._ends_s = now_s + HANDOVER_S
        self._is_asked = False
        self._to = to

    def end(self) -> None:
        """End the handover, because leadership has gone to a peer or has come to this node."""
        self._ends_s = -math.inf

    def is_on(self, now_s: float) -> bool:
        return now_s < self._ends_s

    def was_in_vain(self, now_s: float) -> bool:
        """Return whether a handover that no peer has taken over ended less than `PAUSE_S` ago."""
        return self._ends_s <= now_s < self._ends_s + PAUSE_S

    def meant(self, successors: Sequence[str]) -> Sequence[str]:
        """Return the peers that may take over: the intended peers, or else `successors`."""
        return self._to or successors

    def ask(self, ask_one: Callable[[], bool]) -> None:
        """Ask a peer to take over, at most once per handover.

        `ask_one` asks a peer that holds the whole log, and returns False as long as no peer does.
        """
        self._is_asked = self._is_asked or ask_one()
