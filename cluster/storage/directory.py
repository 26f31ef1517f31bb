"""The directory of one group on one node: what is in it, and how a node starts from it.

    identity                whose it is (identity.py)
    member                  its id as a member of a cluster (identity.py)
    start-0, -1             its incarnation, whether writes may be lost (identity.py)
    hardstate-0, -1         term, vote, standing (log/hardstate.py)
    log/                    segments, manifest, checkpoints
    incoming/               a snapshot on its way (catch_up.py)
    incoming/moving         index of its checkpoint, once its files may be in the log's directory
    damage                  why the log must not be used any more; found while it was in use
    removed                 this directory is no member of its cluster any more: for whoever looks into it
    damaged-N/              a log that was set aside, kept until this node has caught up
    obsolete/               a log that was given up for want of space; the next start removes it

Invariant: damage that a checksum or a missing file shows never ends in a silent start with less: the log is set aside
and the node comes back as a learner. What an operator must put right (another node's files, another version's) is an
error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from cluster.log.checkpoints import Checkpoint, load_newest, remove_checkpoints
from cluster.log.hardstate import HardState, HardStateFile, Standing
from cluster.log.journal import SegmentedJournal
from cluster.log.manifest import MANIFEST_NAME
from cluster.log.segment import CorruptJournal, UnknownFormat
from cluster.storage.identity import (
    MEMBER_FILE,
    Claim,
    DirectoryId,
    Identity,
    Owner,
    claim_directory,
    directory_id,
    forget_writes_lost,
    load_member_copies,
    names_of,
    note_writes_lost,
    store_directory_id,
    store_identity,
)
from cluster.storage.paths import REMOVED

if TYPE_CHECKING:
    from cluster.configuration.configuration import Versions
    from cluster.configuration.history import Configurations
    from cluster.runtime.ports import Disk
    from cluster.state.group_state import GroupState, ReadState

log = logging.getLogger(__name__)

INCOMING = "incoming"
MOVING = "moving"
DAMAGE = "damage"
ASIDE_PREFIX = "damaged-"
OBSOLETE = "obsolete"


class OpenJournal(Protocol):
    """A function that opens the journal."""

    def __call__(self, *, writes_lost: bool) -> SegmentedJournal:
        """`writes_lost` tells whether writes that were not synced may be lost."""
        ...


class GroupDirectory:
    """The directory with the files of one group on this node."""

    def __init__(self, disk: Disk, path: str, owner: Owner) -> None:
        self.path = path
        self.log = f"{path}/log"
        self.incoming = f"{path}/{INCOMING}"
        self.identity = owner.key()
        self._disk = disk
        self._owner = owner
        disk.make_directory(path)
        self.hard_state = HardStateFile(disk, path, self.identity)

    def claim(
        self, wall_ms: int, versions: Versions, members: Sequence[str], leap: int, *, is_blank: bool = False
    ) -> Claim:
        """Begin a new incarnation. Raises `ForeignDirectory`, `OtherVersion`, `OtherMembers`.

        With `is_blank` the directory has promised nothing to anybody yet.
        """
        names = tuple(sorted(members))
        self._identity, claim = claim_directory(
            self._disk, self.path, self._owner, versions, names, wall_ms, leap, is_blank=is_blank
        )
        self._names = self._identity.members if is_blank else names_of(self._disk, self.path, self._identity)
        """Who the members are where the log has no configuration; nobody, once it must have one."""
        return claim

    @property
    def lists_members(self) -> bool:
        """Whether the members are those that each node's file lists if the log has no configuration.

        Else a log without one is not all that there is: it was lost, or has not come yet.
        """
        return bool(self._names) and not self._id.cluster

    def note_configuration(self, held: Configurations, journal: SegmentedJournal) -> None:
        """Let a start know by what the log goes now: which version, whether it says who the members are, which cluster.

        A program that cannot run a version must not meet entries of it. So a higher one is stored before such an entry
        is, and all else behind the changes of the log that it follows from.
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
        """Store both; the names are in one file at least, whenever the process ends."""
        store_directory_id(self._disk, self.path, self._owner, directory_id)
        store_identity(self._disk, self.path, identity)

    def id(self, incarnation: int) -> DirectoryId:
        """Which member of which cluster this directory is, once it is started.

        It becomes another one now, named by this incarnation, if it is none yet or has forgotten what it had promised.
        """
        is_new = self.hard_state.state is None
        self._id = directory_id(self._disk, self.path, self._owner, incarnation, self._names, is_new=is_new)
        return self._id

    # Starting

    def start(
        self, claim: Claim, state: GroupState, open_journal: OpenJournal, *, repairable: bool
    ) -> tuple[SegmentedJournal, Checkpoint | None]:
        """Open the log, and load the newest checkpoint into `state`.

        Raises the errors of the journal. With `repairable`, or if this directory has heard of other members, a damaged
        log is set aside instead.
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
        forget_writes_lost(self._disk, self.path, self._owner)
        if hard is not None and hard.term < journal.last_term:
            # Raft stores a term before its first entry, so the file was lost or is an old one.
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
        if hard is not None and hard.standing is Standing.VOTER and not has_manifest:
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
        """Load the newest whole checkpoint into `state`; None if there is none.

        Raises CorruptJournal if the log does not reach back to it or, without one, to entry 1.
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
        """Load a checkpoint into `state`. Raises what `read_state` does."""
        state.adopt(self.read_state(state, checkpoint))

    def read_state(self, state: GroupState, checkpoint: Checkpoint) -> ReadState:
        """Read a checkpoint, which `state` may adopt; on any thread.

        Raises UnknownFormat if another version of this program wrote it, and OtherVersion.
        """
        try:
            return state.read(checkpoint.body)
        except ValueError as error:
            # Its checksum is right, so it is whole: another version of this program wrote it.
            path = f"{self.log}: checkpoint of entry {checkpoint.index}: {error}"
            raise UnknownFormat(path) from error

    # Damage

    def _has_others(self) -> bool:
        """Whether this directory has heard of other members."""
        if MEMBER_FILE not in self._disk.list_directory(self.path):
            return False
        copies = load_member_copies(self._disk, self.path, self.identity)
        return any(copy is not None and copy.has_others for copy in copies)

    def _set_aside(self, claim: Claim, hard: HardState | None) -> None:
        """Keep the damaged log, for the case that the others lose theirs, and go on without one."""
        if hard is not None:
            self.hard_state.store(hard._replace(standing=Standing.LEARNER))
        names = self._disk.list_directory(self.path)
        if "log" in names:
            if any(name.startswith(ASIDE_PREFIX) for name in names):
                # An earlier repair was not finished: the log that was set aside then has more than this one.
                self._disk.remove_directory(self.log)
            else:
                self._disk.rename(self.log, f"{self.path}/{ASIDE_PREFIX}{claim.incarnation}")
            self._disk.sync_directory(self.path)
        if DAMAGE in names:
            self._disk.remove(f"{self.path}/{DAMAGE}")
            self._disk.sync_directory(self.path)

    def give_up_log(self) -> None:
        """Have the next start begin without this log; needs no space. Raises OSError.

        What was promised with it is forgotten, so this node is a learner from now on, before the log has gone.
        """
        hard = self.hard_state.state
        if hard is not None:
            self.hard_state.store(hard._replace(standing=Standing.LEARNER))
        self._disk.rename(self.log, f"{self.path}/{OBSOLETE}")
        self._disk.sync_directory(self.path)

    def _remove_obsolete(self) -> None:
        """Remove a log that was given up, before anything is written: there may be no space until then."""
        if OBSOLETE in self._disk.list_directory(self.path):
            self._disk.remove_directory(f"{self.path}/{OBSOLETE}")
            self._disk.sync_directory(self.path)

    def note_moving(self, index: int) -> None:
        """Let a start know that the checkpoint of this index is a snapshot's, if the log ends before it."""
        self._disk.replace_file(f"{self.incoming}/{MOVING}", str(index).encode())

    def note_damage(self, error: Exception) -> None:
        """Let the next start know that the log is not to be used; best effort."""
        with suppress(OSError):
            self._disk.replace_file(f"{self.path}/{DAMAGE}", str(error).encode())

    def note_removed(self) -> None:
        """Let whoever looks into the directory know that it is no member any more; best effort."""
        with suppress(OSError):
            self._disk.replace_file(f"{self.path}/{REMOVED}", b"")

    def forget_removed(self) -> None:
        """The directory is a member again, of a new cluster. Raises OSError."""
        if REMOVED in self._disk.list_directory(self.path):
            self._disk.remove(f"{self.path}/{REMOVED}")
            self._disk.sync_directory(self.path)

    def make_durable(self, journal: SegmentedJournal) -> None:
        """Sync what opening the journal has added to it, such as a new log's first entry. Raises OSError.

        Unless the disk is merely full, the next start is told then that writes may be lost.
        """
        try:
            journal.sync_now()
        except OSError:
            if not journal.full:
                self.note_writes_lost()
            raise

    def note_writes_lost(self) -> None:
        """Let the next start know that what was not synced may be lost; best effort."""
        note_writes_lost(self._disk, self.path, self._owner)

    # Cleaning

    def remove_checkpoint(self, index: int) -> None:
        remove_checkpoints(self._disk, self.log, [index])

    def remove_set_aside(self) -> None:
        """Remove the damaged logs that were set aside, because this node has everything again; off the loop."""
        for name in self._disk.list_directory(self.path):
            if name.startswith(ASIDE_PREFIX):
                remove = partial(self._disk.remove_directory, f"{self.path}/{name}")
                self._disk.submit_background(remove, _ignore)


def moving_checkpoint(disk: Disk, incoming: str) -> int | None:
    """The index that `note_moving` has noted; None if it has not, or what is there cannot be believed."""
    try:
        return int(disk.read_file(f"{incoming}/{MOVING}"))
    except (OSError, ValueError):
        return None


def _ignore(_result: None, _error: Exception | None) -> None:
    """Ignore an error: what was not removed is removed later."""
