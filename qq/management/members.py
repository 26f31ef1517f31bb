"""The members of the cluster, and what operators change about them.

Invariant: whoever is told that a change is made finds it made at this node, and whoever is told that a member votes
finds it up and voting. Asked again, nothing is done twice.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from cluster.configuration.change_request import Verb, not_before_upgrade
from cluster.configuration.configuration import PeerAddress
from cluster.transport.handshake import HandshakeError
from qq.errors import ReplyCode
from qq.http.view import (
    UNKNOWN,
    ClusterMember,
    ClusterMembers,
    NodeState,
    RemovedMember,
    RequestRefused,
    Unavailable,
)
from qq.management.leadership import PATIENCE_S, until
from qq.management.sessions import until_applied

if TYPE_CHECKING:
    from cluster.configuration.change_request import MemberChange
    from cluster.configuration.configuration import Configuration, Member, Versions
    from cluster.group.group import Group
    from cluster.membership.peer_status import MemberStatus
    from qq.sessions.broker import Broker

CHANGE_S = 10.0
"""How many seconds a request waits for its change, if it does not say so."""
ASK_AGAIN_S = 0.3
"""The leader is asked again after this time: it may not have heard, or have had another change under way."""
REACH_S = 3.0
"""How long a new member's address may take to answer."""

_JUDGED = (Verb.DRAIN, Verb.REMOVE, Verb.REPLACE)
"""The leader judges these by what members say of themselves, which may be a second old."""


class Doors(Protocol):
    """Where other nodes listen for their peers, as `PeerLinks` finds them."""

    def place(self, peer: str, address: PeerAddress) -> PeerAddress:
        """Where a node is looked for from here that is to be at this address."""
        ...

    async def reach(self, peer: str, place: PeerAddress) -> bytes:
        """Connect to the node of this name there; returns the id of its data directory.

        Raises HandshakeError if it is not that node which listens there, and OSError.
        """
        ...


class MemberChanges:
    """The part of `qq.http.view.ManagementView` that is about members."""

    def __init__(self, broker: Broker, group: Group, doors: Doors) -> None:
        self._broker = broker
        self._group = group
        self._doors = doors

    @property
    def _configuration(self) -> Configuration:
        return self._group.configurations.committed

    def cluster_members(self) -> ClusterMembers:
        group, configuration = self._group, self._configuration
        statuses = {status.name: status for status in group.statuses.all()}
        end = max((status.last_index or 0 for status in statuses.values()), default=0)
        return ClusterMembers(
            node=group.config.name,
            cluster=group.config.cluster,
            cluster_id=configuration.cluster.hex() or None,
            version=configuration.version,
            leader=group.leader,
            members=[
                _shown(configuration, member, statuses.get(member.name), end, group.versions_of(member.name))
                for member in configuration.members
            ],
            removed=[RemovedMember(removed.name, removed.id.hex()) for removed in configuration.removed],
        )

    async def change_members(self, change: MemberChange, wait_s: float | None = None) -> None:
        """Have the members changed, and return when this node knows that they are; wait so long, or `CHANGE_S`.

        Raises RequestRefused if that is not done; Unavailable if it is not done yet, and then it may be asked again.
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
                self._group.reconfiguration.ask(change, refusals.append)
            left_s = end_s - loop.time()
            await until(lambda: self._is_done(change) or refusals, min(ASK_AGAIN_S, left_s))
            if self._is_done(change):
                return
            if refusals:
                if loop.time() >= believed_s:
                    raise RequestRefused(ReplyCode.PRECONDITION_FAILED, refusals[0])
                end_s = max(end_s, believed_s + 2 * ASK_AGAIN_S)  # the last refusal is waited for
                await asyncio.sleep(ASK_AGAIN_S)
                refusals.clear()
            elif left_s <= ASK_AGAIN_S:
                raise Unavailable(await self._why_not_done(change))

    def _is_done(self, change: MemberChange) -> bool:
        group = self._group
        if change.verb == Verb.REMOVE and group.stopping.is_removed and change.member_id == group.members.id:
            return True  # its own state will never have it
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
        """Whether the change can be asked for only when the member has come."""
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
            shown = next(each for each in self.cluster_members().members if each.name == name)
            if shown.state == NodeState.DOWN and (why := await self._who_else_is_at(name, member.address)):
                return why
            if shown.role == "awaited":
                return f"{name} has not come yet: start it at {member.address} with `qq serve --join`"
            if not member.is_voter and shown.lag is not None:
                why = group.reconfiguration.why_no_majority(self._configuration.promoted(name))
                given = f"{name} is given the log, and lacks {shown.lag:,} entries"
                short = group.statuses.why_short(name)
                return why or (f"{given}; {short}" if short else given)
            why = group.statuses.why_not_there(name)
            return why or f"{name} is there, and does not vote yet"
        if change.verb == Verb.DRAIN and change.is_made(self._configuration):
            if group.leader == name:
                return f"{name} still leads: nobody else has taken over yet"
            return f"clients of {name} that have not gone yet: {self._clients_of(name):,}"
        stuck = group.statuses.why_nothing_is_stored()
        return f"the change is not made yet; it may still be made: {stuck or 'ask again'}"

    async def _who_else_is_at(self, name: str, address: PeerAddress) -> str | None:
        """Who listens at a member's address in its place, such as a node of another cluster; None if nobody does."""
        place = self._doors.place(name, address)
        try:
            with suppress(OSError):
                async with asyncio.timeout(REACH_S):
                    await self._doors.reach(name, place)
        except HandshakeError as error:
            return f"{name} is not at {place}: {error}"
        return None

    # What can be refused here: a leader refuses the rest

    async def _checked(self, change: MemberChange) -> MemberChange:
        """The change, with the data directory that is meant: of who is to be added, the one that it has now.

        Raises RequestRefused if it cannot be made, or would do harm; Unavailable if not yet.
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
        """The id of the data directory of a new member, which has to be up: the cluster would wait for a mistake.

        Raises Unavailable if nobody answers at its address, and RequestRefused if somebody else does.
        """
        place = self._doors.place(name, address)
        try:
            async with asyncio.timeout(REACH_S):
                return await self._doors.reach(name, place)
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
        """Raise RequestRefused if there is no member of this name, also when this node has caught up; Unavailable."""
        if self._configuration.member(name) is None:
            await until_applied(self._broker, [], lambda: None)
        if self._configuration.member(name) is None:
            names = ", ".join(member.name for member in self._configuration.members)
            raise RequestRefused(ReplyCode.NOT_FOUND, f"there is no member {name!r}; the members are {names}")


def _shown(
    configuration: Configuration,
    member: Member,
    status: MemberStatus | None,
    end: int,
    told: Versions | None,
) -> ClusterMember:
    # As long as the log does not say what programs there are, they go by what they tell (`told`).
    versions = member.versions or told
    # As long as the log does not say who the members are, nobody's data directory is known.
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
    )
