"""The nodes at the other ends of the links: members, and connected non-members.

Each link has the name of a node and the id of its data directory. The node is a member if the newest configuration
lists that directory under that name. Any other node of the cluster is a connected non-member: a new node, a removed
node, or a member that this node's log does not know yet. Its votes and acknowledgements do not count. Its other
messages are read, because it may be the leader by a later configuration.

Invariant: a directory never counts under a name that the newest configuration gives to a different directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cluster.configuration.history import Configurations


class Arrivals(NamedTuple):
    """The changes of the linked members since the last call of `take_changes`."""

    came: list[str]
    """The members that have links now, and had no link or were non-members before."""
    went: list[str]
    """The nodes whose links are still open, but which are members no longer."""


class LinkedNodes:
    """The nodes that this node has links with, divided into members and non-members."""

    def __init__(self, configurations: Configurations) -> None:
        self._configurations = configurations
        self._directories: dict[str, bytes] = {}
        """The ids of the linked nodes' data directories, by node name."""
        self._members: dict[str, None] = {}
        """The linked members as of the last call of `take_changes`, in order of arrival."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all linked nodes."""
        return tuple(self._directories)

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the linked nodes that are members."""
        return tuple(filter(self.is_member, self._directories))

    @property
    def non_members(self) -> tuple[str, ...]:
        """The names of the linked nodes that are no members."""
        return tuple(name for name in self._directories if not self.is_member(name))

    def is_member(self, name: str) -> bool:
        """Return whether there is a link with the member of this name, under its directory."""
        member_id = self._directories.get(name)
        return member_id is not None and self._configurations.newest.has(name, member_id)

    def is_member_by_latest(self, name: str) -> bool:
        """Return whether there is a link with the member of this name by the latest known configuration.

        While a log is sent to this node, its first configurations are long out of date.
        """
        member_id = self._directories.get(name)
        return member_id is not None and self._configurations.latest.has(name, member_id)

    def link_began(self, name: str, member_id: bytes) -> None:
        """Record a new link, which replaces an earlier link of that name."""
        self._directories[name] = member_id
        self._members.pop(name, None)

    def link_ended(self, name: str) -> None:
        """Record that the link has ended; no effect if there was no link."""
        self._directories.pop(name, None)
        self._members.pop(name, None)

    def take_changes(self) -> Arrivals:
        """Return the linked nodes that have become members since the last call, or ceased to be members."""
        members = self.members
        arrivals = Arrivals(
            [name for name in members if name not in self._members],
            [name for name in self._members if name not in members],
        )
        self._members = dict.fromkeys(members)
        return arrivals
