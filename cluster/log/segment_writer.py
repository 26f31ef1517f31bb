"""What is done to the files of a log, and in which order.

Invariant: after a crash at any moment the files hold a state that the log was in, or was on the way to, since the last
completed sync. Hence:
- a segment is durable, with its footer, before the next one is begun: only the last can have a torn tail;
- what the manifest names is durable before it names it, and is removed after it does not name it any more;
- before entries are given up for good, those that make up for them are durable;
- a truncation is durable before anything is written in its place: no stale record follows a new one;
- the mark of what is synced (synced.py) is lowered before the open segment is cut, and raised after it was synced.
An operation that found no space has changed nothing that counts, and may be carried out again.
"""

from __future__ import annotations

import errno
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from cluster.log.manifest import MANIFEST_NAME, Manifest, Row, store_manifest
from cluster.log.sealed_segment import open_file, pack_footer
from cluster.log.segment import (
    FileHeader,
    Record,
    RecordIndex,
    Run,
    file_seed,
    pack_file_header,
    pack_records,
    path_in,
)
from cluster.log.sync_mark import Mark, MarkFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cluster.runtime.ports import Buffer, Disk, File

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class DiskFull(OSError):
    """There was no space for an operation; it and those after it can be carried out later."""


class Begin(NamedTuple):
    """Create a new open segment, if there is none or it holds nothing."""

    name: str
    first: int


class AppendRecords(NamedTuple):
    """Write records at the end of the open segment."""

    records: list[Record]


class Seal(NamedTuple):
    """Write the footer of the open segment, which holds these records."""

    records: RecordIndex


class Truncate(NamedTuple):
    """Cut the open segment to `size` bytes."""

    size: int


class Cut(NamedTuple):
    """Remove the segments from the index `end` on; the one that `end` lies within is open again, with `size` bytes."""

    end: int
    size: int


class Replace(NamedTuple):
    """Put a segment that is durable, or nothing, in the place of consecutive sealed segments."""

    old: list[str]
    new: Row | None


class Adopt(NamedTuple):
    """Let the log consist of these sealed segments only, which are durable."""

    rows: list[Row]
    runs: list[Run]


class Store(NamedTuple):
    """Store something beside the log."""

    store: Callable[[], None]
    """Store the value; may be called again when it has found no space."""


Operation = Store | Begin | AppendRecords | Seal | Truncate | Cut | Replace | Adopt


class SegmentWriter:
    """Carries out operations on the files of a log; only one job at a time may use it, on the writer thread."""

    def __init__(self, disk: Disk, directory: str, identity: bytes, manifest: Manifest) -> None:
        self._disk = disk
        self._directory = directory
        self._identity = identity
        self._manifest = manifest
        """The manifest after the operations so far; `_stored` is the one on the disk."""
        self._stored = manifest
        self._mark = MarkFile(disk, directory, identity)
        self._file: File | None = None
        self._seed = 0
        self._size = 0
        """How many bytes of the open file count; a write that found no space may have left more."""
        self._durable = 0
        self._sync_failed = False
        self._dropped: list[str] = []

    def run(self, operations: deque[Operation]) -> None:
        """Carry out the operations in order, taking each off when it is done, and make them durable.

        Raises DiskFull, or another OSError after which the disk cannot be trusted.
        """
        try:
            self._cut_back()
            while operations:
                self._carry_out(operations[0])
                operations.popleft()
            self._settle()
        except OSError as error:
            # What a sync could not write is lost, whatever the reason.
            if self._sync_failed or error.errno not in _NO_SPACE:
                raise
            with suppress(OSError):
                self._cut_back()  # the part that was written is in the way
            if self._sync_failed:
                raise
            dropped = self.take_dropped()
            if not dropped:
                raise DiskFull(*error.args) from error
            self._remove(dropped)  # here and now, because this run needs the space
            self.run(operations)

    def take_dropped(self) -> list[str]:
        """The files that housekeeping has replaced, and that are to be removed: each is told once, between two runs.

        That is not done here, because every sync would wait: a file system takes a tenth of a second for a large file.
        """
        dropped, self._dropped = self._dropped, []
        return dropped

    def close(self) -> None:
        self._close_open()
        self._mark.close()

    def _carry_out(self, operation: Operation) -> None:
        match operation:
            case AppendRecords():
                file = self._open()
                self._write(file, pack_records(operation.records, self._durable, self._seed))
            case Begin():
                self._begin(operation)
            case Seal():
                self._seal(operation.records)
            case Truncate():
                # What is kept may have been written in this run, and not be durable before the cut is.
                self._lower_mark(self._manifest, min(operation.size, self._durable))
                self._truncate(operation.size)
            case Cut():
                self._cut(operation)
            case Replace():
                self._sync_open()
                self._store(self._manifest.replaced(operation.old, operation.new), removes_later=True)
            case Store():
                operation.store()
            case Adopt():
                self._close_open()
                self._store(self._manifest.adopted(operation.rows, operation.runs))

    def _begin(self, operation: Begin) -> None:
        self._close_open()
        name, first = operation
        seed = file_seed(self._identity, name)
        file = self._create(path_in(self._directory, name))
        try:
            file.append([pack_file_header(self._identity, FileHeader(first, 0, seed))])
            self._sync(file)
            self._disk.sync_directory(self._directory)  # the manifest must not be more durable than the name
            self._store(self._manifest.begun(name, first))
        except OSError:
            file.close()
            raise
        self._take(file, seed)

    def _create(self, path: str) -> File:
        try:
            return self._disk.open(path, create=True)
        except FileExistsError:
            self._disk.remove(path)  # left over of an attempt that found no space
            return self._disk.open(path, create=True)

    def _seal(self, records: RecordIndex) -> None:
        file = self._open()
        self._sync_open()  # a footer that is there vouches for all records, also if the manifest does not name it yet
        self._write(file, [pack_footer(records, self._seed)])
        self._sync(file)
        self._manifest = self._manifest.with_open_sealed(records.end, self._size, records.runs)
        self._close_open()

    def _truncate(self, size: int) -> None:
        file = self._open()
        file.truncate(size)
        self._sync(file)
        self._size = self._durable = size

    def _cut(self, operation: Cut) -> None:
        self._close_open()
        manifest = self._manifest.cut(operation.end)
        self._lower_mark(
            manifest, operation.size
        )  # an earlier mark of the segment that is open again may be there
        self._store(manifest)
        if manifest.open_name is not None:
            self._truncate(operation.size)

    def _lower_mark(self, manifest: Manifest, size: int) -> None:
        self._sync(self._mark.write(Mark(manifest.open_name or "", size)))

    def _raise_mark(self) -> None:
        with suppress(OSError):  # a mark that lags behind is true as well
            self._mark.write(Mark(self._manifest.open_name or "", self._durable))

    def _close_open(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> File:
        """Return the file of the open segment, opened if need be."""
        if self._file is None:
            name = self._manifest.open_name or ""
            opened = open_file(self._disk, path_in(self._directory, name), self._identity)
            # The segment was made durable when the log was opened, or when it was sealed.
            self._take(opened.file, opened.header.seed)
        file = self._file
        if file is None:
            raise RuntimeError("no segment is open")
        return file

    def _take(self, file: File, seed: int) -> None:
        self._file = file
        self._seed = seed
        self._size = self._durable = file.size

    def _write(self, file: File, buffers: list[Buffer]) -> None:
        file.append(buffers)
        self._size = file.size

    def _cut_back(self) -> None:
        if self._file is not None and self._file.size != self._size:
            self._file.truncate(self._size)
            self._sync(self._file)
            self._durable = self._size

    def _settle(self) -> None:
        self._sync_open()
        if self._manifest != self._stored:
            self._store(self._manifest)

    def _sync_open(self) -> None:
        if self._file is not None and self._durable != self._size:
            self._sync(self._file)
            self._durable = self._size
            self._raise_mark()

    def _sync(self, file: File) -> None:
        try:
            file.sync()
        except OSError:
            self._sync_failed = True
            raise

    def _store(self, manifest: Manifest, *, removes_later: bool = False) -> None:
        """Replace the manifest, and remove the files that are not part of the log any more, or drop them."""
        store_manifest(self._disk, path_in(self._directory, MANIFEST_NAME), self._identity, manifest)
        kept = set(manifest.names())
        unneeded = [name for name in self._stored.names() if name not in kept]
        self._manifest = self._stored = manifest
        if removes_later:
            self._dropped += unneeded
        else:
            self._remove(unneeded)

    def _remove(self, names: Iterable[str]) -> None:
        remove_segments(self._disk.remove, self._directory, names)


def remove_segments(remove: Callable[[str], None], directory: str, names: Iterable[str]) -> None:
    """Remove files that are no part of the log; it is fine if one is not there any more."""
    for name in names:
        with suppress(FileNotFoundError):
            remove(path_in(directory, name))
