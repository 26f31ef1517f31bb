"""Replace this node's log and state by a peer's snapshot (Raft: InstallSnapshot).

Invariant: log, state, members, clock and engine change together. If the snapshot contradicts this node's committed
entries, the node stops before any change (hazard H12).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.log.hardstate import VoterStatus
from cluster.log.manifest import log_start
from cluster.raft.log_matching import ForeignLog
from cluster.snapshots.receiver import Installable, SnapshotReceiver

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.membership.leadership import Leadership
    from cluster.membership.view import Members
    from cluster.raft.messages import SnapshotOffer
    from cluster.replica import Replica
    from cluster.state.group_state import ReadState

log = logging.getLogger(__name__)


class SnapshotInstaller:
    """Installs the snapshots that a leader offers."""

    def __init__(
        self,
        replica: Replica,
        *,
        members: Members,
        leadership: Leadership,
        find_configurations: Callable[[int], None],
        installed: Callable[[int], None],
    ) -> None:
        """Use `find_configurations` to load the configurations in the log after the index of the state.

        `installed` is called with the index of each installed snapshot.
        """
        self.count = 0
        """Snapshots installed since the start of this process."""
        self._journal = replica.journal
        self._directory = replica.directory
        self._state = replica.state
        self._fail_stop = replica.fail_stop
        self._find_configurations = find_configurations
        self._engine = replica.engine
        self._clock = replica.clock
        self._members = members
        self._housekeeping = replica.housekeeping
        self._rejoin = replica.rejoin
        self._leadership = leadership
        self._runtime = replica.runtime
        self._installed = installed
        self._installed_at = 0
        """Sync point of the journal that makes the last installed snapshot durable; 0 if none is waiting."""
        self._cleaned = False
        self.receiver = SnapshotReceiver(replica, self._install)

    def offered(self, peer: str, offer: SnapshotOffer) -> None:
        """Begin to fetch an offered snapshot. Raises ForeignLog if it contradicts committed entries."""
        self._engine.check_snapshot(peer, offer.index, offer.term)
        self.receiver.offered(peer, offer)

    def _install(self, installable: Installable, state: ReadState) -> None:
        """Install a fetched snapshot. `state` is its parsed checkpoint."""
        checkpoint = installable.checkpoint
        try:
            self._check_log_of(installable)
        except ForeignLog as error:
            self._directory.remove_checkpoint(checkpoint.index)  # otherwise the next start would load it
            self._fail_stop.foreign_log(error)
            return
        self._state.adopt(state)
        self._clock.advance_to(self._state.time_ms, self._runtime.monotonic())
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
        """Raise ForeignLog if the snapshot contradicts committed entries of this node (hazard H12)."""
        checkpoint, segments, runs = installable
        sender, commit_index = self._leadership.leader_term.leader or "unknown", self._engine.commit_index
        self._engine.check_snapshot(sender, checkpoint.index, checkpoint.term)
        if log_start(segments, segments[-1].end) <= commit_index < segments[-1].end:
            self._engine.check_snapshot(sender, commit_index, runs.at(commit_index))

    def clean_up(self) -> None:
        """Remove the directory of a durably installed snapshot, and damaged logs after this node is a voter."""
        if self._installed_at and self._journal.synced >= self._installed_at:
            self._installed_at = 0
            self.receiver.remove_installed()
        if not self._cleaned and self._rejoin.voter_status is VoterStatus.VOTER:
            self._cleaned = True
            self._directory.remove_set_aside()
