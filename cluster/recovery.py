"""What a node that has lost its memory may do, and how it gets it back.

A vote and an acknowledgement are promises: a node that has forgotten one must not make another that breaks it. Hence
the standing of a node (log/hardstate.py):

BLANK    knows nothing of its past: no file of term and vote. It takes no part until every other member has told its
         term since this start. A vote that it may have given to one of them cannot be of a later term than the latest
         it hears of; it takes that term and counts its vote in it as given. One that it gave itself can be of a later
         one, if nobody heard of that campaign. Nobody will: who tells its term does so on a new link, and what was
         under way on the old one is never heard. So that vote is void, and it may give another in that term. If nobody
         holds an entry, the cluster is new and the node is a voter at once; else it is a learner.
LEARNER  knows its term, but its log may lack entries that it has acknowledged. It stores and acknowledges what a leader
         sends, and neither votes nor campaigns. The leader of a term has everything that was ever committed, and what
         it told of its log's end it told after this start; a node that holds all of that is a voter again.
VOTER    an ordinary member.

Lives here: these rules. Not here: how a log is found to be damaged (group.py), how the entries come (catch_up.py).

Law: with a majority of logs intact nothing is un-committed; without one nobody pretends.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.log.hardstate import HardState, Standing

if TYPE_CHECKING:
    from cluster.configurations import Configurations
    from cluster.engine import Engine
    from cluster.envelope import Status
    from cluster.log.hardstate import HardStateFile
    from cluster.log.journal import SegmentedJournal

log = logging.getLogger(__name__)

ROUNDS = 2
"""A lost majority is reported only when it was seen with this many statuses for each peer: one may be out of date."""


class Recovery:
    """The standing of this node, and how it becomes a voter again."""

    def __init__(self, name: str, configurations: Configurations, hard_state: HardStateFile) -> None:
        self._name = name
        self._configurations = configurations
        self._hard_state = hard_state
        self._heard: dict[str, Status] = {}
        """The last status of each other member that was heard since this start, by name."""
        self._goal = (0, 0)
        """Term and last index that a leader told last; a learner that holds its log up to there is a voter again."""
        self._hopeless_for = 0
        """How many statuses were heard in a row with which no majority seemed left that has its log."""

    @property
    def _peers(self) -> tuple[str, ...]:
        return self._configurations.membership.others(self._name)

    @property
    def standing(self) -> Standing:
        state = self._hard_state.state
        return Standing.BLANK if state is None else state.standing

    def heard(self, peer: str, status: Status, *, leads: bool) -> None:
        """Take in what a member said of itself; `leads` tells whether it is a leader."""
        self._heard[peer] = status
        if leads:
            self._goal = (status.term, status.last_index)
        hopeless = self._hopeless()
        self._hopeless_for = self._hopeless_for + 1 if hopeless else 0
        if self._hopeless_for == ROUNDS * len(self._peers):
            log.error("%s", hopeless)

    def turn(self, engine: Engine, journal: SegmentedJournal) -> bool:
        """Raise the standing of this node if the rules allow it now. True if it has changed."""
        standing = self.standing
        if standing is Standing.BLANK and not self._missing():
            self._remember(engine)
        elif standing is Standing.LEARNER and self._has_caught_up(engine, journal):
            self._rise(HardState(engine.term, engine.voted_for, Standing.VOTER))
        engine.may_vote = self.standing is Standing.VOTER
        return self.standing is not standing

    def describe(self) -> str | None:
        """Why this node does not take full part, or None if it does."""
        hopeless = self._hopeless()
        if hopeless is not None and self._hopeless_for >= ROUNDS * len(self._peers):
            return hopeless
        match self.standing:
            case Standing.BLANK:
                missing = ", ".join(self._missing())
                return f"waiting for {missing}: a node without a past must hear from every member once"
            case Standing.LEARNER:
                return "this node's log was damaged or lost; it is being repaired from the others"
            case Standing.VOTER:
                return None

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

    def _hopeless(self) -> str | None:
        """A text that no majority is left that has its log; None as long as that is not known to be so."""
        standings = {peer: Standing(status.standing) for peer, status in self._heard.items()}
        standings[self._name] = self.standing
        lost = sorted(name for name, standing in standings.items() if standing is not Standing.VOTER)
        has_past = Standing.LEARNER in standings.values() or any(
            status.last_index > 1 for status in self._heard.values()
        )
        if not has_past or self._configurations.membership.has_majority_without(lost):
            return None
        last = max((status.last_index for status in self._heard.values()), default=0)
        return (
            f"the logs of {', '.join(lost)} are damaged or lost, so no majority knows what was confirmed "
            f"(the others hold entries up to {last}): stop the nodes, put back a data directory of one of them "
            "(a damaged log is kept in it as damaged-*), and start again"
        )
