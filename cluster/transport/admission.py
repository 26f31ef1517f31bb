"""PeerAdmission of peers: which connections a node accepts, which terms it offers, and where it finds the members.

A node of the same cluster is accepted under any name and with any data directory, even if it is unknown or was removed.
It may have joined while this node was away, and the group decides whether it counts as a member. As long as neither of
two logs has a configuration, the list of members in each node's file counts.

Invariant: two processes never count as the same node, and two nodes that dial each other end up with a single
connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cluster.transport.handshake import (
    NO_ID,
    UNNAMED,
    AlreadyLinkedError,
    HandshakeError,
    OtherClusterError,
    OtherDirectoryError,
    SecondProcessError,
    Terms,
    UnknownNodeError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cluster.configuration.configuration import PeerAddress, Versions
    from cluster.configuration.history import Configurations
    from cluster.net.sockets import Address

# The node with the smaller name dials at once, the other node only if no connection comes: perhaps only it knows the
# peer's address. It waits longer than the first pauses between two attempts (`LinkLimits.retry_max_s`).
_PATIENCE_S = 1.5

# A working peer sends a message every second. A peer that has been silent for so long may be lost with its host, and a
# second process of its name is then its new incarnation.
_GONE_AFTER_S = 3.0

# The peer may have lost a connection that has been silent for so long. A connected non-member receives only the status
# of its peer, every second, which may come late.
_SILENT_AFTER_S = 2.0


class Link(NamedTuple):
    """An existing connection with a node, as far as admission needs it."""

    process: bytes
    """The random name of the process at the other end."""
    member: bytes
    """The id of its data directory."""
    silent_s: float
    """Seconds since the node last sent anything."""

    @property
    def works(self) -> bool:
        return self.silent_s < _SILENT_AFTER_S


class PeerAdmission:
    """The members as this node knows them: their addresses, their directories, and this node's own terms."""

    def __init__(
        self,
        name: str,
        versions: Versions,
        process: bytes,
        listed: Mapping[str, PeerAddress],
        *,
        prefers_listed: bool = False,
    ) -> None:
        """`versions` are the versions of the state that this node's program can run; `process` names this process.

        `listed` are the addresses of nodes in this node's file. With `prefers_listed`, nodes in it are dialled only
        there, because this node cannot reach them at their addresses in the log.
        """
        self.terms = Terms.of([name], versions.low, process, versions)
        """The terms that this node offers in handshakes."""
        self.addresses: dict[str, PeerAddress] = {}
        """The addresses at which this node first dials the other members, by name."""
        self._name = name
        self._listed = listed
        self._prefers_listed = prefers_listed
        self._latest: dict[str, PeerAddress] = {}
        """The members' addresses by the latest known configuration, which may be a report of a peer."""
        self._directories: frozenset[bytes | None] = frozenset()
        """The ids of the data directories that are, or were, members."""
        self._configurations: Configurations | None = None
        """The configurations of the last call of `configure`."""
        self._has_joined = False
        """Whether this node knew its cluster at the last call of `configure`: it may have learned it since."""

    def dial_address(self, peer: str, address: PeerAddress) -> PeerAddress:
        """Return the address at which this node dials a member first; `address` is its address by the log."""
        return self._listed.get(peer, address) if self._prefers_listed else address

    def possible_addresses(self, peer: str) -> tuple[PeerAddress, ...]:
        """Return the addresses where a member may listen: by the log, this node's file, and the latest configuration.

        If several members have moved, the log may be behind the latter two.
        """
        address = self.addresses[peer]
        listed = self._listed.get(peer, address)
        latest = self.dial_address(peer, self._latest.get(peer, address))
        return tuple(dict.fromkeys((address, listed, latest)))

    def configure(
        self, own_id: bytes, configurations: Configurations, linked: Mapping[str, Terms]
    ) -> list[str]:
        """Use these configurations from now on, and return the peers whose connections must end.

        `own_id` is the id of this node's data directory. `linked` maps each linked node to the terms of its handshake.
        A connection ends if the peer is of another cluster. It also ends if both nodes were new, this node has joined
        its cluster by now, and the peer is no member of it. That peer may have joined another cluster, whose leader
        could make this node delete entries that it acknowledges now. A peer that has not joined any cluster connects
        again.
        """
        self._configurations = configurations
        newest = configurations.newest
        # until a node knows a cluster, the list in its file counts
        names = configurations.committed.membership.members
        process, versions = self.terms.process, self.terms.versions
        cluster = configurations.cluster or (UNNAMED if configurations.has_past else NO_ID)
        self.terms = Terms.of(names, newest.version, process, versions, cluster, own_id)
        members = (member.id for member in configurations.known.values())
        self._directories = frozenset([*members, *(removed.id for removed in newest.removed)])
        self.addresses = {
            name: self.dial_address(name, member.address)
            for name, member in configurations.known.items()
            if name != self._name
        }
        self._latest = {member.name: member.address for member in configurations.latest.members}
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

    def learn_cluster(self, terms: Terms) -> None:
        """Learn from a peer's terms that this log belongs to the peer's cluster, if this node could not know.

        The peer knows the id of its cluster, so the first configuration is committed. This node's log holds that
        configuration, but the leader that committed it was lost before this node heard of the commit.
        """
        held = self._configurations
        if held and not self.terms.is_named and terms.is_named and terms.cluster == held.newest.cluster:
            held.set_cluster(terms.cluster)
            self.terms = self.terms._replace(cluster=terms.cluster)

    @property
    def seeks_members(self) -> bool:
        """Whether this node does not know its cluster yet, or no other member of it."""
        return not (self.terms.is_named and self.addresses)

    def seeds(self, configured: Sequence[Address]) -> tuple[Address, ...]:
        """Return the addresses to dial without an expected name: `configured` seeds, and members unknown to the log.

        The seeds are dialled only while this node seeks its cluster. A member that this node's log does not know may
        lead. If the member does not know this node either, because this node's addition was lost with a leader, neither
        would dial the other by name.
        """
        unknown = [
            self.dial_address(name, address)
            for name, address in self._latest.items()
            if name not in self.addresses and name != self._name
        ]
        return (*(configured if self.seeks_members else ()), *unknown)

    def dials_first(self, peer: str) -> bool:
        """Return whether this node, and not the peer, dials at once if they have no connection."""
        return self._name < peer

    def patience_s(self, peer: str) -> float:
        """Return for how many seconds there must be no connection with the peer before this node dials."""
        return 0.0 if self.dials_first(peer) else _PATIENCE_S

    def why_rejected(
        self, peer: str, terms: Terms, link: Link | None, *, dialled_here: bool
    ) -> HandshakeError | None:
        """Return the reason to reject a new connection with a node that knows the secret, or None.

        `link` is the existing connection under that name. `dialled_here` tells whether this node dialled the new
        connection.
        """
        if peer == self._name:
            return UnknownNodeError(f"another node calls itself {peer!r}, as this node does")
        if peer not in self.addresses and not (terms.is_named or self.terms.is_named):
            return UnknownNodeError(f"node {peer!r} is not in this node's list of members")
        if self.terms.is_named and terms.cluster == UNNAMED and terms.member not in self._directories:
            # When a cluster gets its id, all its members are known. A log without an id may continue differently after
            # an entry that both logs have. A member that was removed before it knew the id is accepted, so that it
            # learns of its removal.
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
            return self._why_second_rejected(peer, terms, link, dialled_here=dialled_here)
        # The node that dials first may replace a connection that its peer dialled, but not the reverse: otherwise two
        # nodes that dial at the same time would end each other's connection repeatedly.
        if self.dials_first(peer) != dialled_here and link.works:
            return AlreadyLinkedError(f"node {peer!r} is connected already")
        return None

    def is_another_directory(self, peer: str, member_id: bytes) -> bool:
        """Return whether the member of this name has a different data directory, by the latest known configuration."""
        configurations = self._configurations
        member = None if configurations is None else configurations.latest.member(peer)
        return member is not None and member.id not in (None, member_id)

    def _why_second_rejected(
        self, peer: str, terms: Terms, link: Link, *, dialled_here: bool
    ) -> HandshakeError | None:
        """Return the reason to reject a process whose name a second process has linked already, or None.

        The process with the member's data directory replaces any other process at once.
        """
        is_false, linked_is_false = (
            self.is_another_directory(peer, each) for each in (terms.member, link.member)
        )
        if link.silent_s >= _GONE_AFTER_S or (linked_is_false and not is_false):
            return None
        if is_false and not linked_is_false:
            return OtherDirectoryError(
                f"a process with another data directory calls itself node {peer!r}, which is connected; stop that "
                "process"
            )
        if dialled_here:
            return None
        return SecondProcessError(
            f"another process calls itself node {peer!r}, which is connected; stop one of the two"
        )
