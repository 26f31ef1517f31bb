"""Incarnations: each start of a node, and each return of an evicted node, gets a number above all earlier numbers.

Invariant: no incarnation reuses a number that an earlier incarnation may have had, even if a directory or a clock was
lost in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cluster.raft.cluster_clock import bounded

if TYPE_CHECKING:
    from cluster.configuration.configuration import Versions
    from cluster.runtime.ports import Runtime
    from cluster.storage.directory import GroupDirectory
    from cluster.storage.identity import Claim

INCARNATION_LEAP = 2**20
"""Largest gap in the numbers: a node that may have lost count draws the gap before its next number at random."""


class Incarnations:
    """Source of a node's incarnations, which are counted in its directory."""

    def __init__(
        self, directory: GroupDirectory, runtime: Runtime, versions: Versions, members: Sequence[str]
    ) -> None:
        self._directory = directory
        self._runtime = runtime
        self._versions = versions
        self._members = members

    def begin(self, known: int | None = None) -> Claim:
        """Begin an incarnation above `known`, the last in the log; raises the errors of `GroupDirectory.claim`."""
        # `known + 1` would be unsafe, because a lost incarnation may have used it in entries that will still arrive.
        least = 0 if known is None else known + self._leap()
        wall_ms = max(bounded(self._runtime.wall_ms()), least)
        is_blank = known is None and not self._directory.hard_state.was_stored()
        return self._directory.claim(wall_ms, self._versions, self._members, self._leap(), is_blank=is_blank)

    def _leap(self) -> int:
        return self._runtime.random.randint(1, INCARNATION_LEAP)
