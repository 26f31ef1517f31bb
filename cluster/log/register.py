"""A register: a few bytes that change while a node runs, stored in two files that are overwritten in place.

    file = magic 4 bytes | version u32 | sha256 of the identity | sequence u64 | body | zeros
           | crc32 u32 of all before it; 512 bytes

Both files have the same content. A store overwrites the first file, syncs it, then overwrites the second. That needs no
space, and a crash damages at most the file that was being written. If the two files differ, the file with the higher
sequence number is newer. The last file is created, with zeros, before the first file gets any content.

Invariant: after the first store both files exist, and neither loading nor storing needs space. A crash, or damage at a
single place of the disk, does not lose the content.
"""

from __future__ import annotations

import errno
import logging
from hashlib import sha256
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from cluster.log.segment import ForeignJournal, UnknownFormat, path_in

if TYPE_CHECKING:
    from cluster.log.owned_directory import OwnedDirectory

log = logging.getLogger(__name__)

FILE_BYTES = 512

_START = Struct("<4sI32sQ")
_CRC_BYTES = 4
BODY_BYTES_MAX = FILE_BYTES - _START.size - _CRC_BYTES
_RESERVED = bytes(FILE_BYTES)
"""Content of the last file before the first store."""


class StoredBody(NamedTuple):
    """The content of a file of a register."""

    sequence: int
    """Number that grows with each store; the file with the higher number is newer."""

    body: bytes
    """The body, followed by the zeros that fill the file up."""


class RegisterFormat(NamedTuple):
    """The files of a kind of register."""

    names: tuple[str, str]
    magic: bytes
    version: int
    content: str
    """The name of the content in messages."""


class Register:
    """The register in two files of a directory."""

    def __init__(self, files: OwnedDirectory, form: RegisterFormat) -> None:
        self._disk, self._directory, identity = files
        self._form = form
        self._paths = [path_in(self._directory, name) for name in form.names]
        self._digest = sha256(identity).digest()
        self._sequence = 0
        self._has_files = False
        """Whether both files are known to exist, so that a store needs no space."""

    def load(self) -> bytes | None:
        """Read both files and return the newer body; an outdated or damaged file is written anew.

        Returns `None` if the register was never stored, or if both files are damaged; damage is logged as an error.
        Raises UnknownFormat, ForeignJournal, or OSError.
        """
        contents = [self._read(path) for path in self._paths]
        found = [self._unpack(data, path) for data, path in zip(contents, self._paths, strict=True)]
        whole = [stored for stored in found if stored is not None]
        if not whole:
            if contents not in ([None, None], [None, _RESERVED]):
                log.error("%s and %s are damaged: %s are lost", *self._paths, self._form.content)
            return None
        latest = max(whole, key=_sequence_of)
        if found != [latest, latest]:
            # The first store may have ended before the name of the first file was durable.
            self._disk.sync_directory(self._directory)
        # A process may have been killed after it had written a file and before the file was synced. The file must be
        # durable before its twin is overwritten, here or by the next store, because a crash may damage the twin.
        for path, stored in zip(self._paths, found, strict=True):
            if stored == latest:
                self._sync(path)
        for path, stored in zip(self._paths, found, strict=True):
            if stored != latest:
                log.warning("%s is older than the other one or damaged; written anew", path)
                self._write(path, self._pack(latest))
        self._sequence = latest.sequence
        self._has_files = True
        return latest.body

    def load_copies(self) -> list[StoredBody | None]:
        """Return the content of each file, `None` for a missing or damaged file; writes no file.

        Raises UnknownFormat, ForeignJournal, or OSError.
        """
        return [self._unpack(self._read(path), path) for path in self._paths]

    def store(self, body: bytes) -> None:
        """Store the body durably. Raises OSError; then either the old or the new body is stored."""
        data = self._pack(StoredBody(self._sequence + 1, body))
        self._reserve()
        for path in self._paths:
            self._write(path, data)
        self._sequence += 1

    def _reserve(self) -> None:
        """Create the last file if it is missing.

        After a crash in the first store, the next load copies the first file to the last file, and that must need no
        space.
        """
        if not self._has_files:
            last = self._paths[-1]
            if self._read(last) is None:
                self._disk.replace_file(last, _RESERVED)
            self._has_files = True

    def _read(self, path: str) -> bytes | None:
        try:
            return self._disk.read_file(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return b""

    def _write(self, path: str, data: bytes) -> None:
        try:
            self._disk.overwrite_file(path, data)
        except (FileNotFoundError, ValueError):
            self._disk.replace_file(path, data)

    def _sync(self, path: str) -> None:
        file = self._disk.open(path)
        try:
            file.sync()
        finally:
            file.close()

    def _unpack(self, data: bytes | None, path: str) -> StoredBody | None:
        if data is None or len(data) != FILE_BYTES:
            return None
        start, crc = data[:-_CRC_BYTES], int.from_bytes(data[-_CRC_BYTES:], "little")
        if crc32(start) != crc or not start.startswith(self._form.magic):
            return None
        _, version, digest, sequence = _START.unpack_from(start)
        if version != self._form.version:
            raise UnknownFormat(path, version)
        if digest != self._digest:
            raise ForeignJournal(path)
        return StoredBody(sequence, start[_START.size :])

    def _pack(self, stored: StoredBody) -> bytes:
        if len(stored.body) > BODY_BYTES_MAX:
            raise ValueError(
                f"{self._form.content} have {len(stored.body)} bytes, more than {BODY_BYTES_MAX}"
            )
        start = _START.pack(self._form.magic, self._form.version, self._digest, stored.sequence) + stored.body
        start = start.ljust(FILE_BYTES - _CRC_BYTES, b"\0")
        return start + crc32(start).to_bytes(_CRC_BYTES, "little")


def _sequence_of(stored: StoredBody) -> int:
    return stored.sequence
