"""Checkpoints: files that hold the state of the group at a log index.

    checkpoint = "RCKP" | version u32 | sha256 of the identity 32s | index u64 | term u64 | body length u64
               | crc32 of the header so far u32 | crc32 of the body u32 | body

Invariant: a checkpoint file exists under its final name either whole or not at all, and its content counts only if its
checksums are right. If you change the format, increment `FORMAT_VERSION`; magic, version and the checksum of the header
keep their place.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct
from typing import TYPE_CHECKING
from zlib import crc32

from cluster.log.segment import CorruptJournal, ForeignJournal, UnknownFormat, path_in
from cluster.runtime.ports import TEMPORARY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cluster.runtime.ports import Disk, File

log = logging.getLogger(__name__)

FORMAT_VERSION = 1

_MAGIC = b"RCKP"
_START = Struct("<4sI32sQQQ")  # magic, version, sha256 of the identity, index, term, length of the body
_CHECKSUMS = Struct("<II")  # crc32 of the header before it, crc32 of the body
CHECKPOINT_HEADER_BYTES = _START.size + _CHECKSUMS.size

_SUFFIX = ".checkpoint"
_INDEX_DIGITS = 20


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state after the entry `index` of term `term` was applied, packed in `body`."""

    index: int
    term: int
    body: bytes


def checkpoint_name(index: int) -> str:
    return f"{index:0{_INDEX_DIGITS}}{_SUFFIX}"


def write_checkpoint(
    disk: Disk, directory: str, identity: bytes, index: int, term: int, body: Sequence[bytes]
) -> int:
    """Store a checkpoint durably and return the size of its file in bytes.

    `body` is given in pieces. Runs on any thread, but two threads must not write a checkpoint of the same index at
    once. Raises OSError, and then the directory is unchanged.
    """
    path = path_in(directory, checkpoint_name(index))
    temporary = path + TEMPORARY
    size, checksum = 0, 0
    for piece in body:
        size += len(piece)
        checksum = crc32(piece, checksum)
    with suppress(FileNotFoundError):
        disk.remove(temporary)
    try:
        file = disk.open(temporary, create=True)
        try:
            file.append([_pack_start(identity, index, term, size, checksum), *body])
            file.sync()
        finally:
            file.close()
        disk.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            disk.remove(temporary)  # the written part would take space on a full disk
        raise
    disk.sync_directory(directory)
    return CHECKPOINT_HEADER_BYTES + size


def list_checkpoints(disk: Disk, directory: str) -> list[int]:
    """Return the indexes of all checkpoint files in the directory, ascending, including damaged files."""
    stems = [name.removesuffix(_SUFFIX) for name in disk.list_directory(directory) if name.endswith(_SUFFIX)]
    return sorted(
        int(stem) for stem in stems if len(stem) == _INDEX_DIGITS and stem.isascii() and stem.isdigit()
    )


def remove_checkpoints(disk: Disk, directory: str, indexes: Iterable[int]) -> None:
    """Remove the checkpoints of these indexes, durably; missing files are skipped. Raises OSError."""
    removed = False
    for index in indexes:
        with suppress(FileNotFoundError):
            disk.remove(path_in(directory, checkpoint_name(index)))
            removed = True
    if removed:
        disk.sync_directory(directory)


def load_newest(disk: Disk, directory: str, identity: bytes, last_index: int) -> Checkpoint | None:
    """Read the newest whole checkpoint, or return `None` if the directory has no whole checkpoint.

    A damaged checkpoint is skipped with a warning. Raises UnknownFormat, ForeignJournal, or CorruptJournal if the
    checkpoint is newer than the log, which ends with `last_index`.
    """
    for index in reversed(list_checkpoints(disk, directory)):
        path = path_in(directory, checkpoint_name(index))
        try:
            checkpoint = read_checkpoint(disk, path, identity)
            _check_name(checkpoint, path, index)
        except CorruptJournal as error:
            log.warning("skipped a damaged checkpoint: %s", error)
            continue
        if index > last_index:
            raise CorruptJournal(path, 0, f"newer than the log, which ends with index {last_index}")
        return checkpoint
    return None


def read_checkpoint(disk: Disk, path: str, identity: bytes) -> Checkpoint:
    """Read and verify a checkpoint; raises CorruptJournal, UnknownFormat, ForeignJournal or FileNotFoundError."""
    file = disk.open(path)
    try:
        return _read(file, path, identity)
    except OSError as error:
        raise CorruptJournal(path, 0, f"cannot be read: {error.strerror}") from error
    finally:
        file.close()


def adopt_checkpoint(data: bytes, identity: bytes) -> bytes:
    """Rewrite the header of another node's checkpoint so that the file belongs to `identity`; return the new bytes.

    `data` is the checkpoint or its beginning, and must hold the whole header. The body is not checked. Raises
    CorruptJournal or UnknownFormat.
    """
    path = "received checkpoint"
    start = _verified_start(data, path)
    _, _, _, index, term, length = _START.unpack(start)
    _, body_crc = _CHECKSUMS.unpack_from(data, _START.size)
    return _pack_start(identity, index, term, length, body_crc) + data[CHECKPOINT_HEADER_BYTES:]


def _pack_start(identity: bytes, index: int, term: int, length: int, body_crc: int) -> bytes:
    start = _START.pack(_MAGIC, FORMAT_VERSION, sha256(identity).digest(), index, term, length)
    return start + _CHECKSUMS.pack(crc32(start), body_crc)


def _verified_start(header: bytes, path: str) -> bytes:
    """Check magic, version and checksum of a header, and return its bytes before the checksums."""
    start = header[: _START.size]
    if len(header) < CHECKPOINT_HEADER_BYTES or not start.startswith(_MAGIC):
        raise CorruptJournal(path, 0, "not a checkpoint")
    if crc32(start) != _CHECKSUMS.unpack_from(header, _START.size)[0]:
        raise CorruptJournal(path, 0, "wrong checksum of the header of a checkpoint")
    version = _START.unpack(start)[1]
    if version != FORMAT_VERSION:
        raise UnknownFormat(path, version)
    return start


def _read(file: File, path: str, identity: bytes) -> Checkpoint:
    header = file.pread(0, CHECKPOINT_HEADER_BYTES)
    start = _verified_start(header, path)
    _, _, digest, index, term, length = _START.unpack(start)
    if digest != sha256(identity).digest():
        raise ForeignJournal(path)
    body = file.pread(CHECKPOINT_HEADER_BYTES, file.size - CHECKPOINT_HEADER_BYTES)
    if len(body) != length or crc32(body) != _CHECKSUMS.unpack_from(header, _START.size)[1]:
        raise CorruptJournal(path, CHECKPOINT_HEADER_BYTES, "wrong checksum of the body of a checkpoint")
    return Checkpoint(index, term, body)


def _check_name(checkpoint: Checkpoint, path: str, index: int) -> None:
    if checkpoint.index != index:
        raise CorruptJournal(path, 0, f"the name says index {index}, the file says {checkpoint.index}")
