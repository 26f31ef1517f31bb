"""The status that this node reports of itself, to the other members and to callers on this node.

Invariant: reads only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.raft.cluster_clock import bounded
from cluster.raft.messages import FREE_BYTES_MAX, Status

if TYPE_CHECKING:
    from cluster.engine.engine import Engine
    from cluster.engine.rejoin import Recovery
    from cluster.log.housekeeping import Housekeeping
    from cluster.membership.alarms import Alarms
    from cluster.membership.view import Members
    from cluster.raft.cluster_clock import ClusterClock
    from cluster.runtime.ports import Runtime
    from cluster.storage.fail_stop import Stopping
    from cluster.transport.log_sync import Syncing


class OwnStatus:
    """Builds the status of this node from its parts."""

    def __init__(
        self,
        engine: Engine,
        recovery: Recovery,
        housekeeping: Housekeeping,
        alarms: Alarms,
        clock: ClusterClock,
        stopping: Stopping,
        members: Members,
        syncing: Syncing,
        runtime: Runtime,
    ) -> None:
        self._engine = engine
        self._recovery = recovery
        self._housekeeping = housekeeping
        self._alarms = alarms
        self._clock = clock
        self._stopping = stopping
        self._members = members
        self._syncing = syncing
        self._runtime = runtime

    def now(self) -> Status:
        """Return the status that this node reports to its peers at this moment."""
        engine, journal, now_s = self._engine, self._engine.journal, self._runtime.monotonic()
        return Status(
            engine.role,
            engine.term,
            journal.last_index,
            engine.commit_index,
            engine.applied_index,
            self._recovery.standing,
            journal.first_index,
            self._housekeeping.newest_index,
            journal.disk_bytes,
            min(self._alarms.free_bytes, FREE_BYTES_MAX),
            self._alarms.own(now_s),
            self._clock.agreed_ms(now_s) or 0,
            bounded(self._runtime.wall_ms()),
            self._clock.steady_ms(now_s),
            int(engine.hears_leader()),
            int(engine.may_lead),
            self._members.missed,
            int(self._syncing.hangs),
        )

    def flaw(self) -> str | None:
        """Return why this node cannot vote, lead or serve clients, or None if it can."""
        damage = self._stopping.damage
        if damage is not None:
            return f"{damage}; this node will be repaired as soon as the others can go on without it"
        return self._recovery.describe()
