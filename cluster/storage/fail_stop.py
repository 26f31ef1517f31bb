"""Fail-stop: a node stops itself when its disk fails, its log cannot be used, or the cluster has removed it.

Invariant: after damage to stored data, a node with peers goes on until the other voters are a majority without it.
After every other disk failure it stops at once, because entries that it has acknowledged may not be stored.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.log.segment import CorruptJournal, JournalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.configuration.history import Configurations
    from cluster.raft.log_matching import ForeignLog
    from cluster.runtime.turn_timer import TurnTimer
    from cluster.storage.directory import GroupDirectory

log = logging.getLogger(__name__)


class RemovedFromCluster(Exception):
    """The cluster has removed this node, so its data directory no longer belongs to a member."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"node {name!r} was removed from the cluster, and its data directory can be no member again: "
            "to let the node in anew, start it with an empty one"
        )


class ObsoleteLog(JournalError):
    """An undamaged log fills the disk, so the node cannot store the entries that replaced it."""


class FailStop:
    """Whether and why this node stops or is about to stop."""

    def __init__(
        self,
        configurations: Configurations,
        directory: GroupDirectory,
        turns: TurnTimer,
        *,
        give_way: Callable[[], bool],
        take_checkpoint: Callable[[], None],
    ) -> None:
        """`give_way` hands over leadership, and returns True once the other voters are a majority without this node.

        `take_checkpoint` writes a checkpoint of all applied entries.
        """
        self.damage: CorruptJournal | None = None
        """Damage found in the log while it was in use. The node stops once the other voters are a majority without
        it."""
        self.is_removed = False
        """Whether this node has stopped because it was removed from the cluster."""
        self._configurations = configurations
        self._directory = directory
        self._turns = turns
        self._give_way = give_way
        self._take_checkpoint = take_checkpoint

    def disk_failed(self, error: Exception) -> None:
        """Stop because the disk cannot be trusted, and store the reason for the next start.

        After damage to stored data, a node with peers stops only when the other voters are a majority without it. It
        comes back as a learner.
        """
        if isinstance(error, CorruptJournal) and self._has_peers:
            self._record_damage(error)
            self.stop_if_damaged()
        else:
            self._directory.mark_writes_lost()
            self.stop_for(error)

    def configuration_unreadable(self, error: CorruptJournal) -> None:
        """Record damage to an entry that may hold a configuration; a lone node finds the damage when it applies it."""
        if self._has_peers:
            self._record_damage(error)

    def stop_if_damaged(self) -> None:
        """Stop because of known damage, if this node is a follower and the other voters are a majority without it."""
        if self.damage is not None and self._turns.is_on and self._give_way():
            self._directory.mark_damaged(self.damage)
            self.stop_for(self.damage)

    def log_is_obsolete(self, error: ObsoleteLog) -> None:
        """Discard the log and stop.

        The other voters must hold all committed entries, and must be a majority without this node.
        """
        try:
            self._directory.discard_log()
        except OSError as failure:
            self.disk_failed(failure)
        else:
            self.stop_for(error)

    def removed(self) -> None:
        """Stop because this node was removed from the cluster."""
        self.is_removed = True
        self._directory.mark_removed()
        self.stop_for(RemovedFromCluster(self._directory.owner.node))

    def foreign_log(self, error: ForeignLog) -> None:
        """Write a checkpoint and stop, so that the next start knows the applied entries and rejects the same leader."""
        self._take_checkpoint()
        self.stop_for(error)

    def stop_for(self, error: BaseException) -> None:
        """Stop the turns of the group and report the error."""
        self._turns.fail(error)

    @property
    def _has_peers(self) -> bool:
        return bool(self._configurations.others(self._directory.owner.node))

    def _record_damage(self, error: CorruptJournal) -> None:
        if self.damage is None:
            log.error("%s: this node will be repaired from the others", error)
            self.damage = error
