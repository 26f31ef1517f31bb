"""What a node that has lost its memory may do, and how it gets it back.

A vote and an acknowledgement are promises: a node that has forgotten one must not make another that breaks it. Hence
the standing of a node (log/hardstate.py):

BLANK    knows nothing of its past: no file of term and vote. Whatever its directory has promised, it is another one
         from now on, with a new id (identity.py). What it may do depends on whether the cluster has a configuration in
         its log. If it has, the node is nobody until the leader has taken it in, under that id, as a learner of the
         configuration: then it has promised nothing, and is an ordinary member at once.
         If there is no configuration yet, members are known by their names only. Then it takes no part until every
         other member has told its term since this start. A vote that it may have given to one of them cannot be of a
         later term than the latest it hears of; it takes that term and counts its vote in it as given. One that it gave
         itself can be of a later one, if nobody heard of that campaign. Nobody will: who tells its term does so on a
         new link, and what was under way on the old one is never heard. So that vote is void, and it may give another
         in that term. If nobody holds an entry, the cluster is new and the node is a voter at once; else it is a
         learner.
LEARNER  knows its term, but its log may lack entries that it has acknowledged. It stores and acknowledges what a leader
         sends, and neither votes nor campaigns. The leader of a term has everything that was ever committed, and what
         it told of its log's end it told after this start; a node that holds all of that is a voter again.
VOTER    an ordinary member. Whether it votes, or learns, is up to the configuration.

Invariant: with a majority of logs intact nothing is un-committed; without one nobody pretends.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from cluster.configuration.configuration import MEMBERS_MAX
from cluster.log.hardstate import HardState, Standing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cluster.configuration.configuration import Configuration
    from cluster.configuration.history import Configurations
    from cluster.engine.engine import Engine
    from cluster.log.hardstate import HardStateFile
    from cluster.log.journal import SegmentedJournal
    from cluster.raft.messages import Status

log = logging.getLogger(__name__)

HOPELESS_S = 2.0
"""A lost majority is reported only if those that lack their logs say so for this long: what each has told may be out of
date, as where a cluster begins."""


class Recovery:
    """The standing of this node, and how it becomes a voter again."""

    def __init__(
        self, name: str, member_id: bytes, configurations: Configurations, hard_state: HardStateFile
    ) -> None:
        self._name = name
        self._member_id = member_id
        self._configurations = configurations
        self._hard_state = hard_state
        self._heard: dict[str, Status] = {}
        """The last status of each other member that was heard since this start, by name."""
        self._heard_s: dict[str, float] = {}
        """When that was, by the time for which this node was awake."""
        self._away: set[str] = set()
        """Those of them that there is no link with any more: what they lacked they may have been given since."""
        self._goal = (0, 0)
        """Term and last index that a leader told last; a learner that holds its log up to there is a voter again."""
        self._hopeless_s = math.inf
        """Since when no majority was seen that still has its log, by the same time."""
        self._is_hopeless = False
        """Whether that is said."""

    @property
    def _peers(self) -> tuple[str, ...]:
        return self._configurations.membership.others(self._name)

    @property
    def standing(self) -> Standing:
        state = self._hard_state.state
        return Standing.BLANK if state is None else state.standing

    def has_past(self, last_index: int) -> bool:
        """Whether this node relies on its log, which ends with `last_index`.

        One that was told that it is a learner, and has lost its power before anything of that was in its log, is as new
        as it was: the cluster may have lost its addition as well, and then nobody else knows its directory.
        """
        return self.standing is Standing.VOTER and (self._is_by_names or last_index > 1)

    def heard_leader(self, status: Status) -> None:
        """Take in what a leader said of itself."""
        self._goal = (status.term, status.last_index)

    def told(self, configuration: Configuration, term: int, engine: Engine) -> None:
        """A node that is at `term` has told who the members are: this node may be a new learner among them."""
        member = configuration.member(self._name)
        if self.standing is not Standing.BLANK or member is None or member.is_voter:
            return
        if member.id == self._member_id:
            state = HardState(max(term, engine.journal.last_term), None, Standing.VOTER)
            self._rise(state)
            engine.remember(state.term, state.voted_for)

    def heard(self, peer: str, status: Status, awake_s: float) -> None:
        """Take in what a member said of itself, at `awake_s` of the time for which this node was awake."""
        self._heard[peer], self._heard_s[peer] = status, awake_s
        self._away.discard(peer)
        lost = self._lost()
        self._hopeless_s = min(self._hopeless_s, awake_s) if lost else math.inf
        was_hopeless, self._is_hopeless = self._is_hopeless, bool(lost) and self._are_believed(lost, awake_s)
        if self._is_hopeless and not was_hopeless:
            log.error("%s", self._hopeless(lost))

    def _are_believed(self, lost: Sequence[str], awake_s: float) -> bool:
        """Whether these have lacked their logs for long enough, by what they themselves have told."""
        told_s = [self._heard_s[name] for name in lost if name != self._name]
        return min(told_s, default=awake_s) - self._hopeless_s >= HOPELESS_S

    def left(self, peer: str) -> None:
        """There is no link with a node any more."""
        self._away.add(peer)

    def heard_other(self, voter: str, status: Status, awake_s: float) -> None:
        """Take in what a node said that has the name of a voter, and another directory: that one's may be lost."""
        self.heard(voter, status._replace(standing=Standing.BLANK), awake_s)

    def turn(self, engine: Engine, journal: SegmentedJournal) -> bool:
        """Raise the standing of this node if the rules allow it now. True if it has changed."""
        standing = self.standing
        if standing is Standing.BLANK and self._is_by_names and not self._missing():
            self._remember(engine)
        elif standing is Standing.LEARNER and self._has_caught_up(engine, journal):
            self._rise(HardState(engine.term, engine.voted_for, Standing.VOTER))
        now = self.standing
        engine.may_vote = now is Standing.VOTER
        return now is not standing

    def why_hopeless(self) -> str | None:
        """Say that no majority has its log any more; None if that is not known to be so."""
        lost = self._lost()
        return self._hopeless(lost) if lost and (self._is_hopeless or not self._peers) else None

    def describe(self) -> str | None:
        """Say why this node cannot vote, lead or serve clients; None if it can."""
        hopeless = self.why_hopeless()
        if hopeless is not None:
            return hopeless
        match self.standing:
            case Standing.BLANK if not self._is_by_names:
                return self._why_no_member()
            case Standing.BLANK:
                missing = ", ".join(self._missing())
                return f"waiting for {missing}: a node without a past must hear from every member once"
            case Standing.LEARNER if self._is_told_to_be_none:
                return self._why_no_member()
            case Standing.LEARNER:
                return "this node's log was damaged or lost; it is being repaired from the others"
            case Standing.VOTER if self._is_told_to_be_none and not self._configurations.newest_index:
                # It was told that it is a learner, and the cluster has lost that before it was in its log.
                return self._why_no_member()
            case Standing.VOTER:
                return None

    def _why_no_member(self) -> str:
        """Why this directory, which is new, is no member of a cluster whose log tells who the members are."""
        name, told = self._name, self._configurations.latest
        member, what = told.member(name), f"this node's data directory is new, and {self._name} "
        if not told.cluster:
            return "this node's data directory is new, and it has not reached its cluster yet"
        if member is not None and member.id not in (None, self._member_id):
            return f"{what}is a member with another one: if that is lost, `qq member replace {name}`"
        if told.was_removed(name):
            return f"{what}was removed: `qq member add {name} HOST:PORT`, or `join` in its file, takes it in"
        if member is None and len(told.members) >= MEMBERS_MAX:
            return f"{what}is no member: the cluster has {MEMBERS_MAX} already, which is the most: remove one first"
        return f"{what}waits until the leader takes it in"

    @property
    def _is_by_names(self) -> bool:
        """Whether the members are those in the nodes' files, this one among them."""
        newest = self._configurations.newest
        return not newest.cluster and self._name in newest.membership.voters

    @property
    def _is_told_to_be_none(self) -> bool:
        """Whether the cluster is known by now, and this directory is no member of it."""
        latest = self._configurations.latest
        return bool(latest.cluster) and not latest.has(self._name, self._member_id)

    def _missing(self) -> list[str]:
        return [peer for peer in self._peers if peer not in self._heard]

    def _remember(self, engine: Engine) -> None:
        term = max(0, engine.journal.last_term, *(status.term for status in self._heard.values()))
        new = not self._peers or self._is_new_cluster(engine)
        standing = Standing.VOTER if new else Standing.LEARNER
        state = HardState(term, self._name if term else None, standing)
        self._rise(state)
        engine.remember(state.term, state.voted_for)

    def _is_new_cluster(self, engine: Engine) -> bool:
        """Whether no member is a learner or holds more than a log's first entry, so that nothing was ever committed."""
        return engine.journal.last_index <= 1 and all(
            status.standing != Standing.LEARNER and status.last_index <= 1 for status in self._heard.values()
        )

    def _has_caught_up(self, engine: Engine, journal: SegmentedJournal) -> bool:
        term, index = self._goal
        return index > 0 and term == engine.term and min(engine.matched_index, journal.synced_index) >= index

    def _rise(self, state: HardState) -> None:
        self._hard_state.store(state)
        if self._peers:
            log.info("node %s is a %s of term %d now", self._name, state.standing.name.lower(), state.term)

    def _lost(self) -> list[str]:
        """The names of those that lack their logs, if no majority is left without them; else nobody."""
        membership = self._configurations.membership
        if self._name not in membership.voters:
            return []
        standings = {
            peer: Standing(status.standing)
            for peer, status in self._heard.items()
            if peer in membership.voters and peer not in self._away
        }
        standings[self._name] = self.standing
        lost = sorted(name for name, standing in standings.items() if standing is not Standing.VOTER)
        has_past = Standing.LEARNER in standings.values() or any(
            status.last_index > 1 for status in self._heard.values()
        )
        return lost if has_past and not membership.has_majority_without(lost) else []

    def _hopeless(self, lost: Sequence[str]) -> str:
        last = max((status.last_index for status in self._heard.values()), default=0)
        return (
            f"the logs of {', '.join(lost)} are damaged or lost, so no majority knows what was confirmed "
            f"(the others hold entries up to {last}): stop the nodes, put back a data directory of one of them "
            "(a damaged log is kept in it as damaged-*), and start again"
        )
