"""Whose data directory this is, how often it was started, and whether the disk may have lost unsynced writes since.

A directory belongs to one node of one cluster, and its log is at one version of the state: a program that cannot run
that one would not make the same of the entries. As long as the log has no configuration, the directory also belongs to
one list of members, once it has promised those anything. Its incarnation grows with every start: the cluster tells by
it that what an earlier process of the same name held is gone. Its id as a member is made once.

    body of the register = incarnation u64 | writes may be lost u8 | length u16 | session of the disk

Invariant: that writes may have been lost is on the disk until the log was opened with that knowledge; and a claim of a
directory that was claimed before needs no space.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from struct import Struct
from typing import NamedTuple

import msgpack

from cluster.configuration.configuration import ID_BYTES, OtherVersion, Versions
from cluster.log.mirrored_file import pack_twice, read_copies, read_twice, unless_there_is_no_space
from cluster.log.register import Register
from cluster.log.segment import CorruptJournal, JournalError, UnknownFormat, path_in
from cluster.runtime.ports import Disk, pack

FILE = "identity"
START_FILES = ("start-0", "start-1")
FORMAT_VERSION = 4
MEMBER_FILE = "member"
MEMBER_FORMAT_VERSION = 1

_OTHER_FORMATS = (2, 3)
"""Earlier formats, which were written by other versions of the machine."""
_MAGIC = b"RIDY"
_MEMBER_MAGIC = b"RMEM"
_START_FORMAT = 1
_START_MAGIC = b"RSTA"
_START = Struct("<QBH")
_ANYBODY = b""  # the owner is in the body: an error shall name the one that was found


class ForeignDirectory(Exception):
    """The directory holds the data of another node, another cluster or another group."""


class OtherMembers(JournalError):
    """The directory belongs to a cluster with another list of members."""

    def __init__(self, directory: str, found: Sequence[str], wanted: Sequence[str]) -> None:
        super().__init__(
            f"{directory}: the directory belongs to the cluster of {', '.join(found)}, and the configuration lists "
            f"{', '.join(wanted)}; put the list back: members are changed with `qq member add` and `qq member remove`, "
            "once all nodes run this release"
        )


class Owner(NamedTuple):
    cluster: str
    node: str
    group_id: int

    def key(self) -> bytes:
        """The owner as bytes; a digest or checksum of them ties a file of the group to its owner."""
        return f"{self.cluster}/{self.node}/{self.group_id}".encode()


class Identity(NamedTuple):
    """The content of the file `identity`."""

    owner: Owner
    machine_version: int
    """The version of the state that the log has agreed on."""
    members: tuple[str, ...]
    """The names of all nodes of the cluster, ascending. Their addresses are not in it, and may change. It is empty if
    the log tells who the members are, or will tell."""
    before: tuple[str, ...] = ()
    """What is in the file `member` now (`DirectoryId.before`). Release 0.1 cannot read an identity that has it."""


class DirectoryId(NamedTuple):
    """The content of the file `member`."""

    member: bytes
    """`ID_BYTES` that stand for this directory, as a member of a cluster."""
    cluster: bytes = b""
    """`ID_BYTES` that stand for the cluster; empty as long as that has no committed configuration in its log."""
    has_others: bool = False
    """Whether the cluster has other members, as far as this directory has heard: they have what it loses."""
    before: tuple[str, ...] = ()
    """`Identity.members`, kept here as long as the first configuration is not known to be committed: if the log turns
    out not to have it, they are the members still."""


class Start(NamedTuple):
    """The content of the register `start-0`, `start-1`: the last start of the node."""

    incarnation: int
    writes_lost: bool
    """Whether writes that were not synced may be lost: the machine was started anew, or a sync has failed since."""
    session: str
    """The disk's session (`Disk.session`) at the last claim."""


class Claim(NamedTuple):
    incarnation: int
    writes_lost: bool
    """Whether writes that were not synced may be lost: the machine was started anew, or a sync has failed."""


def claim_directory(
    disk: Disk,
    directory: str,
    owner: Owner,
    versions: Versions,
    members: tuple[str, ...],
    wall_ms: int,
    leap: int,
    *,
    is_blank: bool = False,
) -> tuple[Identity, Claim]:
    """Claim the directory for `owner` and count a new incarnation, durably; `members` are those of the node's file.

    With `is_blank` it has promised nothing to anybody yet, so the list that it was started with does not bind it; but
    with a list of itself alone it would begin a cluster of its own, though it knows that there are others.

    Raises ForeignDirectory, OtherVersion, OtherMembers, UnknownFormat, ForeignJournal or OSError. The incarnation is at
    least `wall_ms`, so that a node that lost its directory still comes back with a higher one. If there is no count to
    go on from, it is `leap` above that: clocks that start anew with the machine may give the same time again.
    """
    is_new = FILE not in disk.list_directory(directory)
    new = Identity(owner, versions.low, members)
    identity = new if is_new else _checked(disk, directory, owner, versions, members, is_blank=is_blank)
    register, last = _last_start(disk, directory, identity.owner)
    session = disk.session()
    # All is stored at once: a start that finds the new session must find the loss, too, since it cannot see it itself.
    writes_lost = last is None or last.writes_lost or last.session != session
    incarnation = max(last.incarnation + 1, wall_ms) if last is not None else wall_ms + leap
    start = Start(incarnation, writes_lost, session)
    register.store(_packed(start))
    copies = [] if is_new else load_copies(disk, directory)
    if identity not in copies:
        # The identity is stored last: a directory that has one has all the files that its next claim overwrites.
        store_identity(disk, directory, identity)
    elif None in copies:
        with unless_there_is_no_space():  # the other copy may be damaged next, but it is not yet
            store_identity(disk, directory, identity)
    return identity, Claim(start.incarnation, writes_lost)


def names_of(disk: Disk, directory: str, identity: Identity) -> tuple[str, ...]:
    """Who the members are where the log has no configuration; nobody, if it must have one.

    Raises UnknownFormat, ForeignJournal or OSError.
    """
    names = identity.members or identity.before
    if not names and MEMBER_FILE in disk.list_directory(directory):
        copies = load_member_copies(disk, directory, identity.owner.key())
        names = next((copy.before for copy in copies if copy is not None), ())
    return names


def directory_id(
    disk: Disk, directory: str, owner: Owner, incarnation: int, before: tuple[str, ...], *, is_new: bool
) -> DirectoryId:
    """Which member of which cluster this data directory is; another one with `is_new`, or if it is none yet.

    A new id is made of the incarnation that begins now, because no other life of this node has the same number; who
    the members are (`before`) goes over to it. Raises ForeignDirectory if the file is damaged, ForeignJournal,
    UnknownFormat or OSError. It is a file of its own because programs of release 0.1 do not know it.
    """
    if is_new or MEMBER_FILE not in disk.list_directory(directory):
        new = DirectoryId(sha256(owner.key() + incarnation.to_bytes(8)).digest()[:ID_BYTES], before=before)
        store_directory_id(disk, directory, owner, new)
        return new
    copies = load_member_copies(disk, directory, owner.key())
    known = next((copy for copy in copies if copy is not None), None)
    if known is None:
        raise ForeignDirectory(
            f"{path_in(directory, MEMBER_FILE)} is damaged, so nobody knows which member this is: give the node an "
            "empty data directory"
        )
    if None in copies:
        with unless_there_is_no_space():  # the other copy may be damaged next, but it is not yet
            store_directory_id(disk, directory, owner, known)
    return known


def load_member_copies(disk: Disk, directory: str, owner_key: bytes) -> list[DirectoryId | None]:
    """Each of the two copies of what the directory is, None for a damaged one.

    Raises UnknownFormat, ForeignJournal or FileNotFoundError.
    """
    path = path_in(directory, MEMBER_FILE)
    bodies = read_copies(disk, path, _MEMBER_MAGIC, MEMBER_FORMAT_VERSION, owner_key)
    return [None if body is None else _unpack_directory_id(body) for body in bodies]


def _unpack_directory_id(body: bytes) -> DirectoryId:
    member, cluster, has_others, *before = msgpack.unpackb(body)
    return DirectoryId(member, cluster, has_others, tuple(*before))


def store_directory_id(disk: Disk, directory: str, owner: Owner, known: DirectoryId) -> None:
    """Store durably that the directory is this member from now on. Raises OSError."""
    data = pack_twice(_MEMBER_MAGIC, MEMBER_FORMAT_VERSION, owner.key(), pack([*known]))
    disk.replace_file(path_in(directory, MEMBER_FILE), data)


def store_identity(disk: Disk, directory: str, identity: Identity) -> None:
    """Store durably whose directory this is. Raises OSError."""
    fields = [*identity.owner, identity.machine_version, identity.members]
    if identity.before:  # a copy is mended as it was: the file `member` has not got the names yet
        fields.append(identity.before)
    body = pack(fields)
    disk.replace_file(path_in(directory, FILE), pack_twice(_MAGIC, FORMAT_VERSION, _ANYBODY, body))


def note_writes_lost(disk: Disk, directory: str, owner: Owner) -> None:
    """Let the next claim report that writes may be lost, because a sync has failed; best effort on such a disk."""
    with suppress(OSError):
        _note(disk, directory, owner, writes_lost=True)


def forget_writes_lost(disk: Disk, directory: str, owner: Owner) -> None:
    """Note that no earlier loss matters any more: the log was opened and made durable as it was. Raises OSError."""
    _note(disk, directory, owner, writes_lost=False)


def _note(disk: Disk, directory: str, owner: Owner, *, writes_lost: bool) -> None:
    register, last = _last_start(disk, directory, owner)
    if last is not None:  # else the next claim reports lost writes in any case
        register.store(_packed(last._replace(writes_lost=writes_lost)))


def load_start(disk: Disk, directory: str, owner: Owner) -> tuple[Start | None, list[str]]:
    """Read what the last claim has noted, None if that is lost, and the names of those `START_FILES` that differ.

    Nothing is written. Raises UnknownFormat, ForeignJournal, or OSError.
    """
    copies = _register(disk, directory, owner).load_copies()
    latest = max((copy for copy in copies if copy is not None), default=None)
    bad = [name for name, copy in zip(START_FILES, copies, strict=True) if copy is None or copy != latest]
    return None if latest is None else _unpacked(latest.body), bad


def _last_start(disk: Disk, directory: str, owner: Owner) -> tuple[Register, Start | None]:
    register = _register(disk, directory, owner)
    body = register.load()
    return register, None if body is None else _unpacked(body)


def _register(disk: Disk, directory: str, owner: Owner) -> Register:
    what = "the count of starts and what was noted at the last one"
    return Register(disk, directory, START_FILES, _START_MAGIC, _START_FORMAT, owner.key(), what)


def _packed(start: Start) -> bytes:
    session = start.session.encode()
    return _START.pack(start.incarnation, start.writes_lost, len(session)) + session


def _unpacked(body: bytes) -> Start:
    incarnation, writes_lost, length = _START.unpack_from(body)
    return Start(incarnation, bool(writes_lost), body[_START.size : _START.size + length].decode())


def load_copies(disk: Disk, directory: str) -> list[Identity | None]:
    """Read each of the two copies in the file, None for a damaged one. Raises UnknownFormat or FileNotFoundError."""
    bodies = read_copies(disk, path_in(directory, FILE), _MAGIC, FORMAT_VERSION, _ANYBODY)
    return [None if body is None else _unpack(body) for body in bodies]


def _unpack(body: bytes) -> Identity:
    cluster, node, group_id, machine_version, members, *before = msgpack.unpackb(body)
    return Identity(Owner(cluster, node, group_id), machine_version, tuple(members), tuple(*before))


def _checked(
    disk: Disk,
    directory: str,
    owner: Owner,
    versions: Versions,
    members: tuple[str, ...],
    *,
    is_blank: bool,
) -> Identity:
    """Return what the directory says of itself, if it is this node's, or is to say from now on.

    Raises ForeignDirectory, OtherVersion, OtherMembers, UnknownFormat or ForeignJournal.
    """
    path = path_in(directory, FILE)
    try:
        found = _unpack(read_twice(disk, path, _MAGIC, FORMAT_VERSION, _ANYBODY))
    except CorruptJournal as error:
        raise ForeignDirectory(
            f"{path} is damaged; if the directory is this node's, delete that file"
        ) from error
    except UnknownFormat as error:
        if error.version in _OTHER_FORMATS:
            raise OtherVersion(directory, None, versions) from error
        raise
    if found.owner != owner:
        whose = f"node {found.owner.node!r} of cluster {found.owner.cluster!r}"
        raise ForeignDirectory(
            f"{path}: the directory belongs to {whose}, not to node {owner.node!r} of {owner.cluster!r}; "
            "check the data directory setting"
        )
    if not versions.include(found.machine_version):
        raise OtherVersion(directory, found.machine_version, versions)
    if is_blank and found.members != members != (owner.node,):
        return found._replace(members=members, before=())
    names = names_of(disk, directory, found)
    if names and names != members:
        raise OtherMembers(directory, names, members)
    return found
