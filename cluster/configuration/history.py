"""The configurations that a node's log holds: the one that its state has, and those behind it.

The newest one counts from the moment in which it is in the log, committed or not (Raft thesis, 4.1): for votes, for
majorities, for whom to send to. If its entry is deleted, the one before it counts again.

Invariant: what counts is a function of the log and of the checkpoint below it, whatever has happened in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.configuration.configuration import is_configuration, read_configuration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cluster.configuration.configuration import Configuration, Member
    from cluster.configuration.voters import Membership


class Configurations:
    """The configurations of one log, oldest first."""

    newest: Configuration
    """The configuration that counts."""
    newest_index: int
    """The index of the entry that holds it; 0 if no entry does."""
    membership: Membership
    """Who votes and who learns by the configuration that counts."""
    committed: Configuration
    """The newest configuration that this node knows to be committed, because it has applied it."""
    committed_index: int
    """The index of the entry that holds it, or of a later one. It is 0 before this node has applied any: then
    `committed` is what it was started with, or told."""
    has_past: bool = False
    """Whether this node relies on its log, with a configuration or without: then it is of one cluster for good."""
    known: dict[str, Member]
    """All members by name, as of the newest configuration that has one of that name. Who is not in the one that counts
    may still be in the one that is committed, and has to be told of what comes: it may even lead."""

    def __init__(self, configuration: Configuration) -> None:
        """Begin with the configuration that counts as long as the log has none."""
        self._cluster = b""
        self._callbacks: list[Callable[[], None]] = []
        self._base = configuration
        """The configuration that counts where neither the log nor the state has any."""
        self._told: tuple[int, Configuration] = (0, configuration)
        """The latest configuration of this cluster that another node has told, with its index."""
        self._held = [(0, configuration)]
        """The configurations in the log with the indexes of their entries, ascending."""
        self._note()

    @property
    def is_settled(self) -> bool:
        """Whether this node has applied any configuration."""
        return self.committed_index > 0

    @property
    def cluster(self) -> bytes:
        """The id of the cluster; empty as long as it is not known that its first configuration is committed.

        The first configuration gives the cluster its id. Before it is committed, another one may take its place.
        """
        return self.committed.cluster or self._cluster

    @property
    def latest(self) -> Configuration:
        """The latest one that is known, be it only told by another node.

        It counts for nothing before it is in the log. But members may be where it says, also the one that would send
        the log: they may have moved while this node was away.
        """
        index, told = self._told
        return told if index > self.newest_index else self.newest

    def told(self, index: int, configuration: Configuration) -> bool:
        """Another node tells the configuration of the entry at `index`. Returns whether it is the latest one now."""
        is_later = configuration.cluster == self.cluster != b"" and index > max(
            self._told[0], self.newest_index
        )
        if is_later:
            self._told = index, configuration
        return is_later

    def others(self, name: str) -> tuple[str, ...]:
        """The names of all members but this one, also of such as are about to be removed."""
        return tuple(known for known in self.known if known != name)

    def directories(self, but: str) -> dict[str, bytes | None]:
        """The ids of the data directories of all members but this one, by name; None where there is none yet."""
        return {name: self.known[name].id for name in self.others(but)}

    def when_committed(self, callback: Callable[[], None]) -> None:
        """Have `callback` called whenever this node may know another configuration to be committed."""
        self._callbacks.append(callback)

    def note_cluster(self, cluster: bytes) -> None:
        """The data directory knows of which cluster it is, though what tells so may have to be committed again."""
        self._cluster = cluster

    def begin(self, configuration: Configuration) -> None:
        """Go by this one as long as the log has none: a member has told it, or the node's file lists it."""
        self._base = configuration
        self._told = (0, configuration)
        self._held = [(0, configuration)]
        self._note()

    def find(
        self, configuration: Configuration | None, index: int, later: Iterable[tuple[int, bytes]]
    ) -> None:
        """Find out which there are: that of the state at `index`, if it has one, and those in the entries behind it."""
        self._held = [(0, self._base) if configuration is None else (index, configuration)]
        self._note()
        for each in later:
            self.appended(*each)

    def appended(self, index: int, entry: bytes) -> None:
        """An entry is in the log now, perhaps one with a configuration. Raises MalformedConfiguration."""
        if not is_configuration(entry):
            return
        self._held.append((index, read_configuration(entry)))
        self._note()

    def cut_from(self, index: int) -> None:
        """The entries from `index` on were deleted; none of them was committed."""
        if len(self._held) > 1 and self._held[-1][0] >= index:
            self._held = [self._held[0], *(held for held in self._held[1:] if held[0] < index)]
            self._note()

    def applied(self, index: int) -> Configuration:
        """The entry at `index`, which holds a configuration, is committed and applied: no earlier one comes back."""
        position = [held_index for held_index, _ in self._held].index(index)
        del self._held[:position]
        self._note()
        return self.committed

    def _note(self) -> None:
        self.newest_index, self.newest = self._held[-1]
        self.committed_index, self.committed = self._held[0]
        self.membership = self.newest.membership
        self.known = {member.name: member for _, held in self._held for member in held.members}
        for callback in self._callbacks:
            callback()
