"""What is known on this node of all members, itself included, and who of them may therefore lead, stop or leave.

Invariant: looks, and changes nothing. Who has been silent for `peers.SILENT_S` is not there, whatever it has said
before, and also if there is a link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.membership.health import (
    Verdict,
    flaw,
    may_drain,
    may_leave,
    may_stop,
    reaching_more,
    successors,
    why_log_is_obsolete,
    why_no_leader,
    why_not_all,
    why_not_lead,
    why_nothing_is_stored,
    why_short,
)
from cluster.membership.peer_status import MemberStatus, member_status

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.membership.maintenance import Maintenance
    from cluster.membership.own_status import OwnStatus
    from cluster.membership.peer_status import Peers
    from cluster.membership.view import Members
    from cluster.raft.messages import Status


class Statuses:
    """The statuses of the members, as far as they are known on this node."""

    def __init__(
        self,
        members: Members,
        peers: Peers,
        maintenance: Maintenance,
        own: OwnStatus,
        leader: Callable[[], str | None],
    ) -> None:
        """`leader` tells who leads, as far as this node knows."""
        self._name = members.name
        self._members = members
        self._configurations = members.configurations
        self._presence = members.presence
        self._peers = peers
        self._maintenance = maintenance
        self._own = own
        self._leader = leader

    def known(self) -> dict[str, Status | None]:
        """The last status of each member that is heard, and None for the others."""
        known: dict[str, Status | None] = {self._name: self._own.now()}
        for peer in self._configurations.others(self._name):
            known[peer] = self._peers.status(peer) if self._members.hears(peer) else None
        return known

    # For whoever looks at the cluster

    def all(self) -> list[MemberStatus]:
        """The status of every member: this node's own as of now, the others' as they last told them."""
        return [self._of(name) for name in self._configurations.membership.members]

    def own(self) -> MemberStatus:
        """The status of this node, be it a member or not."""
        return self._of(self._name)

    def _of(self, name: str) -> MemberStatus:
        is_own = name == self._name
        is_up = is_own or self._members.hears(name)
        status = self._own.now() if is_own else self._peers.status(name)
        return member_status(name, status, is_up=is_up, leads=name == self._leader())

    # What follows

    def why_not_lead(self, name: str) -> str | None:
        """Why leadership should not go to this member, as far as is known here; None if it may."""
        if name in self._maintenance.members:
            return f"{name} is under maintenance (end that with `qq revive {name}`)"
        membership, known = self._configurations.membership, self.known()
        if name not in membership.voters:
            return f"{name} does not vote (wait until it has the log)"
        return why_not_lead(name, known) or why_not_all(name, membership, known)

    def why_short(self, name: str) -> str | None:
        """Why this member may soon store nothing, or cannot be given what it lacks; None if it has space."""
        return why_short(name, self.known())

    def why_not_there(self, name: str) -> str | None:
        """Why this member does not count as one that goes on, and what to do about it; None if it counts."""
        if name in self._presence.guests:
            return (
                f"another data directory than the member's is up under the name {name}: if that one is lost, "
                f"`qq member replace {name}`"
            )
        return flaw(name, self.known())

    def successors(self) -> list[str]:
        """The members to which leadership may go from this node; empty if nobody else can lead, as far as is known."""
        drained = self._maintenance.members
        return successors(self._name, self._configurations.membership, drained, self.known())

    def reaching_more(self) -> dict[str, list[str]]:
        """The members that could lead whomever this one could, and others whom it could not: for each, these others.

        Nodes of release 0.1 do not tell whom they miss, so they are not taken to reach anybody that this one does not.
        """
        drained = self._maintenance.members
        better = reaching_more(self._name, self._configurations.membership, drained, self.known())
        untold = self._members.of_release_0_1
        return {name: others for name, others in better.items() if name not in untold}

    def may_stop(self, name: str) -> Verdict:
        """Whether the others go on when this member stops, as far as is known here."""
        drained = self._maintenance.members
        return may_stop(name, self._leader(), self._configurations.membership, drained, self.known())

    def may_leave(self, name: str) -> Verdict:
        """Whether the others go on when this member is none any more, as far as is known here."""
        drained = self._maintenance.members
        return may_leave(name, self._configurations.membership, drained, self.known())

    def why_nothing_is_stored(self) -> str | None:
        """Why this node, or the cluster, stores nothing for want of space; None if it does."""
        return why_nothing_is_stored(self._name, self._configurations.membership, self.known())

    def why_undecided(self) -> str | None:
        """Why nothing is committed now, as far as is known here; None if a leader is known."""
        if self._leader() is not None:
            return None
        return why_no_leader(self._configurations.membership, self.known(), self._own.flaw())

    def why_log_is_obsolete(self, durable_bytes: int, synced_index: int) -> str | None:
        """Why this node, whose disk is full, may be without its log; None if it may not (`fitness`)."""
        membership = self._configurations.membership
        return why_log_is_obsolete(
            self._name, self._leader(), membership, self.known(), durable_bytes, synced_index
        )

    def may_drain(self, name: str) -> Verdict:
        """Whether the others can lead and serve clients in place of this member, as far as is known here."""
        drained = self._maintenance.members
        return may_drain(name, self._configurations.membership, drained, self.known())
