"""Reports on the members of the cluster, and changes of membership by operators.

Invariant: when a change returns, this node has seen it committed. When a promotion returns, the member is up and votes.
A repeated request does no work twice.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from cluster.configuration.change_request import Verb, not_before_upgrade
from cluster.configuration.configuration import PeerAddress
from cluster.transport.handshake import HandshakeError
from qq.errors import ReplyCode
from qq.management.changes.request_session import until_applied
from qq.management.errors import UNKNOWN, RequestRefused, Unavailable
from qq.management.nodes.leadership import PATIENCE_S, until
from qq.management.reports.members import ClusterMember, ClusterMembers, NodeState, RemovedMember

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.configuration.change_request import MemberChange
    from cluster.configuration.configuration import Configuration, Member, Versions
    from cluster.group.group import Group
    from cluster.membership.peer_status import MemberStatus
    from qq.management.nodes.node_reports import PeerPorts
    from qq.sessions.broker import Broker

CHANGE_S = 10.0
"""Seconds that a request waits for its change by default."""
RETRY_S = 0.3
"""Seconds until the leader is asked again: the request may have been lost, or another change was under way."""
LOST_FOR_MS = 86_400_000
"""Milliseconds for which the loss of a member's data directory is reported."""
REACH_S = 3.0
"""Seconds that a new member's address may take to answer."""

_JUDGED = (Verb.DRAIN, Verb.REMOVE, Verb.REPLACE)
"""Verbs that the leader judges by the reported status of members, which may be a second old."""


class MemberChanges:
    """Shows and changes the members of the cluster."""

    def __init__(self, broker: Broker, group: Group, peers: PeerPorts) -> None:
        self._broker = broker
        self._group = group
        self._peers = peers

    @property
    def _configuration(self) -> Configuration:
        return self._group.configurations.committed

    def names(self) -> Sequence[str]:
        """Return the names of all nodes of the cluster."""
        return self._group.members.names

    def report(self) -> ClusterMembers:
        """Return the members by the configuration in the log."""
        group, configuration = self._group, self._configuration
        statuses = {status.name: status for status in group.statuses.all()}
        end = max((status.last_index or 0 for status in statuses.values()), default=0)
        lost_since_ms = group.time_ms() - LOST_FOR_MS
        return ClusterMembers(
            node=group.config.name,
            cluster=group.config.cluster,
            cluster_id=configuration.cluster.hex() or None,
            version=configuration.version,
            leader=group.leader,
            members=[
                _member(
                    configuration,
                    member,
                    statuses.get(member.name),
                    end,
                    group.versions_of(member.name),
                    lost_since_ms,
                )
                for member in configuration.members
            ],
            removed=[RemovedMember(removed.name, removed.id.hex()) for removed in configuration.removed],
        )

    async def change(self, change: MemberChange, wait_s: float | None = None) -> None:
        """Change the members, and return when this node has seen the change. Waits `wait_s` or `CHANGE_S` at most.

        Raises RequestRefused if the change is refused; Unavailable if it is not yet made, and then the client may ask
        again.
        """
        if change.verb == Verb.FINISH_UPGRADE:
            change = change._replace(version=self._broker.machine.versions[1])
        if self._is_done(change):
            return
        if not change.is_made(self._configuration):
            change = await self._checked(change)
        loop = asyncio.get_running_loop()
        believed_s = loop.time() + (PATIENCE_S if change.verb in _JUDGED else 0.0)
        end_s = loop.time() + (CHANGE_S if wait_s is None else wait_s)
        refusals: list[str] = []
        while True:
            if not (change.is_made(self._configuration) or self._waits_for_member(change)):
                self._group.reconfiguration.request(change, refusals.append)
            left_s = end_s - loop.time()
            await until(lambda: self._is_done(change) or refusals, min(RETRY_S, left_s))
            if self._is_done(change):
                return
            if refusals:
                if loop.time() >= believed_s:
                    raise RequestRefused(ReplyCode.PRECONDITION_FAILED, refusals[0])
                end_s = max(end_s, believed_s + 2 * RETRY_S)  # allow for a last answer
                await asyncio.sleep(RETRY_S)
                refusals.clear()
            elif left_s <= RETRY_S:
                raise Unavailable(await self._why_not_done(change))

    def _is_done(self, change: MemberChange) -> bool:
        group = self._group
        if change.verb == Verb.REMOVE and group.fail_stop.is_removed and change.member_id == group.members.id:
            return True  # the member's own state never gets this entry
        if not change.is_made(self._configuration):
            return False
        match change.verb:
            case Verb.PROMOTE:
                return group.leader is not None and group.statuses.why_not_there(change.name) is None
            case Verb.DRAIN:
                return group.leader not in (None, change.name) and not self._clients_of(change.name)
            case _:
                return True

    def _waits_for_member(self, change: MemberChange) -> bool:
        """Return whether the change must wait until the member has started for the first time."""
        member = self._configuration.member(change.name)
        return change.verb == Verb.PROMOTE and member is not None and member.id is None

    def _clients_of(self, name: str) -> int:
        return sum(node == name for node, _ in self._broker.machine.catalog.connections)

    async def _why_not_done(self, change: MemberChange) -> str:
        name, group = change.name, self._group
        member = self._configuration.member(name)
        if group.leader is None:
            return f"no leader is known: {group.why_undecided()}; {UNKNOWN}"
        if change.verb == Verb.PROMOTE and member is not None:
            known = next(each for each in self.report().members if each.name == name)
            if known.state == NodeState.DOWN and (why := await self._why_other_node_at(name, member.address)):
                return why
            if known.role == "awaited":
                return f"{name} has not connected yet: start it at {member.address} with `qq serve --join`"
            if not member.is_voter and known.lag is not None:
                why = group.reconfiguration.why_no_majority(self._configuration.promoted(name))
                given = f"{name} receives the log, and lacks {known.lag:,} entries"
                short = group.statuses.why_short(name)
                return why or (f"{given}; {short}" if short else given)
            why = group.statuses.why_not_there(name)
            return why or f"{name} is up, and does not vote yet"
        if change.verb == Verb.DRAIN and change.is_made(self._configuration):
            if group.leader == name:
                return f"{name} still leads: no other node has taken over yet"
            return f"clients of {name} that are still connected: {self._clients_of(name):,}"
        stuck = group.statuses.why_nothing_is_stored()
        return f"the change is not made yet; it may still be made: {stuck or 'ask again'}"

    async def _why_other_node_at(self, name: str, address: PeerAddress) -> str | None:
        """Return an error text if a different node listens at a member's address; None if not."""
        place = self._peers.dial_address(name, address)
        try:
            with suppress(OSError):
                async with asyncio.timeout(REACH_S):
                    await self._peers.reach(name, place)
        except HandshakeError as error:
            return f"{name} is not at {place}: {error}"
        return None

    # Checks before the leader is asked; the leader makes the remaining checks

    async def _checked(self, change: MemberChange) -> MemberChange:
        """Check a change, and return it with the data directory id of a member to be added.

        Raises RequestRefused if the change is impossible or harmful; Unavailable if it is not yet possible.
        """
        if not self._configuration.cluster and change.verb != Verb.FINISH_UPGRADE:
            old = self._group.members.of_release_0_1
            raise RequestRefused(ReplyCode.PRECONDITION_FAILED, not_before_upgrade(old))
        match change.verb:
            case Verb.ADD:
                directory = await self._directory_at(change.name, PeerAddress(change.host, change.port))
                return change._replace(member_id=directory)
            case Verb.FINISH_UPGRADE:
                pass
            case _:
                await self._check_known(change.name)
        return change

    async def _directory_at(self, name: str, address: PeerAddress) -> bytes:
        """Ask the new member for its directory id. With a wrong address, the cluster would wait for it for ever.

        Raises Unavailable if there is no answer, and RequestRefused if another node answers.
        """
        place = self._peers.dial_address(name, address)
        try:
            async with asyncio.timeout(REACH_S):
                return await self._peers.reach(name, place)
        except HandshakeError as error:
            raise RequestRefused(
                ReplyCode.PRECONDITION_FAILED, f"{name} is not at {place}, and nothing is changed: {error}"
            ) from None
        except TimeoutError:
            why = f"no node answers within {REACH_S:g} s"
        except OSError as error:
            why = error.strerror or str(error)
        raise Unavailable(
            f"{name} cannot be reached at {place} ({why}), and nothing is changed: start it there with "
            "`qq serve --join`"
        )

    async def _check_known(self, name: str) -> None:
        """Raise RequestRefused if the cluster has no such member. The node catches up with the log first.

        Raises Unavailable.
        """
        if self._configuration.member(name) is None:
            await until_applied(self._broker, [], lambda: None)
        if self._configuration.member(name) is None:
            names = ", ".join(member.name for member in self._configuration.members)
            raise RequestRefused(ReplyCode.NOT_FOUND, f"there is no member {name!r}; the members are {names}")


def _member(
    configuration: Configuration,
    member: Member,
    status: MemberStatus | None,
    end: int,
    reported: Versions | None,
    lost_since_ms: int,
) -> ClusterMember:
    # Until the log contains the versions of programs, use those that the members report (`reported`).
    versions = member.versions or reported
    # Until the log contains the members, no data directory id is known, so no member counts as awaited.
    is_awaited = member.id is None and bool(configuration.cluster)
    is_there = not is_awaited and status is not None and status.state != NodeState.DOWN
    last_index = status.last_index if is_there and status is not None else None
    role = "awaited" if is_awaited else "voter" if member.is_voter else "learner"
    return ClusterMember(
        name=member.name,
        host=member.address.host,
        port=member.address.port,
        id=None if member.id is None else member.id.hex(),
        role=role,
        state=NodeState(status.state) if is_there and status is not None else NodeState.DOWN,
        lag=None if last_index is None else end - last_index,
        versions=None if versions is None else str(versions),
        drained=member.is_drained,
        lost_ms=member.lost_ms if member.lost_ms is not None and member.lost_ms > lost_since_ms else None,
    )
