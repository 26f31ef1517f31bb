"""What a member must remember so that it breaks no promise: its term, its vote in it, and its standing.

Lives here: the two files, their format, loading and storing them. Not here: when a term or a vote changes (pysyncobj),
what a standing allows and how it changes (recovery.py), the term of each entry (term_runs.py).

    file = magic 4 bytes | version u32 | sha256 of the identity | sequence u64 | term u64 | standing u8 | voted u8
           | length u16 | vote | zeros | crc32 u32 of all before it; 512 bytes

Both files hold the same. They are overwritten in place, one after the other, each made durable before the next: that
needs no space, and a crash damages at most the one that was being written. Of two that differ, the one with the higher
sequence number was written later.

Law: a lost or damaged state is never "term 0, no vote": it is no state at all.
"""

from __future__ import annotations

import errno
import logging
from enum import IntEnum
from hashlib import sha256
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from cluster.segment import ForeignJournal, UnknownFormat, path_in

if TYPE_CHECKING:
    from cluster.ports import Disk

log = logging.getLogger(__name__)

NAMES = ("hardstate-0", "hardstate-1")
FORMAT_VERSION = 2
FILE_BYTES = 512

_MAGIC = b"RVOT"
_START = Struct("<4sI32sQQBBH")
_CRC_BYTES = 4
_VOTE_BYTES_MAX = FILE_BYTES - _START.size - _CRC_BYTES


class Standing(IntEnum):
    """What a member may do; see recovery.py."""

    BLANK = 0
    """It knows nothing of its past: it may have voted, it may have acknowledged."""

    LEARNER = 1
    """Its log may lack what it has acknowledged."""

    VOTER = 2


class HardState(NamedTuple):
    term: int
    voted_for: str | None
    standing: Standing


class Stored(NamedTuple):
    """What one of the two files holds."""

    sequence: int
    """The higher one was written later."""

    state: HardState


class HardStateFile:
    """The two files in `directory`."""

    state: HardState | None = None
    """What is stored; None if nothing is, or nothing that can be believed."""

    def __init__(self, disk: Disk, directory: str, identity: bytes) -> None:
        self._disk = disk
        self._paths = [path_in(directory, name) for name in NAMES]
        self._identity = identity
        self._sequence = 0

    def load(self) -> HardState | None:
        """Read the files; a state that is in only one of them is stored in the other one, too.

        None if there is none, or, with an error in the log, if both are damaged. Raises UnknownFormat, ForeignJournal,
        or OSError.
        """
        contents = [self._read(path) for path in self._paths]
        found = [self._unpack(data, path) for data, path in zip(contents, self._paths, strict=True)]
        whole = [stored for stored in found if stored is not None]
        if not whole:
            if any(data is not None for data in contents):
                log.error("%s and %s are damaged: term and vote are lost", *self._paths)
            self.state = None
            return None
        latest = max(whole, key=_sequence_of)
        for path, stored in zip(self._paths, found, strict=True):
            if stored != latest:
                log.warning("%s is older than the other one or damaged; written anew", path)
                self._write(path, _pack(latest, self._identity))
        self._sequence = latest.sequence
        self.state = latest.state
        return self.state

    def load_copies(self) -> list[Stored | None]:
        """What each of `NAMES` holds, None for one that is missing or damaged; nothing is written.

        Raises UnknownFormat, ForeignJournal, or OSError.
        """
        return [self._unpack(self._read(path), path) for path in self._paths]

    def store(self, state: HardState) -> None:
        """Durable when it returns; raises OSError, and then it is not known which of the two states is stored."""
        data = _pack(Stored(self._sequence + 1, state), self._identity)
        for path in self._paths:
            self._write(path, data)
        self._sequence += 1
        self.state = state

    def forget(self) -> None:
        """Do not believe what was loaded; the files stay until the next `store`."""
        self.state = None

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

    def _unpack(self, data: bytes | None, path: str) -> Stored | None:
        if data is None or len(data) != FILE_BYTES:
            return None
        body, crc = data[:-_CRC_BYTES], int.from_bytes(data[-_CRC_BYTES:], "little")
        if crc32(body) != crc or not body.startswith(_MAGIC):
            return None
        _, version, digest, sequence, term, standing, voted, length = _START.unpack_from(body)
        if version != FORMAT_VERSION:
            raise UnknownFormat(path, version)
        if digest != sha256(self._identity).digest():
            raise ForeignJournal(path)
        vote = body[_START.size : _START.size + length].decode() if voted else None
        return Stored(sequence, HardState(term, vote, Standing(standing)))


def _sequence_of(stored: Stored) -> int:
    return stored.sequence


def _pack(stored: Stored, identity: bytes) -> bytes:
    sequence, (term, voted_for, standing) = stored
    vote = (voted_for or "").encode()
    if len(vote) > _VOTE_BYTES_MAX:
        raise ValueError(f"the name of a member has {len(vote)} bytes, more than {_VOTE_BYTES_MAX}")
    digest = sha256(identity).digest()
    start = _START.pack(
        _MAGIC, FORMAT_VERSION, digest, sequence, term, standing, voted_for is not None, len(vote)
    )
    body = (start + vote).ljust(FILE_BYTES - _CRC_BYTES, b"\0")
    return body + crc32(body).to_bytes(_CRC_BYTES, "little")
