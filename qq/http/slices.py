"""Long work in slices, between which other tasks run.

Law: no slice is longer than its time and the one step that it takes to notice.
"""

from __future__ import annotations

import asyncio
from time import monotonic

SLICE_S = 0.003
"""How long a slice is: a moment that no client notices, and far less than a heartbeat of the leader's."""


class Slices:
    """The slices of one task. The first one begins at once."""

    def __init__(self) -> None:
        self._until_s = monotonic() + SLICE_S

    async def give_way(self) -> None:
        """Let other tasks run if the slice is over. To be called between short steps."""
        if monotonic() >= self._until_s:
            await asyncio.sleep(0)
            self._until_s = monotonic() + SLICE_S
