"""One segment of the log: an append-only file of checksummed records, and the index of where its records are.

Lives here: the file format, packing, scanning and reading of one file. Which segments exist and when they are
written is `journal.py`'s business.

Law: nothing is believed without its checksum, and what was once on stable storage is never dropped as a torn
tail. Each record says how much of its file was durable when it was written, so a later record convicts an
earlier bad one. If you change the format, increment `FORMAT_VERSION`; magic and version keep their place.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from hashlib import sha256
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cluster.ports import Buffer, File

FORMAT_VERSION = 1
PAYLOAD_BYTES_MAX = 2**32 - 1  # the length field
SEGMENT_BYTES_MAX = 2**32 - 1  # offsets are kept as u32

_FILE_MAGIC = b"RLOG"
_FILE_HEADER = Struct(
    "<4sI32sQI"
)  # magic, version, sha256 of the identity, first index, crc of what precedes
_RECORD_MAGIC = 0xD1B54A32
_RECORD_MAGIC_BYTES = _RECORD_MAGIC.to_bytes(4, "little")
_RECORD_START = Struct("<IIIQQQ")  # magic, payload length, payload crc, index, term, durable
_RECORD_HEADER = Struct("<IIIQQQI")  # the same and the crc of what precedes

FILE_HEADER_BYTES = _FILE_HEADER.size
RECORD_HEADER_BYTES = _RECORD_HEADER.size
_CRC_BYTES = 4

Record = tuple[bytes, int, int]
"""Payload, index, term: what pysyncobj calls an entry."""

REPLACE_MEMBER = "remove this member from the cluster, empty its data directory and add it again"


class JournalError(Exception):
    """The files of a log cannot be used as they are."""


class CorruptJournal(JournalError):
    """Something that was on stable storage is damaged or missing."""

    def __init__(self, path: str, offset: int, what: str) -> None:
        super().__init__(f"{path}: offset {offset}: {what}; {REPLACE_MEMBER}")
        self.path = path
        self.offset = offset


class UnknownFormat(JournalError):
    """A file was written by a version of this program with another format."""

    def __init__(self, path: str, version: int) -> None:
        super().__init__(
            f"{path}: format version {version} is unknown, this program reads version {FORMAT_VERSION}; "
            "start the program version that wrote it"
        )
        self.path = path


class ForeignJournal(JournalError):
    """A file belongs to another cluster or group."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: belongs to another cluster or group; check the data directory setting")
        self.path = path


class EntryGone(LookupError):
    """The entry is not in the log: never was, or has been deleted since it was asked for."""


@dataclass(slots=True)
class Segment:
    """Where the records of one file are: four bytes per record."""

    first: int
    """Index of the first record, also the name of the file."""

    size: int = FILE_HEADER_BYTES
    """Length of the file once everything added so far is written."""

    offsets: array[int] = field(default_factory=lambda: array("I"))

    @property
    def end(self) -> int:
        """Index after the last record."""
        return self.first + len(self.offsets)

    def extent(self, index: int) -> tuple[int, int]:
        """Offsets of the start and the end of a record."""
        position = index - self.first
        following = position + 1
        end = self.offsets[following] if following < len(self.offsets) else self.size
        return self.offsets[position], end

    def fitting(self, index: int, budget: int) -> tuple[int, int]:
        """Index after the last record within `budget` bytes from the start of `index`; the rest."""
        start = self.offsets[index - self.first]
        if self.size - start <= budget:
            return self.end, budget - (self.size - start)
        return self.first + bisect_right(self.offsets, start + budget) - 1, 0

    def cut_from(self, index: int) -> None:
        """Forget this record and all after it."""
        position = index - self.first
        self.size = self.offsets[position]
        del self.offsets[position:]


class Extent(NamedTuple):
    """Consecutive records of one term in one segment."""

    segment: int
    """First index of the segment."""

    start: int
    end: int
    first: int
    after: int
    """Index after the last record."""

    term: int

    def joins(self, other: Extent, bytes_max: int) -> bool:
        """Whether `other` follows at once, and both together are worth one read."""
        return (
            other.segment == self.segment
            and other.first == self.after
            and other.term == self.term
            and other.end - self.start <= bytes_max
        )

    def join(self, other: Extent) -> Extent:
        return self._replace(end=other.end, after=other.after)


class Scan(NamedTuple):
    """What a file holds."""

    segment: Segment
    terms: list[tuple[int, int]]
    """Index and term wherever a record's term differs from that of the record before it in this file."""


def segment_name(first: int) -> str:
    return f"{first:020}.segment"


def pack_file_header(identity: bytes, first: int) -> bytes:
    start = _FILE_HEADER.pack(_FILE_MAGIC, FORMAT_VERSION, sha256(identity).digest(), first, 0)[:-_CRC_BYTES]
    return start + crc32(start).to_bytes(_CRC_BYTES, "little")


def record_seed(identity: bytes, first: int) -> int:
    """Start value of the header checksums of one file.

    A record of another file, left in a reused disk block or sent in a payload, is no record here.
    """
    # The crc over a header *with* its crc would be the same for every file.
    return crc32(pack_file_header(identity, first)[:-_CRC_BYTES])


def pack_records(records: Iterable[Record], durable: int, seed: int) -> list[Buffer]:
    """Header, payload, header, payload, ...: the payloads themselves, not copies."""
    buffers: list[Buffer] = []
    pack = _RECORD_START.pack
    for payload, index, term in records:
        start = pack(_RECORD_MAGIC, len(payload), crc32(payload), index, term, durable)
        buffers.append(start + crc32(start, seed).to_bytes(_CRC_BYTES, "little"))
        buffers.append(payload)
    return buffers


def scan(data: bytes, path: str, identity: bytes, first: int, *, last: bool) -> Scan:
    """Verify a whole file; the segment's size is less than the data's when the last file has a torn tail.

    Raises CorruptJournal, UnknownFormat or ForeignJournal.
    """
    seed = record_seed(identity, first)
    if _header_is_whole(data, path, identity, first):
        found = _scan_records(data, path, seed, first)
    else:
        found = Scan(Segment(first, size=0), [])
    bad = found.segment.size
    if bad < len(data) or not found.segment.offsets:
        if not last:
            raise CorruptJournal(path, bad, "bad record in a segment that is not the last")
        if _durable_claim(data, bad, seed) > bad:
            raise CorruptJournal(path, bad, "bad record, which a later record knows to have been durable")
    return found


def _header_is_whole(data: bytes, path: str, identity: bytes, first: int) -> bool:
    """Whether the file header survived; one that is whole but not ours is an error."""
    expected = pack_file_header(identity, first)
    start = data[:FILE_HEADER_BYTES]
    if start == expected:
        return True
    if len(start) < FILE_HEADER_BYTES:
        return False
    magic, version, digest, stored_first, crc = _FILE_HEADER.unpack(start)
    if magic != _FILE_MAGIC or crc != crc32(start[:-_CRC_BYTES]):
        return False
    if version != FORMAT_VERSION:
        raise UnknownFormat(path, version)
    if digest != sha256(identity).digest():
        raise ForeignJournal(path)
    raise CorruptJournal(path, 0, f"the name says first index {first}, the file says {stored_first}")


def _scan_records(data: bytes, path: str, seed: int, first: int) -> Scan:
    """All records up to the first bad one."""
    segment = Segment(first)
    terms: list[tuple[int, int]] = []
    view = memoryview(data)
    offset, expected, last_term = FILE_HEADER_BYTES, first, -1
    while (record := _record_at(view, offset, seed)) is not None:
        index, term, end, payload_crc = record
        if end > len(data) or crc32(view[offset + RECORD_HEADER_BYTES : end]) != payload_crc:
            break
        if index != expected:
            raise CorruptJournal(path, offset, f"gap in the log: index {index} where {expected} should be")
        if term != last_term:
            terms.append((index, term))
            last_term = term
        segment.offsets.append(offset)
        offset = end
        expected += 1
    segment.size = offset
    return Scan(segment, terms)


def _record_at(view: memoryview, offset: int, seed: int) -> tuple[int, int, int, int] | None:
    """Index, term, end and payload checksum if there is a valid record header here."""
    if len(view) - offset < RECORD_HEADER_BYTES:
        return None
    magic, length, payload_crc, index, term, _, crc = _RECORD_HEADER.unpack_from(view, offset)
    if magic != _RECORD_MAGIC or crc != crc32(view[offset : offset + _RECORD_START.size], seed):
        return None
    return index, term, offset + RECORD_HEADER_BYTES + length, payload_crc


def _durable_claim(data: bytes, start: int, seed: int) -> int:
    """Highest offset that any valid record header at or after `start` knows to be durable."""
    claim = 0
    view = memoryview(data)
    offset = data.find(_RECORD_MAGIC_BYTES, start)
    while offset >= 0:
        if _record_at(view, offset, seed) is not None:
            claim = max(claim, _RECORD_HEADER.unpack_from(view, offset)[5])
        offset = data.find(_RECORD_MAGIC_BYTES, offset + 1)
    return claim


def read_extent(file: File, path: str, seed: int, extent: Extent) -> list[bytes]:
    """Payloads of consecutive records, each verified; raises CorruptJournal."""
    data = file.pread(extent.start, extent.end - extent.start)
    view = memoryview(data)
    payloads: list[bytes] = []
    offset = 0
    for index in range(extent.first, extent.after):
        record = _record_at(view, offset, seed)
        if record is None or record[:2] != (index, extent.term) or record[2] > len(data):
            raise CorruptJournal(path, extent.start + offset, f"entry {index} is not there")
        payload = data[offset + RECORD_HEADER_BYTES : record[2]]
        if crc32(payload) != record[3]:
            raise CorruptJournal(path, extent.start + offset, f"wrong checksum of entry {index}")
        payloads.append(payload)
        offset = record[2]
    return payloads
