"""The format of sealed segments: files that never change again, with an index of their records in a footer.

    footer  = offset u32 of each record | index less `first` u32 of each record, if sparse | runs | trailer
    run     = index u64 | term u64, wherever the term differs from that of the record before
    trailer = "RIDX" | records u32 | runs u32 | sparse u32 | end of the records u64 | crc32 u32 of the footer before it

Integers are little endian; the checksum starts with the file's seed.

Invariant: the footer only repeats facts from the records. So a damaged footer costs a scan and a warning, but no entry.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from cluster.log.segment import (
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    CorruptJournal,
    Extent,
    FileHeader,
    Record,
    RecordIndex,
    Segment,
    file_seed,
    pack_file_header,
    pack_records,
    path_in,
    read_at,
    read_extent,
    scan_records,
    unpack_file_header,
)
from cluster.log.term_runs import TermRuns

if TYPE_CHECKING:
    from cluster.runtime.ports import Disk, File

log = logging.getLogger(__name__)

READ_BYTES_MAX = 2**20  # consecutive small records are read together up to this size

_MAGIC = b"RIDX"
_TRAILER = Struct("<4sIIIQI")
_RUN = Struct("<QQ")
_CRC_BYTES = 4
_OFFSET_BYTES = 4


class Opened(NamedTuple):
    """A segment file that is open for reading, with its header."""

    file: File
    path: str
    header: FileHeader


# The footer


def pack_footer(index: RecordIndex, seed: int) -> bytes:
    """Return the footer for a segment with these records and terms."""
    sparse = index.indexes is not None
    start = b"".join(
        [
            index.offsets.tobytes(),
            index.indexes.tobytes() if index.indexes is not None else b"",
            *(_RUN.pack(*run) for run in index.runs),
            _TRAILER.pack(_MAGIC, len(index.offsets), len(index.runs), sparse, index.size, 0)[:-_CRC_BYTES],
        ]
    )
    return start + crc32(start, seed).to_bytes(_CRC_BYTES, "little")


def footer_bytes(records: int, runs: int, *, sparse: bool) -> int:
    return records * _OFFSET_BYTES * (2 if sparse else 1) + runs * _RUN.size + _TRAILER.size


def read_footer(opened: Opened, name: str) -> RecordIndex | None:
    """Return the record index from the footer, or `None` if the footer is missing or damaged."""
    file, path, header = opened
    trailer_start = file.size - _TRAILER.size
    if trailer_start < FILE_HEADER_BYTES:
        return None
    trailer = read_at(file, path, trailer_start, _TRAILER.size)
    magic, count, runs, sparse, size, crc = _TRAILER.unpack(trailer)
    length = footer_bytes(count, runs, sparse=bool(sparse))
    if magic != _MAGIC or bool(sparse) != bool(header.end) or size + length != file.size:
        return None
    footer = read_at(file, path, size, length)
    if crc != crc32(memoryview(footer)[:-_CRC_BYTES], header.seed):
        return None
    index = RecordIndex(name, header.first, size)
    width = count * _OFFSET_BYTES
    index.offsets.frombytes(footer[:width])
    if sparse:
        index.indexes = array("I")
        index.indexes.frombytes(footer[width : 2 * width])
        width *= 2
    index.runs = list(_RUN.iter_unpack(footer[width : width + runs * _RUN.size]))
    return index


# Reading


def open_file(disk: Disk, path: str, identity: bytes) -> Opened:
    """Open a segment and read its header; raises CorruptJournal, UnknownFormat or ForeignJournal."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        raise CorruptJournal(path, 0, "the file is missing") from None
    try:
        header = unpack_file_header(read_at(file, path, 0, FILE_HEADER_BYTES), path, identity)
    except BaseException:
        file.close()
        raise
    return Opened(file, path, header)


def load_index(disk: Disk, directory: str, identity: bytes, segment: Segment) -> RecordIndex:
    """Return the record index of a sealed segment, from its footer, or from a scan if the footer is damaged.

    Raises CorruptJournal, UnknownFormat or ForeignJournal.
    """
    opened = open_file(disk, path_in(directory, segment.name), identity)
    try:
        if opened.file.size != segment.file_bytes:
            what = f"the file has {opened.file.size} bytes instead of {segment.file_bytes}"
            raise CorruptJournal(opened.path, opened.file.size, what)
        index = read_footer(opened, segment.name) or _scan(opened, segment.name)
    finally:
        opened.file.close()
    _check_range(index, opened, segment)
    return index


def _scan(opened: Opened, name: str) -> RecordIndex:
    """Rebuild the record index of a file with a damaged footer.

    Raises CorruptJournal if a record is damaged, too.
    """
    file, path, header = opened
    index, runs = scan_records(read_at(file, path, 0, file.size), path, name, header)
    index.runs = runs
    expected = footer_bytes(len(index.offsets), len(index.runs), sparse=bool(header.end))
    if index.size + expected != file.size:
        raise CorruptJournal(path, index.size, "bad record in a sealed segment")
    log.warning("%s: the index at its end is damaged; the records are whole", path)
    return index


def _check_range(index: RecordIndex, opened: Opened, segment: Segment) -> None:
    end = opened.header.end or index.end
    if (index.first, end) != (segment.first, segment.end):
        what = f"the file holds entries {index.first} to {end - 1}, not {segment.first} to {segment.end - 1}"
        raise CorruptJournal(opened.path, 0, what)


def records(
    disk: Disk, directory: str, identity: bytes, segment: Segment
) -> Iterator[tuple[int, int, bytes]]:
    """Yield index, term and payload of each record of a sealed segment, verified; runs on any thread.

    At most about 1 MiB of payloads is in memory at a time. Raises CorruptJournal, UnknownFormat or ForeignJournal.
    """
    index = load_index(disk, directory, identity, segment)
    opened = open_file(disk, path_in(directory, segment.name), identity)
    try:
        yield from _iterate(opened, index)
    finally:
        opened.file.close()


def verify(disk: Disk, path: str, identity: bytes) -> None:
    """Check a whole sealed segment, including its footer; runs on any thread.

    Raises CorruptJournal, UnknownFormat or ForeignJournal.
    """
    opened = open_file(disk, path, identity)
    try:
        index = read_footer(opened, path)
        if index is None:
            raise CorruptJournal(path, max(opened.file.size - _TRAILER.size, 0), "bad index at the end")
        # Each extent ends at the start of the next, and the last extent at the footer, so together they cover the file.
        if (index.offsets[0] if index.offsets else index.size) != FILE_HEADER_BYTES:
            raise CorruptJournal(path, FILE_HEADER_BYTES, "the first record is missing")
        for _ in _iterate(opened, index):
            pass
    finally:
        opened.file.close()


def _iterate(opened: Opened, index: RecordIndex) -> Iterator[tuple[int, int, bytes]]:
    for extent in _extents(index):
        payloads = read_extent(opened.file, opened.path, opened.header.seed, extent)
        for number, payload in zip(range(extent.first, extent.after), payloads, strict=True):
            yield number, extent.term, payload


def _extents(index: RecordIndex) -> Iterator[Extent]:
    """Yield all records, joined to extents of at most `READ_BYTES_MAX` bytes or a single record."""
    terms = TermRuns(index.runs)
    numbers = index.indexes if index.indexes is not None else range(len(index.offsets))
    whole: Extent | None = None
    for position, number in enumerate(numbers):
        following = position + 1
        end = index.offsets[following] if following < len(index.offsets) else index.size
        at = index.first + number
        extent = Extent(index.name, index.offsets[position], end, at, at + 1, terms.at(at))
        if whole is not None and whole.joins(extent, READ_BYTES_MAX):
            whole = whole.join(extent)
            continue
        if whole is not None:
            yield whole
        whole = extent
    if whole is not None:
        yield whole


# Writing a sparse segment


def write_sparse(
    disk: Disk, path: str, identity: bytes, first: int, end: int, entries: Iterable[Record]
) -> int:
    """Write a new sealed sparse segment with these entries, and return its durable size in bytes.

    `entries` ascend by index, from `first` to before `end`. Raises OSError, after removing the file if that is
    possible.
    """
    file = disk.open(path, create=True)
    try:
        _write_sparse(file, path.rpartition("/")[2], identity, FileHeader(first, end, 0), entries)
        file.sync()
        size = file.size
    except Exception:
        file.close()
        with suppress(OSError):
            disk.remove(path)
        raise
    file.close()
    disk.sync_directory(path.rpartition("/")[0])
    return size


def _write_sparse(
    file: File, name: str, identity: bytes, header: FileHeader, entries: Iterable[Record]
) -> None:
    header = header._replace(seed=file_seed(identity, name))
    index = RecordIndex(name, header.first, indexes=array("I"))
    terms = TermRuns()
    file.append([pack_file_header(identity, header)])
    gathered: list[Record] = []
    for entry in entries:
        payload, number, term = entry
        gathered.append(entry)
        terms.add(number, term)
        index.offsets.append(index.size)
        index.indexes.append(number - header.first)  # pyright: ignore[reportOptionalMemberAccess]
        index.size += RECORD_HEADER_BYTES + len(payload)
        if index.size - file.size > READ_BYTES_MAX:
            file.append(pack_records(gathered, 0, header.seed))
            gathered.clear()
    file.append(pack_records(gathered, 0, header.seed))
    index.runs = terms.all()
    file.append([pack_footer(index, header.seed)])
