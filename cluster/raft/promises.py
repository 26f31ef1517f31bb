"""What the data directories of other members have promised, as far as this node has heard.

A promise is a term, and the last entry that the directory has acknowledged in that term. In a term, a follower's log
equals its leader's log up to the acknowledged entry and is never cut below it, and a term is stored before it is used.
So a directory that shows less than its promise was put back as it was earlier (*rolled back*). In a later term a leader
may rightly have cut the log, so an index of an earlier term says nothing.

Invariant: pure, and in memory only. A promise counts for its directory, not for its name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container


class Promise(NamedTuple):
    """The promise of a data directory. The greater of two promises is the later promise."""

    term: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]  # tuple.index has no use here
    """Last entry acknowledged in `term`; 0 without an acknowledgement in that term."""


NOTHING = Promise(0, 0)
PROCESSES_KEPT = 16
"""Processes of a directory that are remembered. An old connection of a process may arrive after its successor's."""


@dataclass(slots=True)
class DirectoryPromises:
    """The promises of a directory."""

    process: bytes = b""
    """The random name of the process that has the link."""
    latest: Promise = NOTHING
    """The latest promise of all processes."""
    _before: dict[bytes, Promise] = field(default_factory=dict)
    """The latest promise of earlier processes, by the process that followed them; in the order of arrival."""

    @property
    def before(self) -> Promise:
        """The latest promise of the processes before the present process."""
        return self._before[self.process]

    @property
    def is_outdated(self) -> bool:
        """Whether a later process has had a link already.

        Then the present process has ended, and this is a late connection. Or its machine was put back as it was
        earlier, with its memory, so that the process goes on.
        """
        return next(reversed(self._before)) != self.process

    def begin(self, process: bytes) -> None:
        """Record the process that has the link now. A process that returns keeps the promises before it."""
        self.process = process
        if process not in self._before:
            self._before[process] = self.latest
            if len(self._before) > PROCESSES_KEPT:
                del self._before[next(iter(self._before))]

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
        known = self._known.setdefault(directory, DirectoryPromises())
        if known.process != process:
            known.begin(process)
        return known

    def forget_all_but(self, directories: Container[bytes]) -> None:
        """Forget the promises of all other directories, because they are no members any more."""
        self._known = {key: known for key, known in self._known.items() if key in directories}
