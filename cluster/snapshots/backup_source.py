"""The node's side of a backup: it pins the files of a backup and reads them for the client.

A backup ends with an entry after which a segment was sealed, and up to which all entries are applied here. So all its
entries are committed, and its files never change again. Files are pinned instead of copied, so no request waits for a
backup. They stay pinned until the client has them.

Invariant: a pinned file stays the same until `give_back`. The exception is a node that installs a snapshot meanwhile
(receiver.py): the file is gone then, and reading it fails.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cluster.log.checkpoints import checkpoint_name
from cluster.log.manifest import row_of
from cluster.snapshots.backup import BackupSegment, Contents

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.replica import Replica
    from cluster.runtime.ports import Disk
    from cluster.snapshots.backup import Digest


class BackupSource:
    """Provider of backups of a group's log; all methods must be called on the event loop."""

    def __init__(self, replica: Replica) -> None:
        self._disk = replica.disk
        self._log = replica.directory.log
        self._owner = replica.directory.owner
        self._journal = replica.journal
        self._housekeeping = replica.housekeeping
        self._engine = replica.engine
        self._configurations = replica.configurations
        self._state = replica.state
        self._ask_for_turn = replica.turns.request

    def take(self, least: int, data_dir: str) -> Contents | None:
        """Pin and describe the files of a backup with all entries up to `least`, which must be applied here.

        Returns `None` if the files do not exist yet. They were requested then, so the caller must try again in a
        moment. `data_dir` is the directory to which the disk's paths are relative. The files stay pinned until
        `give_back`.
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
        """Unpin the files that `take` has pinned."""
        self._housekeeping.unpin(_names(contents))

    def read(
        self,
        name: str,
        offset: int,
        length: int,
        digest: Digest,
        done: Callable[[bytes | None, Exception | None], None],
    ) -> None:
        """Read a part of a pinned file off the event loop, then call `done` with the part or the error.

        The part is also added to `digest`.
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
