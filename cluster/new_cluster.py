"""A new cluster of one member, which begins with what an old one had: a backup, or what a survivor has left.

Everything in the old log is taken as committed. Behind it stands an entry with a configuration (configuration.py): the
id of a new cluster, and this node as its only member. From that entry follows, as from any other one of its kind, that
the old cluster's nodes hold nothing any more.

Lives here: what is written to the directory, and in which order. Not here: what a backup is (backup.py), who lets whom
in (handshake.py).

Law: a directory is of the new cluster when its entry with the configuration is durable, and of no other one before.
Whoever does not know whether it was done may do it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cluster.backup import CHUNK_BYTES
from cluster.configuration import (
    ID_BYTES,
    Configuration,
    Member,
    PeerAddress,
    Versions,
    configuration_time_ms,
    is_configuration,
    make_configuration,
    read_configuration,
)
from cluster.directory import GroupDirectory
from cluster.entry import entry_time_ms, is_regular
from cluster.identity import OtherVersion, load_copies
from cluster.incarnation import INCARNATION_LEAP
from cluster.log.checkpoints import CHECKPOINT_HEADER_BYTES, adopt_checkpoint
from cluster.log.hardstate import HardState, Standing
from cluster.log.journal import SegmentedJournal
from cluster.log.segment import FILE_HEADER_BYTES, adopt_header
from cluster.log.twofold import whole_of
from cluster.state import GroupState

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from cluster.backup import Contents
    from cluster.identity import Claim, Owner
    from cluster.log.hardstate import HardStateFile
    from cluster.machine import Machine
    from cluster.ports import Disk

_UNKNOWN_PORT = 0
"""In place of a port that no log has told. The node tells its address as soon as it is started."""


@dataclass(frozen=True, slots=True)
class NewCluster:
    """What a directory is of by now."""

    cluster_id: bytes
    member: Member
    index: int
    """The entry that says so."""
    term: int


class OldLog(NamedTuple):
    """What the old log was at."""

    version: int
    """The version of the state."""
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
    """Make the directory `path` on `disk`, which is not there yet, of the backup in `source`, which was checked.

    Raises OSError, OtherVersion, and the errors of a log.
    """
    versions = Versions(*machine.versions)
    version = version_of(OldLog(contents.version, is_named=bool(contents.cluster_id)), versions, owner.node)
    directory = GroupDirectory(disk, path, owner)
    claim = directory.claim(wall_ms, versions, [owner.node], random.randrange(INCARNATION_LEAP))
    disk.make_directory(directory.log)
    journal = _open_journal(disk, directory, True)
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
    members = identity.members or [identity.owner.node]
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
    newest, time_ms = _read_on(journal, checkpoint.index if checkpoint else 0, state)
    member_id = directory.member_id(claim.incarnation)
    hard = directory.hard_state.state
    known = newest.member(owner.node) if newest is not None else None
    if newest and known and newest.cluster and newest.members == (known,) and known.id == member_id:
        _be_voter(directory.hard_state, journal.last_term, owner.node)
        return NewCluster(newest.cluster, known, journal.last_index, journal.last_term)
    if address is None:
        address = known.address if known else PeerAddress(owner.node, _UNKNOWN_PORT)
    member = Member(owner.node, address, member_id, is_voter=True, versions=Versions(*machine.versions))
    configuration = Configuration.of(version, [member], cluster=random.randbytes(ID_BYTES))
    term = max(hard.term if hard else 0, journal.last_term) + 1
    # A start asks the directory whether it has to look for configurations in the log, and stores a term before entries
    # of that term. Neither promises anything as long as the entry is not there.
    directory.note_configuration(configuration)
    standing = hard.standing if hard else Standing.LEARNER
    directory.hard_state.store(HardState(term, owner.node, standing))
    index = journal.last_index + 1
    journal.add(make_configuration(time_ms, configuration), index, term)
    journal.sync_now()
    _be_voter(directory.hard_state, term, owner.node)
    return NewCluster(configuration.cluster, member, index, term)


def _be_voter(hard_state: HardStateFile, last_term: int, name: str) -> None:
    """Let the node vote: what its log holds is all that there is. Durable when this returns."""
    known = hard_state.state
    if known is None or known.standing is not Standing.VOTER:
        hard_state.store(HardState(max(last_term, known.term if known else 0), name, Standing.VOTER))


def _read_on(journal: SegmentedJournal, index: int, state: GroupState) -> tuple[Configuration | None, int]:
    """The newest configuration of the log, None without one, and the last time in it; the state is of entry `index`."""
    newest, time_ms = state.configuration, state.time_ms
    for later in range(index + 1, journal.last_index + 1):
        entry = journal.read(later)
        if is_configuration(entry):
            newest, time_ms = read_configuration(entry), max(time_ms, configuration_time_ms(entry))
        elif is_regular(entry):
            time_ms = max(time_ms, entry_time_ms(entry))
    return newest, time_ms


def _open_journal(disk: Disk, directory: GroupDirectory, writes_lost: bool) -> SegmentedJournal:
    return SegmentedJournal(
        disk, directory.log, directory.identity, _raise, directory.hard_state, writes_lost=writes_lost
    )


def _raise(error: Exception) -> None:
    raise error
