"""A leader gives its office to a peer (Raft thesis 3.10).

Invariant: a handover ends by itself, so a leader goes on if nobody can take over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

HANDOVER_S = 1.0
"""A leader that hands over proposes nothing for this long at most; a handover takes two or three syncs."""
PAUSE_S = 10.0
"""After a handover that nobody took, the next one begins this much later, unless somebody asks for it."""


class Handover:
    """The handover that is under way at this leader, if any."""

    def __init__(self) -> None:
        self._ends_s = -math.inf
        self._is_asked = False
        self._to: Sequence[str] = ()

    def begin(self, now_s: float, to: Sequence[str] = ()) -> None:
        """Begin to hand over to one of these peers, or to anybody if there are none of them."""
        self._ends_s = now_s + HANDOVER_S
        self._is_asked = False
        self._to = to

    def end(self) -> None:
        """End the handover, and forget it: leadership has gone elsewhere, or come here."""
        self._ends_s = -math.inf

    def is_on(self, now_s: float) -> bool:
        return now_s < self._ends_s

    def was_in_vain(self, now_s: float) -> bool:
        """Whether a handover that no peer has taken ended a short while ago."""
        return self._ends_s <= now_s < self._ends_s + PAUSE_S

    def meant(self, successors: Sequence[str]) -> Sequence[str]:
        """Who is to take over: one of the peers it is meant for, or else any of these."""
        return self._to or successors

    def ask(self, ask_one: Callable[[], bool]) -> None:
        """Ask a peer, unless one was asked; `ask_one` returns False if there is none yet that has everything."""
        self._is_asked = self._is_asked or ask_one()
