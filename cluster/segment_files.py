"""The segments of a log as files in its directory: loading, writing and reading them.

Lives here: what is done to the disk, and in which order. The format of a file is `segment.py`'s business; what is
written, deleted or read, and what counts as synced, is `journal.py`'s.

Law: after a crash at any moment the files hold a state that the log was in, or was on the way to, since the last
completed sync. Hence:
- a segment is durable before the next one is created: only the last can have a torn tail;
- files are removed one by one, durably, from an end of the log: a crash leaves no gap;
- a truncation is durable before anything is written in its place: no stale record follows a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from cluster.segment import (
    CorruptJournal,
    Extent,
    Record,
    Scan,
    Segment,
    pack_file_header,
    pack_records,
    read_extent,
    record_seed,
    scan,
    segment_name,
)

if TYPE_CHECKING:
    from cluster.ports import Disk, File

log = logging.getLogger(__name__)

READ_BYTES_MAX = 2**20  # consecutive small records are read together up to here

_SEGMENT = ".segment"


def load_segments(disk: Disk, directory: str, identity: bytes, names: Sequence[str]) -> list[Scan]:
    """Verify the segments among the sorted `names`, cut a torn tail and make the last one durable.

    Raises CorruptJournal, UnknownFormat or ForeignJournal.
    """
    firsts = [_first_of(directory, name) for name in names if name.endswith(_SEGMENT)]
    scans: list[Scan] = []
    for first in firsts:
        if scans:
            _check_follows(directory, scans[-1].segment, first)
        found = _load_segment(disk, directory, identity, first, last=first == firsts[-1])
        if found.segment.offsets:
            scans.append(found)
    return scans


def _first_of(directory: str, name: str) -> int:
    stem = name.removesuffix(_SEGMENT)
    if not (len(stem) == 20 and stem.isascii() and stem.isdigit()):
        raise CorruptJournal(path_in(directory, name), 0, "not the name of a segment")
    return int(stem)


def _check_follows(directory: str, before: Segment, first: int) -> None:
    if before.end != first:
        raise CorruptJournal(
            _segment_path(directory, before.first),
            before.size,
            f"gap in the log: it ends before index {before.end}, the next file begins with {first}",
        )


def _load_segment(disk: Disk, directory: str, identity: bytes, first: int, *, last: bool) -> Scan:
    path = _segment_path(directory, first)
    file = disk.open(path)
    data = file.pread(0, file.size)
    found = scan(data, path, identity, first, last=last)
    size = found.segment.size
    if len(data) > size:
        log.warning("%s: cut a torn tail: %d bytes at offset %d", path, len(data) - size, size)
    if last:
        _settle_tail(disk, file, path, found.segment)
    file.close()
    return found


def _settle_tail(disk: Disk, file: File, path: str, segment: Segment) -> None:
    """Make the last file durable as it was read: a killed process may have left it unsynced."""
    if not segment.offsets:
        disk.remove(path)
        return
    if file.size > segment.size:
        file.truncate(segment.size)
    file.sync()


class Append(NamedTuple):
    """Write records at the end of the segment `first`, which is new if `create`."""

    first: int
    create: bool
    records: list[Record]


class Truncate(NamedTuple):
    """Cut the segment `first` to `size` bytes."""

    first: int
    size: int


class Remove(NamedTuple):
    """Remove the file of the segment `first`."""

    first: int


Operation = Append | Truncate | Remove


class SegmentWriter:
    """The files as the writer thread sees them; one job at a time uses it."""

    def __init__(self, disk: Disk, directory: str, identity: bytes) -> None:
        self._disk = disk
        self._directory = directory
        self._identity = identity
        self._file: File | None = None
        self._first = 0
        self._seed = 0
        self._durable = 0
        self._names_changed = False

    def run(self, operations: list[Operation]) -> None:
        """Carry out the operations in order and make them durable."""
        for operation in operations:
            match operation:
                case Append():
                    self._append(operation)
                case Truncate():
                    self._truncate(operation)
                case Remove():
                    self._remove(operation.first)
        self._settle()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, operation: Append) -> None:
        file = self._use(operation.first, create=operation.create)
        buffers = pack_records(operation.records, self._durable, self._seed)
        if operation.create:
            buffers.insert(0, pack_file_header(self._identity, operation.first))
        file.append(buffers)

    def _truncate(self, operation: Truncate) -> None:
        file = self._use(operation.first, create=False)
        file.truncate(operation.size)
        file.sync()
        self._durable = file.size

    def _remove(self, first: int) -> None:
        if first == self._first:
            self.close()
        else:
            self._settle()
        self._disk.remove(_segment_path(self._directory, first))
        self._disk.sync_directory(self._directory)

    def _use(self, first: int, *, create: bool) -> File:
        """Switch to the file to write to, after making the one before it durable."""
        if self._file is not None and self._first == first and not create:
            return self._file
        self._settle()
        self.close()
        file = self._disk.open(_segment_path(self._directory, first), create=create)
        self._file = file
        self._first = first
        self._seed = record_seed(self._identity, first)
        # An existing file was made durable when the log was opened or the next segment begun.
        self._durable = file.size
        self._names_changed = create
        return file

    def _settle(self) -> None:
        if self._file is not None and self._file.size != self._durable:
            self._file.sync()
            self._durable = self._file.size
        if self._names_changed:
            self._disk.sync_directory(self._directory)
            self._names_changed = False


def add_extent(parts: list[bytes | Extent], extent: Extent) -> None:
    """Add an extent to what `read_parts` shall read; one that follows at once is read with the one before it."""
    previous = parts[-1] if parts else None
    if isinstance(previous, Extent) and previous.joins(extent, READ_BYTES_MAX):
        parts[-1] = previous.join(extent)
    else:
        parts.append(extent)


def read_parts(disk: Disk, directory: str, identity: bytes, parts: list[bytes | Extent]) -> list[bytes]:
    """Return all payloads in order, those of the extents from the disk; raises CorruptJournal."""
    payloads: list[bytes] = []
    reader = _Reader(disk, directory, identity)
    try:
        for part in parts:
            if isinstance(part, Extent):
                payloads.extend(reader.read(part))
            else:
                payloads.append(part)
    finally:
        reader.close()
    return payloads


class _Reader:
    """Reads records for one job, with files of its own: the writer may close its files meanwhile."""

    def __init__(self, disk: Disk, directory: str, identity: bytes) -> None:
        self._disk = disk
        self._directory = directory
        self._identity = identity
        self._file: File | None = None
        self._path = ""

    def read(self, extent: Extent) -> list[bytes]:
        path = _segment_path(self._directory, extent.segment)
        file = self._open(path)
        return read_extent(file, path, record_seed(self._identity, extent.segment), extent)

    def _open(self, path: str) -> File:
        if self._file is None or path != self._path:
            self.close()
            try:
                self._file = self._disk.open(path)
            except FileNotFoundError:
                raise CorruptJournal(path, 0, "the file is missing") from None
            self._path = path
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def path_in(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def _segment_path(directory: str, first: int) -> str:
    return path_in(directory, segment_name(first))
