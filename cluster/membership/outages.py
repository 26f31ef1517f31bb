"""Outages: time in which the group could serve no client, as the leader declares it in the log.

While there is no majority, while all processes are paused, while disks hold up each commit, clients cannot act. A timer
that waits for an act of a client must not count that time. So the leader says with an entry how much of the time since
the entry before was outage:

- The first entry of a reign declares the time since this node last heard a leader, and a margin: a leader that has lost
  its majority goes on for a while. A process that has never heard a leader declares the whole time.
- Within its reign, a leader declares each time in which it had no majority, could not commit its proposals, or was
  paused, if that was longer than `GAP_S`. It also declares each leap of the cluster's time: wall clocks have gone on
  while the monotonic clocks stood still. It does so at once, with a tick entry if clients submit nothing.

Each node keeps this account along, because it may be the next leader.

Invariant: in doubt it was an outage. Too much of it does no harm: a declaration never counts for more than the time
since the entry before. A node forgets an outage when an entry is applied that was made after the outage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cluster.log.entry import KIND_OUTAGE, SubmittedBatch, make_batch
from cluster.raft.cluster_clock import LEAP_MS

if TYPE_CHECKING:
    from cluster.configuration.history import Configurations
    from cluster.engine.engine import Engine
    from cluster.raft.cluster_clock import ClusterClock
    from cluster.raft.timing import Timing
    from cluster.runtime.ports import Runtime

GAP_S = LEAP_MS / 1000
"""A shorter silence of a leader or of its majority is no outage: processes and networks stumble."""
ALL_MS = 2**62
"""Longer than any time between two entries."""


class Gap(NamedTuple):
    """Outages that no applied entry has declared yet."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here
    """The last entry in the log at the end of the last of them."""
    end_ms: int
    """The cluster's time at the end of the last of them."""
    length_ms: int


class Outages:
    """The outages that one node has seen."""

    def __init__(
        self,
        name: str,
        since_version: int,
        engine: Engine,
        configurations: Configurations,
        clock: ClusterClock,
        timing: Timing,
        runtime: Runtime,
    ) -> None:
        """Entries declare outages since that version of the state."""
        self.gap: Gap | None = None
        """The outages that have ended and are to be declared, if there are any."""
        self._name = name
        self._since_version = since_version
        self._engine = engine
        self._configurations = configurations
        self._clock = clock
        self._runtime = runtime
        self._margin_s = timing.election_min_s + GAP_S
        self._served_s: float | None = None
        """When this process last saw the group serve, on the monotonic clock; None if it never has."""
        self._commit_index = engine.commit_index
        self._leapt_ms = clock.leapt_ms
        self._declared_term = 0
        """The term in which this node has last proposed a declaration."""

    def look(self) -> None:
        """Note whether the group serves now; to be called with each beat."""
        self._look_at_clock()
        engine = self._engine
        commit_index, self._commit_index = self._commit_index, engine.commit_index
        if engine.commit_index == commit_index < engine.journal.last_index:
            return  # the proposals of the leader cannot be committed
        served_s = engine.served_s()
        if served_s is None:
            return
        if self._served_s is None:
            self._served_s = served_s
            self._note(ALL_MS)
        elif served_s > self._served_s:
            silent_s = served_s - self._served_s
            self._served_s = served_s
            if silent_s > GAP_S:
                self._note(int(silent_s * 1000))

    def applied(self, index: int, time_ms: int) -> None:
        """Note that an entry is applied, whose leader has declared the outages before it."""
        if self.gap is not None and index > self.gap.index and time_ms >= self.gap.end_ms:
            self.gap = None

    @property
    def is_over(self) -> bool:
        """Whether this leader has an outage to declare that has ended, or is to declare the first one of its reign."""
        is_owed = self.gap is not None or self._engine.term != self._declared_term
        return is_owed and self._is_counted

    def declaration(self) -> SubmittedBatch | None:
        """The batch with which the next entry of this leader must begin; None without an outage."""
        if self._clock.leapt_ms != self._leapt_ms:
            self._look_at_clock()
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
        """Whether entries behind those in the log may declare outages."""
        return self._configurations.newest.version >= self._since_version

    def _look_at_clock(self) -> None:
        leapt_ms, self._leapt_ms = self._clock.leapt_ms - self._leapt_ms, self._clock.leapt_ms
        if leapt_ms > 0:
            self._note(int(leapt_ms) + 1)

    def _note(self, length_ms: int) -> None:
        """Remember an outage that has just ended until it is declared."""
        if self.gap is not None:
            length_ms += self.gap.length_ms
        time_ms = self._clock.time_ms(self._runtime.monotonic())
        self.gap = Gap(self._engine.journal.last_index, time_ms, min(length_ms, ALL_MS))
