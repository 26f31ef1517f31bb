"""Whom a node lets in: the members that it knows, what it tells of itself, and why it refuses somebody.

A node of the same cluster is let in whatever its name and its directory are, also one that this node does not know or
that was removed: it may have joined while this node was away, and what each of them is to be told and counted for is
the group's matter. As long as neither of two logs says who the members are, the list in each node's file does.

Invariant: two processes are never one node, and two nodes that both dial end up with one connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cluster.transport.handshake import (
    NO_ID,
    UNNAMED,
    AlreadyLinkedError,
    HandshakeError,
    OtherClusterError,
    SecondProcessError,
    Terms,
    UnknownNodeError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cluster.configuration.configuration import PeerAddress, Versions
    from cluster.configuration.history import Configurations
    from cluster.net.sockets import Address

# One of two nodes dials at once, the other one only if no connection comes: perhaps only it knows where the other one
# is. It waits longer than the first one pauses between two attempts (`LinkLimits.retry_max_s`).
_PATIENCE_S = 1.5

# A peer that works says something every second. One that has been silent for so long may be gone with its host, and the
# process that now has its name is its next life.
_GONE_AFTER_S = 3.0

# A connection that has been silent for so long may be one that the other side has lost. A guest hears nothing but what
# its peer tells of its state every second, which may come late.
_SILENT_AFTER_S = 2.0


class Link(NamedTuple):
    """An existing connection with a node."""

    process: bytes
    """The process at the other end."""
    silent_s: float
    """How many seconds ago the node last said anything."""

    @property
    def works(self) -> bool:
        return self.silent_s < _SILENT_AFTER_S


class KnownMembers:
    """The members of a cluster as one of them knows them."""

    def __init__(
        self,
        name: str,
        versions: Versions,
        process: bytes,
        listed: Mapping[str, PeerAddress],
        *,
        prefers_listed: bool = False,
    ) -> None:
        """`versions` are those that this node's program can run; `process` names this process.

        `listed` is where other nodes listen according to this node's file. With `prefers_listed` that alone counts for
        the nodes in it: from here they cannot be reached where the log says they are.
        """
        self.terms = Terms.of([name], versions.low, process, versions)
        """What this node tells about itself in handshakes."""
        self.addresses: dict[str, PeerAddress] = {}
        """Where the other members are looked for first, by name."""
        self._name = name
        self._listed = listed
        self._prefers_listed = prefers_listed
        self._told: dict[str, PeerAddress] = {}
        """Where other nodes of this cluster say that members are."""
        self._directories: frozenset[bytes | None] = frozenset()
        """The ids of the data directories that are, or were, members."""
        self._configurations: Configurations | None = None
        """Those that were told to `configure` last."""
        self._has_joined = False
        """Whether this node knew its cluster then: it may have heard of it since."""

    def place(self, peer: str, address: PeerAddress) -> PeerAddress:
        """Where this node looks first for one that is at this address by the log, or will be."""
        return self._listed.get(peer, address) if self._prefers_listed else address

    def places(self, peer: str) -> tuple[PeerAddress, ...]:
        """Where a member may listen. If several have moved, this node's file, or another node, may know better."""
        address = self.addresses[peer]
        listed = self._listed.get(peer, address)
        told = self.place(peer, self._told.get(peer, address))
        return tuple(dict.fromkeys((address, listed, told)))

    def configure(
        self, own_id: bytes, configurations: Configurations, linked: Mapping[str, Terms]
    ) -> list[str]:
        """Go by these configurations of the log from now on; `own_id` is that of this node's data directory.

        `linked` is what each linked node has told when the connection was made. Returns which of these connections have
        to end: whoever was new when this node was new, too, may have joined another cluster meanwhile, whose leader
        would have this node give up what it acknowledges now. One that has not joined any connects anew.
        """
        self._configurations = configurations
        newest = configurations.newest
        # As long as nobody knows a cluster, what counts is the list in each node's file.
        names = configurations.committed.membership.members
        process, versions = self.terms.process, self.terms.versions
        cluster = configurations.cluster or (UNNAMED if configurations.has_past else NO_ID)
        self.terms = Terms.of(names, newest.version, process, versions, cluster, own_id)
        members = (member.id for member in configurations.known.values())
        self._directories = frozenset([*members, *(removed.id for removed in newest.removed)])
        self.addresses = {
            name: self.place(name, member.address)
            for name, member in configurations.known.items()
            if name != self._name
        }
        self._told = {member.name: member.address for member in configurations.latest.members}
        has_joined = self.terms.is_named and not self._has_joined
        self._has_joined = self.terms.is_named

        def may_be_of_another(peer: str, terms: Terms) -> bool:
            member = configurations.known.get(peer)
            return not terms.is_named and (member is None or member.id not in (None, terms.member))

        return [
            peer
            for peer, terms in linked.items()
            if terms.is_foreign_to(self.terms) or (has_joined and may_be_of_another(peer, terms))
        ]

    def hear_cluster(self, terms: Terms) -> None:
        """Learn from what another node tells that this log is of the same cluster, if this node could not know.

        Who tells of a cluster knows that its first configuration is committed. So it is also where it is in the log,
        and the leader that has committed it has told others of it, and then was lost.
        """
        held = self._configurations
        if held and not self.terms.is_named and terms.is_named and terms.cluster == held.newest.cluster:
            held.note_cluster(terms.cluster)
            self.terms = self.terms._replace(cluster=terms.cluster)

    @property
    def seeks_members(self) -> bool:
        """Whether this node does not know yet of which cluster it is, or knows nobody else of it."""
        return not (self.terms.is_named and self.addresses)

    def seeds(self, configured: Sequence[Address]) -> tuple[Address, ...]:
        """Where to dial whoever listens: `configured` seeds, while this node seeks its cluster, and unknown members.

        A member that this node's log does not know may lead. If it does not know this node, whose addition was lost
        with a leader, neither of them would look for the other one.
        """
        unknown = [
            self.place(name, address)
            for name, address in self._told.items()
            if name not in self.addresses and name != self._name
        ]
        return (*(configured if self.seeks_members else ()), *unknown)

    def dials_first(self, peer: str) -> bool:
        """Whether it is this node that dials at once where there is no connection with the peer."""
        return self._name < peer

    def patience_s(self, peer: str) -> float:
        """How long there has to be no connection with the peer before this node dials."""
        return 0.0 if self.dials_first(peer) else _PATIENCE_S

    def judge(
        self, peer: str, terms: Terms, link: Link | None, *, dialled_here: bool
    ) -> HandshakeError | None:
        """Why a new connection with a node that knows the secret is not to be, or None.

        `link` is the connection that there is under that name; `dialled_here` tells who has dialled the new one.
        """
        if peer == self._name:
            return UnknownNodeError(f"another node calls itself {peer!r}, as this node does")
        if peer not in self.addresses and not (terms.is_named or self.terms.is_named):
            return UnknownNodeError(f"node {peer!r} is not in this node's list of members")
        if self.terms.is_named and terms.cluster == UNNAMED and terms.member not in self._directories:
            # When a cluster gets its id, all members are known. Its log may go on behind the same entry as this one.
            # A member that was removed before it knew of the id is let in, to be told.
            if not any(self._directories):
                return OtherClusterError(
                    f"node {peer!r} does not know yet whether its log is of this cluster, and this node, which has "
                    "nothing of the log, not who its members are"
                )
            return OtherClusterError(
                f"node {peer!r} has the log of a cluster without an id and never was a member of this one: its data "
                "directory is of an earlier life of the cluster; start it with an empty one"
            )
        if link is None:
            return None
        if link.process != terms.process:
            if dialled_here or link.silent_s >= _GONE_AFTER_S:
                return None
            return SecondProcessError(
                f"another process calls itself node {peer!r}, which is connected; stop one of the two"
            )
        # The one that dials first replaces a connection of the other one, never the other way round: else two that
        # dial at the same time would end each other's connection again and again.
        if self.dials_first(peer) != dialled_here and link.works:
            return AlreadyLinkedError(f"node {peer!r} is connected already")
        return None
