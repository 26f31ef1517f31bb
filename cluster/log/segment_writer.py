"""The operations on the files of a log, and the order of their writes and syncs.

Invariant: after a crash at any moment the files hold a state of the log between the last completed sync and the newest
operation. Hence:
- A segment is durable, with its footer, before the next segment is begun. So only the last segment can have a torn
  tail.
- A file is durable before the manifest lists it, and is removed after the manifest stops listing it.
- Entries are dropped only after the entries that replace them are durable.
- A truncation is durable before new records are written in its place. So no stale record follows a new record.
- The sync mark (sync_mark.py) is lowered before the open segment is cut, and raised after the segment was synced.

After an operation that found no space, the log on the disk is unchanged, and the operation can be repeated.
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
    """Raised when an operation found no space; it and the operations after it can be carried out later."""


class Begin(NamedTuple):
    """Create a new open segment if no segment is open, or if the open segment is empty."""

    name: str
    first: int


class AppendRecords(NamedTuple):
    """Append records to the open segment."""

    records: list[Record]


class Seal(NamedTuple):
    """Write the footer of the open segment, which holds these records."""

    records: RecordIndex


class Truncate(NamedTuple):
    """Cut the open segment to `size` bytes."""

    size: int


class Cut(NamedTuple):
    """Remove the segments from the index `end` on.

    A segment in whose range `end` lies becomes the open segment again, cut to `size` bytes.
    """

    end: int
    size: int


class Replace(NamedTuple):
    """Replace the consecutive sealed segments `old` by the durable segment `new`; `None` removes them."""

    old: list[str]
    new: Row | None


class Adopt(NamedTuple):
    """Replace the whole log by these durable sealed segments."""

    rows: list[Row]
    runs: list[Run]


class Store(NamedTuple):
    """Store a value in a file beside the log."""

    store: Callable[[], None]
    """Store the value; called again if it raised OSError for lack of space."""


Operation = Store | Begin | AppendRecords | Seal | Truncate | Cut | Replace | Adopt


class SegmentWriter:
    """Executor of operations on the files of a log, for the writer thread; it runs a single job at a time."""

    def __init__(self, disk: Disk, directory: str, identity: bytes, manifest: Manifest) -> None:
        self._disk = disk
        self._directory = directory
        self._identity = identity
        self._manifest = manifest
        """The manifest after the operations so far; `_stored` is the manifest on the disk."""
        self._stored = manifest
        self._mark = MarkFile(disk, directory, identity)
        self._file: File | None = None
        self._seed = 0
        self._size = 0
        """Valid bytes of the open file; a write that found no space may have left more bytes."""
        self._durable = 0
        self._sync_failed = False
        self._dropped: list[str] = []

    def run(self, operations: deque[Operation]) -> None:
        """Carry out the operations in order, remove each from the queue when it is done, then sync everything.

        Raises DiskFull, or a different OSError after which the disk cannot be trusted.
        """
        try:
            self._cut_back()
            while operations:
                self._carry_out(operations[0])
                operations.popleft()
            self._settle()
        except OSError as error:
            # A failed sync has lost its data, even if the reason was a full disk.
            if self._sync_failed or error.errno not in _NO_SPACE:
                raise
            with suppress(OSError):
                self._cut_back()  # frees the space of the part that was written
            if self._sync_failed:
                raise
            dropped = self.take_dropped()
            if not dropped:
                raise DiskFull(*error.args) from error
            self._remove(dropped)  # removed at once, because this run needs the space
            self.run(operations)

    def take_dropped(self) -> list[str]:
        """Return the files that housekeeping has replaced, for the caller to remove; call it between two runs.

        Each file is returned once. A run does not remove these files itself, because every sync would wait for it: a
        file system takes a tenth of a second to remove a large file.
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
                # The kept records may have been written in this run, so they may not be durable before the cut is.
                # Hence the minimum.
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
            self._disk.sync_directory(self._directory)  # the name is durable before the manifest lists it
            self._store(self._manifest.begun(name, first))
        except OSError:
            file.close()
            raise
        self._take(file, seed)

    def _create(self, path: str) -> File:
        try:
            return self._disk.open(path, create=True)
        except FileExistsError:
            self._disk.remove(path)  # left over from an attempt that found no space
            return self._disk.open(path, create=True)

    def _seal(self, records: RecordIndex) -> None:
        file = self._open()
        self._sync_open()  # a footer vouches for all records, even before the manifest lists the segment as sealed
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
        )  # the segment that is opened again may have an older, higher mark
        self._store(manifest)
        if manifest.open_name is not None:
            self._truncate(operation.size)

    def _lower_mark(self, manifest: Manifest, size: int) -> None:
        self._sync(self._mark.write(Mark(manifest.open_name or "", size)))

    def _raise_mark(self) -> None:
        with suppress(OSError):  # a mark that is too low is still true
            self._mark.write(Mark(self._manifest.open_name or "", self._durable))

    def _close_open(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> File:
        """Return the file of the open segment, and open it if necessary."""
        if self._file is None:
            name = self._manifest.open_name or ""
            opened = open_file(self._disk, path_in(self._directory, name), self._identity)
            # The segment was made durable when the log was loaded, or when the segment was sealed.
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
        """Replace the manifest and remove the files that it no longer lists.

        With `removes_later` the files are collected for `take_dropped` instead.
        """
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
    """Remove files that are no longer part of the log; missing files are skipped."""
    for name in names:
        with suppress(FileNotFoundError):
            remove(path_in(directory, name))
