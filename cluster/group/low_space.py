"""What is done about a lack of space: publishers wait, housekeeping hurries, and a full disk is tried again.

Invariant: a node whose disk was full goes on by itself once there is space, and leads nobody meanwhile if another one
can.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.log.free_space import CHECK_INTERVAL_S
from cluster.raft.messages import Alarm
from cluster.storage.fail_stop import ObsoleteLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.engine.engine import Engine
    from cluster.log.housekeeping import Housekeeping
    from cluster.membership.alarms import Alarms
    from cluster.membership.leadership import Leadership
    from cluster.membership.status import Statuses
    from cluster.runtime.ports import Runtime
    from cluster.snapshots.catch_up import SnapshotTaker
    from cluster.storage.fail_stop import Stopping
    from cluster.transport.log_sync import Syncing

log = logging.getLogger(__name__)

PATIENCE_S = 10.0
"""A log is not given up before there has been no space for so long: what goes of it, goes within that time."""


class Shortage:
    """What this node does while it, or a majority, is short of something."""

    def __init__(
        self,
        alarms: Alarms,
        housekeeping: Housekeeping,
        engine: Engine,
        syncing: Syncing,
        leadership: Leadership,
        statuses: Statuses,
        stopping: Stopping,
        taker: SnapshotTaker,
        runtime: Runtime,
        alarm_changed: Callable[[str | None], None],
        submit_nothing: Callable[[], None],
    ) -> None:
        """`submit_nothing` has the log go on by an entry that changes nothing.

        `alarm_changed` is told why publishers must wait from now on, or None if they need not any more.
        """
        self._alarms = alarms
        self._housekeeping = housekeeping
        self._engine = engine
        self._syncing = syncing
        self._leadership = leadership
        self._statuses = statuses
        self._stopping = stopping
        self._taker = taker
        self._runtime = runtime
        self._alarm_changed = alarm_changed
        self._submit_nothing = submit_nothing
        self._submitted_at = 0
        """Where the log ended when it was asked to go on."""
        self._tried_full_disk_s = 0.0
        self._stuck_since_s: float | None = None
        """Since when this node cannot go on for want of space; None if it can."""

    def look(self) -> None:
        """Find out what is short, and do what follows."""
        now_s = self._runtime.monotonic()
        self._alarms.lacks_space = self._taker.lacks_space
        self._housekeeping.is_space_scarce = bool(self._alarms.own(now_s) & Alarm.DISK)
        if self._alarms.look(now_s):
            reason = self._alarms.reason
            log.warning("publishers must wait: %s", reason) if reason else log.info("publishers may go on")
            self._alarm_changed(reason)
        last_index = self._engine.journal.last_index
        if last_index != self._submitted_at and self._housekeeping.awaits_entry:
            self._submitted_at = last_index
            self._submit_nothing()
        if self._engine.journal.full:
            self._try_full_disk(now_s)
        if not (self._engine.journal.full or self._alarms.lacks_space):
            self._stuck_since_s = None
        elif self._stuck_since_s is None:
            self._stuck_since_s = now_s
        elif now_s - self._stuck_since_s >= PATIENCE_S and not self._taker.is_busy:
            self._give_up_log()  # not while a transfer is under way: there may be space by now

    def _try_full_disk(self, now_s: float) -> None:
        """Try again now and then to write, and ask a member whose disk is not full to lead."""
        if now_s - self._tried_full_disk_s < CHECK_INTERVAL_S:
            return
        self._tried_full_disk_s = now_s
        self._syncing.try_again()
        if self._engine.is_leader:
            self._leadership.ask_somebody()

    def _give_up_log(self) -> None:
        """Let the log go that takes the space which is needed to go on, if it is obsolete.

        What this node has applied of it and cannot store, the acknowledgements of consumers above all, would make it
        small. But a checkpoint waits until the log holds all that is in it.
        """
        journal = self._engine.journal
        durable_bytes = journal.disk_bytes - journal.unsynced_bytes
        reason = self._statuses.why_log_is_obsolete(durable_bytes, journal.synced_index)
        if reason is not None:
            self._stopping.log_is_obsolete(ObsoleteLog(reason))
