"""A new cluster of one member, which begins with what an old one had: a backup, or what a survivor has left.

Everything in the old log is taken as committed, and applied. The new log begins with one entry, a configuration
(configuration.py): the id of a new cluster, and this node as its only member. From that entry follows, as from any
other one of its kind, that the old cluster's nodes hold nothing any more. The state behind it is in a checkpoint.

Between the last entry of the old log and that one an index is left out. So what is before it is no log any more, only
files with messages that still live (log/journal.py): nobody who is given this log sees the configurations of the old
cluster in it, and the node is of the new cluster from the first moment of its start.

Invariant: a directory is of the new cluster when its manifest names the segment with that entry, and of no other one
before. Whoever does not know whether it was done may do it again.
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
from cluster.log.hardstate import HardState, Standing
from cluster.log.journal import SegmentedJournal
from cluster.log.mirrored_file import whole_of
from cluster.log.segment import FILE_HEADER_BYTES, CorruptJournal, adopt_header
from cluster.raft.proposals import PendingSubmissions
from cluster.snapshots.backup import CHUNK_BYTES
from cluster.state.apply import Applying
from cluster.state.group_state import GroupState
from cluster.storage.directory import GroupDirectory
from cluster.storage.identity import load_copies, names_of
from cluster.storage.incarnation import INCARNATION_LEAP
from cluster.storage.paths import GROUPS

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from cluster.machine import Machine
    from cluster.runtime.ports import Disk
    from cluster.snapshots.backup import Contents
    from cluster.storage.identity import Claim, Owner

UNFINISHED = f"{GROUPS}/restoring"
"""The name of a group's directory while it is made from a backup; it gets its own name when all of it is durable."""
TERM_LEAP = 2**20
"""The new cluster's first term is up to so much above the last one, drawn at random. Index and term tell which entry
one is, and the old cluster may go on behind the same one: its next terms are not to be those of the new one."""
_UNKNOWN_PORT = 0
"""Stands in place of a port that no log has told. The node tells its address as soon as it is started."""


@dataclass(frozen=True, slots=True)
class NewCluster:
    """The new cluster that a directory belongs to now."""

    cluster_id: bytes
    member: Member
    """The only member of the new cluster."""


class OldLog(NamedTuple):
    """Up to where the old log went, and its version of the state."""

    version: int
    """The version of the state that the old log had agreed on."""
    is_named: bool
    """Whether the old cluster had an id: its version then goes on, and else the first one with ids begins."""


def version_of(old: OldLog, versions: Versions, what: str) -> int:
    """The version of the state that the new cluster begins with. Raises OtherVersion."""
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
    """Make the directory `path` on `disk`, empty or not there yet, of the backup in `source`, which was checked.

    Raises OSError, OtherVersion, and the errors of a log.
    """
    versions = Versions(*machine.versions)
    version = version_of(OldLog(contents.version, is_named=bool(contents.cluster_id)), versions, owner.node)
    directory = GroupDirectory(disk, path, owner)
    claim = directory.claim(wall_ms, versions, [owner.node], random.randrange(INCARNATION_LEAP))
    disk.make_directory(directory.log)
    journal = _open_journal(disk, directory, writes_lost=True)
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
    """Copy a file of the backup and make it this node's; durable but for its name."""
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
    """Let the node whose directory this is be a new cluster; nothing is done again if it is the only member already.

    Raises OSError, OtherVersion, ForeignDirectory, and the errors of a log.
    """
    identity = whole_of(load_copies(disk, path), path)
    versions = Versions(*machine.versions)
    version = version_of(OldLog(identity.machine_version, is_named=not identity.members), versions, path)
    directory = GroupDirectory(disk, path, identity.owner)
    members = names_of(disk, path, identity) or [identity.owner.node]
    claim = directory.claim(wall_ms, versions, members, random.randrange(INCARNATION_LEAP))
    return _begin(disk, directory, claim, identity.owner, version, None, machine, random)


# Both


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
    """Open the log as a start does, and let it go on as that of a new cluster; without an `address` as that it has."""
    state = GroupState(machine)
    open_journal = partial(_open_journal, disk, directory)
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
    # A start asks the directory whether it has to look for configurations in the log, and stores a term before entries
    # of that term. Neither promises anything as long as the entry is not there.
    directory.note_configuration(Configurations(configuration), journal)
    standing = hard.standing if hard else Standing.LEARNER
    directory.hard_state.store(HardState(term, owner.node, standing))
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
    """Begin a log with this configuration behind the one that there is, of whose end the state is.

    As with a snapshot (catch_up.py), a start that finds the checkpoint and not the entry removes it again.
    """
    index = journal.last_index + 2
    entry = make_configuration(state.time_ms, configuration)
    Applying(state, PendingSubmissions("")).configuration(entry)
    disk.make_directory(directory.incoming)
    new = SegmentedJournal(
        disk, f"{directory.incoming}/log", directory.identity, _raise, directory.hard_state
    )
    new.add(entry, index, term)
    new.seal()
    new.sync_now()
    journal.seal()
    journal.sync_now()
    directory.note_moving(index)
    write_checkpoint(disk, directory.log, directory.identity, index, term, state.freeze().pieces())
    [segment] = new.segments()
    disk.rename(f"{directory.incoming}/log/{segment.name}", f"{directory.log}/{segment.name}")
    disk.sync_directory(directory.log)
    segments = [*journal.segments(), segment]
    journal.adopt(segments, journal.runs_of(segments))
    journal.sync_now()
    disk.remove_directory(directory.incoming)


def _apply(journal: SegmentedJournal, index: int, state: GroupState, name: str) -> None:
    """Apply what is behind `index`, of which the state is; the node `name` carries out nothing of the effects.

    Raises CorruptJournal.
    """
    applying = Applying(state, PendingSubmissions(name))
    for later in range(index + 1, journal.last_index + 1):
        entry = journal.read(later)
        try:
            if is_configuration(entry):
                applying.configuration(entry)
            elif is_regular(entry):
                applying.entry(later, entry)
        except ValueError as error:
            raise CorruptJournal(f"entry {later}", 0, f"it cannot be applied: {error}") from error


def _be_member(directory: GroupDirectory, name: str) -> None:
    """Let the node vote: what it has is all that there is. Durable when this returns."""
    directory.forget_removed()
    hard_state = directory.hard_state
    known = hard_state.state
    if known is not None and known.standing is not Standing.VOTER:
        hard_state.store(HardState(known.term, name, Standing.VOTER))


def _open_journal(disk: Disk, directory: GroupDirectory, *, writes_lost: bool) -> SegmentedJournal:
    return SegmentedJournal(
        disk, directory.log, directory.identity, _raise, directory.hard_state, writes_lost=writes_lost
    )


def _raise(error: Exception) -> None:
    raise error
