"""Hard state of a member, in Raft's words its persistent state: its term, its vote in that term, and its voter status.

    body of the register = term u64 | voter_status u8 | voted u8 | length u16 | vote

Invariant: a lost or damaged hard state is never read as "term 0, no vote". It counts as missing, so the node is BLANK.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from cluster.log.register import BODY_BYTES_MAX, Register, RegisterFormat

if TYPE_CHECKING:
    from cluster.log.owned_directory import OwnedDirectory

NAMES = ("hardstate-0", "hardstate-1")
FORMAT_VERSION = 2

_FORMAT = RegisterFormat(NAMES, b"RVOT", FORMAT_VERSION, "term and vote")
_BODY = Struct("<QBBH")
_VOTE_BYTES_MAX = BODY_BYTES_MAX - _BODY.size


class VoterStatus(IntEnum):
    """The voter status: how far a member may take part, depending on its memory; see engine/rejoin.py."""

    BLANK = 0
    """The node has lost its memory: it may have voted, and it may have acknowledged entries."""

    LEARNER = 1
    """The node knows its term, but its log may lack entries that it has acknowledged."""

    VOTER = 2
    """The node has all entries that it has ever acknowledged."""


class HardState(NamedTuple):
    term: int
    voted_for: str | None
    voter_status: VoterStatus


class StoredState(NamedTuple):
    """The content of a file of the register."""

    sequence: int
    """Number that grows with each store; the file with the higher number is newer."""

    state: HardState


class HardStateFile:
    """The register of term, vote and voter status in a group's directory."""

    state: HardState | None = None
    """The stored term, vote and voter status; `None` before the first store, and if both files are damaged."""

    def __init__(self, files: OwnedDirectory) -> None:
        self._files = files
        self._register = Register(files, _FORMAT)

    def was_stored(self) -> bool:
        """Return whether a hard state was ever stored in the directory, even if it is damaged now. Raises OSError."""
        return not set(NAMES).isdisjoint(self._files.disk.list_directory(self._files.path))

    def load(self) -> HardState | None:
        """Read both files and return the newer state; an outdated or damaged file is written anew.

        Returns `None` if no state was ever stored, or if both files are damaged; damage is logged as an error. Raises
        UnknownFormat, ForeignJournal, or OSError.
        """
        body = self._register.load()
        self.state = None if body is None else _unpack(body)
        return self.state

    def load_copies(self) -> list[StoredState | None]:
        """Return the content of each file of `NAMES`, `None` for a missing or damaged file; writes no file.

        Raises UnknownFormat, ForeignJournal, or OSError.
        """
        copies = self._register.load_copies()
        return [None if copy is None else StoredState(copy.sequence, _unpack(copy.body)) for copy in copies]

    def store(self, state: HardState) -> None:
        """Store the state durably. Raises OSError; then either the old or the new state is stored."""
        self._register.store(_pack(state))
        self.state = state

    def forget(self) -> None:
        """Discard the loaded state in memory; the files stay until the next `store`."""
        self.state = None


def _unpack(body: bytes) -> HardState:
    term, voter_status, voted, length = _BODY.unpack_from(body)
    vote = body[_BODY.size : _BODY.size + length].decode() if voted else None
    return HardState(term, vote, VoterStatus(voter_status))


def _pack(state: HardState) -> bytes:
    term, voted_for, voter_status = state
    vote = (voted_for or "").encode()
    if len(vote) > _VOTE_BYTES_MAX:
        raise ValueError(f"the name of a member has {len(vote)} bytes, more than {_VOTE_BYTES_MAX}")
    return _BODY.pack(term, voter_status, voted_for is not None, len(vote)) + vote
