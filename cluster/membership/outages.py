"""Outages: periods without service to clients, as the leader declares them in the log.

Clients cannot act while there is no majority, while all processes are paused, or while disks hold up each commit. A
timer that waits for an act of a client must not count that time. So each leader declares in an entry how much of the
time since the previous entry was outage:

- The first entry of a leadership declares the time since this node last heard a leader, and a margin: a leader that has
  lost its majority goes on for a while. A process that has never heard a leader declares the whole time.
- During its leadership, a leader declares each period longer than `GAP_S` that passed without a majority, without
  commits of its proposals, or in a pause. It also declares each leap of the cluster's time: wall clocks have gone on
  while the monotonic clocks stood still. It does so at once, in a tick entry if clients submit no batches.

Each node keeps this account, because it may be the next leader.

Invariant: time counts as outage unless it is certain that the group served. Too long an outage does no harm: a
declaration never counts for more than the time since the previous entry. A node forgets an outage when it applies an
entry that was made after the outage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cluster.log.entry import KIND_OUTAGE, ProposedBatch, make_batch
from cluster.raft.cluster_clock import LEAP_MS

if TYPE_CHECKING:
    from cluster.replica import Replica

GAP_S = LEAP_MS / 1000
"""Seconds of silence of a leader or of its majority that are no outage: processes and networks stumble."""
ALL_MS = 2**62
"""Milliseconds, longer than any time between two entries."""


class Gap(NamedTuple):
    """Outages that no applied entry has declared yet, added up."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here
    """Log index of the last entry at the end of the latest outage."""
    end_ms: int
    """The cluster's time at the end of the latest outage, in milliseconds."""
    length_ms: int


class Outages:
    """The outages that this node has observed and not yet seen declared."""

    def __init__(self, replica: Replica, since_version: int) -> None:
        """`since_version` is the first version of the state whose entries declare outages."""
        self.gap: Gap | None = None
        """The ended outages that are not declared yet, if any."""
        self._name = replica.name
        self._since_version = since_version
        self._engine = replica.engine
        self._configurations = replica.configurations
        self._clock = replica.clock
        self._runtime = replica.runtime
        self._margin_s = replica.config.timing.election_min_s + GAP_S
        self._served_s: float | None = None
        """When this process last saw the group serve, on the monotonic clock; None if it never has."""
        self._commit_index = replica.engine.commit_index
        self._leapt_ms = replica.clock.leapt_ms
        self._declared_term = 0
        """The term of this node's last declaration."""

    def check(self) -> None:
        """Record whether the group serves now; called in each heartbeat interval."""
        self._check_clock()
        engine = self._engine
        commit_index, self._commit_index = self._commit_index, engine.commit_index
        if engine.commit_index == commit_index < engine.journal.last_index:
            return  # the proposals of the leader cannot be committed
        served_s = engine.served_s()
        if served_s is None:
            return
        if self._served_s is None:
            self._served_s = served_s
            self._add_outage(ALL_MS)
        elif served_s > self._served_s:
            silent_s = served_s - self._served_s
            self._served_s = served_s
            if silent_s > GAP_S:
                self._add_outage(int(silent_s * 1000))

    def applied(self, index: int, time_ms: int) -> None:
        """Forget the outages that the applied entry's leader has declared."""
        if self.gap is not None and index > self.gap.index and time_ms >= self.gap.end_ms:
            self.gap = None

    @property
    def is_over(self) -> bool:
        """Whether this leader must declare an ended outage, or its first declaration of this term."""
        is_owed = self.gap is not None or self._engine.term != self._declared_term
        return is_owed and self._is_counted

    def declaration(self) -> ProposedBatch | None:
        """Return the batch that must begin this leader's next entry, or None without an outage."""
        if self._clock.leapt_ms != self._leapt_ms:
            self._check_clock()
        is_new = self._engine.term != self._declared_term
        served_s = self._served_s
        silent_s = 0.0 if served_s is None else self._runtime.monotonic() - served_s
        if not (is_new or self.gap is not None or silent_s > GAP_S):
            return None
        if not self._is_counted:
            return None
        length_ms = ALL_MS if served_s is None else int(silent_s * 1000)
        if is_new:
            length_ms += int(self._margin_s * 1000)
            self._declared_term = self._engine.term
        if self.gap is not None:
            length_ms += self.gap.length_ms
        return make_batch(self._name, 0, min(length_ms, ALL_MS), [], KIND_OUTAGE)

    @property
    def _is_counted(self) -> bool:
        """Whether new entries may declare outages, by the version of the newest configuration."""
        return self._configurations.newest.version >= self._since_version

    def _check_clock(self) -> None:
        leapt_ms, self._leapt_ms = self._clock.leapt_ms - self._leapt_ms, self._clock.leapt_ms
        if leapt_ms > 0:
            self._add_outage(int(leapt_ms) + 1)

    def _add_outage(self, length_ms: int) -> None:
        """Add an outage that has just ended to the outages that must be declared."""
        if self.gap is not None:
            length_ms += self.gap.length_ms
        time_ms = self._clock.time_ms(self._runtime.monotonic())
        self.gap = Gap(self._engine.journal.last_index, time_ms, min(length_ms, ALL_MS))
