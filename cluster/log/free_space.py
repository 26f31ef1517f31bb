"""Free space on the disk, measured twice a second and estimated in between.

Invariant: between two measurements every appended byte counts as used, so a burst cannot pass the limit unseen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.log.journal import SegmentedJournal
    from cluster.runtime.ports import Disk

CHECK_INTERVAL_S = 0.5


class FreeSpace:
    """Estimate the free space on the disk of the log."""

    def __init__(self, disk: Disk, journal: SegmentedJournal, limit_bytes: int, now_s: float) -> None:
        """`limit_bytes`: the disk counts as full while fewer bytes than this are free."""
        self._disk = disk
        self._journal = journal
        self.limit_bytes = limit_bytes
        self._measure(now_s)

    def _measure(self, now_s: float) -> None:
        self._measured_bytes = self._disk.free_bytes()
        self._appended_bytes = self._journal.appended_bytes
        self._measured_s = now_s

    @property
    def free_bytes(self) -> int:
        """Least number of free bytes, if no other program writes to the disk."""
        return max(0, self._measured_bytes - (self._journal.appended_bytes - self._appended_bytes))

    def is_low(self, now_s: float) -> bool:
        if now_s - self._measured_s > CHECK_INTERVAL_S:
            self._measure(now_s)
        return self._journal.full or self.free_bytes < self.limit_bytes
