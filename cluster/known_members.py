"""Whom a node lets in: the members that it knows, what it tells of itself, and why it refuses somebody.

Lives here: what follows from the configurations in the log for links, real or simulated. Not here: how a peer proves
who it is (handshake.py), connections (links.py).

Law: two directories are never taken for one member, and who was removed is told so only by what is committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.handshake import (
    NO_ID,
    HandshakeError,
    OtherDirectoryError,
    RemovedMemberError,
    Terms,
    UnknownNodeError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cluster.configuration import Member, PeerAddress, Versions
    from cluster.configurations import Configurations


class KnownMembers:
    """The members of a cluster as one of them knows them."""

    def __init__(self, name: str, versions: Versions, process: bytes) -> None:
        """`versions` are those that this node's program can run; `process` names this process."""
        self.terms = Terms.of([name], versions.low, process, versions)
        """What this node tells of itself."""
        self.addresses: dict[str, PeerAddress] = {}
        """Where the other members listen, by name."""
        self._name = name
        self._members: Mapping[str, Member] = {}
        self._removed: frozenset[bytes] = frozenset()

    def configure(self, own_id: bytes, configurations: Configurations) -> None:
        """Go by these configurations of the log from now on; `own_id` is that of this node's data directory."""
        newest = configurations.newest
        names = [member.name for member in newest.members]
        process, versions = self.terms.process, self.terms.versions
        self.terms = Terms.of(names, newest.version, process, versions, newest.cluster or NO_ID, own_id)
        self._members = configurations.known
        self.addresses = {
            name: member.address for name, member in self._members.items() if name != self._name
        }
        self._removed = frozenset(removed.id for removed in configurations.committed.removed)

    def is_of(self, peer: str, terms: Terms) -> bool:
        """Whether these terms are of the data directory that the member of this name has, as far as that is known."""
        member = self._members.get(peer)
        return member is not None and (member.id is None or member.id == terms.member)

    def judge_dialler(self, peer: str, terms: Terms) -> HandshakeError | None:
        """Why a node that has dialled this one is not let in, or None."""
        if terms.member in self._removed:
            return RemovedMemberError(f"node {peer!r} was removed from the cluster")
        if peer not in self.addresses or peer >= self._name:
            return UnknownNodeError(f"node {peer!r} is no peer that dials {self._name!r}")
        return self.judge_acceptor(peer, terms)

    def judge_acceptor(self, peer: str, terms: Terms) -> HandshakeError | None:
        """Why a node that answers under this name is not the member that was dialled, or None."""
        if self.is_of(peer, terms):
            return None
        return OtherDirectoryError(
            f"node {peer!r} has another data directory than the member of that name: if the other one is lost, "
            f"replace it (`qq member replace {peer}`)"
        )
