"""Act on a shortage of disk space or memory: stop publishers, hurry housekeeping, retry a full disk.

Invariant: a node with a full disk continues by itself when there is space again. Until then it leaves the leadership to
any member that can lead.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.log.free_space import CHECK_INTERVAL_S
from cluster.raft.messages import Alarm
from cluster.storage.fail_stop import ObsoleteLog

if TYPE_CHECKING:
    from cluster.group.hooks import Hooks
    from cluster.membership.alarms import Alarms
    from cluster.membership.leadership import Leadership
    from cluster.membership.status import Statuses
    from cluster.replica import Replica
    from cluster.snapshots.receiver import SnapshotReceiver

log = logging.getLogger(__name__)

PATIENCE_S = 10.0
"""Seconds without free space after which an obsolete log is discarded.

Housekeeping frees within that time all that it can."""


class LowSpace:
    """Reacts while this node, or a majority, is short of disk space or memory."""

    def __init__(
        self,
        replica: Replica,
        *,
        alarms: Alarms,
        leadership: Leadership,
        statuses: Statuses,
        receiver: SnapshotReceiver,
        hooks: Hooks,
    ) -> None:
        self._alarms = alarms
        self._housekeeping = replica.housekeeping
        self._engine = replica.engine
        self._log_sync = replica.log_sync
        self._leadership = leadership
        self._statuses = statuses
        self._fail_stop = replica.fail_stop
        self._receiver = receiver
        self._runtime = replica.runtime
        self._alarm_changed = hooks.alarm_changed
        self._propose_nothing = hooks.propose_nothing
        self._submitted_at = 0
        """Last index of the log when an empty batch was last submitted for housekeeping."""
        self._tried_full_disk_s = 0.0
        self._stuck_since_s: float | None = None
        """Time since which this node is stuck for lack of space, on the monotonic clock; None if it is not stuck."""

    def check(self) -> None:
        """Check for shortages, and act on them. Called once in each heartbeat interval."""
        now_s = self._runtime.monotonic()
        self._alarms.lacks_space = self._receiver.lacks_space
        self._housekeeping.is_space_scarce = bool(self._alarms.own(now_s) & Alarm.DISK)
        if self._alarms.update(now_s):
            reason = self._alarms.reason
            log.warning("publishers must wait: %s", reason) if reason else log.info("publishers may go on")
            self._alarm_changed(reason)
        last_index = self._engine.journal.last_index
        if last_index != self._submitted_at and self._housekeeping.awaits_entry:
            self._submitted_at = last_index
            self._propose_nothing()
        if self._engine.journal.full:
            self._try_full_disk(now_s)
        if not (self._engine.journal.full or self._alarms.lacks_space):
            self._stuck_since_s = None
        elif self._stuck_since_s is None:
            self._stuck_since_s = now_s
        elif now_s - self._stuck_since_s >= PATIENCE_S and not self._receiver.is_busy:
            self._give_up_log()  # a transfer under way shows that there may be space now

    def _try_full_disk(self, now_s: float) -> None:
        """Retry writing to a full disk at intervals, and ask a member with free disk space to lead."""
        if now_s - self._tried_full_disk_s < CHECK_INTERVAL_S:
            return
        self._tried_full_disk_s = now_s
        self._log_sync.try_again()
        if self._engine.is_leader:
            self._leadership.transfer_to_any()

    def _give_up_log(self) -> None:
        """Discard an obsolete log that fills the disk.

        This breaks a deadlock. Applied acknowledgements would let the log shrink, but that needs a checkpoint. A
        checkpoint waits until all entries in it are on disk, and the disk is full.
        """
        journal = self._engine.journal
        durable_bytes = journal.disk_bytes - journal.unsynced_bytes
        reason = self._statuses.why_log_is_obsolete(durable_bytes, journal.synced_index)
        if reason is not None:
            self._fail_stop.log_is_obsolete(ObsoleteLog(reason))
