"""Who is at the other ends of the links: members, and guests.

A link tells the name of a node and the id of its data directory. It is a member if the newest configuration has that
directory under that name. Anybody else of the cluster is a guest: one that is new, one that was removed, or, where this
node's log is behind, a member that it does not know yet. What a guest vouches for does not count, but what it tells is
heard: it may be the leader by a later configuration.

Invariant: a directory never counts under a name that the newest configuration has given to another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cluster.configuration.history import Configurations


class Arrivals(NamedTuple):
    """What has changed since it was last asked for."""

    came: list[str]
    """The members that have links now and had none before, or were guests."""
    went: list[str]
    """The nodes that are no members any more, though their links are still open."""


class Presence:
    """The nodes that this node has links with."""

    def __init__(self, configurations: Configurations) -> None:
        self._configurations = configurations
        self._linked: dict[str, bytes] = {}
        """The ids of the linked nodes' data directories, by their names."""
        self._members: dict[str, None] = {}
        """The linked nodes that were members when `look` was last called, in the order in which they came."""

    @property
    def linked(self) -> tuple[str, ...]:
        """The names of all nodes that there are links with."""
        return tuple(self._linked)

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the linked nodes that are members."""
        return tuple(filter(self.is_member, self._linked))

    @property
    def guests(self) -> tuple[str, ...]:
        """The names of the linked nodes that are no members."""
        return tuple(name for name in self._linked if not self.is_member(name))

    def is_member(self, name: str) -> bool:
        """Whether there is a link with the member of this name, and not with another directory."""
        member_id = self._linked.get(name)
        return member_id is not None and self._configurations.newest.has(name, member_id)

    def is_member_by_latest(self, name: str) -> bool:
        """Whether there is a link with the member of this name, by the latest configuration that is known.

        A log that is being given to this node has the configurations of long ago first.
        """
        member_id = self._linked.get(name)
        return member_id is not None and self._configurations.latest.has(name, member_id)

    def link_began(self, name: str, member_id: bytes) -> None:
        """Note a new link, which takes the place of an earlier one of that name."""
        self._linked[name] = member_id
        self._members.pop(name, None)

    def link_ended(self, name: str) -> None:
        """Note that there is no link any more; harmless if there was none."""
        self._linked.pop(name, None)
        self._members.pop(name, None)

    def look(self) -> Arrivals:
        """Find out who has become a member since the last time, or has ceased to be one."""
        members = self.members
        arrivals = Arrivals(
            [name for name in members if name not in self._members],
            [name for name in self._members if name not in members],
        )
        self._members = dict.fromkeys(members)
        return arrivals
