"""Load the segment files of a log at a start, and read records while the writer thread writes.

Invariant: a start reads the manifest and the open segment, however long the log is. Of the sealed segments it checks
only existence and size. It removes only segment files that the manifest does not list, and temporary files.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cluster.log.manifest import (
    MANIFEST_NAME,
    Manifest,
    Row,
    is_segment_name,
    load_copies,
    serial_of,
    store_manifest,
)
from cluster.log.mirrored_file import unless_there_is_no_space, whole_of
from cluster.log.sealed_segment import READ_BYTES_MAX, Opened, load_index, open_file, pack_footer, read_footer
from cluster.log.segment import (
    CorruptJournal,
    EntryNotFound,
    Extent,
    RecordIndex,
    Scan,
    Segment,
    UnknownFormat,
    check_tail,
    path_in,
    read_at,
    read_extent,
    scan_records,
)
from cluster.log.sync_mark import MARK_NAME, Mark, load_mark, store_mark
from cluster.runtime.ports import TEMPORARY

if TYPE_CHECKING:
    from cluster.runtime.ports import Disk

log = logging.getLogger(__name__)

INDEXES_MAX = 16  # record indexes of sealed segments in memory: 256 KiB each if the entries are small

_SUFFIXES = (".segment", ".sparse")


# Loading

T = TypeVar("T")


class Loaded(NamedTuple):
    """A log as it was loaded from the disk."""

    manifest: Manifest
    next_serial: int
    open: Scan | None
    """Records of the open segment; `None` if no segment is open, or if it is empty."""


def load_log(disk: Disk, directory: str, identity: bytes, *, writes_lost: bool) -> Loaded:
    """Load the log: read manifest, mark and open segment, cut a torn tail, remove leftovers, and sync the result.

    An empty directory becomes a new log. Raises CorruptJournal, UnknownFormat, ForeignJournal or OSError.
    """
    names = disk.list_directory(directory)
    path = path_in(directory, MANIFEST_NAME)
    if MANIFEST_NAME in names:
        copies = load_copies(disk, path, identity)
        manifest = whole_of(copies, path)
        if None in copies:
            with unless_there_is_no_space():  # this repair can wait, because one copy is whole
                store_manifest(disk, path, identity, manifest)
    else:
        _check_new(directory, names)
        manifest = Manifest()
        store_mark(disk, directory, identity, Mark())
        # The manifest is stored before the first segment. So segments without a manifest mean that the manifest is
        # lost.
        store_manifest(disk, path, identity, manifest)
    for row in manifest.sealed:
        _check_size(disk, path_in(directory, row.name), row)
    serial = manifest.next_serial
    belonging = set(manifest.names())
    for name in names:
        if is_segment_name(name) and name not in belonging:
            serial = max(serial, serial_of(name) + 1)
            _remove_leftover(disk, directory, name)
        elif name.endswith(TEMPORARY):
            _remove_leftover(disk, directory, name)
    disk.sync_directory(directory)
    mark = load_mark(disk, directory, identity)
    found = _load_open(disk, directory, identity, manifest, mark, writes_lost=writes_lost)
    _renew_mark(disk, directory, identity, mark, _mark_of(manifest, found))
    return Loaded(manifest, serial, found)


def _check_new(directory: str, names: Sequence[str]) -> None:
    """Check that a directory without a manifest holds no segments.

    Raises CorruptJournal, or UnknownFormat for segments of the first format, which had different names and no manifest.
    """
    for name in names:
        if name.endswith(_SUFFIXES):
            if not is_segment_name(name):
                raise UnknownFormat(path_in(directory, name))
            manifest = path_in(directory, MANIFEST_NAME)
            raise CorruptJournal(manifest, 0, f"the file is missing, but there is {name}")


def _check_size(disk: Disk, path: str, row: Row) -> None:
    try:
        file = disk.open(path)
    except FileNotFoundError:
        raise CorruptJournal(path, 0, "the file is missing") from None
    size = file.size
    file.close()
    if size != row.file_bytes:
        raise CorruptJournal(path, size, f"the file has {size} bytes instead of {row.file_bytes}")


def _remove_leftover(disk: Disk, directory: str, name: str) -> None:
    path = path_in(directory, name)
    with suppress(FileNotFoundError):  # a file that was written since the start may have replaced it
        disk.remove(path)
        log.info("%s: removed, left over by a crash", path)


def _renew_mark(disk: Disk, directory: str, identity: bytes, mark: Mark | None, current: Mark) -> None:
    """Store the current mark if the file differs; after a power loss the mark may be too low or invalid."""
    if mark is None:
        log.warning("%s: missing or damaged; made anew", path_in(directory, MARK_NAME))
    if mark != current:
        store_mark(disk, directory, identity, current)


def _mark_of(manifest: Manifest, found: Scan | None) -> Mark:
    return Mark(manifest.open_name or "", found.records.size if found else 0)


def _load_open(
    disk: Disk, directory: str, identity: bytes, manifest: Manifest, mark: Mark | None, *, writes_lost: bool
) -> Scan | None:
    """Scan the open segment and sync it, because a killed process may have left it unsynced."""
    if manifest.open_name is None:
        return None
    opened = open_file(disk, path_in(directory, manifest.open_name), identity)
    try:
        found = scan_open(opened, manifest, mark, writes_lost=writes_lost)
        size = found.records.size
        if opened.file.size > size:
            log.warning(
                "%s: cut a torn tail: %d bytes at offset %d", opened.path, opened.file.size - size, size
            )
            opened.file.truncate(size)
        opened.file.sync()
    finally:
        opened.file.close()
    return found if found.records.offsets else None


def scan_open(opened: Opened, manifest: Manifest, mark: Mark | None, *, writes_lost: bool) -> Scan:
    """Return the records of the open segment, after checking that the bytes behind them may be cut.

    Raises CorruptJournal, UnknownFormat or ForeignJournal.
    """
    file, path, header = opened
    if header.first != manifest.open_first or header.end:
        raise CorruptJournal(path, 0, f"the file is not of the entries from {manifest.open_first} on")
    data = read_at(file, path, 0, file.size)
    found = scan_records(data, path, manifest.open_name or "", header)
    size = found.records.size
    tail = data[size:]
    found.records.runs = found.runs
    # A crash while the segment was sealed, or while a sealed segment was cut, leaves a footer or its beginning behind
    # the records.
    if tail and not pack_footer(found.records, header.seed).startswith(tail):
        footer = read_footer(opened, manifest.open_name or "")
        if footer is not None and footer.size > size:
            # The footer is written only after all records are durable.
            raise CorruptJournal(path, size, "bad record, which the footer knows to have been durable")
        check_tail(data, path, size, header.seed, writes_lost=writes_lost)
    if mark is not None and mark.name == manifest.open_name and size < mark.size:
        raise CorruptJournal(
            path, size, f"the whole records end here, and the first {mark.size} bytes were synced"
        )
    return found


# Indexes of sealed segments


class IndexCache:
    """Cache of the `INDEXES_MAX` record indexes that were used last; works on any thread."""

    def __init__(self, disk: Disk, directory: str, identity: bytes) -> None:
        self._disk = disk
        self._directory = directory
        self._identity = identity
        self._lock = threading.Lock()
        # The keys are objects and not names, because a segment that is cut and sealed again keeps its name.
        self._loaded: OrderedDict[Segment, RecordIndex] = OrderedDict()

    def get(self, segment: Segment) -> RecordIndex:
        """Return the record index of a segment, from memory or from its file.

        Raises CorruptJournal, UnknownFormat or ForeignJournal.
        """
        with self._lock:
            index = self._loaded.get(segment)
            if index is not None:
                self._loaded.move_to_end(segment)
                return index
        index = load_index(self._disk, self._directory, self._identity, segment)
        self.put(segment, index)
        return index

    def put(self, segment: Segment, index: RecordIndex) -> None:
        with self._lock:
            self._loaded[segment] = index
            while len(self._loaded) > INDEXES_MAX:
                self._loaded.popitem(last=False)


# Reading


@dataclass(slots=True)
class Span:
    """Consecutive entries of the same term in a sealed segment, not yet located in its file."""

    segment: Segment
    records: RecordIndex | None
    """Record index of the segment; `None` if it must first be read from the disk."""

    first: int
    after: int
    """Index after the last entry."""

    term: int

    def extents(self, records: RecordIndex) -> Iterator[Extent]:
        """Yield the places of the entries in the file.

        An extent has at most `READ_BYTES_MAX` bytes, or a single larger record.
        """
        first = self.first
        while first < self.after:
            stop = first + 1
            if records.indexes is None:
                stop = min(max(stop, records.fitting(first, READ_BYTES_MAX)[0]), self.after)
            yield Extent(
                records.name, records.extent(first)[0], records.extent(stop - 1)[1], first, stop, self.term
            )
            first = stop


Part = bytes | Extent | Span
"""Part of a read job: a payload in memory, or the place of payloads on the disk."""


def add_extent(parts: list[Part], extent: Extent) -> None:
    """Append an extent, or merge it with the extent before it if it directly follows, so that both are read at once."""
    previous = parts[-1] if parts else None
    if isinstance(previous, Extent) and previous.joins(extent, READ_BYTES_MAX):
        parts[-1] = previous.join(extent)
    else:
        parts.append(extent)


class Reader:
    """Reader of records for a single job, with files of its own, because the writer may close its files meanwhile."""

    def __init__(self, disk: Disk, directory: str, identity: bytes, indexes: IndexCache) -> None:
        self._disk = disk
        self._directory = directory
        self._identity = identity
        self._indexes = indexes
        self._name = ""
        self._opened: Opened | None = None

    def read(self, parts: Sequence[Part], bytes_max: int | None) -> list[bytes]:
        """Return the payloads in order. After `bytes_max` bytes no further part is read.

        Raises CorruptJournal, or EntryNotFound for an entry that a sparse segment lacks.
        """
        payloads: list[bytes] = []
        size = 0
        try:
            for part in self._located(parts):
                if payloads and bytes_max is not None and size >= bytes_max:
                    break
                size += len(part) if isinstance(part, bytes) else part.end - part.start
                if isinstance(part, Extent):
                    opened = self._open(part.name)
                    payloads.extend(read_extent(opened.file, opened.path, opened.header.seed, part))
                else:
                    payloads.append(part)
        finally:
            self._close()
        return payloads

    def read_small(
        self, parts: Sequence[Extent | Span], bytes_max: int, value_of: Callable[[bytes], T]
    ) -> list[tuple[int, T]]:
        """Return index and value of single entries, without those that are larger than `bytes_max` or unreadable."""
        found: list[tuple[int, T]] = []
        for part in parts:
            with suppress(CorruptJournal, EntryNotFound):
                for extent in self._located([part]):
                    if isinstance(extent, Extent) and extent.end - extent.start <= bytes_max:
                        [payload] = self.read([extent], None)
                        found.append((extent.first, value_of(payload)))
        return found

    def _located(self, parts: Sequence[Part]) -> list[bytes | Extent]:
        """Replace the spans among the parts by their extents."""
        located: list[bytes | Extent] = []
        for part in parts:
            if isinstance(part, Span):
                located += part.extents(part.records or self._indexes.get(part.segment))
            else:
                located.append(part)
        return located

    def _open(self, name: str) -> Opened:
        if self._opened is None or name != self._name:
            self._close()
            self._opened = open_file(self._disk, path_in(self._directory, name), self._identity)
            self._name = name
        return self._opened

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.file.close()
            self._opened = None
