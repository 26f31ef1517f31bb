"""The sync mark: a file that records how many bytes of the open segment are on stable storage.

    file = "RSYN" | version u32 | name of the open segment, 64 bytes | bytes synced u64 | crc32 u32 of all before it

The checksum starts with the identity, so the mark of a different node is invalid. Integers are little endian.

Invariant: the mark never claims more than what is on stable storage. The writer raises it after a sync of the segment,
without a sync of the mark. So after a kill the mark is exact, and after a power loss it is an older or an invalid mark.
The writer lowers the mark durably before it cuts the segment. So a segment with fewer bytes than its mark is damaged. A
segment with more bytes than its mark may be damaged or whole.
"""

from __future__ import annotations

import errno
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from cluster.log.segment import UnknownFormat, path_in

if TYPE_CHECKING:
    from cluster.runtime.ports import Disk, File

MARK_NAME = "synced"
FORMAT_VERSION = 1

_MAGIC = b"RSYN"
_START = Struct("<4sI64sQ")
_CRC_BYTES = 4


class Mark(NamedTuple):
    name: str = ""
    """Name of the segment; empty before the first segment. A mark whose segment is not the open segment is ignored."""

    size: int = 0
    """Number of bytes of the segment that are known to be on stable storage."""


class MarkFile:
    """The mark's file in `directory`, which the segment writer keeps open."""

    def __init__(self, disk: Disk, directory: str, identity: bytes) -> None:
        self._disk = disk
        self._path = path_in(directory, MARK_NAME)
        self._identity = identity
        self._file: File | None = None

    def write(self, mark: Mark) -> File:
        """Overwrite the mark and return its file; the caller must sync the file to make the mark durable.

        Raises OSError.
        """
        if self._file is None:
            self._file = self._disk.open(self._path)
        self._file.overwrite(_pack(mark, self._identity))
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def load_mark(disk: Disk, directory: str, identity: bytes) -> Mark | None:
    """Return the mark, or `None` if it is missing or damaged. Raises UnknownFormat or OSError."""
    path = path_in(directory, MARK_NAME)
    try:
        data = disk.read_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None
    start, crc = data[:-_CRC_BYTES], int.from_bytes(data[-_CRC_BYTES:], "little")
    if len(start) != _START.size or crc != crc32(start, crc32(identity)):
        return None
    magic, version, name, size = _START.unpack(start)
    if magic != _MAGIC:
        return None
    if version != FORMAT_VERSION:
        raise UnknownFormat(path, version)
    return Mark(name.rstrip(b"\0").decode(), size)


def store_mark(disk: Disk, directory: str, identity: bytes, mark: Mark) -> None:
    """Store the mark durably; needs no space if the file exists. Raises OSError."""
    path, data = path_in(directory, MARK_NAME), _pack(mark, identity)
    try:
        disk.overwrite_file(path, data)
    except (FileNotFoundError, ValueError):
        disk.replace_file(path, data)


def _pack(mark: Mark, identity: bytes) -> bytes:
    start = _START.pack(_MAGIC, FORMAT_VERSION, mark.name.encode(), mark.size)
    return start + crc32(start, crc32(identity)).to_bytes(_CRC_BYTES, "little")
