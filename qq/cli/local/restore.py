"""`qq restore` and `qq recover`: begin a new cluster of a single node from a backup or a survivor's data.

Invariant: a refused command has changed no files.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from functools import partial
from random import SystemRandom
from shutil import rmtree
from time import time_ns
from typing import TYPE_CHECKING, NamedTuple, cast

from cluster.configuration.configuration import (
    PeerAddress,
    Versions,
    configuration_time_ms,
    is_configuration,
    read_configuration,
)
from cluster.log.entry import entry_time_ms, is_regular
from cluster.log.hardstate import VoterStatus
from cluster.log.segment import JournalError
from cluster.runtime.asyncio_runtime import (
    DirectoryInUse,
    ReadOnlyDisk,
    RealDisk,
    check_not_in_use,
    make_directory,
)
from cluster.snapshots.backup import BadBackup, check, read_contents
from cluster.snapshots.restore import UNFINISHED, OldLog, recover, restore, version_of
from cluster.state.group_state import GroupState
from cluster.storage.identity import ForeignDirectory, Identity, Owner
from cluster.storage.inspect import (
    CheckpointFound,
    EntryFound,
    HardStateFound,
    Leftover,
    LogFound,
    OwnerFound,
    Problem,
    Remedy,
    entries,
)
from cluster.storage.inspect import inspect as find_all
from cluster.storage.paths import GROUPS, REMOVED, group_path
from qq.cli.local.archive import is_backup, opened
from qq.cli.local.backup import describe
from qq.cli.local.inspect import describe_state, describe_time, find_group
from qq.cli.local.launch import load_settings
from qq.errors import CommandError
from qq.machine.machine import QueueMachine
from qq.stored.content import content_of

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from cluster.configuration.configuration import Configuration
    from cluster.runtime.ports import Disk
    from cluster.snapshots.backup import Contents
    from cluster.snapshots.restore import NewCluster
    from qq.config import NodeConfig

_GROUP = group_path(0)
_IGNORED = ("lock", "lost+found")
"""Names that an empty data directory may contain: the lock file of an earlier check, and `lost+found` of a file
system."""
_LAST_ENTRIES = 1000
"""Number of last entries among which a time is found: entries without a time are written only at the start of a
term."""


def restore_backup(backup: str, config_file: Path) -> int:
    """Create the data directory of a new cluster's first node from a backup. Raises OperatingError."""
    settings = load_settings(config_file)
    with _errors_explained(backup), opened(backup) as source:
        contents = read_contents(source)
        old = OldLog(contents.version, is_named=bool(contents.cluster_id))
        version_of(old, Versions(*QueueMachine.versions), backup)
        _check_empty(settings.data_dir)
        check(source, contents, describe_state)
        new = _restore_data(source, contents, settings)
    print(f"restored: {describe(contents)}")
    print(_what_next(new))
    return 0


def _check_empty(data_dir: Path) -> None:
    """Raise CommandError if the data directory is not empty; an unfinished restore counts as empty.

    Raises DirectoryInUse if a node runs on it.
    """
    if not data_dir.exists():
        return
    check_not_in_use(data_dir)
    names = {path.name for path in data_dir.iterdir()} - set(_IGNORED)
    if names - {GROUPS} or (names and (data_dir / _GROUP).exists()):
        raise CommandError(f"{data_dir}: is not empty; give the node a new data directory, or empty this one")


def _restore_data(source: Disk, contents: Contents, settings: NodeConfig) -> NewCluster:
    address = PeerAddress(settings.address.host, settings.address.peer_port)
    owner = Owner(settings.cluster_name, settings.name, contents.group)
    unfinished = settings.data_dir / UNFINISHED
    # Made first and renamed last: if this process is killed, no node starts on the unfinished directory.
    is_begun = not unfinished.exists()
    make_directory(unfinished)
    try:
        locked = RealDisk(settings.data_dir)
    except DirectoryInUse:
        if is_begun:
            unfinished.rmdir()
        raise
    with closing(locked) as disk:
        _empty(unfinished)
        try:
            new = restore(
                source,
                contents,
                disk,
                UNFINISHED,
                owner,
                address,
                QueueMachine(content_of),
                _wall_ms(),
                SystemRandom(),
            )
            disk.sync_directory(UNFINISHED)
        except BaseException:  # including a signal
            disk.remove_directory(UNFINISHED)  # it would occupy space on a full disk
            raise
        disk.rename(UNFINISHED, _GROUP)
        disk.sync_directory(GROUPS)
    return new


def _empty(directory: Path) -> None:
    """Remove the files of an unfinished restore."""
    for path in directory.iterdir():
        if path.is_dir():
            rmtree(path)
        else:
            path.unlink()


# Recovering


class _Known(NamedTuple):
    """The entry of a checkpoint. All entries up to it are known to be committed."""

    number: int
    term: int | None
    time: str


class _Survivor(NamedTuple):
    """The facts of a survivor's data directory that show which entries may be missing."""

    identity: Identity
    standing: VoterStatus | None
    committed: _Known | None
    """Newest checkpoint of the survivor. All entries up to it are known to be committed."""
    last_index: int
    last_term: int
    last_time_ms: int | None
    was_removed: bool
    """Whether the survivor has been told that it was removed from its cluster."""
    had_vote: bool
    """Whether it was a voter by the members in its log. A new member first has no vote, and may then lack confirmed
    entries."""


def recover_survivor(directory: Path, *, is_sure: bool) -> int:
    """Print which entries may be missing at a survivor; with `is_sure` begin a new cluster from its data.

    The exit status is 1 if the directory was not changed. Raises CommandError.
    """
    if is_backup(directory):
        raise CommandError(
            f"{directory}: is no data directory; of a backup, `qq restore` begins a new cluster"
        )
    with _errors_explained(str(directory)):
        group = find_group(directory)
        data_dir = group.parent.parent
        check_not_in_use(data_dir)
        survivor = _read_survivor(group)
        old = OldLog(survivor.identity.machine_version, is_named=not survivor.identity.members)
        version_of(old, Versions(*QueueMachine.versions), str(group))
        for line in _lines(group, survivor):
            print(line)
        if not is_sure:
            print("nothing was changed; if you want this, say --yes")
            return 1
        with _locked(data_dir) as disk:
            path = str(group.relative_to(data_dir))
            print(_what_next(recover(disk, path, QueueMachine(content_of), _wall_ms(), SystemRandom())))
    return 0


def _read_survivor(group: Path) -> _Survivor:
    """Check all files of the directory and return their facts. Raises CommandError if it is unusable."""
    disk = cast("Disk", ReadOnlyDisk(group))
    identity, standing, last_index, committed = None, None, None, None
    was_removed = False
    problems: list[Problem] = []
    configurations: list[Configuration | None] = []
    known: Configuration | None = None
    for found in find_all(disk, "", partial(_state_time, configurations), Versions(*QueueMachine.versions)):
        if isinstance(found, Leftover) and found.path == REMOVED:
            was_removed = True
            continue
        problem = None if isinstance(found, LogFound) else found.problem
        if problem is not None and problem.remedy >= Remedy.REPAIR:
            problems.append(problem)
        match found:
            case OwnerFound():
                identity = found.identity
            case HardStateFound(state=state):
                standing = None if state is None else state.voter_status
            case LogFound():
                last_index = found.last_index
            case CheckpointFound(name=name, term=term, state=time, problem=None):
                committed = _Known(int(name.partition(".")[0]), term, time)
                known = configurations[-1]
            case _:
                pass
    last_term, last_time_ms = _last_of(disk, last_index or 0)
    # The first entry of every log has no term. A node with only this entry has never received a log.
    is_blank = last_index in (0, 1) and not last_term and not (committed and committed.term)
    if not is_blank and problems:
        raise CommandError(
            f"{group}: {problems[0].what}: take the directory of another survivor, or a backup "
            f"(`qq inspect {group}` shows its contents)"
        )
    if is_blank or identity is None or not last_index:
        raise CommandError(
            f"{group}: there is no log in it: take the directory of another survivor, or a backup"
        )
    newest = _newest_configuration(disk, committed.number + 1 if committed else 0) or known
    member = newest and newest.member(identity.owner.node)
    had_vote = newest is None or (member is not None and member.is_voter)
    return _Survivor(
        identity, standing, committed, last_index, last_term, last_time_ms, was_removed, had_vote
    )


def _newest_configuration(disk: Disk, first_index: int) -> Configuration | None:
    """Return the last configuration in the log from `first_index` on, or `None`."""
    newest = None
    for entry in entries(disk, "", first_index):
        if isinstance(entry, EntryFound) and is_configuration(entry.payload):
            newest = read_configuration(entry.payload)
    return newest


def _last_of(disk: Disk, last_index: int) -> tuple[int, int | None]:
    """Return the term of the last entry and the latest time of the last entries, or 0 and `None` if unknown."""
    last_term, last_time_ms = 0, None
    if last_index:
        for entry in entries(disk, "", max(0, last_index - _LAST_ENTRIES), last_index):
            if isinstance(entry, EntryFound):
                last_term = entry.term
                last_time_ms = max(filter(None, [last_time_ms, _time_of(entry.payload)]), default=None)
    return last_term, last_time_ms


def _state_time(configurations: list[Configuration | None], body: bytes) -> str:
    """Return the cluster's time of a checkpoint as text, and append its configuration to the list.

    Raises ValueError if this program cannot load the state.
    """
    state = GroupState(QueueMachine())
    state.load(body)
    configurations.append(state.configuration)
    return describe_time(state.time_ms)


def _time_of(entry: bytes) -> int | None:
    """Return the cluster's time of an entry in milliseconds; `None` if the entry has no time."""
    if is_configuration(entry):
        return configuration_time_ms(entry)
    return entry_time_ms(entry) if is_regular(entry) else None


def _lines(group: Path, survivor: _Survivor) -> Generator[str]:
    identity, owner = survivor.identity, survivor.identity.owner
    yield f"directory        {group}"
    names = f" ({', '.join(identity.members)})" if identity.members else ""
    version = identity.machine_version
    yield f"it is of         node {owner.node} of cluster {owner.cluster}{names}, state version {version}"
    when = "" if survivor.last_time_ms is None else f", made at {describe_time(survivor.last_time_ms)}"
    yield f"the log ends     with entry {survivor.last_index} of term {survivor.last_term}{when}"
    known, committed = survivor.committed, 0
    if known is None:
        yield "known committed  nothing: there is no checkpoint"
    else:
        committed = known.number
        where = f"entry {committed} of term {known.term}, made at {known.time}"
        yield f"known committed  up to {where} (the newest checkpoint)"
    if committed < survivor.last_index:
        yield (
            f"uncertain        entries {committed + 1} to {survivor.last_index} are all taken as committed, also what "
            "was confirmed to nobody"
        )
    yield f"may be missing   what was confirmed to clients behind entry {survivor.last_index}{_since(survivor)}"
    if survivor.was_removed:
        yield "                 and more: this node was removed from its cluster, which may have gone on without it"
    elif not survivor.had_vote:
        yield "                 and more: this node was new, had no vote, and was being given the log; a voter has more"
    if survivor.standing is not VoterStatus.VOTER:
        yield "                 and more: this node was itself being repaired; another survivor may have more"


def _since(survivor: _Survivor) -> str:
    return "" if survivor.last_time_ms is None else f", after {describe_time(survivor.last_time_ms)}"


# Both


def _what_next(new: NewCluster) -> str:
    return (
        f"node {new.member.name} is the only member of a new cluster now, {new.cluster_id.hex()}: "
        "start it, and then the others with empty data directories"
    )


def _wall_ms() -> int:
    return time_ns() // 1_000_000


@contextmanager
def _locked(data_dir: Path) -> Generator[Disk]:
    disk = RealDisk(data_dir)
    try:
        yield disk
    finally:
        disk.close()


@contextmanager
def _errors_explained(source: str) -> Generator[None]:
    """Turn an error of files into a CommandError of a single line."""
    try:
        yield
    except DirectoryInUse as error:
        raise CommandError(f"{error}; stop the node first") from None
    except (BadBackup, JournalError, ForeignDirectory) as error:
        raise CommandError(f"{source}: {error}") from None
    except OSError as error:
        raise CommandError(f"{error.filename or source}: {error.strerror or error}") from None
