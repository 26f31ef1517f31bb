"""The status that this node reports, the statuses of all members, and the verdicts that follow from them.

Invariant: reads only. A member that has been silent for `peer_status.SILENT_S` counts as not answering, even if it has
a link, and its last status does not count. The methods `why_...` return None if no reason is known.
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
    why_entries_lost,
    why_log_is_obsolete,
    why_no_leader,
    why_not_all,
    why_not_lead,
    why_nothing_is_stored,
    why_short,
)
from cluster.membership.peer_status import MemberStatus, member_status
from cluster.raft.cluster_clock import bounded
from cluster.raft.messages import FREE_BYTES_MAX, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.membership.alarms import Alarms
    from cluster.membership.maintenance import Maintenance
    from cluster.membership.peer_status import Peers
    from cluster.membership.view import Members
    from cluster.replica import Replica


class OwnStatus:
    """Builds the status of this node from its parts."""

    def __init__(self, replica: Replica, members: Members, alarms: Alarms) -> None:
        self._engine = replica.engine
        self._rejoin = replica.rejoin
        self._housekeeping = replica.housekeeping
        self._alarms = alarms
        self._clock = replica.clock
        self._fail_stop = replica.fail_stop
        self._members = members
        self._log_sync = replica.log_sync
        self._runtime = replica.runtime

    def now(self) -> Status:
        """Return the status that this node reports to its peers at this moment."""
        engine, journal, now_s = self._engine, self._engine.journal, self._runtime.monotonic()
        return Status(
            engine.role,
            engine.term,
            journal.last_index,
            engine.commit_index,
            engine.applied_index,
            self._rejoin.voter_status,
            journal.first_index,
            self._housekeeping.newest_index,
            journal.disk_bytes,
            min(self._alarms.free_bytes, FREE_BYTES_MAX),
            self._alarms.own(now_s),
            self._clock.agreed_ms(now_s) or 0,
            bounded(self._runtime.wall_ms()),
            self._clock.steady_ms(now_s),
            int(engine.hears_leader()),
            int(engine.may_lead),
            self._members.missed,
            int(self._log_sync.hangs),
            journal.synced_index if engine.is_leader else min(engine.matched_index, journal.synced_index),
            self._rejoin.rolled_back_ms,
        )

    def flaw(self) -> str | None:
        """Return why this node cannot vote, lead or serve clients, or None if it can."""
        damage = self._fail_stop.damage
        if damage is not None:
            return f"{damage}; this node will be repaired as soon as the others can go on without it"
        return self._rejoin.describe()


class Statuses:
    """The statuses of the members, as this node knows them, and the verdicts of `health` on them."""

    def __init__(
        self,
        members: Members,
        peers: Peers,
        maintenance: Maintenance,
        own: OwnStatus,
        leader: Callable[[], str | None],
        why_hopeless: Callable[[], str | None],
        committed_index: Callable[[], int],
    ) -> None:
        """`leader` returns the name of the leader that this node knows, or None.

        - `why_hopeless` returns the text for a cluster without a majority of logs, or None.
        - `committed_index` returns the highest index that any member has reported as committed.
        """
        self._name = members.name
        self._members = members
        self._configurations = members.configurations
        self._linked = members.linked
        self._peers = peers
        self._maintenance = maintenance
        self._own = own
        self._leader = leader
        self._why_logs_lost = why_hopeless
        self._committed_index = committed_index

    def known(self) -> dict[str, Status | None]:
        """Return the last status of each member; None for members that this node does not hear."""
        known: dict[str, Status | None] = {self._name: self._own.now()}
        for peer in self._configurations.others(self._name):
            known[peer] = self._peers.status(peer) if self._members.hears(peer) else None
        return known

    def why_hopeless(self) -> str | None:
        """Return why no leader can be elected until an operator acts, or None if no such reason is known."""
        if self._leader() is not None:
            return self._why_logs_lost()
        ends = [status.last_index for status in self.known().values() if status is not None]
        return self._why_logs_lost() or why_entries_lost(self._committed_index(), max(ends))

    @property
    def foreign(self) -> Sequence[str]:
        """The names of members under which other data directories than the members' are connected."""
        return [name for name in self._linked.non_members if name in self._configurations.membership.members]

    # For operators

    def all(self) -> list[MemberStatus]:
        """Return the status of every member: the present status of this node, the last reported status of each peer."""
        return [self._of(name) for name in self._configurations.membership.members]

    def own(self) -> MemberStatus:
        """Return the status of this node, even if it is no member."""
        return self._of(self._name)

    def _of(self, name: str) -> MemberStatus:
        is_own = name == self._name
        is_up = is_own or self._members.hears(name)
        status = self._own.now() if is_own else self._peers.status(name)
        return member_status(name, status, is_up=is_up, leads=name == self._leader())

    # Verdicts

    def why_not_lead(self, name: str) -> str | None:
        """Return why leadership should not go to this member."""
        if name in self._maintenance.members:
            return f"{name} is under maintenance (end that with `qq revive {name}`)"
        membership, known = self._configurations.membership, self.known()
        if name not in membership.voters:
            return f"{name} does not vote (wait until it has the log)"
        return why_not_lead(name, known) or why_not_all(name, membership, known)

    def why_short(self, name: str) -> str | None:
        """Return that this member is low on disk: it may soon be unable to store entries."""
        return why_short(name, self.known())

    def why_not_there(self, name: str) -> str | None:
        """Return why this member cannot be relied on, and the remedy."""
        if name in self._linked.non_members:
            return (
                f"another data directory than the member's is up under the name {name}: if that one is lost, "
                f"`qq member replace {name}`"
            )
        return flaw(name, self.known())

    def successors(self) -> list[str]:
        """Return the members that leadership may go to from this node; empty if no other member can lead."""
        drained = self._maintenance.members
        return successors(self._name, self._configurations.membership, drained, self.known())

    def reaching_more(self) -> dict[str, list[str]]:
        """Return the candidates that reach every voter this node reaches and more: candidate -> the extra voters.

        Nodes of release 0.1 do not report the links they miss, so they are no candidates.
        """
        drained = self._maintenance.members
        better = reaching_more(self._name, self._configurations.membership, drained, self.known())
        unreporting = self._members.of_release_0_1
        return {name: others for name, others in better.items() if name not in unreporting}

    def may_stop(self, name: str) -> Verdict:
        """Judge whether the cluster goes on when this member stops."""
        drained = self._maintenance.members
        return may_stop(name, self._leader(), self._configurations.membership, drained, self.known())

    def may_leave(self, name: str) -> Verdict:
        """Judge whether the cluster goes on when this member is removed."""
        drained = self._maintenance.members
        return may_leave(name, self._configurations.membership, drained, self.known())

    def why_nothing_is_stored(self) -> str | None:
        """Return how full disks keep this node or the cluster from storing entries."""
        return why_nothing_is_stored(self._name, self._configurations.membership, self.known())

    def why_undecided(self) -> str | None:
        """Return why no batch of this node is committed now.

        No leader is known, the leader misses this node, or disks are full.
        """
        leader = self._leader()
        if leader is not None:
            return self._why_missed(leader) or self.why_nothing_is_stored()
        return why_no_leader(
            self._configurations.membership,
            self.known(),
            self._own.flaw(),
            self.why_hopeless(),
            self.foreign,
        )

    def _why_missed(self, leader: str) -> str | None:
        """Return that the leader reports that it does not hear this node, although this node hears it."""
        if leader == self._name or not self._members.hears(leader) or self._members.exchanges_with(leader):
            return None
        return f"{leader}, the leader, does not hear this node, which hears it (look at the network between them)"

    def why_log_is_obsolete(self, durable_bytes: int, synced_index: int) -> str | None:
        """Return why this node, whose disk is full, may discard its log (health.py)."""
        membership = self._configurations.membership
        return why_log_is_obsolete(
            self._name, self._leader(), membership, self.known(), durable_bytes, synced_index
        )

    def may_drain(self, name: str) -> Verdict:
        """Judge whether other members can lead and serve clients while this member is under maintenance."""
        drained = self._maintenance.members
        return may_drain(name, self._configurations.membership, drained, self.known())
