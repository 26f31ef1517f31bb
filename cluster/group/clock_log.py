"""Log lines about the cluster's time and this node's wall clock."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class ClockLog:
    """Writes the events of a node's `ClusterClock` to the log."""

    def __init__(self, name: str) -> None:
        self._name = name

    def time_put_forward(self, lead_ms: float) -> None:
        log.warning(
            "time is put forward by %.1f s: the clocks of a majority of the members say so", lead_ms / 1000
        )

    def applied_entry_is_old(self, age_ms: float) -> None:
        log.info(
            "the last entry applied here is %.1f s old by the clocks of a majority of the members",
            age_ms / 1000,
        )

    def clock_is_off(self, off_ms: float) -> None:
        log.warning(
            "the clock of node %s is %.1f s %s the cluster's time, which goes on without it",
            self._name,
            abs(off_ms) / 1000,
            "ahead of" if off_ms > 0 else "behind",
        )

    def clock_agrees(self) -> None:
        log.info("the clock of node %s agrees with the cluster's time again", self._name)
