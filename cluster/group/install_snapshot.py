"""A snapshot takes the place of this node's log and state.

Invariant: log, state, members, clock and engine change together, or the node stops and nothing has changed (hazard
H12).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.log.hardstate import Standing
from cluster.log.manifest import log_start
from cluster.raft.log_matching import ForeignLog
from cluster.snapshots.catch_up import Installable, SnapshotTaker

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.group.bootstrap import Bootstrap
    from cluster.membership.leadership import Leadership
    from cluster.membership.view import Members
    from cluster.raft.messages import Message, Offer
    from cluster.runtime.ports import Disk, Runtime
    from cluster.state.group_state import ReadState

log = logging.getLogger(__name__)


class Installing:
    """Takes over what another node has on disk."""

    def __init__(
        self,
        disk: Disk,
        own: Bootstrap,
        members: Members,
        leadership: Leadership,
        runtime: Runtime,
        transmit: Callable[[str, Message], None],
        installed: Callable[[int], None],
    ) -> None:
        """`own` is what this node began with; `installed` is told the index of each snapshot, once it counts."""
        self.count = 0
        """How many snapshots were installed in this life."""
        self._journal = own.journal
        self._directory = own.directory
        self._state = own.state
        self._stopping = own.stopping
        self._find_configurations = own.find_configurations
        self._engine = own.engine
        self._clock = own.clock
        self._members = members
        self._housekeeping = own.housekeeping
        self._recovery = own.recovery
        self._leadership = leadership
        self._runtime = runtime
        self._installed = installed
        self._installed_at = 0
        """When the journal has synced this many changes, the last installed snapshot is durable; 0 if none waits."""
        self._cleaned = False
        self.taker = SnapshotTaker(
            disk, self._directory, self._journal, own.state, runtime, transmit, self._install
        )

    def offered(self, peer: str, offer: Offer) -> None:
        """Have a snapshot fetched. Raises ForeignLog if it is of another log."""
        self._engine.check_snapshot(peer, offer.index, offer.term)
        self.taker.offered(peer, offer)

    def _install(self, installable: Installable, state: ReadState) -> None:
        """Take over another node's log and state, which was read of the snapshot."""
        checkpoint = installable.checkpoint
        try:
            self._check_log_of(installable)
        except ForeignLog as error:
            self._directory.remove_checkpoint(checkpoint.index)  # or the next start would load it
            self._stopping.foreign_log(error)
            return
        self._state.adopt(state)
        self._clock.follow(self._state.time_ms, self._runtime.monotonic())
        self._journal.adopt(installable.segments, installable.runs)
        self._find_configurations(checkpoint.index)
        self._engine.installed(checkpoint.index)
        self._members.follow()
        self._housekeeping.begin(checkpoint)
        self.count += 1
        self._installed_at = self._journal.written
        log.info("installed a snapshot of index %d", checkpoint.index)
        self._installed(checkpoint.index)

    def _check_log_of(self, installable: Installable) -> None:
        """Raise ForeignLog if the snapshot contradicts what is committed here (hazard H12)."""
        checkpoint, segments, runs = installable
        giver, commit_index = self._leadership.reign.leader or "unknown", self._engine.commit_index
        self._engine.check_snapshot(giver, checkpoint.index, checkpoint.term)
        if log_start(segments, segments[-1].end) <= commit_index < segments[-1].end:
            self._engine.check_snapshot(giver, commit_index, runs.at(commit_index))

    def clean_up(self) -> None:
        """Remove a snapshot's directory once it is installed durably, and damaged logs once this node is a voter."""
        if self._installed_at and self._journal.synced >= self._installed_at:
            self._installed_at = 0
            self.taker.remove_installed()
        if not self._cleaned and self._recovery.standing is Standing.VOTER:
            self._cleaned = True
            self._directory.remove_set_aside()
