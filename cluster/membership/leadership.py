"""Who leads, as far as this node knows, and to whom leadership goes from here.

A leader hands over because somebody asks for it, because it is to be removed or under maintenance, because its disk is
full or its log damaged, because its disk alone keeps everybody waiting, or because it has no link with a member with
which another one has.

Invariant: leadership goes to a voter that is fit and not under maintenance, unless it could go to nobody else; and who
could not lead is not asked at all, so that nobody waits for a handover that cannot be.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from cluster.membership.disk_lag import Lateness
from cluster.membership.handover import Handover
from cluster.membership.maintenance import PATIENCE_S
from cluster.raft.messages import Transfer
from cluster.raft.proposals import Reign

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.engine.engine import Engine
    from cluster.membership.maintenance import Maintenance
    from cluster.membership.peer_status import Peers
    from cluster.membership.status import Statuses
    from cluster.membership.view import Members
    from cluster.raft.messages import Message
    from cluster.runtime.ports import Runtime

log = logging.getLogger(__name__)


APART_S = 10.0
"""A leader hands over to a member that reaches more of the others when it has done so for this long: most links come
back sooner."""


class Leadership:
    """The leader that this node knows, which may be itself."""

    def __init__(
        self,
        members: Members,
        peers: Peers,
        statuses: Statuses,
        maintenance: Maintenance,
        engine: Engine,
        runtime: Runtime,
        transmit: Callable[[str, Message], None],
        ask_turn: Callable[[], None],
    ) -> None:
        self.reign = Reign(None, 0)
        """The leader and its term, as the last turn has found them."""
        self.handover = Handover()
        """The handover by which this node gives leadership away, if one is under way."""
        self._lateness = Lateness()
        self._apart_since_s: float | None = None
        """Since when another member reaches more of the others than this leader; None if none does."""
        self._began_s = 0.0
        """When the present reign began, on the monotonic clock."""
        self._members = members
        self._peers = peers
        self._statuses = statuses
        self._maintenance = maintenance
        self._engine = engine
        self._runtime = runtime
        self._transmit = transmit
        self._ask_turn = ask_turn

    def begins(self, reign: Reign) -> bool:
        """Note the present leader and its term; True if this node's own leadership ends or begins with it."""
        before, self.reign = self.reign, reign
        self._began_s = self._runtime.monotonic()
        if reign.leader or before.leader:  # that there is still none is not logged with each term
            log.info("leader of term %d: %s", reign.term, reign.leader or "none")
        is_own = self._members.name in (before.leader, reign.leader)
        if is_own:
            self.handover.end()
            self._lateness.reset()
            self._apart_since_s = None
        return is_own

    def look(self, *, is_fit: bool) -> None:
        """Lead from now on if that comes here, unless this node's log or disk does not allow it.

        A node under maintenance may lead, too, but leaves it to the others to stand for it: see maintenance.py.
        """
        now_s = self._runtime.monotonic()
        self._maintenance.look(self.reign.leader, now_s)
        self._engine.may_lead = is_fit
        self._engine.stands_for_leader = not self._maintenance.leaves_leading(now_s)

    # Handing over

    def transfer(self, to: str | None = None) -> bool:
        """Hand leadership to this peer, or to any; `reign` tells when it has changed.

        Returns False if nothing is begun: this node does not lead, nobody else can, or the one that is meant is
        not fit, is this node itself, or would get in the way of a handover that is under way.
        Nothing is proposed meanwhile: a peer that lacks the latest entry could not be elected.
        """
        if to is not None and (
            to == self._members.name or self.is_handing_over or self._statuses.why_not_lead(to) is not None
        ):
            return False
        return self._hand_over([] if to is None else [to])

    def leave(self, to: Sequence[str] = ()) -> bool:
        """Hand over, to one of these or to anybody, because this node should not lead.

        Nothing is begun, and False returned, while it does so already, or if nobody took that lately.
        """
        if self.is_handing_over or self.handover.was_in_vain(self._runtime.monotonic()):
            return False
        return self._hand_over(to)

    def _hand_over(self, to: Sequence[str]) -> bool:
        if not self._engine.is_leader or not self._statuses.successors():
            return False
        self.handover.begin(self._runtime.monotonic(), to)
        self._ask_turn()
        return True

    def requested(self, _peer: str, request: Transfer) -> None:
        """Hand over because another node asks this one, as the leader of that term, to do it."""
        if request.term == self._engine.term:
            self.transfer(request.to or None)

    def ask_for_transfer(self, to: str | None) -> None:
        """Have the leader, whoever that is, hand over to this member, or to any. `reign` tells when it has."""
        leader, term = self.reign
        if leader == self._members.name:
            self.transfer(to)
        elif leader is not None:
            self._transmit(leader, Transfer(term, to or ""))

    @property
    def is_handing_over(self) -> bool:
        """Whether a handover is under way."""
        return self.handover.is_on(self._runtime.monotonic())

    def ask_successor(self) -> None:
        """Ask a peer to take over, once, as soon as there is one that has everything."""
        meant = self.handover.meant(self._statuses.successors())
        self.handover.ask(partial(self._engine.transfer_leadership, meant))

    def ask_somebody(self) -> None:
        """Ask a peer to take over, without waiting for it: this node leads on if none does."""
        self._engine.transfer_leadership(self._statuses.successors())

    def give_way(self) -> bool:
        """Lead no more; True once the other voters are a majority without this node, which does not lead."""
        self._engine.may_lead = False
        if self._engine.is_leader:
            self.leave()
            return False
        return self._members.is_majority(self._peers.voters())

    def leave_for_maintenance(self) -> None:
        """Hand over if this node is under maintenance and another one can lead.

        It leads for a moment at least: whoever gave it leadership may have had to, and be removed by it.
        """
        has_led_s = self._runtime.monotonic() - self._began_s
        if self._members.name in self._maintenance.members and has_led_s > PATIENCE_S:
            fit = [name for name in self._statuses.successors() if self._statuses.why_not_lead(name) is None]
            if fit:
                self.leave(fit)

    def leave_if_late(self, interval_s: float) -> None:
        """Hand over if the disk of this node keeps everybody waiting, to a node that has what this one has not written.

        This is called every `interval_s` seconds at least, while this node leads.
        """
        engine, now_s = self._engine, self._runtime.monotonic()
        self._lateness.look(now_s, interval_s, is_waited_for=engine.is_waited_for())
        if self._lateness.is_too_much:
            reached_index = engine.reached_index()
            fit = [
                name
                for name in self._statuses.successors()
                if engine.acknowledged_index(name) >= reached_index
                and self._statuses.why_not_lead(name) is None
            ]
            if fit and self.leave(fit):
                log.warning("everybody waits for the disk of this node: %s may lead", " or ".join(fit))

    def leave_if_apart(self) -> None:
        """Hand over to a member that reaches whomever this one reaches, and others, if that lasts.

        Clients of a member that has no link with the leader wait for as long as that leads. This is called about once
        a second, while this node leads.
        """
        better, now_s = self._statuses.reaching_more(), self._runtime.monotonic()
        if not better:
            self._apart_since_s = None
            return
        if self._apart_since_s is None:
            self._apart_since_s = now_s
        if now_s - self._apart_since_s >= APART_S and self.leave(list(better)):
            for name, others in better.items():
                log.warning("this node has no link with %s, and %s has: it may lead", ", ".join(others), name)
