"""What a member must remember so that it breaks no promise: its term, its vote in it, and its standing.

    body of the register = term u64 | standing u8 | voted u8 | length u16 | vote

Invariant: a lost or damaged state is never "term 0, no vote": it is no state at all.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from cluster.log.register import BODY_BYTES_MAX, Register

if TYPE_CHECKING:
    from cluster.runtime.ports import Disk

NAMES = ("hardstate-0", "hardstate-1")
FORMAT_VERSION = 2

_MAGIC = b"RVOT"
_BODY = Struct("<QBBH")
_VOTE_BYTES_MAX = BODY_BYTES_MAX - _BODY.size


class Standing(IntEnum):
    """A standing: what a member may do, depending on what it remembers; see recovery.py."""

    BLANK = 0
    """The node knows nothing of its past: it may have voted, it may have acknowledged."""

    LEARNER = 1
    """The node knows its term, but its log may lack entries that it has acknowledged."""

    VOTER = 2
    """The node has all entries that it has ever acknowledged."""


class HardState(NamedTuple):
    term: int
    voted_for: str | None
    standing: Standing


class StoredState(NamedTuple):
    """The content of one of the two files."""

    sequence: int
    """A number that grows with each store: of two files that differ, the higher one was written later."""

    state: HardState


class HardStateFile:
    """The two files of term, vote and standing in `directory`."""

    state: HardState | None = None
    """The stored term, vote and standing; None if nothing is stored, or nothing that can be believed."""

    def __init__(self, disk: Disk, directory: str, identity: bytes) -> None:
        self._disk = disk
        self._directory = directory
        self._register = Register(disk, directory, NAMES, _MAGIC, FORMAT_VERSION, identity, "term and vote")

    def was_stored(self) -> bool:
        """Whether a state was ever stored here, be it damaged by now. Raises OSError."""
        return not set(NAMES).isdisjoint(self._disk.list_directory(self._directory))

    def load(self) -> HardState | None:
        """Read the files; a state that is in only one of them is stored in the other one, too.

        None if there is none, or, with an error in the log, if both are damaged. Raises UnknownFormat, ForeignJournal,
        or OSError.
        """
        body = self._register.load()
        self.state = None if body is None else _unpack(body)
        return self.state

    def load_copies(self) -> list[StoredState | None]:
        """What each of `NAMES` holds, None for one that is missing or damaged; nothing is written.

        Raises UnknownFormat, ForeignJournal, or OSError.
        """
        copies = self._register.load_copies()
        return [None if copy is None else StoredState(copy.sequence, _unpack(copy.body)) for copy in copies]

    def store(self, state: HardState) -> None:
        """Store the state, durably when this returns; if it raises OSError, the old or the new one may be stored."""
        self._register.store(_pack(state))
        self.state = state

    def forget(self) -> None:
        """Do not believe what was loaded; the files stay until the next `store`."""
        self.state = None


def _unpack(body: bytes) -> HardState:
    term, standing, voted, length = _BODY.unpack_from(body)
    vote = body[_BODY.size : _BODY.size + length].decode() if voted else None
    return HardState(term, vote, Standing(standing))


def _pack(state: HardState) -> bytes:
    term, voted_for, standing = state
    vote = (voted_for or "").encode()
    if len(vote) > _VOTE_BYTES_MAX:
        raise ValueError(f"the name of a member has {len(vote)} bytes, more than {_VOTE_BYTES_MAX}")
    return _BODY.pack(term, standing, voted_for is not None, len(vote)) + vote
