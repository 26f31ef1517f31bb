"""How the members are changed: one entry after the other, each with one step, proposed by the leader.

Steps come from two sides: operators ask for them on any node, which asks the leader; others are due by themselves.

Invariant: no change is proposed before the last one is committed, nor one that those who are there could not commit.
What an operator asks for is judged by the configuration before it, so two at once do no more harm than one after the
other.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from cluster.configuration.change_request import Questions, Verb, not_before_upgrade
from cluster.configuration.configuration import ID_BYTES, MembershipRefused, make_configuration
from cluster.membership.health import why_no_majority
from cluster.raft.messages import ChangeRefused, ChangeRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.configuration.change_request import MemberChange
    from cluster.configuration.configuration import Configuration
    from cluster.engine.engine import Engine
    from cluster.membership.joining import Enrolment, Step
    from cluster.membership.leadership import Leadership
    from cluster.membership.status import Statuses
    from cluster.membership.view import Members
    from cluster.raft.cluster_clock import ClusterClock
    from cluster.raft.messages import Message
    from cluster.runtime.ports import Runtime

log = logging.getLogger(__name__)


class NotNow(Exception):
    """The members cannot be changed at this moment; no change was made."""


class Reconfiguration:
    """The changes of the members that this node asks for and, when it leads, makes."""

    def __init__(
        self,
        members: Members,
        enrolment: Enrolment,
        leadership: Leadership,
        statuses: Statuses,
        engine: Engine,
        clock: ClusterClock,
        runtime: Runtime,
        transmit: Callable[[str, Message], None],
    ) -> None:
        self._members = members
        self._configurations = members.configurations
        self._enrolment = enrolment
        self._leadership = leadership
        self._statuses = statuses
        self._engine = engine
        self._clock = clock
        self._runtime = runtime
        self._transmit = transmit
        self._asked = Questions()
        self._complaints: set[str] = set()
        """The refusals of steps that are due which were logged already."""

    # Asking the leader

    def ask(self, change: MemberChange, refused: Callable[[str], None]) -> None:
        """Have the leader, whoever that is, make a change of the members.

        `refused` is told why if it is not made; the configuration tells when it is (`MemberChange.is_made`). Whoever
        hears of neither asks again: the leader may have changed, or another change may have been under way.
        """
        leader = self._leadership.reign.leader
        if leader == self._members.name:
            self._make(change, refused)
        elif leader in self._members.of_release_0_1:
            refused(
                f"node {leader!r} leads, and runs release 0.1, which knows no such changes: upgrade it first"
            )
        elif leader is not None:
            self._transmit(leader, ChangeRequest(self._asked.add(refused), change))

    def requested(self, peer: str, request: ChangeRequest) -> None:
        """Make the change that another node asks for, if this node leads."""
        if self._engine.is_leader:
            self._make(request.change, partial(self._refuse, peer, request.number))

    def refused(self, _peer: str, answer: ChangeRefused) -> None:
        """The leader does not make a change that this node has asked for."""
        self._asked.answered(answer.number, answer.text)

    def _refuse(self, peer: str, number: int, text: str) -> None:
        self._transmit(peer, ChangeRefused(number, text))

    # What a leader does

    def propose(self, step: Step) -> int:
        """Propose the configuration that comes of a step; returns the index of the entry in which it is, or was.

        Only a leader may be asked. Raises MembershipRefused, and NotNow if it may be asked again in a moment.
        """
        engine, held = self._engine, self._configurations
        if not engine.is_leader or self._leadership.is_handing_over:
            raise NotNow("this node does not lead")
        # A leader that has committed nothing in its term does not know what is committed (thesis 4.1, as corrected
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
        index = engine.propose(make_configuration(time_ms, after))
        self._members.follow()
        return index

    def take_due_step(self) -> None:
        """Take the step that is due, if any; what cannot be done now is tried again with the next beat."""
        configuration, progress = self._configurations.newest, self._engine.progress
        learners = {
            name: progress[name].acknowledged
            for name in configuration.membership.learners
            if self._members.presence.is_member(name)
        }
        last_index, now_s = self._engine.journal.last_index, self._runtime.monotonic()
        refusals: set[str] = set()
        for step in self._enrolment.due_steps(configuration, learners, last_index, now_s, self._new_id):
            try:
                if self.propose(step) > self._engine.commit_index:
                    return
            except NotNow:
                return
            except MembershipRefused as refused:
                refusals.add(str(refused))
                self._complain(str(refused))
        self._complaints &= refusals

    def _complain(self, refusal: str) -> None:
        """Log why a step that is due is refused: again only if it was not for a while."""
        if refusal not in self._complaints:
            self._complaints.add(refusal)
            log.info("the members stay as they are: %s", refusal)

    def _make(self, change: MemberChange, refused: Callable[[str], None]) -> None:
        try:
            if change.verb == Verb.FINISH_UPGRADE:
                self.propose(partial(self._enrolment.raise_version, new_id=self._new_id))
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
        """Make a change, unless it is made or the others cannot do without the member. Raises MembershipRefused.

        Of two changes that are asked for at once each may be harmless, and both together not: so it is judged here,
        where the one before is known. Whoever asks may ask again, since what is known may be a second old.
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
        is_up = name == self._members.name or self._members.presence.is_member(name)
        return is_up and member is not None and member.id == member_id

    def _new_id(self) -> bytes:
        return self._runtime.random.randbytes(ID_BYTES)

    def why_no_majority(self, after: Configuration) -> str | None:
        """Why the voters that are there would be no majority by this configuration; None if they would be one."""
        before = self._configurations.membership
        return why_no_majority(before, after.membership, self._statuses.known())
