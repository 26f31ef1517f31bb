"""The identity of a data directory, its count of starts, and whether the disk may have lost unsynced writes.

A directory belongs to a node of a cluster. Its log is at a single version of the state, because a program that cannot
run this version would compute a different state from the entries. Until the log has a configuration, the directory also
belongs to a fixed list of members, once it has promised them anything. Its incarnation grows with every start. By the
incarnation the cluster sees that everything held by an earlier process of the same name is gone. Its member id is made
once.

    body of the register = incarnation u64 | writes may be lost u8 | length u16 | boot id

Invariant: the flag that writes may have been lost stays on the disk until the log was opened with that knowledge. A
claim of a directory that was claimed before needs no space.
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
from cluster.log.owned_directory import OwnedDirectory
from cluster.log.register import Register, RegisterFormat
from cluster.log.segment import CorruptJournal, JournalError, UnknownFormat, path_in
from cluster.runtime.ports import Disk, pack

FILE = "identity"
START_FILES = ("start-0", "start-1")
FORMAT_VERSION = 4
MEMBER_FILE = "member"
MEMBER_FORMAT_VERSION = 1

_OTHER_FORMATS = (2, 3)
"""Earlier formats of `identity`, written by earlier versions of the machine."""
_MAGIC = b"RIDY"
_MEMBER_MAGIC = b"RMEM"
_START_REGISTER = RegisterFormat(
    START_FILES, b"RSTA", 1, "the count of starts and what was noted at the last one"
)
_START = Struct("<QBH")
_ANYBODY = b""  # the owner is in the body instead, so that an error can name it


class ForeignDirectory(Exception):
    """The directory holds the data of a different node, cluster or group."""


class OtherMembers(JournalError):
    """The directory belongs to a cluster with a different list of members."""

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
        """Return the owner as bytes; a digest or checksum of these bytes ties a file of the group to its owner."""
        return f"{self.cluster}/{self.node}/{self.group_id}".encode()


class Identity(NamedTuple):
    """The content of the file `identity`."""

    owner: Owner
    machine_version: int
    """Version of the state that the log has agreed on."""
    members: tuple[str, ...]
    """Names of all nodes of the cluster, ascending, without their addresses, which may change. Empty if the log has a
    configuration or will have one."""
    before: tuple[str, ...] = ()
    """Content of `DirectoryId.before`, from the file `member`. Release 0.1 cannot read an identity with this field."""


class DirectoryId(NamedTuple):
    """The content of the file `member`."""

    member: bytes
    """Member id: `ID_BYTES` that identify this directory as a member of a cluster."""
    cluster: bytes = b""
    """Cluster id of `ID_BYTES`; empty until the cluster has a committed configuration in its log."""
    has_others: bool = False
    """Whether the cluster has other members, as far as this directory knows; they hold the entries that it loses."""
    before: tuple[str, ...] = ()
    """Copy of `Identity.members`, kept until the first configuration is known to be committed. If the log turns out to
    lack that configuration, these names are still the members."""


class Start(NamedTuple):
    """The content of the register `start-0`, `start-1`: the last start of the node."""

    incarnation: int
    writes_lost: bool
    """Whether unsynced writes may be lost, because the machine rebooted or a sync has failed since."""
    boot_id: str
    """Boot id of the machine (`Disk.boot_id`) at the last claim."""


class Claim(NamedTuple):
    incarnation: int
    writes_lost: bool
    """Whether unsynced writes may be lost, because the machine rebooted or a sync has failed."""


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
    """Claim the directory for `owner`, and count a new incarnation durably; `members` are the names in the node's file.

    With `is_blank` the directory has promised no peer anything yet, so it may change to a different list of members.
    But it may not change to a list with only itself, because it would found a cluster of its own beside the known
    members.

    Raises ForeignDirectory, OtherVersion, OtherMembers, UnknownFormat, ForeignJournal or OSError. The incarnation is at
    least `wall_ms`, so a node that lost its directory still comes back with a higher number. Without an earlier count
    the incarnation is `wall_ms + leap`, because a clock that restarts with the machine may give the same time again.
    """
    is_new = FILE not in disk.list_directory(directory)
    new = Identity(owner, versions.low, members)
    identity = new if is_new else _checked(disk, directory, owner, versions, members, is_blank=is_blank)
    register, last = _last_start(disk, directory, identity.owner)
    boot_id = disk.boot_id()
    # Boot id and loss are stored at once: a start that reads the new boot id cannot detect the loss, so it must read
    # it.
    writes_lost = last is None or last.writes_lost or last.boot_id != boot_id
    incarnation = max(last.incarnation + 1, wall_ms) if last is not None else wall_ms + leap
    start = Start(incarnation, writes_lost, boot_id)
    register.store(_packed(start))
    copies = [] if is_new else load_copies(disk, directory)
    if identity not in copies:
        # The identity is stored last, so a directory with an identity has all the files that its next claim overwrites.
        store_identity(disk, directory, identity)
    elif None in copies:
        with unless_there_is_no_space():  # this repair can wait, because one copy is whole
            store_identity(disk, directory, identity)
    return identity, Claim(start.incarnation, writes_lost)


def names_of(disk: Disk, directory: str, identity: Identity) -> tuple[str, ...]:
    """Return the names of the members while the log has no configuration; empty if it must have a configuration.

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
    """Return the member id and cluster id of this data directory; make a new id with `is_new`, or if it has no id.

    A new id is derived from the incarnation that begins now, because no other start of this node has the same number.
    The new id takes over the names in `before`. The file is separate because programs of release 0.1 do not know it.
    Raises ForeignDirectory if the file is damaged, ForeignJournal, UnknownFormat or OSError.
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
        with unless_there_is_no_space():  # this repair can wait, because one copy is whole
            store_directory_id(disk, directory, owner, known)
    return known


def load_member_copies(disk: Disk, directory: str, owner_key: bytes) -> list[DirectoryId | None]:
    """Return both copies of the file `member`, `None` for a damaged copy.

    Raises UnknownFormat, ForeignJournal or FileNotFoundError.
    """
    path = path_in(directory, MEMBER_FILE)
    bodies = read_copies(disk, path, _MEMBER_MAGIC, MEMBER_FORMAT_VERSION, owner_key)
    return [None if body is None else _unpack_directory_id(body) for body in bodies]


def _unpack_directory_id(body: bytes) -> DirectoryId:
    member, cluster, has_others, *before = msgpack.unpackb(body)
    return DirectoryId(member, cluster, has_others, tuple(*before))


def store_directory_id(disk: Disk, directory: str, owner: Owner, known: DirectoryId) -> None:
    """Store the file `member` durably. Raises OSError."""
    data = pack_twice(_MEMBER_MAGIC, MEMBER_FORMAT_VERSION, owner.key(), pack([*known]))
    disk.replace_file(path_in(directory, MEMBER_FILE), data)


def store_identity(disk: Disk, directory: str, identity: Identity) -> None:
    """Store the file `identity` durably. Raises OSError."""
    fields = [*identity.owner, identity.machine_version, identity.members]
    if identity.before:  # a repaired copy must keep the names, because the file `member` may lack them
        fields.append(identity.before)
    body = pack(fields)
    disk.replace_file(path_in(directory, FILE), pack_twice(_MAGIC, FORMAT_VERSION, _ANYBODY, body))


def mark_writes_lost(disk: Disk, directory: str, owner: Owner) -> None:
    """Make the next claim report that writes may be lost, because a sync has failed; errors are suppressed."""
    with suppress(OSError):
        _store_writes_lost(disk, directory, owner, writes_lost=True)


def unmark_writes_lost(disk: Disk, directory: str, owner: Owner) -> None:
    """Clear the flag of lost writes, because the log was opened and made durable as it was. Raises OSError."""
    _store_writes_lost(disk, directory, owner, writes_lost=False)


def _store_writes_lost(disk: Disk, directory: str, owner: Owner, *, writes_lost: bool) -> None:
    register, last = _last_start(disk, directory, owner)
    if last is not None:  # otherwise the next claim reports lost writes anyway
        register.store(_packed(last._replace(writes_lost=writes_lost)))


def load_start(disk: Disk, directory: str, owner: Owner) -> tuple[Start | None, list[str]]:
    """Return the record of the last claim, `None` if it is lost, and the names of the `START_FILES` that are bad.

    A bad file is damaged, missing or older. Writes no file. Raises UnknownFormat, ForeignJournal, or OSError.
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
    return Register(OwnedDirectory(disk, directory, owner.key()), _START_REGISTER)


def _packed(start: Start) -> bytes:
    boot_id = start.boot_id.encode()
    return _START.pack(start.incarnation, start.writes_lost, len(boot_id)) + boot_id


def _unpacked(body: bytes) -> Start:
    incarnation, writes_lost, length = _START.unpack_from(body)
    return Start(incarnation, bool(writes_lost), body[_START.size : _START.size + length].decode())


def load_copies(disk: Disk, directory: str) -> list[Identity | None]:
    """Return both copies of the file `identity`, `None` for a damaged copy.

    Raises UnknownFormat or FileNotFoundError.
    """
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
    """Return the directory's identity after checking owner, version and members.

    With `is_blank` it may take over a new list of members. Raises ForeignDirectory, OtherVersion, OtherMembers,
    UnknownFormat or ForeignJournal.
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
