"""What is done about a lack of space: publishers wait, housekeeping hurries, and a full disk is tried again.

Lives here: that these follow. Not here: what is short, and whether it matters (alarms.py), how much space there is
(log/space.py), what is removed (log/housekeeping.py), who leads instead (leadership.py).

Law: a node whose disk was full goes on by itself once there is space, and leads nobody meanwhile if another one can.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.envelope import Alarm
from cluster.log.space import CHECK_INTERVAL_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.alarms import Alarms
    from cluster.engine import Engine
    from cluster.leadership import Leadership
    from cluster.log.housekeeping import Housekeeping
    from cluster.ports import Runtime
    from cluster.syncing import Syncing

log = logging.getLogger(__name__)


class Shortage:
    """What this node does while it, or a majority, is short of something."""

    def __init__(
        self,
        alarms: Alarms,
        housekeeping: Housekeeping,
        engine: Engine,
        syncing: Syncing,
        leadership: Leadership,
        runtime: Runtime,
        alarm_changed: Callable[[str | None], None],
    ) -> None:
        """`alarm_changed` is told why publishers must wait from now on, or None if they need not any more."""
        self._alarms = alarms
        self._housekeeping = housekeeping
        self._engine = engine
        self._syncing = syncing
        self._leadership = leadership
        self._runtime = runtime
        self._alarm_changed = alarm_changed
        self._tried_full_disk_s = 0.0

    def look(self) -> None:
        """Find out what is short, and do what follows."""
        now_s = self._runtime.monotonic()
        self._housekeeping.is_space_scarce = bool(self._alarms.own(now_s) & Alarm.DISK)
        if self._alarms.look(now_s):
            reason = self._alarms.reason
            log.warning("publishers must wait: %s", reason) if reason else log.info("publishers may go on")
            self._alarm_changed(reason)
        if self._engine.journal.full:
            self._try_full_disk()

    def _try_full_disk(self) -> None:
        """Try again now and then to write, and ask a member whose disk is not full to lead."""
        now_s = self._runtime.monotonic()
        if now_s - self._tried_full_disk_s < CHECK_INTERVAL_S:
            return
        self._tried_full_disk_s = now_s
        self._syncing.try_again()
        if self._engine.is_leader:
            self._leadership.ask_somebody()
