"""Changes of the members: the leader proposes configurations in turn, each a single step from the previous.

Operators ask any node for a change, and that node asks the leader. The leader makes further changes by itself
(joining.py).

Invariant: a leader proposes a change only after the previous configuration is committed, and only if the answering
voters can commit it. It judges an operator's request against the newest configuration, so two requests at once do no
more harm than two in succession.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from cluster.configuration.change_request import PendingRequests, Verb, not_before_upgrade
from cluster.configuration.configuration import ID_BYTES, MembershipRefused, make_configuration
from cluster.membership.health import why_no_majority
from cluster.raft.messages import ChangeRefused, ChangeRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.configuration.change_request import MemberChange
    from cluster.configuration.configuration import Configuration
    from cluster.membership.joining import Joining, Step
    from cluster.membership.leadership import Leadership
    from cluster.membership.status import Statuses
    from cluster.membership.view import Members
    from cluster.replica import Replica

log = logging.getLogger(__name__)


class NotNow(Exception):
    """Raised when the members cannot be changed at this moment; no change was made."""


class Reconfiguration:
    """The membership changes that this node requests and, when it leads, proposes."""

    def __init__(
        self,
        replica: Replica,
        *,
        members: Members,
        joining: Joining,
        leadership: Leadership,
        statuses: Statuses,
        losses_since: int,
    ) -> None:
        """`losses_since` is the first version of the state whose configurations have the times of lost directories."""
        self._members = members
        self._configurations = replica.configurations
        self._joining = joining
        self._leadership = leadership
        self._statuses = statuses
        self._losses_since = losses_since
        self._engine = replica.engine
        self._clock = replica.clock
        self._runtime = replica.runtime
        self._transmit = replica.outbox.transmit
        self._asked = PendingRequests()
        self._logged_refusals: set[str] = set()
        """The refusals of the leader's own steps that were logged already."""

    # Asking the leader

    def request(self, change: MemberChange, refused: Callable[[str], None]) -> None:
        """Ask the present leader to make a change of the members.

        `refused` is called with the reason if the change is refused. The configuration shows when the change is made
        (`MemberChange.is_made`). A caller that sees neither must ask again: the leader may have changed, or another
        change may have been in progress.
        """
        leader = self._leadership.leader_term.leader
        if leader == self._members.name:
            self._make(change, refused)
        elif leader in self._members.of_release_0_1:
            refused(
                f"node {leader!r} leads, and runs release 0.1, which knows no such changes: upgrade it first"
            )
        elif leader is not None:
            self._transmit(leader, ChangeRequest(self._asked.add(refused), change))

    def change_requested(self, peer: str, request: ChangeRequest) -> None:
        """Make the change that a peer requests, if this node leads."""
        if self._engine.is_leader:
            self._make(request.change, partial(self._refuse, peer, request.number))

    def change_refused(self, _peer: str, answer: ChangeRefused) -> None:
        """Report to the caller of `request` that the leader has refused the change."""
        self._asked.answered(answer.number, answer.text)

    def _refuse(self, peer: str, number: int, text: str) -> None:
        self._transmit(peer, ChangeRefused(number, text))

    # On the leader

    def propose(self, step: Step) -> int:
        """Propose the configuration that results from a step; return the log index of the entry that holds it.

        If the step changes nothing, this is the index of the newest configuration. Raises NotNow if this node does not
        lead, or cannot propose a change at this moment. Raises MembershipRefused if the change is not allowed.
        """
        engine, held = self._engine, self._configurations
        if not engine.is_leader or self._leadership.is_handing_over:
            raise NotNow("this node does not lead")
        # A leader that has committed no entry of its own term does not know the commit index (thesis 4.1, as corrected
        # in 2015), and two changes at once could have majorities without a common voter.
        if (
            held.newest_index > engine.commit_index
            or engine.journal.term_at(engine.commit_index) != engine.term
        ):
            raise NotNow("an earlier change is not committed yet")
        after = step(held.newest)
        if after is held.newest:
            return held.newest_index
        no_majority = self.why_no_majority(after)
        if no_majority is not None:
            raise MembershipRefused(no_majority)
        if not after.has(self._members.name, self._members.id):
            self._leadership.leave()
            raise NotNow("this node leads, and hands over first")
        time_ms = self._clock.time_ms(self._runtime.monotonic())
        if held.newest.version >= self._losses_since:
            after = after.dated(held.newest, time_ms)
        index = engine.propose(make_configuration(time_ms, after))
        self._members.follow()
        return index

    def take_due_step(self) -> None:
        """Propose the first possible change of the leader's own; the next heartbeat interval retries a refusal."""
        configuration, progress = self._configurations.newest, self._engine.progress
        learners = {
            name: progress[name].acknowledged
            for name in configuration.membership.learners
            if self._members.linked.is_member(name)
        }
        last_index, now_s = self._engine.journal.last_index, self._runtime.monotonic()
        refusals: set[str] = set()
        for step in self._joining.due_steps(configuration, learners, last_index, now_s, self._new_id):
            try:
                if self.propose(step) > self._engine.commit_index:
                    return
            except NotNow:
                return
            except MembershipRefused as refused:
                refusals.add(str(refused))
                self._log_refusal(str(refused))
        self._logged_refusals &= refusals

    def _log_refusal(self, refusal: str) -> None:
        """Log why a step is refused, unless the last round of steps had the same refusal."""
        if refusal not in self._logged_refusals:
            self._logged_refusals.add(refusal)
            log.info("a change of the members is refused: %s", refusal)

    def _make(self, change: MemberChange, refused: Callable[[str], None]) -> None:
        try:
            if change.verb == Verb.FINISH_UPGRADE:
                self.propose(partial(self._joining.raise_version, new_id=self._new_id))
            elif not self._configurations.newest.cluster:
                refused(not_before_upgrade(self._members.of_release_0_1))
            elif change.verb == Verb.REPLACE and self._is_there(change.name, change.member_id):
                refused(
                    f"node {change.name!r} is up and has its data directory: if it had lost another one, it has been "
                    "taken in again, and nothing is left to do; else stop it before it is replaced"
                )
            else:
                self.propose(partial(self._judged, change))
        except NotNow:
            pass
        except MembershipRefused as error:
            refused(str(error))

    def _judged(self, change: MemberChange, before: Configuration) -> Configuration:
        """Return the configuration after a change, or the same configuration if the change is made already.

        Raises MembershipRefused if the cluster cannot go on without the member. Two requests may each be harmless, but
        not both together. So the leader judges each here, against the configuration before it. The caller may ask
        again, because the statuses may be a second old.
        """
        after = change.step(before)
        if after is before:
            return after
        match change.verb:
            case Verb.DRAIN:
                verdict = self._statuses.may_drain(change.name)
            case Verb.REMOVE | Verb.REPLACE:
                verdict = self._statuses.may_leave(change.name)
            case _:
                return after
        if not verdict.is_safe:
            raise MembershipRefused(verdict.text)
        return after

    def _is_there(self, name: str, member_id: bytes) -> bool:
        member = self._configurations.newest.member(name)
        is_up = name == self._members.name or self._members.linked.is_member(name)
        return is_up and member is not None and member.id == member_id

    def _new_id(self) -> bytes:
        return self._runtime.random.randbytes(ID_BYTES)

    def why_no_majority(self, after: Configuration) -> str | None:
        """Return why the answering voters would be no majority by this configuration, or None if they would be."""
        before = self._configurations.membership
        return why_no_majority(before, after.membership, self._statuses.known())
