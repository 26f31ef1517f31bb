"""A node stops by itself: its disk fails, its log is damaged or obsolete, a leader contradicts it, or it was removed.

Invariant: with damage of what was once stored a node with peers goes on until the others can do without it; with any
other failure of its disk it stops at once, because what it has said to be stored may not be.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.log.segment import CorruptJournal, JournalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.configuration.history import Configurations
    from cluster.raft.log_matching import ForeignLog
    from cluster.runtime.ports import Runtime
    from cluster.runtime.turn_timer import TurnTimer
    from cluster.storage.directory import GroupDirectory

log = logging.getLogger(__name__)


class RemovedFromCluster(Exception):
    """The node was removed: its data directory was that of a member, and is not any more."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"node {name!r} was removed from the cluster, and its data directory can be no member again: "
            "to let the node in anew, start it with an empty one"
        )


class ObsoleteLog(JournalError):
    """A log that is whole leaves no space for what the other members have instead of it."""


class Stopping:
    """Whether and why this node stops, or is about to."""

    def __init__(
        self,
        name: str,
        configurations: Configurations,
        directory: GroupDirectory,
        turns: TurnTimer,
        runtime: Runtime,
        give_way: Callable[[], bool],
        take_checkpoint: Callable[[], None],
    ) -> None:
        """`give_way` makes this node lead no more; it returns True once the others can go on without it.

        `take_checkpoint` writes one of all that is applied.
        """
        self.damage: CorruptJournal | None = None
        """The damage found in the log while it was in use; the node stops once the others can go on without it."""
        self.is_removed = False
        """Whether this node has stopped because it was removed from the cluster."""
        self._name = name
        self._configurations = configurations
        self._directory = directory
        self._turns = turns
        self._runtime = runtime
        self._give_way = give_way
        self._take_checkpoint = take_checkpoint

    def disk_failed(self, error: Exception) -> None:
        """Stop because the disk cannot be trusted, and let the next start know why.

        With damage of what was once stored, a node with peers stops only when the others can go on without it: it
        comes back as a learner.
        """
        if isinstance(error, CorruptJournal) and self._has_peers:
            self._note_damage(error)
            self.leave_if_the_others_can_go_on()
        else:
            self._directory.note_writes_lost()
            self.stop_for(error)

    def configuration_unreadable(self, error: CorruptJournal) -> None:
        """An entry cannot be read that may hold a configuration; a lone node finds out when it applies it."""
        if self._has_peers:
            self._note_damage(error)

    def leave_if_the_others_can_go_on(self) -> None:
        """Stop for damage, if there is any, as a follower whom the other voters do not need for a majority."""
        if self.damage is not None and self._turns.is_on and self._give_way():
            self._directory.note_damage(self.damage)
            self.stop_for(self.damage)

    def log_is_obsolete(self, error: ObsoleteLog) -> None:
        """Give the log up and stop; the others must hold all that is committed, and go on without this node."""
        try:
            self._directory.give_up_log()
        except OSError as failure:
            self.disk_failed(failure)
        else:
            self.stop_for(error)

    def removed(self) -> None:
        """Stop because this node was removed."""
        self.is_removed = True
        self._directory.note_removed()
        self.stop_for(RemovedFromCluster(self._name))

    def foreign_log(self, error: ForeignLog) -> None:
        """Write a checkpoint and stop: the next start knows what was applied, and refuses the same leader again."""
        self._take_checkpoint()
        self.stop_for(error)

    def stop_for(self, error: BaseException) -> None:
        """Take no more turns, and report the error."""
        self._turns.is_on = False
        self._runtime.fail(error)

    @property
    def _has_peers(self) -> bool:
        return bool(self._configurations.others(self._name))

    def _note_damage(self, error: CorruptJournal) -> None:
        if self.damage is None:
            log.error("%s: this node will be repaired from the others", error)
            self.damage = error
