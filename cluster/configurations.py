"""The configurations that a node's log holds: the one that its state has, and those behind it.

The newest one counts from the moment in which it is in the log, committed or not (Raft thesis, 4.1): for votes, for
majorities, for whom to send to. If its entry is deleted, the one before it counts again.

Lives here: which one counts, and since which entry. Not here: what a configuration is (configuration.py), what follows
from another one (group.py).

Law: what counts is a function of the log and of the checkpoint below it, whatever has happened in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.configuration import read_configuration

if TYPE_CHECKING:
    from cluster.configuration import Configuration


class Configurations:
    """The configurations of one log, oldest first."""

    def __init__(self, configuration: Configuration) -> None:
        """Begin with what counts as long as the log has none."""
        self._known = [(0, configuration)]
        """The index of the entry of each, ascending; 0 for one that is not of the log."""

    @property
    def newest(self) -> Configuration:
        """The configuration that counts."""
        return self._known[-1][1]

    @property
    def newest_index(self) -> int:
        """The index of the entry that holds the newest one; 0 if no entry does."""
        return self._known[-1][0]

    def begin(self, index: int, configuration: Configuration) -> None:
        """The state of a checkpoint was taken over, which has this configuration; its entry is at or before `index`."""
        self._known = [(index, configuration)]

    def appended(self, index: int, entry: bytes) -> None:
        """An entry with a configuration is in the log now. Raises MalformedConfiguration."""
        self._known.append((index, read_configuration(entry)))

    def cut_from(self, index: int) -> None:
        """The entries from `index` on were deleted; none of them was committed."""
        while len(self._known) > 1 and self._known[-1][0] >= index:
            self._known.pop()

    def applied(self, index: int) -> Configuration:
        """The entry at `index`, which holds a configuration, is committed and applied: no earlier one can come back."""
        position = [known for known, _ in self._known].index(index)
        del self._known[:position]
        return self._known[0][1]
