"""What the data directories of other members have promised, as far as this node has heard.

A promise is a term, and the last entry that the directory has acknowledged in that term. In a term, a follower's log
equals its leader's log up to the acknowledged entry and is never cut below it, and a term is stored before it is used.
So a directory that shows less than its promise was put back as it was earlier (*rolled back*). In a later term a leader
may rightly have cut the log, so an index of an earlier term says nothing.

Invariant: pure, and in memory only. A promise counts for its directory, not for its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container


class Promise(NamedTuple):
    """The promise of a data directory. The greater of two promises is the later promise."""

    term: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here
    """Last entry acknowledged in `term`; 0 without an acknowledgement in that term."""


NOTHING = Promise(0, 0)


@dataclass(slots=True)
class DirectoryPromises:
    """The promises of a directory."""

    process: bytes
    """The random name of the process that uses the directory now."""
    before: Promise = NOTHING
    """The latest promise of its earlier processes."""
    latest: Promise = NOTHING
    """The latest promise of all its processes."""

    def record(self, term: int, index: int) -> None:
        """Record a promise of the present process."""
        if (term, index) > self.latest:
            self.latest = Promise(term, index)


class Promises:
    """The promises of the members' data directories."""

    def __init__(self) -> None:
        self._known: dict[bytes, DirectoryPromises] = {}

    def begin(self, directory: bytes, process: bytes) -> DirectoryPromises:
        """Return the promises of a linked directory, which `process` uses now."""
        known = self._known.setdefault(directory, DirectoryPromises(process))
        if known.process != process:
            known.process, known.before = process, known.latest
        return known

    def forget_all_but(self, directories: Container[bytes]) -> None:
        """Forget the promises of all other directories, because they are no members any more."""
        self._known = {key: known for key, known in self._known.items() if key in directories}
