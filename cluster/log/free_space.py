"""Whether the disk has room for more.

Invariant: between two questions every byte that is written counts as gone, so a burst cannot run past the limit unseen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cluster.log.journal import SegmentedJournal
    from cluster.runtime.ports import Disk

CHECK_INTERVAL_S = 0.5


class Space:
    """Free space on the disk of the log."""

    def __init__(self, disk: Disk, journal: SegmentedJournal, limit_bytes: int, now_s: float) -> None:
        """The disk counts as full while fewer than `limit_bytes` are left."""
        self._disk = disk
        self._journal = journal
        self._limit_bytes = limit_bytes
        self._measure(now_s)

    def _measure(self, now_s: float) -> None:
        self._measured_bytes = self._disk.free_bytes()
        self._appended_bytes = self._journal.appended_bytes
        self._measured_s = now_s

    @property
    def free_bytes(self) -> int:
        """How many bytes are left at least, if nobody else writes."""
        return max(0, self._measured_bytes - (self._journal.appended_bytes - self._appended_bytes))

    def is_low(self, now_s: float) -> bool:
        if now_s - self._measured_s > CHECK_INTERVAL_S:
            self._measure(now_s)
        return self._journal.full or self.free_bytes < self._limit_bytes
