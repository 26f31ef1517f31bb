"""A segment of the log: a file of checksummed records, and the index of their places in the file.

    file   = header | record... | footer, once it is sealed
    header = "RLOG" | version u32 | sha256 of the identity | first u64 | end u64, 0 if dense | seed u32 | crc32 u32
    record = magic u32 | length u32 | payload crc32 u32 | index u64 | term u64 | durable u64 | crc32 u32 | payload

Integers are little endian. The checksum of a record's header starts with the file's seed. So a record of a different
file, left in a reused disk block or sent in a payload, is invalid here. The seed is stored in the file header, so a
segment that comes from a peer becomes this node's segment by a new file header.

Invariant: data counts only if its checksum is right, and data that was on stable storage is never dropped as a torn
tail. Each record says how much of its file was durable when it was written, so a later record proves damage of an
earlier record. If you change the format, increment `FORMAT_VERSION`; magic, version and checksum of the file header
keep their place.
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
_RECORD_HEADER = Struct("<IIIQQQI")  # the same fields, then the crc of all bytes before it

FILE_HEADER_BYTES = _FILE_HEADER.size
RECORD_HEADER_BYTES = _RECORD_HEADER.size
_CRC_BYTES = 4

Record = tuple[bytes, int, int]
"""An entry as pysyncobj knows it: payload, index, term."""

Run = tuple[int, int]
"""Index and term of the first of consecutive records with the same term."""


class JournalError(Exception):
    """Base of all errors about unusable files of a log."""


class CorruptJournal(JournalError):
    """Data that was on stable storage is damaged or missing."""

    def __init__(self, path: str, offset: int, what: str) -> None:
        super().__init__(f"{path}: offset {offset}: {what}")
        self.path = path
        self.offset = offset


class UnknownFormat(JournalError):
    """A file was written by a version of this program with a different format."""

    def __init__(self, path: str, version: int | None = None) -> None:
        what = "this format" if version is None else f"format version {version}"
        super().__init__(f"{path}: {what} is unknown; start the program version that wrote it")
        self.path = path
        self.version = version


class ForeignJournal(JournalError):
    """A file belongs to a different node, cluster or group."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path}: belongs to another node, cluster or group; check the data directory setting"
        )
        self.path = path


class EntryNotFound(LookupError):
    """The requested entry is not in the log, or no longer."""


class EntryMoved(EntryNotFound):
    """The requested entry was moved to a different file, or removed, after the request."""


@dataclass(slots=True, eq=False)
class Segment:
    """A segment file of a log."""

    name: str
    first: int
    end: int
    """Index after the last record; in a sparse segment, index after its range."""

    file_bytes: int
    """Length of the file in bytes once everything added so far is written."""

    sparse: bool
    """Whether the segment holds only the live entries of its range."""

    sealed: bool
    """Whether the whole file is durable, with its footer, and never changes again."""

    @classmethod
    def sealed_file(cls, name: str, first: int, end: int, file_bytes: int, *, sparse: bool) -> Segment:
        return cls(name, first, end, file_bytes, sparse, sealed=True)


@dataclass(slots=True, eq=False)
class RecordIndex:
    """Offsets of the records of a file: four bytes of memory per record, eight in a sparse segment."""

    name: str
    """Name of the file."""

    first: int
    """Index of the first record of a dense segment; first index of the range of a sparse segment."""

    size: int = FILE_HEADER_BYTES
    """Offset after the last record, once everything added so far is written."""

    offsets: array[int] = field(default_factory=lambda: array("I"))
    """File offset of each record."""

    indexes: array[int] | None = None
    """In a sparse segment, the index of each record, less `first`; `None` in a dense segment."""

    runs: Sequence[Run] = ()
    """Terms of the records, set when the segment is being sealed."""

    @property
    def end(self) -> int:
        """Index after the last record of a dense segment."""
        return self.first + len(self.offsets)

    def extent(self, index: int) -> tuple[int, int]:
        """Return the start and end offset of a record; raises EntryNotFound if a sparse segment lacks it."""
        position = index - self.first
        if self.indexes is not None:
            wanted, position = position, bisect_left(self.indexes, position)
            if position == len(self.indexes) or self.indexes[position] != wanted:
                raise EntryNotFound(f"no entry {index} in {self.name}")
        following = position + 1
        end = self.offsets[following] if following < len(self.offsets) else self.size
        return self.offsets[position], end

    def fitting(self, index: int, budget: int) -> tuple[int, int]:
        """Return how far `budget` bytes of records reach from `index` on, in a dense segment.

        The result is the index after the last record that fits, and the budget that is left at the segment's end. The
        budget that is left is 0 if the records do not all fit.
        """
        start = self.offsets[index - self.first]
        if self.size - start <= budget:
            return self.end, budget - (self.size - start)
        return self.first + bisect_right(self.offsets, start + budget) - 1, 0

    def cut_from(self, index: int) -> RecordIndex:
        """Return an index of the records before this log index."""
        position = index - self.first
        return RecordIndex(self.name, self.first, self.offsets[position], self.offsets[:position])


class Extent(NamedTuple):
    """Consecutive records of the same term in a file."""

    name: str
    """Name of the file."""

    start: int
    """Offset of the first record; `end` is the offset after the last record."""

    end: int
    first: int
    """Index of the first record."""

    after: int
    """Index after the last record."""

    term: int

    def joins(self, other: Extent, bytes_max: int) -> bool:
        """Return whether `other` directly follows this extent, and both together have at most `bytes_max` bytes."""
        return (
            other.name == self.name
            and other.first == self.after
            and other.term == self.term
            and other.end - self.start <= bytes_max
        )

    def join(self, other: Extent) -> Extent:
        return self._replace(end=other.end, after=other.after)


class Scan(NamedTuple):
    """The records of a file up to the first bad record."""

    records: RecordIndex
    runs: list[Run]


class FileHeader(NamedTuple):
    first: int
    end: int
    """Index after the range of a sparse segment; 0 in a dense segment."""

    seed: int


def path_in(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


# The header of a file


def file_seed(identity: bytes, name: str) -> int:
    """Return the start value for the record header checksums of a new file.

    It depends on the identity and on the name, which has the first index and the serial number.
    """
    return crc32(name.encode(), crc32(identity))


def pack_file_header(identity: bytes, header: FileHeader) -> bytes:
    digest = sha256(identity).digest()
    start = _FILE_HEADER.pack(_FILE_MAGIC, FORMAT_VERSION, digest, *header, 0)[:-_CRC_BYTES]
    return start + crc32(start).to_bytes(_CRC_BYTES, "little")


def unpack_file_header(data: bytes, path: str, identity: bytes) -> FileHeader:
    """Return the file header at the start of `data`; raises CorruptJournal, UnknownFormat or ForeignJournal."""
    digest, header = _unpack_header(data, path)
    if digest != sha256(identity).digest():
        raise ForeignJournal(path)
    return header


def adopt_header(data: bytes, identity: bytes) -> bytes:
    """Rewrite the file header of another node's segment so that the file belongs to `identity`; return the new bytes.

    `data` is the segment or its beginning, and must hold the whole header. Raises CorruptJournal or UnknownFormat.
    """
    _, header = _unpack_header(data, "received segment")
    return pack_file_header(identity, header) + data[FILE_HEADER_BYTES:]


def _unpack_header(data: bytes, path: str) -> tuple[bytes, FileHeader]:
    start = data[:FILE_HEADER_BYTES]
    if len(start) < FILE_HEADER_BYTES:
        raise CorruptJournal(path, 0, "the file header is cut short")
    magic, version, digest, first, end, seed, crc = _FILE_HEADER.unpack(start)
    # The checksum is checked first, because a damaged version number must count as damage and not as an unknown format.
    if crc != crc32(start[:-_CRC_BYTES]):
        raise CorruptJournal(path, 0, "wrong checksum of the file header")
    if magic != _FILE_MAGIC:
        raise CorruptJournal(path, 0, "not a segment")
    if version != FORMAT_VERSION:
        raise UnknownFormat(path, version)
    return digest, FileHeader(first, end, seed)


# Records


def pack_records(records: Iterable[Record], durable: int, seed: int) -> list[Buffer]:
    """Return the records as buffers to write: header, payload, header, payload and so on, without copying payloads."""
    buffers: list[Buffer] = []
    pack = _RECORD_START.pack
    for payload, index, term in records:
        start = pack(_RECORD_MAGIC, len(payload), crc32(payload), index, term, durable)
        buffers.append(start + crc32(start, seed).to_bytes(_CRC_BYTES, "little"))
        buffers.append(payload)
    return buffers


def scan_records(data: bytes, path: str, name: str, header: FileHeader) -> Scan:
    """Return all records up to the first bad record; raises CorruptJournal if their indexes are wrong."""
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
    """Check that the bytes from the offset `bad` on are a torn tail of the open segment; raises CorruptJournal if not.

    The bytes are damage if a later record says that they were durable. They are also damage if `writes_lost` is false
    and the file does not end within the bad record. A killed process loses no completed write, so after the last whole
    record it can leave only the beginning of a record.
    """
    if _durable_claim(data, bad, seed) > bad:
        raise CorruptJournal(path, bad, "bad record, which a later record knows to have been durable")
    if not writes_lost and not _is_cut_short(data, bad, seed):
        raise CorruptJournal(path, bad, "bad record, and no write can have been lost")


def _is_cut_short(data: bytes, start: int, seed: int) -> bool:
    """Return whether a record begins at `start` and the file ends before the end of that record."""
    if len(data) - start < RECORD_HEADER_BYTES:
        return data[start : start + 4] == _RECORD_MAGIC_BYTES[: len(data) - start]
    record = _record_at(data, start, seed)
    return record is not None and record[2] > len(data)


def _record_at(data: bytes, offset: int, seed: int) -> tuple[int, int, int, int] | None:
    """Return index, term, end and payload checksum of the record at this offset, `None` if its header is invalid.

    This runs for each record when a backlog is read. Copying the few header bytes is cheaper than making a view.
    """
    start = offset + RECORD_HEADER_BYTES
    if start > len(data):
        return None
    magic, length, payload_crc, index, term, _, crc = _RECORD_HEADER.unpack_from(data, offset)
    if magic != _RECORD_MAGIC or crc != crc32(data[offset : offset + _RECORD_START.size], seed):
        return None
    return index, term, start + length, payload_crc


def _durable_claim(data: bytes, start: int, seed: int) -> int:
    """Return the highest durable offset that the records from `start` on claim; 0 if no valid record follows."""
    claim = 0
    offset = data.find(_RECORD_MAGIC_BYTES, start)
    while offset >= 0:
        if _record_at(data, offset, seed) is not None:
            claim = max(claim, _RECORD_HEADER.unpack_from(data, offset)[5])
        offset = data.find(_RECORD_MAGIC_BYTES, offset + 1)
    return claim


# Reading


def read_at(file: File, path: str, offset: int, length: int) -> bytes:
    """Read `length` bytes; raises CorruptJournal if the disk cannot read them or the file is too short."""
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
