"""LeadershipTransfers for operators: show the leader, transfer leadership, judge whether a node may stop.

Invariant: when a transfer returns, this node has seen it. A repeated request does no work twice.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from qq.errors import ReplyCode
from qq.management.errors import NOT_CARRIED_OUT, RequestRefused, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.group.group import Group
    from cluster.membership.health import Verdict

T = TypeVar("T")

RETRY_S = 2.5
"""Seconds until the leader is asked a second and last time; a handover takes milliseconds and ends after a second. The
first request may have been lost, or have come just before the leader saw that the other node is fit.
"""
PATIENCE_S = 1.5
"""Seconds to wait for a known leader and a fit node, because the status of nodes may be a second old."""
_POLL_S = 0.01


class LeadershipTransfers:
    """Shows and transfers leadership."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def leader(self) -> str | None:
        return self._group.leader

    async def transfer(self, to: str | None) -> str:
        """Transfer leadership to the node `to` (None: to any other node), and return the new leader.

        Raises RequestRefused, without any change, if that node could not lead. Raises Unavailable.
        """
        group = self._group
        former = await until(self.leader, PATIENCE_S)
        if former is None:
            raise Unavailable(f"no leader is known: {group.why_undecided()}; {NOT_CARRIED_OUT}")
        if to == former:
            return former
        await self._check_possible(former, to)

        def successor() -> str | None:
            leader = group.leader
            return leader if leader == to or (to is None and leader != former) else None

        for _ in range(2):
            group.leadership.request_transfer(to)
            leader = await until(successor, RETRY_S)
            if leader is not None:
                return leader
        who = "no other node has" if to is None else f"{to} has not"
        what = f"{who} taken over within {2 * RETRY_S:g} s; {group.leader or 'no node'} leads"
        status = None if to is None else group.statuses.known().get(to)
        # A leader refuses a handover to a node that does not hear a member that the leader hears.
        missed = ", ".join(status.misses) if status is not None else ""
        raise Unavailable(f"{what}; " + (f"{to} has no link with {missed}" if missed else "try again"))

    async def _check_possible(self, former: str, to: str | None) -> None:
        """Raise RequestRefused if `to` (None: any other node) could not take over from the former leader."""
        group = self._group
        if to is not None:
            self._check_member(to)
        if former in group.members.of_release_0_1:
            flaw = "it runs release 0.1, and hands over only when it is stopped"
        elif to is None:
            flaw = "there is no other node" if len(group.members.names) == 1 else None
        else:
            await until(lambda: group.statuses.why_not_lead(to) is None, PATIENCE_S)
            flaw = group.statuses.why_not_lead(to)
        if flaw is not None:
            raise RequestRefused(ReplyCode.PRECONDITION_FAILED, f"{former} leads on: {flaw}")

    def may_stop(self, node: str | None) -> Verdict:
        """Judge whether the cluster can work without a node (None: this node).

        Raises RequestRefused if the cluster has no such node.
        """
        if node is None:
            node = self._group.config.name
        self._check_member(node)
        return self._group.statuses.may_stop(node)

    def _check_member(self, name: str) -> None:
        members = self._group.members.names
        if name not in members:
            raise RequestRefused(
                ReplyCode.NOT_FOUND, f"{name!r} is no node of this cluster, which has {', '.join(members)}"
            )


async def until(poll: Callable[[], T], within_s: float) -> T:
    """Return the result of `poll` when it becomes true, or its last result when the time is over."""
    end_s = asyncio.get_running_loop().time() + within_s
    # Polls, because the group is not asynchronous and has no event to wait for.
    while not (found := poll()) and asyncio.get_running_loop().time() < end_s:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)
    return found
