"""The configurations in a node's log: the configuration of its state, and the later entries in order.

The newest configuration counts from the moment it is in the log, committed or not (Raft thesis, 4.1): for votes,
majorities, and recipients of the log. If its entry is deleted, the previous configuration counts again.

Invariant: the configuration that counts is a function of the log and of the checkpoint below it, independent of events
before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.configuration.configuration import is_configuration, read_configuration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cluster.configuration.configuration import Configuration, Member
    from cluster.configuration.quorum import Membership


class Configurations:
    """The configurations of a single log, oldest first."""

    newest: Configuration
    """The configuration that counts: the last in the log."""
    newest_index: int
    """Index of the entry that holds `newest`; 0 if no entry does."""
    membership: Membership
    """The voters and learners of `newest`."""
    committed: Configuration
    """The last configuration that this node has applied, and so knows to be committed."""
    committed_index: int
    """Index of the entry that holds `committed`, or of a later entry; 0 before this node has applied a configuration.
    Then `committed` is the configuration that the node started with or received from a peer."""
    has_past: bool = False
    """Whether this node relies on its log, with or without a configuration. Then it belongs to a single cluster for
    good."""
    known: dict[str, Member]
    """All members by name, from the newest configuration with that name. A member that is missing in `newest` may still
    be in `committed`. It must receive later entries, and may even lead."""

    def __init__(self, configuration: Configuration) -> None:
        """Begin with the configuration that counts until the log has a configuration."""
        self._cluster = b""
        self._callbacks: list[Callable[[], None]] = []
        self._base = configuration
        """The configuration that counts if both the log and the state lack a configuration."""
        self._received: tuple[int, Configuration] = (0, configuration)
        """Index and value of the latest configuration of this cluster that a peer has sent."""
        self._held = [(0, configuration)]
        """Index and value of each configuration in the log, ascending."""
        self._update()

    @property
    def is_settled(self) -> bool:
        """Whether this node has applied a configuration."""
        return self.committed_index > 0

    def agree_on(self, version: int) -> bool:
        """Return whether the members are known to have agreed on this version of the state, or on a later version.

        Then the programs of all members know the messages of that version.
        """
        return self.is_settled and self.committed.version >= version

    @property
    def cluster(self) -> bytes:
        """Id of the cluster; empty until this node knows that the first configuration is committed.

        The first configuration sets the id. Before it is committed, a different first configuration may replace it.
        """
        return self.committed.cluster or self._cluster

    @property
    def latest(self) -> Configuration:
        """The latest known configuration, in the log or received from a peer.

        A received configuration does not count for majorities before it is in the log. It is used to find members that
        moved while this node was away, and the node that sends the log may be among them.
        """
        index, received = self._received
        return received if index > self.newest_index else self.newest

    def received(self, index: int, configuration: Configuration) -> bool:
        """Take in the configuration at `index` that a peer sent. Return True if it is the latest now."""
        is_later = configuration.cluster == self.cluster != b"" and index > max(
            self._received[0], self.newest_index
        )
        if is_later:
            self._received = index, configuration
        return is_later

    def others(self, name: str) -> tuple[str, ...]:
        """Return the names of all members except `name`, including members that are about to be removed."""
        return tuple(known for known in self.known if known != name)

    def directories(self, but: str) -> dict[str, bytes | None]:
        """Return the directory ids of all members except `but`, by name. An unknown id is `None`."""
        return {name: self.known[name].id for name in self.others(but)}

    def when_committed(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever this node may know of a newly committed configuration."""
        self._callbacks.append(callback)

    def set_cluster(self, cluster: bytes) -> None:
        """Set the cluster id from the data directory. The entry that proves it may have to be committed again."""
        self._cluster = cluster

    def begin(self, configuration: Configuration) -> None:
        """Use this configuration until the log has its first. It comes from a peer or from the node's file."""
        self._base = configuration
        self._received = (0, configuration)
        self._held = [(0, configuration)]
        self._update()

    def find(
        self, configuration: Configuration | None, index: int, later: Iterable[tuple[int, bytes]]
    ) -> None:
        """Load the configuration of the state at `index`, if any, and the configurations in the `later` entries."""
        self._held = [(0, self._base) if configuration is None else (index, configuration)]
        self._update()
        for each in later:
            self.appended(*each)

    def appended(self, index: int, entry: bytes) -> None:
        """Record that an entry was appended. If it holds a configuration, that counts now.

        Raises MalformedConfiguration.
        """
        if not is_configuration(entry):
            return
        self._held.append((index, read_configuration(entry)))
        self._update()

    def cut_from(self, index: int) -> None:
        """Forget the configurations from `index` on, because their uncommitted entries were deleted."""
        if len(self._held) > 1 and self._held[-1][0] >= index:
            self._held = [self._held[0], *(held for held in self._held[1:] if held[0] < index)]
            self._update()

    def applied(self, index: int) -> Configuration:
        """Record that the configuration at `index` is committed and applied, and return it.

        Earlier configurations go.
        """
        position = [held_index for held_index, _ in self._held].index(index)
        del self._held[:position]
        self._update()
        return self.committed

    def _update(self) -> None:
        self.newest_index, self.newest = self._held[-1]
        self.committed_index, self.committed = self._held[0]
        self.membership = self.newest.membership
        self.known = {member.name: member for _, held in self._held for member in held.members}
        for callback in self._callbacks:
            callback()
