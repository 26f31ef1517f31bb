"""The lives of a node: each start, and each return of a node that was given up, has a number above all earlier ones.

Invariant: no life has a number that another one may have had, even if a directory or a clock was lost in between.
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
"""A node that may have lost count leaves out up to this many numbers, drawn at random."""


class Incarnations:
    """Begins the lives of one node, which are counted in its directory."""

    def __init__(
        self, directory: GroupDirectory, runtime: Runtime, versions: Versions, members: Sequence[str]
    ) -> None:
        self._directory = directory
        self._runtime = runtime
        self._versions = versions
        self._members = members

    def begin(self, known: int | None = None) -> Claim:
        """Begin a life with a number above `known`, the last one in the log; raises as `GroupDirectory.claim` does."""
        # Not simply the next one: a life that was lost may have had that, in entries that are yet to come.
        least = 0 if known is None else known + self._leap()
        wall_ms = max(bounded(self._runtime.wall_ms()), least)
        is_blank = known is None and not self._directory.hard_state.was_stored()
        return self._directory.claim(wall_ms, self._versions, self._members, self._leap(), is_blank=is_blank)

    def _leap(self) -> int:
        return self._runtime.random.randint(1, INCARNATION_LEAP)
