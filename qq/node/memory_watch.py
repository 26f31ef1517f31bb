"""The memory alarm of a node: publishers wait while the process uses more memory than its limit.

Invariant: publishers never wait for memory that is free. Memory of acknowledged messages is free, but the heap may keep
it for ever, so it is given back first.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from cluster.net.log_throttle import ThrottledLog
from qq.process import garbage, memory

if TYPE_CHECKING:
    from cluster.group.group import Group
    from cluster.runtime.ports import Runtime
    from qq.config import NodeLimits

log = logging.getLogger(__name__)

MEMORY_CHECK_INTERVAL_S = 1.0
GIVE_BACK_INTERVAL_S = 10.0
"""Most seconds between two attempts to give memory of the heap back.

Clients wait during an attempt, and publishers until the next.
"""
GIVE_BACK_FACTOR = 50
"""The pause between two attempts, as a multiple of the last attempt's duration, if that is shorter."""


def limit_bytes(limits: NodeLimits) -> int:
    """Return how many bytes of memory a node may use before publishers wait."""
    return limits.memory_high_watermark_bytes or share_bytes(limits.memory_high_watermark)


def share_bytes(share: float) -> int:
    """Return a share of the memory of this machine or control group, in bytes."""
    return int(share * memory.available_bytes())


class MemoryWatch:
    """Raises the group's memory alarm while the process uses more memory than its limit."""

    def __init__(self, limits: NodeLimits, group: Group, runtime: Runtime) -> None:
        self.limit_bytes = limit_bytes(limits)
        """The limit, which may change while the node runs."""
        self._group = group
        self._runtime = runtime
        self._garbage = garbage.Collector()
        self._keeps_until_s = 0.0
        self._throttled_log = ThrottledLog(log)

    def begin(self) -> None:
        """Exclude the present objects from collections, because the node begins to serve."""
        self._garbage.begin()

    async def watch(self) -> None:
        """Check the memory in use every second, until cancelled."""
        while True:
            try:
                self._group.alarms.low_on_memory = self._is_low()
            except OSError as error:  # the alarm stays as it is
                self._throttled_log.warning("memory", f"the memory in use is unknown: {error}")
            await asyncio.sleep(MEMORY_CHECK_INTERVAL_S)

    def _is_low(self) -> bool:
        is_low = memory.resident_bytes() > self.limit_bytes
        now_s = self._runtime.monotonic()
        was_collected = self._garbage.check(is_short=is_low, now_s=now_s)
        if is_low and (was_collected or now_s >= self._keeps_until_s):
            memory.give_back()
            took_s = self._runtime.monotonic() - now_s
            self._keeps_until_s = now_s + min(GIVE_BACK_INTERVAL_S, GIVE_BACK_FACTOR * took_s)
            is_low = memory.resident_bytes() > self.limit_bytes
        return is_low
