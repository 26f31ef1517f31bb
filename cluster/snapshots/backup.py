"""The format of a backup, from which a new cluster can begin, and the check that a backup is whole.

A backup has the same files as a snapshot (sender.py): a checkpoint and all sealed segments, up to a last entry. All
its entries are committed. The files are byte for byte the node's files; `backup.json` names their owner.

    backup.json             description of the backup and its files (Contents)
    NUMBER.checkpoint       the state
    NUMBER-SERIAL.segment, NUMBER-SERIAL.sparse      the log, and the live messages below it
    SHA256SUMS              a line for each of the files above, in their order; `sha256sum --check` understands it

Invariant: `SHA256SUMS` is written last and covers all files, so a backup that was cut or changed anywhere is refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cluster.configuration.configuration import ID_BYTES
from cluster.log.checkpoints import checkpoint_name, read_checkpoint
from cluster.log.manifest import is_segment_name
from cluster.log.sealed_segment import load_index, verify
from cluster.log.segment import JournalError, Segment
from cluster.storage.identity import Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cluster.runtime.ports import Disk

CONTENTS = "backup.json"
SUMS = "SHA256SUMS"
FORMAT_VERSION = 1
CHUNK_BYTES = 256 * 1024

_KIND = "qq backup"


class BadBackup(Exception):
    """The files are not a whole backup; the text names the file and the fault."""


class BackupSegment(NamedTuple):
    """A segment of a backup."""

    name: str
    first: int
    end: int
    """Index after its last entry; in a sparse segment, index after its range."""
    file_bytes: int
    sparse: bool

    def sealed(self) -> Segment:
        return Segment.sealed_file(*self[:4], sparse=self.sparse)


@dataclass(frozen=True, slots=True)
class Contents:
    """The content of `backup.json`."""

    cluster: str
    """Name of the cluster that the backup was made of."""
    cluster_id: bytes
    """Id of that cluster; empty if its log had no configuration."""
    node: str
    """Name of the node that provided the files."""
    group: int
    version: int
    """Version of the state that the log had agreed on."""
    index: int
    """Index of the last entry: the backup holds all entries up to this index, and none behind it."""
    term: int
    time_ms: int
    """Time of the cluster when the backup was made, in milliseconds."""
    directory: str
    """Directory of the node with the files; a client on the same machine can find them there."""
    checkpoint_index: int
    checkpoint_bytes: int
    segments: tuple[BackupSegment, ...]
    """Segments, ascending; the gapless segments at the end are the log."""

    @property
    def owner(self) -> Owner:
        """Identity of the node that owned the files; the file headers carry it, too."""
        return Owner(self.cluster, self.node, self.group)

    @property
    def checkpoint(self) -> str:
        return checkpoint_name(self.checkpoint_index)

    @property
    def files(self) -> list[tuple[str, int]]:
        """Name and size of each file but `backup.json` and `SHA256SUMS`, in their order."""
        segments = [(segment.name, segment.file_bytes) for segment in self.segments]
        return [(self.checkpoint, self.checkpoint_bytes), *segments]

    @property
    def file_bytes(self) -> int:
        return sum(size for _, size in self.files)


def pack_contents(contents: Contents) -> bytes:
    """Return the content of the file `backup.json`."""
    document = _fields(contents) | {
        "cluster_id": contents.cluster_id.hex(),
        "segments": [segment._asdict() for segment in contents.segments],
    }
    return json.dumps({"kind": _KIND, "format": FORMAT_VERSION, **document}, indent=1).encode() + b"\n"


def unpack_contents(data: bytes) -> Contents:
    """Parse the file `backup.json`. Raises BadBackup."""
    try:
        document = json.loads(data)
        if document.pop("kind") != _KIND:
            raise BadBackup(f"{CONTENTS} is not that of a backup")
        found = document.pop("format")
        if found != FORMAT_VERSION:
            raise BadBackup(
                f"the backup has format {found}, which is unknown here: use the program that made it, or a newer one"
            )
        segments = tuple(BackupSegment(**row) for row in document.pop("segments"))
        cluster_id = bytes.fromhex(document.pop("cluster_id"))
        contents = Contents(**document, segments=segments, cluster_id=cluster_id)
        _check_fields(contents)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadBackup(f"{CONTENTS} is damaged ({error})") from error
    return contents


def _fields(contents: Contents) -> dict[str, Any]:
    return {field.name: getattr(contents, field.name) for field in fields(contents)}


def _check_fields(contents: Contents) -> None:
    """Raise ValueError unless all values have their types, and the names are names of log files."""
    rows = [
        (_fields(contents), ("cluster", "node", "directory")),
        *((segment._asdict(), ("name",)) for segment in contents.segments),
    ]
    for row, texts in rows:
        for name, value in row.items():
            if name in texts and not isinstance(value, str):
                raise ValueError(f"{name} is no text")
            if name not in (*texts, "cluster_id", "segments") and not (isinstance(value, int) and value >= 0):
                raise ValueError(f"{name} is no number")
    if len(contents.cluster_id) not in (0, ID_BYTES):
        raise ValueError("cluster_id is no id")
    names = [segment.name for segment in contents.segments]
    if not names or not all(map(is_segment_name, names)) or len(set(names)) < len(names):
        raise ValueError("these are not the names of segments")
    if contents.segments[-1].end != contents.index + 1 or contents.checkpoint_index > contents.index:
        raise ValueError("the entries do not fit together")


class Digest(Protocol):
    """A checksum that is being computed."""

    def update(self, data: bytes, /) -> None: ...


def sum_line(digest: str, name: str) -> str:
    """Return the line of a file in `SHA256SUMS`."""
    return f"{digest}  {name}\n"


# Checking


class FileFound(NamedTuple):
    """Finding about a file of a backup."""

    name: str
    file_bytes: int
    what: str
    """Content of the file in words; empty if unknown."""
    problem: str | None


def read_contents(disk: Disk) -> Contents:
    """Return the description of the backup in the root of `disk`. Raises BadBackup or OSError."""
    names = disk.list_directory("")
    if CONTENTS not in names:
        raise BadBackup(f"this is not a backup: there is no {CONTENTS}")
    contents = unpack_contents(disk.read_file(CONTENTS))
    if SUMS not in names:
        raise BadBackup(f"the backup is cut: {SUMS}, which comes last, is missing; make another one")
    return contents


def examine(disk: Disk, contents: Contents, describe_state: Callable[[bytes], str]) -> Iterator[FileFound]:
    """Check every file as a whole and every record in it, and yield a finding per file. Raises OSError.

    `describe_state` returns a line about the state, or raises ValueError if this program cannot load it.
    """
    sums = disk.read_file(SUMS)
    lines = [sum_line(_digest(disk, CONTENTS), CONTENTS)]
    missing = set(disk.list_directory(""))
    for name, size in contents.files:
        if name not in missing:
            yield FileFound(name, size, "", "the file is missing")
            lines.append("")
            continue
        line = sum_line(_digest(disk, name), name)
        lines.append(line)
        problem = None if line.encode() in sums else "the content is not that of the backup (wrong SHA-256)"
        what = ""
        if problem is None:
            try:
                what = _describe(disk, contents, name, describe_state)
            except JournalError as error:
                problem = f"it was damaged on node {contents.node} before the backup was made ({error})"
            except ValueError as error:
                problem = str(error)
        yield FileFound(name, size, what, problem)
    if "".join(lines).encode() != sums:
        yield FileFound(SUMS, len(sums), "", f"it is not that of {CONTENTS} and the files")


def check(disk: Disk, contents: Contents, describe_state: Callable[[bytes], str]) -> None:
    """Raise BadBackup for the first file that is damaged or incomplete. Raises OSError, too."""
    for found in examine(disk, contents, describe_state):
        if found.problem is not None:
            raise BadBackup(f"{found.name}: {found.problem}; make another backup, or use an earlier one")


def _describe(disk: Disk, contents: Contents, name: str, describe_state: Callable[[bytes], str]) -> str:
    """Return a line about the file. Raises JournalError or ValueError if its content is wrong."""
    identity = contents.owner.key()
    if name == contents.checkpoint:
        checkpoint = read_checkpoint(disk, name, identity)
        if checkpoint.index != contents.checkpoint_index:
            raise ValueError(f"it is the checkpoint of entry {checkpoint.index}")
        return f"the state at entry {checkpoint.index}: {describe_state(checkpoint.body)}"
    segment = next(segment for segment in contents.segments if segment.name == name)
    verify(disk, name, identity)
    records = load_index(disk, "", identity, segment.sealed())
    kind = "live messages" if segment.sparse else "entries"
    return f"{len(records.offsets):,} {kind} of {segment.first} to {segment.end - 1}"


def _digest(disk: Disk, name: str) -> str:
    digest = sha256()
    file = disk.open(name)
    try:
        for offset in range(0, file.size, CHUNK_BYTES):
            digest.update(file.pread(offset, CHUNK_BYTES))
    finally:
        file.close()
    return digest.hexdigest()
