"""The leader as this node knows it, and the reasons why this node hands leadership over.

A leader hands over for these reasons: an operator asks; it is to be removed or under maintenance; its disk is full or
its log damaged; clients wait for its disk alone; a voter has a link with a member, and the leader has not.

Invariants: leadership goes to a fit voter that is not under maintenance, unless no such voter exists. A voter that
could not lead is never asked, so that clients do not wait for a handover that must fail.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from cluster.membership.disk_lag import Lateness
from cluster.membership.handover import Handover
from cluster.membership.maintenance import PATIENCE_S
from cluster.raft.messages import Transfer
from cluster.raft.proposals import LeaderTerm

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
"""Seconds that a peer must reach more members before the leader hands over to it.

Most lost links return sooner.
"""


class Leadership:
    """The leader that this node knows, which may be itself, and this node's handover."""

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
        self.leader_term = LeaderTerm(None, 0)
        """The leader and its term, as of the last turn."""
        self.handover = Handover()
        """The handover of leadership from this node to a peer, if it is handing over."""
        self._lateness = Lateness()
        self._apart_since_s: float | None = None
        """Since when a candidate reaches more members than this leader, on the monotonic clock; or None."""
        self._began_s = 0.0
        """When the present leadership began, on the monotonic clock."""
        self._members = members
        self._peers = peers
        self._statuses = statuses
        self._maintenance = maintenance
        self._engine = engine
        self._runtime = runtime
        self._transmit = transmit
        self._ask_turn = ask_turn

    def begins(self, leader_term: LeaderTerm) -> bool:
        """Record the present leader and its term, and return whether this node's own leadership ends or begins."""
        before, self.leader_term = self.leader_term, leader_term
        self._began_s = self._runtime.monotonic()
        if leader_term.leader or before.leader:  # a term without a leader is logged only once
            log.info("leader of term %d: %s", leader_term.term, leader_term.leader or "none")
        is_own = self._members.name in (before.leader, leader_term.leader)
        if is_own:
            self.handover.end()
            self._lateness.reset()
            self._apart_since_s = None
        return is_own

    def look(self, *, is_fit: bool) -> None:
        """Allow or forbid this node to lead and to campaign; `is_fit` tells whether its log and disk allow it to lead.

        A node under maintenance may lead, but leaves campaigning to its peers: see maintenance.py.
        """
        now_s = self._runtime.monotonic()
        self._maintenance.look(self.leader_term.leader, now_s)
        self._engine.may_lead = is_fit
        self._engine.stands_for_leader = not self._maintenance.leaves_leading(now_s)

    # Handing over

    def transfer(self, to: str | None = None) -> bool:
        """Start a handover to the peer `to`, or to any successor, and return whether it was started.

        `leader_term` shows when leadership has changed. The result is False if this node does not lead or no voter can
        take over. It is also False if `to` is not fit, is this node itself, or conflicts with a handover in progress.
        During a handover this node proposes no entry, because a peer that lacks the latest entry could not be elected.
        """
        if to is not None and (
            to == self._members.name or self.is_handing_over or self._statuses.why_not_lead(to) is not None
        ):
            return False
        return self._hand_over([] if to is None else [to])

    def leave(self, to: Sequence[str] = ()) -> bool:
        """Start a handover to any of `to`, or of all successors if `to` is empty, because this node should not lead.

        Return False, and start none, if a handover is in progress or has failed less than `PAUSE_S` ago.
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
        """Hand over at the request of a peer that addresses this node as the leader of the request's term."""
        if request.term == self._engine.term:
            self.transfer(request.to or None)

    def ask_for_transfer(self, to: str | None) -> None:
        """Ask the present leader to hand over to the member `to`, or to any; `leader_term` shows when it has."""
        leader, term = self.leader_term
        if leader == self._members.name:
            self.transfer(to)
        elif leader is not None:
            self._transmit(leader, Transfer(term, to or ""))

    @property
    def is_handing_over(self) -> bool:
        """Whether this node is handing over."""
        return self.handover.is_on(self._runtime.monotonic())

    def ask_successor(self) -> None:
        """Ask a peer to take over, once per handover, as soon as a peer holds the whole log."""
        meant = self.handover.meant(self._statuses.successors())
        self.handover.ask(partial(self._engine.transfer_leadership, meant))

    def ask_somebody(self) -> None:
        """Ask a peer to take over without starting a handover: this node leads on if no peer does."""
        self._engine.transfer_leadership(self._statuses.successors())

    def give_way(self) -> bool:
        """Stop leading, and return whether this node follows and the other voters are a majority without it."""
        self._engine.may_lead = False
        if self._engine.is_leader:
            self.leave()
            return False
        return self._members.is_majority(self._peers.voters())

    def leave_for_maintenance(self) -> None:
        """Hand over if this node is under maintenance and a fit voter exists.

        It leads for `PATIENCE_S` at least. The peer that gave it leadership may be about to be removed, and this leader
        must have time to remove it.
        """
        has_led_s = self._runtime.monotonic() - self._began_s
        if self._members.name in self._maintenance.members and has_led_s > PATIENCE_S:
            fit = [name for name in self._statuses.successors() if self._statuses.why_not_lead(name) is None]
            if fit:
                self.leave(fit)

    def leave_if_late(self, interval_s: float) -> None:
        """Hand over if clients wait for the disk of this node, to a peer that has stored the entries this node has not.

        Must be called every `interval_s` seconds at least while this node leads.
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
        """Hand over to a candidate that has reached more members than this leader for `APART_S`.

        The clients of a member without a link to the leader wait as long as that leader leads. Called about once a
        second while this node leads.
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
