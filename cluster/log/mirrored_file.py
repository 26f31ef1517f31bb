"""Mirrored files: small files that hold their content twice, so damage at a single place of the disk loses no data.

    file = copy | padding to a multiple of 512 bytes | the same again
    copy = magic 4 bytes | version u32 | sha256 of the identity | length u32 | body | crc32 u32 of all before it

Integers are little endian.

Invariant: a copy counts only if its checksum is right. A whole copy of a foreign owner or an unknown format is an
error, even if the second copy is fine.
"""

from __future__ import annotations

import errno
import logging
from contextlib import contextmanager
from hashlib import sha256
from struct import Struct
from typing import TYPE_CHECKING, TypeVar
from zlib import crc32

from cluster.log.segment import CorruptJournal, ForeignJournal, UnknownFormat

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from cluster.runtime.ports import Disk, File

log = logging.getLogger(__name__)

T = TypeVar("T")

SECTOR_BYTES = 512

_START = Struct("<4sI32sI")
_CRC_BYTES = 4


def pack_twice(magic: bytes, version: int, identity: bytes, body: bytes) -> bytes:
    start = _START.pack(magic, version, sha256(identity).digest(), len(body)) + body
    copy = start + crc32(start).to_bytes(_CRC_BYTES, "little")
    return (copy + bytes(-len(copy) % SECTOR_BYTES)) * 2


def read_twice(disk: Disk, path: str, magic: bytes, version: int, identity: bytes) -> bytes:
    """Return the body of a mirrored file; a copy that the disk cannot read counts as damaged.

    Raises CorruptJournal if both copies are damaged, UnknownFormat, ForeignJournal or FileNotFoundError.
    """
    return whole_of(read_copies(disk, path, magic, version, identity), path)


def whole_of(copies: Sequence[T | None], path: str) -> T:
    """Return the first undamaged copy. Raises CorruptJournal if both are damaged."""
    whole = [copy for copy in copies if copy is not None]
    if not whole:
        raise CorruptJournal(path, 0, "both copies of the content are damaged")
    if len(whole) < len(copies):
        log.warning("%s: one of the two copies of the content is damaged; the other one is used", path)
    return whole[0]


def read_copies(disk: Disk, path: str, magic: bytes, version: int, identity: bytes) -> list[bytes | None]:
    """Return the bodies of both copies, `None` for a damaged copy.

    Raises UnknownFormat, ForeignJournal, or FileNotFoundError.
    """
    file = disk.open(path)
    try:
        half = file.size // 2
        first, second = _read(file, 0, half), _read(file, half, file.size - half)
    finally:
        file.close()
    return [_body(copy, path, magic, version, identity) for copy in (first + second, second)]


def _read(file: File, offset: int, length: int) -> bytes:
    try:
        return file.pread(offset, length)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return bytes(length)


def _body(copy: bytes, path: str, magic: bytes, version: int, identity: bytes) -> bytes | None:
    if len(copy) < _START.size:
        return None
    found_magic, found_version, digest, length = _START.unpack_from(copy)
    end = _START.size + length
    crc = int.from_bytes(copy[end : end + _CRC_BYTES], "little")
    if found_magic != magic or end + _CRC_BYTES > len(copy) or crc32(copy[:end]) != crc:
        return None
    if found_version != version:
        raise UnknownFormat(path, found_version)
    if digest != sha256(identity).digest():
        raise ForeignJournal(path)
    return copy[_START.size : end]


@contextmanager
def unless_there_is_no_space() -> Generator[None]:
    """Suppress the error of a full disk around a write that only repairs a file and can wait for space."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        log.warning("no space: %s", error)
