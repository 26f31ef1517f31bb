"""The mark: how much of the open segment is known to be on stable storage, kept outside that segment.

    file = "RSYN" | version u32 | name of the open segment, 64 bytes | bytes synced u64 | crc32 u32 of all before it

The checksum starts with the identity: another node's mark is none. Integers are little endian.

Invariant: the mark is never ahead of what is on stable storage. It is raised after a sync, without one of its own: a
process that is killed leaves it exact, and a power loss leaves an earlier one or none that can be believed. It is
lowered, durably, before the segment is cut. So a file that holds less than its mark says is damaged; of one that holds
more, nothing follows.
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
    """The name of the segment, empty if none was open yet. A mark of a segment that is not open says nothing."""

    size: int = 0
    """How many bytes of the segment are known to be on stable storage."""


class MarkFile:
    """The file with the mark in `directory`, kept open by the one that writes it."""

    def __init__(self, disk: Disk, directory: str, identity: bytes) -> None:
        self._disk = disk
        self._path = path_in(directory, MARK_NAME)
        self._identity = identity
        self._file: File | None = None

    def write(self, mark: Mark) -> File:
        """Overwrite the mark. Returns the file, which must be synced if it shall be durable; raises OSError."""
        if self._file is None:
            self._file = self._disk.open(self._path)
        self._file.overwrite(_pack(mark, self._identity))
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def load_mark(disk: Disk, directory: str, identity: bytes) -> Mark | None:
    """Read the mark; None if there is none that can be believed. Raises UnknownFormat or OSError."""
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
    """Store the mark, durably when this returns; needs no space if the file is there. Raises OSError."""
    path, data = path_in(directory, MARK_NAME), _pack(mark, identity)
    try:
        disk.overwrite_file(path, data)
    except (FileNotFoundError, ValueError):
        disk.replace_file(path, data)


def _pack(mark: Mark, identity: bytes) -> bytes:
    start = _START.pack(_MAGIC, FORMAT_VERSION, mark.name.encode(), mark.size)
    return start + crc32(start, crc32(identity)).to_bytes(_CRC_BYTES, "little")
