"""The leader as this node knows it, and the reasons why this node hands leadership over.

A leader hands over for these reasons: an operator asks; it is to be removed or under maintenance; its disk is full or
its log damaged; clients wait for its disk alone; a voter has a link with a member, and the leader has not.

Invariants: leadership goes to a fit voter that is not under maintenance, unless no such voter exists. A voter that
could not lead is never asked, so that clients do not wait for a handover that must fail.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import TYPE_CHECKING

from cluster.membership.maintenance import PATIENCE_S
from cluster.raft.messages import Transfer
from cluster.raft.proposals import LeaderTerm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.membership.maintenance import Maintenance
    from cluster.membership.peer_status import Peers
    from cluster.membership.status import Statuses
    from cluster.membership.view import Members
    from cluster.replica import Replica

log = logging.getLogger(__name__)

APART_S = 10.0
"""Seconds that a peer must reach more members before the leader hands over to it.

Most lost links return sooner.
"""
HANDOVER_S = 1.0
"""Seconds that a leader that hands over proposes no entry, at most. A handover takes two or three syncs."""
PAUSE_S = 10.0
"""Seconds between a failed handover and the next that the node starts by itself. An operator may ask for it sooner."""
LATE_MAX_S = 1.0
"""Seconds of counted lateness above which the leader hands over. DiskLag decays by `FORGOTTEN` per second."""
FORGOTTEN = 0.1
"""Seconds of lateness forgotten per second.

A leader whose disk delays clients for a smaller share of the time leads on.
"""
MEMORY = 2.0
"""Upper bound of counted lateness, as a multiple of `LATE_MAX_S`.

Without a successor the leader must lead on. The bound lets a disk that has recovered count as quick again soon.
"""


class Handover:
    """The handover from this leader to a peer, if there is one (Raft thesis 3.10); the caller passes the times.

    It ends by itself after `HANDOVER_S`, so the leader leads on if no peer takes over.
    """

    def __init__(self) -> None:
        self._ends_s = -math.inf
        self._is_requested = False
        self._to: Sequence[str] = ()

    def begin(self, now_s: float, to: Sequence[str] = ()) -> None:
        """Begin a handover to any of the peers `to`, or to any successor if `to` is empty."""
        self._ends_s = now_s + HANDOVER_S
        self._is_requested = False
        self._to = to

    def end(self) -> None:
        """End the handover, because leadership has gone to a peer or has come to this node."""
        self._ends_s = -math.inf

    def is_on(self, now_s: float) -> bool:
        return now_s < self._ends_s

    def was_in_vain(self, now_s: float) -> bool:
        """Return whether a handover that no peer has taken over ended less than `PAUSE_S` ago."""
        return self._ends_s <= now_s < self._ends_s + PAUSE_S

    def meant(self, successors: Sequence[str]) -> Sequence[str]:
        """Return the peers that may take over: the intended peers, or else `successors`."""
        return self._to or successors

    def request_once(self, request: Callable[[], bool]) -> None:
        """Ask a peer to take over, at most once per handover.

        `request` asks a peer that holds the whole log, and returns False as long as no peer does.
        """
        self._is_requested = self._is_requested or request()


class DiskLag:
    """The time that clients have waited for the leader's disk alone; the caller passes the times.

    While a majority of followers stores entries sooner, clients do not wait for the leader's disk. That ends when the
    leader's unsynced entries no longer fit into memory (`engine.UNSYNCED_BYTES_MAX`). From then on a leader with a slow
    disk delays every client; a follower with such a disk delays no client. A single short stall is not late.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Set the lateness to zero, because a leadership begins or ends."""
        self._late_s = 0.0
        self._counted_s: float | None = None

    @property
    def is_too_much(self) -> bool:
        return self._late_s > LATE_MAX_S

    def add(self, now_s: float, interval_s: float, *, delays_commit: bool) -> None:
        """Count the time since the last call as late if `delays_commit`; called every `interval_s` seconds at least.

        A call counts two intervals at most, because a node that was busy has not heard of its own disk either.
        """
        if self._counted_s is not None:
            since_s = now_s - self._counted_s
            self._late_s -= FORGOTTEN * since_s
            if delays_commit:
                self._late_s += min(since_s, 2 * interval_s)
            self._late_s = min(max(0.0, self._late_s), MEMORY * LATE_MAX_S)
        self._counted_s = now_s


class Leadership:
    """The leader that this node knows, which may be itself, and this node's handover."""

    def __init__(
        self,
        replica: Replica,
        *,
        members: Members,
        peers: Peers,
        statuses: Statuses,
        maintenance: Maintenance,
    ) -> None:
        self.leader_term = LeaderTerm(None, 0)
        """The leader and its term, as of the last turn."""
        self.handover = Handover()
        """The handover of leadership from this node to a peer, if it is handing over."""
        self._disk_lag = DiskLag()
        self._apart_since_s: float | None = None
        """Since when a candidate reaches more members than this leader, on the monotonic clock; or None."""
        self._began_s = 0.0
        """When the present leadership began, on the monotonic clock."""
        self._members = members
        self._peers = peers
        self._statuses = statuses
        self._maintenance = maintenance
        self._engine = replica.engine
        self._runtime = replica.runtime
        self._transmit = replica.outbox.transmit
        self._ask_turn = replica.turns.request

    def record_leader(self, leader_term: LeaderTerm) -> bool:
        """Record the present leader and its term, and return whether this node's own leadership ends or begins."""
        before, self.leader_term = self.leader_term, leader_term
        self._began_s = self._runtime.monotonic()
        if leader_term.leader or before.leader:  # a term without a leader is logged only once
            log.info("leader of term %d: %s", leader_term.term, leader_term.leader or "none")
        is_own = self._members.name in (before.leader, leader_term.leader)
        if is_own:
            self.handover.end()
            self._disk_lag.reset()
            self._apart_since_s = None
        return is_own

    def update_candidacy(self, *, may_lead: bool) -> None:
        """Record whether the log and the disk of this node allow it to lead, and whether it campaigns on a timeout.

        A node under maintenance may lead, but campaigns only at the request of its leader: see maintenance.py.
        """
        now_s = self._runtime.monotonic()
        self._maintenance.record_leader(self.leader_term.leader, now_s)
        self._engine.may_lead = may_lead
        self._engine.campaigns_on_timeout = not self._maintenance.leaves_leading(now_s)

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

    def transfer_requested(self, _peer: str, request: Transfer) -> None:
        """Hand over at the request of a peer that addresses this node as the leader of the request's term."""
        if request.term == self._engine.term:
            self.transfer(request.to or None)

    def request_transfer(self, to: str | None) -> None:
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

    def transfer_to_successor(self) -> None:
        """Ask a peer to take over, once per handover, as soon as a peer holds the whole log."""
        meant = self.handover.meant(self._statuses.successors())
        self.handover.request_once(partial(self._engine.transfer_leadership, meant))

    def transfer_to_any(self) -> None:
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
        self._disk_lag.add(now_s, interval_s, delays_commit=engine.delays_commit())
        if self._disk_lag.is_too_much:
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
                log.warning(
                    "this node has no link with %s; handing leadership over to %s, which has",
                    ", ".join(others),
                    name,
                )
