"""Whose data directory this is, how often it was started, and whether the disk may have lost unsynced writes since.

A directory belongs to one node of one cluster. Its incarnation grows with every start: the cluster tells by it that
what an earlier process of the same name held is gone. And it belongs to one version of the machine: another would not
make the same of the entries that are in the log.

Lives here: the files `identity` and `writes-lost`. Not here: what lost writes mean for the log (segment.py).

Law: that writes may have been lost is on the disk until the log was opened with that knowledge.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgpack

from cluster.ports import Disk, pack
from cluster.segment import CorruptJournal, JournalError, UnknownFormat, path_in
from cluster.twofold import pack_twice, read_copies, read_twice

FILE = "identity"
WRITES_LOST = "writes-lost"
FORMAT_VERSION = 3

_WITHOUT_MACHINE_VERSION = 2
"""The format before this one."""
_MAGIC = b"RIDY"
_LOST = b"1"
_NOTHING_LOST = b"0"
_ANYBODY = b""  # the owner is in the body: an error shall name the one that was found


class ForeignDirectory(Exception):
    """The directory holds the data of another node, another cluster or another group."""


class OtherVersion(JournalError):
    """The directory was written by another version of the machine."""

    def __init__(self, directory: str, found: int | None, wanted: int) -> None:
        which = "an older version, which did not note its number," if found is None else f"version {found}"
        self.what = (
            f"the log was written by {which} of the state, and this program has version {wanted}; start the program "
            "version that wrote it, or begin anew with an empty directory on every node"
        )
        super().__init__(f"{directory}: {self.what}")


class Owner(NamedTuple):
    cluster: str
    node: str
    group_id: int

    def key(self) -> bytes:
        """What every file of the group starts with."""
        return f"{self.cluster}/{self.node}/{self.group_id}".encode()


class Identity(NamedTuple):
    """What the file says."""

    owner: Owner
    incarnation: int
    session: str
    """Of the disk at the last claim."""
    machine_version: int


class Claim(NamedTuple):
    incarnation: int
    writes_lost: bool
    """What was written and not synced before may be lost: the machine was started anew, or a sync failed."""


def claim_directory(disk: Disk, directory: str, owner: Owner, wall_ms: int, machine_version: int) -> Claim:
    """Claim the directory for `owner` and count a new incarnation, durably.

    Raises ForeignDirectory, OtherVersion, UnknownFormat or OSError. The incarnation is not less than the time, so that
    a node which lost its directory still comes back as a later one.
    """
    path = path_in(directory, FILE)
    names = disk.list_directory(directory)
    session = disk.session()
    previous, known_session = _read(disk, directory, owner, machine_version) if FILE in names else (0, None)
    writes_lost = is_loss_noted(disk, directory, names) or session != known_session
    if writes_lost:
        # First, because the next start finds the new session and would know nothing of the loss.
        _note(disk, directory, _LOST)
    incarnation = max(previous + 1, wall_ms)
    body = pack([*owner, incarnation, session, machine_version])
    disk.replace_file(path, pack_twice(_MAGIC, FORMAT_VERSION, _ANYBODY, body))
    return Claim(incarnation, writes_lost)


def is_loss_noted(disk: Disk, directory: str, names: Sequence[str]) -> bool:
    """Whether a loss is noted, or nothing is; `names` are those in the directory."""
    return WRITES_LOST not in names or disk.read_file(path_in(directory, WRITES_LOST)) != _NOTHING_LOST


def note_writes_lost(disk: Disk, directory: str) -> None:
    """Let the next claim report lost writes, because a sync has failed. As well as can be done on such a disk."""
    with suppress(OSError):
        _note(disk, directory, _LOST)


def forget_writes_lost(disk: Disk, directory: str) -> None:
    """The log was opened, and made durable as it was found: no earlier loss matters any more. Raises OSError."""
    _note(disk, directory, _NOTHING_LOST)


def _note(disk: Disk, directory: str, what: bytes) -> None:
    """Overwrite the file, which needs no space, or create it."""
    path = path_in(directory, WRITES_LOST)
    try:
        disk.overwrite_file(path, what)
    except (FileNotFoundError, ValueError):
        disk.replace_file(path, what)


def load_copies(disk: Disk, directory: str) -> list[Identity | None]:
    """Each of the two copies in the file, None for a damaged one. Raises UnknownFormat or FileNotFoundError."""
    bodies = read_copies(disk, path_in(directory, FILE), _MAGIC, FORMAT_VERSION, _ANYBODY)
    return [None if body is None else _unpack(body) for body in bodies]


def _unpack(body: bytes) -> Identity:
    cluster, node, group_id, incarnation, session, machine_version = msgpack.unpackb(body)
    return Identity(Owner(cluster, node, group_id), incarnation, session, machine_version)


def _read(disk: Disk, directory: str, owner: Owner, machine_version: int) -> tuple[int, str]:
    """Incarnation and disk session of the last claim."""
    path = path_in(directory, FILE)
    try:
        found = _unpack(read_twice(disk, path, _MAGIC, FORMAT_VERSION, _ANYBODY))
    except CorruptJournal as error:
        raise ForeignDirectory(
            f"{path} is damaged; if the directory is this node's, delete that file"
        ) from error
    except UnknownFormat as error:
        if error.version == _WITHOUT_MACHINE_VERSION:
            raise OtherVersion(directory, None, machine_version) from error
        raise
    if found.owner != owner:
        whose = f"node {found.owner.node!r} of cluster {found.owner.cluster!r}"
        raise ForeignDirectory(
            f"{path}: the directory belongs to {whose}, not to node {owner.node!r} of {owner.cluster!r}; "
            "check the data directory setting"
        )
    if found.machine_version != machine_version:
        raise OtherVersion(directory, found.machine_version, machine_version)
    return found.incarnation, found.session
