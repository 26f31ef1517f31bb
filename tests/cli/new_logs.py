"""The log of a new node, for commands that look at data directories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.log.journal import JournalSizes, SegmentedJournal
from cluster.state.group_state import GroupState
from cluster.storage.directory import GroupDirectory
from cluster.storage.identity import Owner
from qq.machine.machine import QueueMachine

if TYPE_CHECKING:
    from cluster.configuration.configuration import Versions
    from cluster.runtime.asyncio_runtime import RealDisk

GROUP = "groups/0"


def raising(error: Exception) -> None:
    raise error


def new_log(
    disk: RealDisk, incarnation: int, versions: Versions, members: list[str], segment_entries: int
) -> tuple[GroupDirectory, SegmentedJournal, GroupState]:
    """Return the group of the new node n1 among `members`, its empty log, and its state."""
    group = GroupDirectory(disk, GROUP, Owner("qq", "n1", 0))

    def open_journal(writes_lost: bool) -> SegmentedJournal:
        return SegmentedJournal(
            group.log_files,
            group.hard_state,
            JournalSizes(segment_entries=segment_entries),
            on_failure=raising,
            writes_lost=writes_lost,
        )

    claim = group.claim(incarnation, versions, members, 0)
    state = GroupState(QueueMachine())
    journal, _ = group.start(claim, state, open_journal, repairable=False)
    return group, journal, state
