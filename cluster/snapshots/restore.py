"""Making a new cluster of a single member, from a backup (`qq restore`) or from a survivor's directory (`qq recover`).

All entries of the old log count as committed and are applied. The new log begins with a configuration entry
(configuration.py): the id of a new cluster, and this node as its only member. As every configuration does, this entry
evicts all nodes that it does not list, so the old cluster's nodes hold nothing any more. A checkpoint has the state
behind this entry.

An index is left out between the last entry of the old log and this entry. So the earlier entries are below the log:
only files with live messages (log/journal.py). A peer that receives the new log never sees the old cluster's
configurations. The node belongs to the new cluster from the first moment of its start.

Invariant: a directory belongs to the new cluster from the moment when its manifest names the segment with this entry,
and not before. Both commands may be repeated if it is unknown whether they have finished.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cluster.configuration.configuration import (
    ID_BYTES,
    Configuration,
    Member,
    OtherVersion,
    PeerAddress,
    Versions,
    is_configuration,
    make_configuration,
)
from cluster.configuration.history import Configurations
from cluster.log.checkpoints import CHECKPOINT_HEADER_BYTES, adopt_checkpoint, write_checkpoint
from cluster.log.entry import is_regular
from cluster.log.hardstate import HardState, VoterStatus
from cluster.log.journal import SegmentedJournal
from cluster.log.mirrored_file import whole_of
from cluster.log.owned_directory import OwnedDirectory
from cluster.log.segment import FILE_HEADER_BYTES, CorruptJournal, adopt_header
from cluster.raft.proposals import PendingProposals
from cluster.snapshots.backup import CHUNK_BYTES
from cluster.state.apply import Applier
from cluster.state.group_state import GroupState
from cluster.storage.directory import INCARNATION_LEAP, GroupDirectory
from cluster.storage.identity import load_copies, names_of
from cluster.storage.paths import GROUPS

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from cluster.machine import Machine
    from cluster.runtime.ports import Disk
    from cluster.snapshots.backup import Contents
    from cluster.storage.identity import Claim, Owner

UNFINISHED = f"{GROUPS}/restoring"
"""Name of a group's directory while it is made from a backup; renamed after all files are durable."""
TERM_LEAP = 2**20
"""Largest distance of the new cluster's first term from the last term, drawn at random. Index and term must identify an
entry. The old cluster may continue behind the same entry, so its next terms must differ from the new cluster's
terms."""
_UNKNOWN_PORT = 0
"""Stands for a port that is in no log. The node reports its address as soon as it has started."""


@dataclass(frozen=True, slots=True)
class NewCluster:
    """The new cluster that a directory belongs to now."""

    cluster_id: bytes
    member: Member
    """The only member of the new cluster."""


class OldLog(NamedTuple):
    """The old log's version of the state, and whether its cluster had an id."""

    version: int
    """Version of the state that the old log had agreed on."""
    is_named: bool
    """Whether the old cluster had an id. If so, its version stays; otherwise the first version with ids begins."""


def version_of(old: OldLog, versions: Versions, what: str) -> int:
    """Return the version of the state with which the new cluster begins. Raises OtherVersion."""
    version = old.version if old.is_named else old.version + 1
    if not versions.include(version):
        raise OtherVersion(what, version, versions)
    return version


# From a backup


def restore(
    source: Disk,
    contents: Contents,
    disk: Disk,
    path: str,
    owner: Owner,
    address: PeerAddress,
    machine: Machine,
    wall_ms: int,
    random: Random,
) -> NewCluster:
    """Make the directory `path` on `disk`, empty or missing so far, from the checked backup in `source`.

    Raises OSError, OtherVersion, and the errors of a log.
    """
    versions = Versions(*machine.versions)
    version = version_of(OldLog(contents.version, is_named=bool(contents.cluster_id)), versions, owner.node)
    directory = GroupDirectory(disk, path, owner)
    claim = directory.claim(wall_ms, versions, [owner.node], random.randrange(INCARNATION_LEAP))
    disk.make_directory(directory.log)
    journal = _open_journal(directory, writes_lost=True)
    _copy(source, contents.checkpoint, disk, directory, CHECKPOINT_HEADER_BYTES, adopt_checkpoint)
    for segment in contents.segments:
        _copy(source, segment.name, disk, directory, FILE_HEADER_BYTES, adopt_header)
    disk.sync_directory(directory.log)
    segments = [segment.sealed() for segment in contents.segments]
    journal.adopt(segments, journal.runs_of(segments))
    journal.sync_now()
    return _begin(disk, directory, claim, owner, version, address, machine, random)


def _copy(
    source: Disk,
    name: str,
    disk: Disk,
    directory: GroupDirectory,
    header_bytes: int,
    adopt: Callable[[bytes, bytes], bytes],
) -> None:
    """Copy a file of the backup with a new header that makes it this node's; its name is not durable yet."""
    given, copy = source.open(name), disk.open(f"{directory.log}/{name}", create=True)
    try:
        copy.append([adopt(given.pread(0, header_bytes), directory.identity)])
        for offset in range(header_bytes, given.size, CHUNK_BYTES):
            copy.append([given.pread(offset, CHUNK_BYTES)])
        copy.sync()
    finally:
        given.close()
        copy.close()


# From a survivor


def recover(disk: Disk, path: str, machine: Machine, wall_ms: int, random: Random) -> NewCluster:
    """Make the node of this directory a new cluster; unchanged if the node already is the only member of its cluster.

    Raises OSError, OtherVersion, ForeignDirectory, and the errors of a log.
    """
    identity = whole_of(load_copies(disk, path), path)
    versions = Versions(*machine.versions)
    version = version_of(OldLog(identity.machine_version, is_named=not identity.members), versions, path)
    directory = GroupDirectory(disk, path, identity.owner)
    members = names_of(disk, path, identity) or [identity.owner.node]
    claim = directory.claim(wall_ms, versions, members, random.randrange(INCARNATION_LEAP))
    return _begin(disk, directory, claim, identity.owner, version, None, machine, random)


# Both ways


def _begin(
    disk: Disk,
    directory: GroupDirectory,
    claim: Claim,
    owner: Owner,
    version: int,
    address: PeerAddress | None,
    machine: Machine,
    random: Random,
) -> NewCluster:
    """Open the log as a start does, and continue it as the log of a new cluster.

    Without an `address` the node keeps the address in its configuration.
    """
    state = GroupState(machine)
    open_journal = partial(_open_journal, directory)
    journal, checkpoint = directory.start(claim, state, open_journal, repairable=False)
    _apply(journal, checkpoint.index if checkpoint else 0, state, owner.node)
    member_id = directory.id(claim.incarnation).member
    newest = state.configuration
    known = newest.member(owner.node) if newest else None
    if newest and known and newest.cluster and newest.members == (known,) and known.id == member_id:
        _be_member(directory, owner.node)
        return NewCluster(newest.cluster, known)
    if address is None:
        address = known.address if known else PeerAddress(owner.node, _UNKNOWN_PORT)
    member = Member(owner.node, address, member_id, is_voter=True, versions=Versions(*machine.versions))
    configuration = Configuration.of(version, [member], cluster=random.randbytes(ID_BYTES))
    hard = directory.hard_state.state
    term = max(hard.term if hard else 0, journal.last_term) + random.randint(1, TERM_LEAP)
    # A start asks the directory whether to look for configurations in the log, and a term is stored before entries of
    # that term. Both are harmless until the configuration entry is there.
    directory.record_configuration(Configurations(configuration), journal)
    voter_status = hard.voter_status if hard else VoterStatus.LEARNER
    directory.hard_state.store(HardState(term, owner.node, voter_status))
    _go_on_with(disk, directory, journal, state, configuration, term)
    _be_member(directory, owner.node)
    return NewCluster(configuration.cluster, member)


def _go_on_with(
    disk: Disk,
    directory: GroupDirectory,
    journal: SegmentedJournal,
    state: GroupState,
    configuration: Configuration,
    term: int,
) -> None:
    """Begin a new log with this configuration behind the current log; `state` is the state at the current log's end.

    As with a snapshot (receiver.py), a start that finds the checkpoint without the entry removes the checkpoint.
    """
    index = journal.last_index + 2
    entry = make_configuration(state.time_ms, configuration)
    Applier(state, PendingProposals("")).apply_configuration(entry)
    disk.make_directory(directory.incoming)
    files = OwnedDirectory(disk, f"{directory.incoming}/log", directory.identity)
    new = SegmentedJournal(files, directory.hard_state, on_failure=_raise)
    new.add(entry, index, term)
    new.seal()
    new.sync_now()
    journal.seal()
    journal.sync_now()
    directory.mark_moving(index)
    write_checkpoint(disk, directory.log, directory.identity, index, term, state.freeze().pieces())
    [segment] = new.segments()
    disk.rename(f"{directory.incoming}/log/{segment.name}", f"{directory.log}/{segment.name}")
    disk.sync_directory(directory.log)
    segments = [*journal.segments(), segment]
    journal.adopt(segments, journal.runs_of(segments))
    journal.sync_now()
    disk.remove_directory(directory.incoming)


def _apply(journal: SegmentedJournal, index: int, state: GroupState, name: str) -> None:
    """Apply the entries after `index`, the index of `state`; the effects for the node `name` are dropped.

    Raises CorruptJournal.
    """
    applying = Applier(state, PendingProposals(name))
    for later in range(index + 1, journal.last_index + 1):
        entry = journal.read(later)
        try:
            if is_configuration(entry):
                applying.apply_configuration(entry)
            elif is_regular(entry):
                applying.apply_entry(later, entry)
        except ValueError as error:
            raise CorruptJournal(f"entry {later}", 0, f"it cannot be applied: {error}") from error


def _be_member(directory: GroupDirectory, name: str) -> None:
    """Make the node a voter, because it has all entries of its cluster. Durable when this returns."""
    directory.unmark_removed()
    hard_state = directory.hard_state
    known = hard_state.state
    if known is not None and known.voter_status is not VoterStatus.VOTER:
        hard_state.store(HardState(known.term, name, VoterStatus.VOTER))


def _open_journal(directory: GroupDirectory, *, writes_lost: bool) -> SegmentedJournal:
    return SegmentedJournal(
        directory.log_files, directory.hard_state, on_failure=_raise, writes_lost=writes_lost
    )


def _raise(error: Exception) -> None:
    raise error
