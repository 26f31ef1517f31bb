"""One segment of the log: a file of checksummed records, and the index of where its records are.

    file   = header | record... | footer, once it is sealed
    header = "RLOG" | version u32 | sha256 of the identity | first u64 | end u64, 0 if dense | seed u32 | crc32 u32
    record = magic u32 | length u32 | payload crc32 u32 | index u64 | term u64 | durable u64 | crc32 u32 | payload

Integers are little endian. A record's header checksum starts with the file's seed: a record of another file, left in a
reused disk block or sent in a payload, is no record here. The seed is stored, so the segment of another node of the
cluster becomes this node's with a new header.

Invariant: nothing is believed without its checksum, and what was once on stable storage is never dropped as a torn
tail. Each record says how much of its file was durable when it was written, so a later record convicts an earlier bad
one. If you change the format, increment `FORMAT_VERSION`; magic, version and checksum of the file header keep their
place.
"""

from __future__ import annotations

import errno
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from hashlib import sha256
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cluster.runtime.ports import Buffer, File

FORMAT_VERSION = 2
SEGMENT_BYTES_MAX = 2**32 - 1  # offsets are kept as u32

_FILE_MAGIC = b"RLOG"
_FILE_HEADER = Struct("<4sI32sQQII")
_RECORD_MAGIC = 0xD1B54A32
_RECORD_MAGIC_BYTES = _RECORD_MAGIC.to_bytes(4, "little")
_RECORD_START = Struct("<IIIQQQ")  # magic, payload length, payload crc, index, term, durable
_RECORD_HEADER = Struct("<IIIQQQI")  # the same and the crc of what precedes

FILE_HEADER_BYTES = _FILE_HEADER.size
RECORD_HEADER_BYTES = _RECORD_HEADER.size
_CRC_BYTES = 4

Record = tuple[bytes, int, int]
"""An entry as pysyncobj knows it: payload, index, term."""

Run = tuple[int, int]
"""Index and term of the first of consecutive records of one term."""


class JournalError(Exception):
    """The files of a log cannot be used as they are."""


class CorruptJournal(JournalError):
    """Something that was on stable storage is damaged or missing."""

    def __init__(self, path: str, offset: int, what: str) -> None:
        super().__init__(f"{path}: offset {offset}: {what}")
        self.path = path
        self.offset = offset


class UnknownFormat(JournalError):
    """A file was written by a version of this program with another format."""

    def __init__(self, path: str, version: int | None = None) -> None:
        what = "this format" if version is None else f"format version {version}"
        super().__init__(f"{path}: {what} is unknown; start the program version that wrote it")
        self.path = path
        self.version = version


class ForeignJournal(JournalError):
    """A file belongs to another node, cluster or group."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path}: belongs to another node, cluster or group; check the data directory setting"
        )
        self.path = path


class EntryGone(LookupError):
    """An entry that is asked for is not held, or not any more."""


class EntryMoved(EntryGone):
    """An entry is not where it was when it was asked for: it is elsewhere now, or gone."""


@dataclass(slots=True, eq=False)
class Segment:
    """One segment file of a log."""

    name: str
    first: int
    end: int
    """Index after the last record, or after the range that a sparse segment stands for."""

    file_bytes: int
    """Length of the file in bytes once everything added so far is written."""

    sparse: bool
    """Whether the segment holds only some entries of its range, those that are still needed."""

    sealed: bool
    """Whether the file is durable as a whole, with its footer, and does not change any more."""

    @classmethod
    def sealed_file(cls, name: str, first: int, end: int, file_bytes: int, *, sparse: bool) -> Segment:
        return cls(name, first, end, file_bytes, sparse, sealed=True)


@dataclass(slots=True, eq=False)
class RecordIndex:
    """Where the records of one file are: four bytes for each, eight in a sparse segment."""

    name: str
    """The name of the file."""

    first: int
    """Index of the first record of a dense segment; where the range of a sparse one begins."""

    size: int = FILE_HEADER_BYTES
    """Offset after the last record, once everything added so far is written."""

    offsets: array[int] = field(default_factory=lambda: array("I"))
    """Where each record begins in the file."""

    indexes: array[int] | None = None
    """In a sparse segment, the index of each record, less `first`; None in a dense one."""

    runs: Sequence[Run] = ()
    """The terms of a segment that is being sealed, or is sealed."""

    @property
    def end(self) -> int:
        """Index after the last record of a dense segment."""
        return self.first + len(self.offsets)

    def extent(self, index: int) -> tuple[int, int]:
        """Offsets of the start and the end of a record; raises EntryGone if a sparse segment has none."""
        position = index - self.first
        if self.indexes is not None:
            wanted, position = position, bisect_left(self.indexes, position)
            if position == len(self.indexes) or self.indexes[position] != wanted:
                raise EntryGone(f"no entry {index} in {self.name}")
        following = position + 1
        end = self.offsets[following] if following < len(self.offsets) else self.size
        return self.offsets[position], end

    def fitting(self, index: int, budget: int) -> tuple[int, int]:
        """How far `budget` bytes of records reach from `index` on, in a dense segment.

        Returns the index after the last record that fits, and what is left of the budget at the segment's end, else 0.
        """
        start = self.offsets[index - self.first]
        if self.size - start <= budget:
            return self.end, budget - (self.size - start)
        return self.first + bisect_right(self.offsets, start + budget) - 1, 0

    def cut_from(self, index: int) -> RecordIndex:
        """Make an index of the records before this one."""
        position = index - self.first
        return RecordIndex(self.name, self.first, self.offsets[position], self.offsets[:position])


class Extent(NamedTuple):
    """Consecutive records of one term in one file."""

    name: str
    """The name of the file."""

    start: int
    """Offset of the first record; `end` is the offset after the last one."""

    end: int
    first: int
    """Index of the first record."""

    after: int
    """Index after the last record."""

    term: int

    def joins(self, other: Extent, bytes_max: int) -> bool:
        """Whether `other` follows at once, and both together have `bytes_max` at most."""
        return (
            other.name == self.name
            and other.first == self.after
            and other.term == self.term
            and other.end - self.start <= bytes_max
        )

    def join(self, other: Extent) -> Extent:
        return self._replace(end=other.end, after=other.after)


class Scan(NamedTuple):
    """The records of a file up to the first bad one."""

    records: RecordIndex
    runs: list[Run]


class FileHeader(NamedTuple):
    first: int
    end: int
    """Index after the range of a sparse segment; 0 in a dense one."""

    seed: int


def path_in(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


# The header of a file


def file_seed(identity: bytes, name: str) -> int:
    """Start value of the header checksums of a new file; first index and serial number are in the name."""
    return crc32(name.encode(), crc32(identity))


def pack_file_header(identity: bytes, header: FileHeader) -> bytes:
    digest = sha256(identity).digest()
    start = _FILE_HEADER.pack(_FILE_MAGIC, FORMAT_VERSION, digest, *header, 0)[:-_CRC_BYTES]
    return start + crc32(start).to_bytes(_CRC_BYTES, "little")


def unpack_file_header(data: bytes, path: str, identity: bytes) -> FileHeader:
    """Read the header at the start of `data`; raises CorruptJournal, UnknownFormat or ForeignJournal."""
    digest, header = _unpack_header(data, path)
    if digest != sha256(identity).digest():
        raise ForeignJournal(path)
    return header


def adopt_header(data: bytes, identity: bytes) -> bytes:
    """Rewrite the beginning of a segment of another node of the cluster, so that it belongs to `identity`.

    `data` must hold the whole header. Raises CorruptJournal or UnknownFormat.
    """
    _, header = _unpack_header(data, "received segment")
    return pack_file_header(identity, header) + data[FILE_HEADER_BYTES:]


def _unpack_header(data: bytes, path: str) -> tuple[bytes, FileHeader]:
    start = data[:FILE_HEADER_BYTES]
    if len(start) < FILE_HEADER_BYTES:
        raise CorruptJournal(path, 0, "the file header is cut short")
    magic, version, digest, first, end, seed, crc = _FILE_HEADER.unpack(start)
    # First the checksum: a version that was damaged is not another version.
    if crc != crc32(start[:-_CRC_BYTES]):
        raise CorruptJournal(path, 0, "wrong checksum of the file header")
    if magic != _FILE_MAGIC:
        raise CorruptJournal(path, 0, "not a segment")
    if version != FORMAT_VERSION:
        raise UnknownFormat(path, version)
    return digest, FileHeader(first, end, seed)


# Records


def pack_records(records: Iterable[Record], durable: int, seed: int) -> list[Buffer]:
    """Pack records as buffers to be written: header, payload, header, payload and so on; no payload is copied."""
    buffers: list[Buffer] = []
    pack = _RECORD_START.pack
    for payload, index, term in records:
        start = pack(_RECORD_MAGIC, len(payload), crc32(payload), index, term, durable)
        buffers.append(start + crc32(start, seed).to_bytes(_CRC_BYTES, "little"))
        buffers.append(payload)
    return buffers


def scan_records(data: bytes, path: str, name: str, header: FileHeader) -> Scan:
    """Find all records up to the first bad one; raises CorruptJournal if their indexes are wrong."""
    index = RecordIndex(name, header.first, indexes=array("I") if header.end else None)
    runs: list[Run] = []
    view = memoryview(data)
    offset, lowest, last_term = FILE_HEADER_BYTES, header.first, -1
    while (record := _record_at(data, offset, header.seed)) is not None:
        found, term, end, payload_crc = record
        if end > len(data) or crc32(view[offset + RECORD_HEADER_BYTES : end]) != payload_crc:
            break
        if index.indexes is not None:
            if not lowest <= found < header.end:
                raise CorruptJournal(path, offset, f"index {found} is not from {lowest} to {header.end - 1}")
            index.indexes.append(found - header.first)
        elif found != lowest:
            raise CorruptJournal(path, offset, f"gap in the log: index {found} where {lowest} should be")
        if term != last_term:
            runs.append((found, term))
            last_term = term
        index.offsets.append(offset)
        offset = end
        lowest = found + 1
    index.size = offset
    return Scan(index, runs)


def check_tail(data: bytes, path: str, bad: int, seed: int, *, writes_lost: bool) -> None:
    """Check that what begins at `bad` is a torn tail of the open segment; raises CorruptJournal if not.

    It is none if a later record tells that it was durable. Unless `writes_lost`, it is none either if the file does not
    end within that record: a process that was merely killed loses nothing that it had written, so what it leaves behind
    the last whole record is the beginning of one, or nothing.
    """
    if _durable_claim(data, bad, seed) > bad:
        raise CorruptJournal(path, bad, "bad record, which a later record knows to have been durable")
    if not writes_lost and not _is_cut_short(data, bad, seed):
        raise CorruptJournal(path, bad, "bad record, and no write can have been lost")


def _is_cut_short(data: bytes, start: int, seed: int) -> bool:
    """Whether a record begins at `start` and the file ends before that record does."""
    if len(data) - start < RECORD_HEADER_BYTES:
        return data[start : start + 4] == _RECORD_MAGIC_BYTES[: len(data) - start]
    record = _record_at(data, start, seed)
    return record is not None and record[2] > len(data)


def _record_at(data: bytes, offset: int, seed: int) -> tuple[int, int, int, int] | None:
    """Index, term, end and payload checksum of the record at this offset; None without a valid record header.

    This is called for each record of a backlog that is read; copying so few bytes is cheaper than a view of them.
    """
    start = offset + RECORD_HEADER_BYTES
    if start > len(data):
        return None
    magic, length, payload_crc, index, term, _, crc = _RECORD_HEADER.unpack_from(data, offset)
    if magic != _RECORD_MAGIC or crc != crc32(data[offset : offset + _RECORD_START.size], seed):
        return None
    return index, term, start + length, payload_crc


def _durable_claim(data: bytes, start: int, seed: int) -> int:
    """The highest offset that any record from `start` on says to have been durable; 0 if there is none."""
    claim = 0
    offset = data.find(_RECORD_MAGIC_BYTES, start)
    while offset >= 0:
        if _record_at(data, offset, seed) is not None:
            claim = max(claim, _RECORD_HEADER.unpack_from(data, offset)[5])
        offset = data.find(_RECORD_MAGIC_BYTES, offset + 1)
    return claim


# Reading


def read_at(file: File, path: str, offset: int, length: int) -> bytes:
    """Read from a file; raises CorruptJournal if the disk cannot read that any more, or the file ends before."""
    try:
        data = file.pread(offset, length)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise CorruptJournal(path, offset, f"cannot be read: {error.strerror}") from error
    if len(data) < length:
        raise CorruptJournal(path, offset + len(data), "the file ends here")
    return data


def read_extent(file: File, path: str, seed: int, extent: Extent) -> list[bytes]:
    """Read and verify the payloads of consecutive records; raises CorruptJournal."""
    data = read_at(file, path, extent.start, extent.end - extent.start)
    payloads: list[bytes] = []
    offset = 0
    for index in range(extent.first, extent.after):
        record = _record_at(data, offset, seed)
        if record is None or record[:2] != (index, extent.term) or record[2] > len(data):
            raise CorruptJournal(path, extent.start + offset, f"entry {index} is not there")
        payload = data[offset + RECORD_HEADER_BYTES : record[2]]
        if crc32(payload) != record[3]:
            raise CorruptJournal(path, extent.start + offset, f"wrong checksum of entry {index}")
        payloads.append(payload)
        offset = record[2]
    if offset != len(data):
        raise CorruptJournal(path, extent.start + offset, f"entry {extent.after - 1} ends too early")
    return payloads
