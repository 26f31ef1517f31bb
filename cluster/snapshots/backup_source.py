"""The files of a backup, on the node that gives them.

A backup ends with an entry behind which the log was sealed and up to which everything is applied here: so all of it is
committed, and none of its files will ever change. Nothing is copied, and nobody waits for it: the files are kept from
being removed until whoever wanted them has them.

Invariant: a file that was given is the same until it is given back. Only where a node is sent another log meanwhile
(catch_up.py) it is gone, and reading it fails.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cluster.log.checkpoints import checkpoint_name
from cluster.log.manifest import row_of
from cluster.snapshots.backup import BackupSegment, Contents

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.configuration.history import Configurations
    from cluster.engine.engine import Engine
    from cluster.log.housekeeping import Housekeeping
    from cluster.log.journal import SegmentedJournal
    from cluster.runtime.ports import Disk
    from cluster.snapshots.backup import Digest
    from cluster.state.group_state import GroupState
    from cluster.storage.directory import GroupDirectory
    from cluster.storage.identity import Owner


class BackupSource:
    """Gives backups of the log of one group; all methods are called on the loop."""

    def __init__(
        self,
        disk: Disk,
        directory: GroupDirectory,
        owner: Owner,
        journal: SegmentedJournal,
        housekeeping: Housekeeping,
        engine: Engine,
        configurations: Configurations,
        state: GroupState,
        ask_for_turn: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._log = directory.log
        self._owner = owner
        self._journal = journal
        self._housekeeping = housekeeping
        self._engine = engine
        self._configurations = configurations
        self._state = state
        self._ask_for_turn = ask_for_turn

    def take(self, least: int, data_dir: str) -> Contents | None:
        """Keep the files of a backup that holds all entries up to `least`, which is applied here, until `give_back`.

        None if they are not there yet: what is needed for it has been asked for, so try again in a moment. `data_dir`
        is where the disk's paths begin.
        """
        checkpoint = self._housekeeping.newest
        if checkpoint is None:
            self._housekeeping.renew()
            self._ask_for_turn()
            return None
        goal = max(least, checkpoint.index)
        segments = self._journal.segments()
        end = self._engine.applied_index + 1
        kept = [segment for segment in segments if segment.sealed and segment.end <= end]
        if not kept or kept[-1].end <= goal or kept != segments[: len(kept)]:
            if segments and not segments[-1].sealed and segments[-1].first <= goal:
                self._journal.seal()
            self._ask_for_turn()
            return None
        index = kept[-1].end - 1
        contents = Contents(
            cluster=self._owner.cluster,
            cluster_id=self._configurations.committed.cluster,
            node=self._owner.node,
            group=self._owner.group_id,
            version=self._configurations.committed.version,
            index=index,
            term=self._journal.term_at(index),
            time_ms=self._state.time_ms,
            directory=f"{data_dir}/{self._log}",
            checkpoint_index=checkpoint.index,
            checkpoint_bytes=_size(self._disk, f"{self._log}/{checkpoint_name(checkpoint.index)}"),
            segments=tuple(BackupSegment(*row_of(segment)) for segment in kept),
        )
        self._housekeeping.pin(_names(contents))
        return contents

    def give_back(self, contents: Contents) -> None:
        """Let the files go that `take` has kept."""
        self._housekeeping.unpin(_names(contents))

    def read(
        self,
        name: str,
        offset: int,
        length: int,
        digest: Digest,
        done: Callable[[bytes | None, Exception | None], None],
    ) -> None:
        """Read a part of a file that is kept, off the loop; then `done` is told it, or the error.

        It is also added to `digest`.
        """
        self._disk.submit_read(
            partial(_read, self._disk, f"{self._log}/{name}", offset, length, digest), done
        )


def _names(contents: Contents) -> list[str]:
    return [name for name, _ in contents.files]


def _size(disk: Disk, path: str) -> int:
    file = disk.open(path)
    try:
        return file.size
    finally:
        file.close()


def _read(disk: Disk, path: str, offset: int, length: int, digest: Digest) -> bytes:
    file = disk.open(path)
    try:
        part = file.pread(offset, length)
    finally:
        file.close()
    digest.update(part)
    return part
