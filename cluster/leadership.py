"""Who leads, as far as this node knows, and to whom leadership goes from here.

A leader hands over because somebody asks for it, because it is under maintenance, or because its log is damaged and it
is about to stop.

Lives here: whom leadership goes to, and that it does. Not here: who can lead (statuses.py, fitness.py), how long a
handover lasts (handover.py), elections (elections.py).

Law: leadership goes to a voter that is not known to be unfit, unless it could go to nobody else.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from cluster.envelope import Transfer
from cluster.handover import Handover
from cluster.submission import Reign

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cluster.engine import Engine
    from cluster.envelope import Message
    from cluster.maintenance import Maintenance
    from cluster.members import Members
    from cluster.peers import Peers
    from cluster.ports import Runtime
    from cluster.statuses import Statuses

log = logging.getLogger(__name__)


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
        """How this node gives leadership away, if it does."""
        self._is_giving_way = False
        """Whether this node has to stop, because its log is damaged."""
        self._members = members
        self._peers = peers
        self._statuses = statuses
        self._maintenance = maintenance
        self._engine = engine
        self._runtime = runtime
        self._transmit = transmit
        self._ask_turn = ask_turn

    def begins(self, reign: Reign) -> bool:
        """Note another reign; True if this node's ends or begins with it."""
        before, self.reign = self.reign, reign
        if reign.leader or before.leader:  # that there is still none is not logged with each term
            log.info("leader of term %d: %s", reign.term, reign.leader or "none")
        is_own = self._members.name in (before.leader, reign.leader)
        if is_own:
            self.handover.end()
        return is_own

    def look(self, *, is_fit: bool) -> None:
        """Stand for leader from now on, unless this node's log or disk does not allow it, or maintenance."""
        now_s = self._runtime.monotonic()
        self._maintenance.look(self.reign.leader, now_s)
        self._engine.may_lead = is_fit and not self._maintenance.leaves_leading(now_s)

    def asked(self) -> None:
        """A leader asks this node to take over, which it may then do under maintenance, too."""
        self._maintenance.asked_to_lead(self._runtime.monotonic())

    # Handing over

    def transfer(self, to: str | None = None) -> bool:
        """Hand leadership to this peer, or to any; `reign` tells when it has changed.

        Returns False if nothing is begun: this node does not lead, no peer is connected, or the one that is meant is
        not fit, is this node itself, or would get in the way of a handover that is under way.
        Nothing is proposed meanwhile: a peer that lacks the latest entry could not be elected.
        """
        if not self._engine.is_leader or self._members.is_alone:
            return False
        if to is not None and (
            to == self._members.name or self.is_handing_over or self._statuses.why_not_lead(to) is not None
        ):
            return False
        self.handover.begin(self._runtime.monotonic(), to)
        self._ask_turn()
        return True

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
        unfit = [*self._not_to_lead(), *self.handover.not_meant(self._members.peers)]
        self.handover.ask(partial(self._engine.transfer_leadership, unfit))

    def ask_anybody_but(self, unfit: Iterable[str]) -> None:
        """Ask a peer to take over, without waiting for it: this node leads on if none does."""
        self._engine.transfer_leadership([*unfit, *self._not_to_lead()])

    def give_way(self) -> bool:
        """Lead no more; True once the other voters are a majority without this node, which does not lead."""
        self._is_giving_way = True
        self._engine.may_lead = False
        if self._engine.is_leader:
            if not self.is_handing_over:
                self.transfer()
            return False
        return self._members.is_majority(self._peers.voters())

    def leave_for_maintenance(self) -> None:
        """Hand over if this node is under maintenance and another one can lead."""
        if self._members.name in self._maintenance.members and not self.is_handing_over:
            successor = self._successor()
            if successor is not None:
                self.transfer(successor)

    def _successor(self) -> str | None:
        """A voter that can lead in place of this node, and is not under maintenance."""
        others = sorted(self._members.configurations.membership.voters - {self._members.name})
        return next((voter for voter in others if self._statuses.why_not_lead(voter) is None), None)

    def _not_to_lead(self) -> list[str]:
        """The members that leadership should not go to.

        A leader whose log is damaged may be unable to give the others what they lack, so it takes whoever has all.
        """
        spares_drained = not self._is_giving_way and self._successor() is not None
        drained = self._maintenance.members if spares_drained else ()
        return [*self._peers.not_voting(), *drained]
