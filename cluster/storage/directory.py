"""The directory of a group on a node: its files, and how a node starts from them.

    identity                owner of the directory (identity.py)
    member                  its id as a member of a cluster (identity.py)
    start-0, -1             its incarnation, whether writes may be lost (identity.py)
    hardstate-0, -1         term, vote, voter status (log/hardstate.py)
    log/                    segments, manifest, checkpoints
    incoming/               a snapshot on its way (snapshots/receiver.py)
    incoming/moving         index of its checkpoint, once its files may be in the log's directory
    damage                  why the log must not be used any more; found while it was in use
    removed                 marks this directory as removed from its cluster, for programs that inspect it
    damaged-N/              a log that was set aside, kept until this node has caught up
    obsolete/               a log that was discarded for lack of space; the next start removes it

Invariant: damage that a checksum or a missing file shows never leads to a silent start with fewer entries. The log is
set aside, and the node comes back as a learner. A fault that an operator must fix (files of a different node or
version) is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from cluster.log.checkpoints import Checkpoint, load_newest, remove_checkpoints
from cluster.log.hardstate import HardState, HardStateFile, VoterStatus
from cluster.log.journal import SegmentedJournal
from cluster.log.manifest import MANIFEST_NAME
from cluster.log.owned_directory import OwnedDirectory
from cluster.log.segment import CorruptJournal, UnknownFormat
from cluster.raft.cluster_clock import bounded
from cluster.storage.identity import (
    MEMBER_FILE,
    Claim,
    DirectoryId,
    Identity,
    Owner,
    claim_directory,
    directory_id,
    load_member_copies,
    mark_writes_lost,
    names_of,
    store_directory_id,
    store_identity,
    unmark_writes_lost,
)
from cluster.storage.paths import REMOVED

if TYPE_CHECKING:
    from cluster.configuration.configuration import Versions
    from cluster.configuration.history import Configurations
    from cluster.runtime.ports import Disk, Runtime
    from cluster.state.group_state import GroupState, ReadState

log = logging.getLogger(__name__)

INCOMING = "incoming"
MOVING = "moving"
DAMAGE = "damage"
ASIDE_PREFIX = "damaged-"
OBSOLETE = "obsolete"
INCARNATION_LEAP = 2**20
"""Largest gap in the numbers of incarnations. A node that may have lost count draws the gap before its next number at
random."""


class OpenJournal(Protocol):
    """A function that opens the journal."""

    def __call__(self, *, writes_lost: bool) -> SegmentedJournal:
        """Open the journal; `writes_lost` says whether unsynced writes may be lost."""
        ...


class GroupDirectory:
    """The directory with the files of a group on this node."""

    def __init__(self, disk: Disk, path: str, owner: Owner) -> None:
        self.path = path
        self.log = f"{path}/log"
        self.incoming = f"{path}/{INCOMING}"
        self.identity = owner.key()
        self.log_files = OwnedDirectory(disk, self.log, self.identity)
        self._disk = disk
        self.owner = owner
        disk.make_directory(path)
        self.hard_state = HardStateFile(OwnedDirectory(disk, path, self.identity))

    def claim(
        self, wall_ms: int, versions: Versions, members: Sequence[str], leap: int, *, is_blank: bool = False
    ) -> Claim:
        """Begin a new incarnation. Raises `ForeignDirectory`, `OtherVersion`, `OtherMembers`.

        With `is_blank` the directory has promised no peer anything yet.
        """
        names = tuple(sorted(members))
        self._identity, claim = claim_directory(
            self._disk, self.path, self.owner, versions, names, wall_ms, leap, is_blank=is_blank
        )
        self._names = self._identity.members if is_blank else names_of(self._disk, self.path, self._identity)
        """Names of the members while the log has no configuration; empty once the log must have a configuration."""
        return claim

    @property
    def lists_members(self) -> bool:
        """Whether the members are the names in each node's file as long as the log has no configuration.

        If false, a log without a configuration is incomplete: it was lost, or has not arrived yet.
        """
        return bool(self._names) and not self._id.cluster

    def record_configuration(self, held: Configurations, journal: SegmentedJournal) -> None:
        """Record the version, the member list and the cluster of the newest configuration for the next start.

        A program that cannot run a version must not read entries of it. So a higher version is stored before its first
        entry. All other changes are stored after the entries that cause them.
        """
        newest = held.newest
        if held.cluster:
            self._names = ()
        identity = self._identity._replace(
            machine_version=newest.version, members=() if newest.cluster else self._names, before=()
        )
        has_others = len(newest.members) > 1
        directory_id = self._id._replace(cluster=held.cluster, has_others=has_others, before=self._names)
        if (identity, directory_id) != (self._identity, self._id):
            first = identity.machine_version > self._identity.machine_version
            self._identity, self._id = identity, directory_id
            journal.store_beside(partial(self._store, identity, directory_id), first=first)

    def _store(self, identity: Identity, directory_id: DirectoryId) -> None:
        """Store both files; after a crash at any moment at least one of them has the names."""
        store_directory_id(self._disk, self.path, self.owner, directory_id)
        store_identity(self._disk, self.path, identity)

    def id(self, incarnation: int) -> DirectoryId:
        """Return the directory's member id and cluster id; must be called after `start`.

        The directory gets a new id, derived from this incarnation, if it has no id or has lost its hard state.
        """
        is_new = self.hard_state.state is None
        self._id = directory_id(self._disk, self.path, self.owner, incarnation, self._names, is_new=is_new)
        return self._id

    # Starting

    def start(
        self, claim: Claim, state: GroupState, open_journal: OpenJournal, *, repairable: bool
    ) -> tuple[SegmentedJournal, Checkpoint | None]:
        """Open the log, and load the newest checkpoint into `state`.

        A damaged log is set aside with `repairable`, or if this directory knows of other members. Otherwise the errors
        of the journal are raised.
        """
        hard = self.hard_state.load()
        self._remove_obsolete()
        open_log = partial(self._open, state, partial(open_journal, writes_lost=claim.writes_lost))
        try:
            journal, checkpoint = open_log(hard)
        except CorruptJournal as damage:
            if not (repairable or self._has_others()):
                raise
            log.error("%s: this node is repaired from the others", damage)  # noqa: TRY400 - no bug, no traceback
            self._set_aside(claim, hard)
            journal, checkpoint = open_log(self.hard_state.state)
        unmark_writes_lost(self._disk, self.path, self.owner)
        if hard is not None and hard.term < journal.last_term:
            # Raft stores a term before the term's first entry, so this file must be outdated.
            log.error("%s: term %d is below the log's, so it is not believed", self.path, hard.term)
            self.hard_state.forget()
        return journal, checkpoint

    def _open(
        self, state: GroupState, open_journal: Callable[[], SegmentedJournal], hard: HardState | None
    ) -> tuple[SegmentedJournal, Checkpoint | None]:
        names = self._disk.list_directory(self.path)
        if DAMAGE in names:
            reason = self._disk.read_file(f"{self.path}/{DAMAGE}").decode(errors="replace")
            raise CorruptJournal(self.log, 0, f"found damaged while it was in use: {reason}")
        self._disk.make_directory(self.log)
        has_manifest = MANIFEST_NAME in self._disk.list_directory(self.log)
        if hard is not None and hard.voter_status is VoterStatus.VOTER and not has_manifest:
            raise CorruptJournal(f"{self.log}/{MANIFEST_NAME}", 0, "the file is missing")
        journal = open_journal()
        if INCOMING in names:
            index = moving_checkpoint(self._disk, self.incoming)
            if index is not None and index > journal.last_index:
                log.info(
                    "%s: a snapshot of index %d was not installed any more; it is removed", self.path, index
                )
                remove_checkpoints(self._disk, self.log, [index])
            self._disk.remove_directory(self.incoming)
        return journal, self._load_checkpoint(journal, state)

    def _load_checkpoint(self, journal: SegmentedJournal, state: GroupState) -> Checkpoint | None:
        """Load the newest whole checkpoint into `state` and return it; `None` if there is no whole checkpoint.

        Raises CorruptJournal if the log does not reach back to the checkpoint or, without a checkpoint, to entry 1.
        """
        checkpoint = load_newest(self._disk, self.log, self.identity, journal.last_index)
        if checkpoint is None and journal.first_index <= 1:
            return None
        if checkpoint is None or checkpoint.index < journal.first_index:
            newest = (
                f"the newest whole one is of entry {checkpoint.index}"
                if checkpoint
                else "no checkpoint is whole"
            )
            what = f"the log begins with entry {journal.first_index}, and {newest}"
            raise CorruptJournal(self.log, 0, what)
        self.restore(state, checkpoint)
        return checkpoint

    def restore(self, state: GroupState, checkpoint: Checkpoint) -> None:
        """Load a checkpoint into `state`. Raises the errors of `read_state`."""
        state.adopt(self.read_state(state, checkpoint))

    def read_state(self, state: GroupState, checkpoint: Checkpoint) -> ReadState:
        """Read a checkpoint, for `state` to adopt later; runs on any thread.

        Raises OtherVersion, or UnknownFormat if a different version of this program wrote the checkpoint.
        """
        try:
            return state.read(checkpoint.body)
        except ValueError as error:
            # The checksum is right, so the checkpoint is whole, and a different version of this program wrote it.
            path = f"{self.log}: checkpoint of entry {checkpoint.index}: {error}"
            raise UnknownFormat(path) from error

    # Damage

    def _has_others(self) -> bool:
        """Return whether this directory knows of other members."""
        if MEMBER_FILE not in self._disk.list_directory(self.path):
            return False
        copies = load_member_copies(self._disk, self.path, self.identity)
        return any(copy is not None and copy.has_others for copy in copies)

    def _set_aside(self, claim: Claim, hard: HardState | None) -> None:
        """Keep the damaged log, in case the other members lose theirs, and go on without a log."""
        if hard is not None:
            self.hard_state.store(hard._replace(voter_status=VoterStatus.LEARNER))
        names = self._disk.list_directory(self.path)
        if "log" in names:
            if any(name.startswith(ASIDE_PREFIX) for name in names):
                # An earlier repair was not finished. The log that was set aside then has more entries than the current
                # log.
                self._disk.remove_directory(self.log)
            else:
                self._disk.rename(self.log, f"{self.path}/{ASIDE_PREFIX}{claim.incarnation}")
            self._disk.sync_directory(self.path)
        if DAMAGE in names:
            self._disk.remove(f"{self.path}/{DAMAGE}")
            self._disk.sync_directory(self.path)

    def discard_log(self) -> None:
        """Make the next start begin without this log; needs no space. Raises OSError.

        Its acknowledgements are forgotten with it. So this node becomes a learner first, before the log is renamed.
        """
        hard = self.hard_state.state
        if hard is not None:
            self.hard_state.store(hard._replace(voter_status=VoterStatus.LEARNER))
        self._disk.rename(self.log, f"{self.path}/{OBSOLETE}")
        self._disk.sync_directory(self.path)

    def _remove_obsolete(self) -> None:
        """Remove a discarded log before anything is written, because until then the disk may have no space."""
        if OBSOLETE in self._disk.list_directory(self.path):
            self._disk.remove_directory(f"{self.path}/{OBSOLETE}")
            self._disk.sync_directory(self.path)

    def mark_moving(self, index: int) -> None:
        """Record for a start that the checkpoint of this index belongs to a snapshot, unless the log includes it."""
        self._disk.replace_file(f"{self.incoming}/{MOVING}", str(index).encode())

    def mark_damaged(self, error: Exception) -> None:
        """Record for the next start that the log must not be used; errors are suppressed."""
        with suppress(OSError):
            self._disk.replace_file(f"{self.path}/{DAMAGE}", str(error).encode())

    def mark_removed(self) -> None:
        """Mark the directory as removed from its cluster, for programs that inspect it; errors are suppressed."""
        with suppress(OSError):
            self._disk.replace_file(f"{self.path}/{REMOVED}", b"")

    def unmark_removed(self) -> None:
        """Clear the mark of removal, because the directory is a member of a new cluster. Raises OSError."""
        if REMOVED in self._disk.list_directory(self.path):
            self._disk.remove(f"{self.path}/{REMOVED}")
            self._disk.sync_directory(self.path)

    def make_durable(self, journal: SegmentedJournal) -> None:
        """Sync the changes that opening made to the journal, such as a new log's first entry. Raises OSError.

        If the error is more than a full disk, the next start will assume that writes may be lost.
        """
        try:
            journal.sync_now()
        except OSError:
            if not journal.full:
                self.mark_writes_lost()
            raise

    def mark_writes_lost(self) -> None:
        """Record for the next start that unsynced writes may be lost; errors are suppressed."""
        mark_writes_lost(self._disk, self.path, self.owner)

    # Cleaning

    def remove_checkpoint(self, index: int) -> None:
        remove_checkpoints(self._disk, self.log, [index])

    def remove_set_aside(self) -> None:
        """Remove the damaged logs that were set aside, because this node has all entries again; off the event loop."""
        for name in self._disk.list_directory(self.path):
            if name.startswith(ASIDE_PREFIX):
                remove = partial(self._disk.remove_directory, f"{self.path}/{name}")
                self._disk.submit_background(remove, _ignore)


class Incarnations:
    """Source of a node's incarnations, which are counted in its directory.

    Each start of a node, and each return of an evicted node, is an incarnation. No incarnation reuses a number that an
    earlier incarnation may have had, even if a directory or a clock was lost in between.
    """

    def __init__(
        self, directory: GroupDirectory, runtime: Runtime, versions: Versions, members: Sequence[str]
    ) -> None:
        self._directory = directory
        self._runtime = runtime
        self._versions = versions
        self._members = members

    def begin(self, known: int | None = None) -> Claim:
        """Begin an incarnation above `known`, the last in the log; raises the errors of `GroupDirectory.claim`."""
        # `known + 1` would be unsafe, because a lost incarnation may have used it in entries that will still arrive.
        least = 0 if known is None else known + self._leap()
        wall_ms = max(bounded(self._runtime.wall_ms()), least)
        is_blank = known is None and not self._directory.hard_state.was_stored()
        return self._directory.claim(wall_ms, self._versions, self._members, self._leap(), is_blank=is_blank)

    def _leap(self) -> int:
        return self._runtime.random.randint(1, INCARNATION_LEAP)


def moving_checkpoint(disk: Disk, incoming: str) -> int | None:
    """Return the index that `mark_moving` has stored, or `None` if the file is missing or damaged."""
    try:
        return int(disk.read_file(f"{incoming}/{MOVING}"))
    except (OSError, ValueError):
        return None


def _ignore(_result: None, _error: Exception | None) -> None:
    """Ignore an error, because a directory that was not removed now is removed later."""
