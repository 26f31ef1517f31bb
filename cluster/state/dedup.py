"""Exactly-once, in-order admission of batches, from the last applied batch of each node. Part of the replicated state.

A node numbers its batches 1, 2, 3 ... under an *incarnation*, a number that grows with every start. It sends all
batches that it has not seen applied to each new leader. So a batch may be in the log twice, but never out of order.
Every replica drops the repeat (Raft thesis 6.3).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Origin(NamedTuple):
    incarnation: int
    sequence: int
    evicted: bool


class Admission(Enum):
    """The decision about a batch: apply it, or drop it."""

    APPLY = "apply"
    APPLY_AFTER_RESTART = "apply after restart"
    """The first batch of a new incarnation. First release all that the old incarnation held."""
    DROP = "drop"


class Origins:
    """The incarnation of each node, and the sequence of its last applied batch."""

    def __init__(self) -> None:
        self._origins: dict[str, Origin] = {}

    def admit(self, name: str, incarnation: int, sequence: int) -> Admission:
        """Decide on a batch. Unless it is dropped, record it as applied."""
        known = self._origins.get(name)
        if known is not None and incarnation == known.incarnation:
            if known.evicted or sequence != known.sequence + 1:
                return Admission.DROP
            self._origins[name] = Origin(incarnation, sequence, evicted=False)
            return Admission.APPLY
        if (known is not None and incarnation < known.incarnation) or sequence != 1:
            return Admission.DROP
        self._origins[name] = Origin(incarnation, sequence, evicted=False)
        return Admission.APPLY if known is None else Admission.APPLY_AFTER_RESTART

    def evict(self, name: str, incarnation: int) -> bool:
        """Drop all further batches of this incarnation. Return False if it is not current, or evicted already."""
        known = self._origins.get(name)
        if known is None or known.incarnation != incarnation or known.evicted:
            return False
        self._origins[name] = known._replace(evicted=True)
        return True

    def living(self) -> list[tuple[str, Origin]]:
        """Return the nodes that are not evicted, ordered by name."""
        return [(name, origin) for name, origin in sorted(self._origins.items()) if not origin.evicted]

    def get(self, name: str) -> Origin | None:
        return self._origins.get(name)

    def dump(self) -> list[tuple[str, int, int, bool]]:
        rows = sorted(self._origins.items())
        return [(name, origin.incarnation, origin.sequence, origin.evicted) for name, origin in rows]

    def load(self, rows: list[tuple[str, int, int, bool]]) -> None:
        self._origins = {
            name: Origin(incarnation, sequence, evicted) for name, incarnation, sequence, evicted in rows
        }
