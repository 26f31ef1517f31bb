"""The file of term and vote: what a member must remember so that it never votes twice in one term.

Lives here: its format, its checks, loading and storing it. Not here: when a term or a vote changes (pysyncobj), the
term of each entry (term_runs.py).

Law: a lost or damaged file is an error and never "term 0, no vote". If you change the format, increment
`FORMAT_VERSION` in segment.py; magic and version keep their place.
"""

from __future__ import annotations

from hashlib import sha256
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from cluster.segment import FORMAT_VERSION, CorruptJournal, ForeignJournal, UnknownFormat

if TYPE_CHECKING:
    from cluster.ports import Disk

HARD_STATE_NAME = "hardstate"

_MAGIC = b"RVOT"
_START = Struct("<4sI32sQB")  # magic, version, sha256 of the identity, term, whether there is a vote
_CRC_BYTES = 4


class HardState(NamedTuple):
    term: int
    voted_for: str | None


def load_hard_state(disk: Disk, path: str, identity: bytes, *, present: bool, last_term: int) -> HardState:
    """Read and verify the file, if it is `present`; `last_term` is the term of the last entry, -1 without one.

    Raises CorruptJournal, UnknownFormat or ForeignJournal.
    """
    state = _unpack(disk.read_file(path), path, identity) if present else HardState(0, None)
    if state.term < last_term:
        # Raft stores the term before the first entry of that term: the file was lost or is an old one.
        raise CorruptJournal(path, 0, f"term {state.term} is below the log's term {last_term}")
    return state


def store_hard_state(disk: Disk, path: str, identity: bytes, state: HardState) -> None:
    """Durable when it returns; raises OSError."""
    disk.replace_file(path, _pack(state, identity))


def _pack(state: HardState, identity: bytes) -> bytes:
    start = _START.pack(
        _MAGIC, FORMAT_VERSION, sha256(identity).digest(), state.term, state.voted_for is not None
    )
    body = start + (state.voted_for or "").encode()
    return body + crc32(body).to_bytes(_CRC_BYTES, "little")


def _unpack(data: bytes, path: str, identity: bytes) -> HardState:
    body, crc = data[:-_CRC_BYTES], data[-_CRC_BYTES:]
    if len(body) < _START.size or crc32(body) != int.from_bytes(crc, "little"):
        raise CorruptJournal(path, 0, "wrong checksum of term and vote")
    magic, version, digest, term, voted = _START.unpack_from(body)
    if magic != _MAGIC:
        raise CorruptJournal(path, 0, "not a file of term and vote")
    if version != FORMAT_VERSION:
        raise UnknownFormat(path, version)
    if digest != sha256(identity).digest():
        raise ForeignJournal(path)
    return HardState(term, body[_START.size :].decode() if voted else None)
