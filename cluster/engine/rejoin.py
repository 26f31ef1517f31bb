"""Voter status (`VoterStatus`) of a node that has lost memory, and its way back to a vote.

A vote and an acknowledgement are promises. A node that has forgotten a promise must not break it by a new promise. So a
node has a status (cluster/log/hardstate.py):

BLANK    The node knows nothing of its past: it has no file of term and vote. Old promises bind only its old directory,
         because it has a new directory id now (cluster/storage/identity.py). If the cluster has a configuration in its
         log, the node takes no part until the leader has admitted it under its new id, as a learner. A new id has
         no promises, so the node is an ordinary member at once.
         If there is no configuration yet, members are known by their names only. Then the node takes no part until
         every other member has reported its term since this start. A vote that it gave to such a member cannot be of
         a later term than the highest reported term. The node takes that term, and counts its vote in it as given.
         A vote for itself can be of a later term, if no member heard of that campaign. No member ever will, because
         terms are reported on new links, and messages on the old links are dropped. So that vote is void, and the
         node may vote again in that term. If no member holds an entry, the cluster is new, and the node is a voter at
         once; otherwise it is a learner.
LEARNER  The node knows its term, but its log may lack acknowledged entries. It stores and acknowledges a leader's
         entries, and neither votes nor campaigns. The leader of a term has all entries that were ever committed, and
         has reported the end of its log after this start. When the node holds all entries up to that end, it is a
         voter again.
VOTER    An ordinary member. The configuration decides whether it votes or learns.

Invariant: while a majority of logs is intact, committed entries stay committed. If that majority is lost, no node
pretends to have it.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from cluster.configuration.configuration import MEMBERS_MAX
from cluster.log.hardstate import HardState, VoterStatus
from cluster.raft.promises import Promise

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.configuration.configuration import Configuration
    from cluster.configuration.history import Configurations
    from cluster.engine.engine import Engine
    from cluster.log.hardstate import HardStateFile
    from cluster.log.journal import SegmentedJournal
    from cluster.raft.messages import Memory, Status

log = logging.getLogger(__name__)

MEMORIES_S = 2.0
"""Seconds after the start of a voter in which it waits for the memories of the other voters before it votes. Nodes that
are up connect sooner."""
HOPELESS_S = 2.0
"""Seconds that nodes must lack their logs before a lost majority is reported. Their last reports may be outdated,
for example when a cluster begins."""


class Rejoin:
    """The voter status of this node, and the rules by which it becomes a voter again."""

    def __init__(
        self,
        name: str,
        member_id: bytes,
        configurations: Configurations,
        hard_state: HardStateFile,
        last_index: int,
    ) -> None:
        """`last_index` is the end of the log at the start of this node."""
        self._name = name
        self._member_id = member_id
        self._configurations = configurations
        self._hard_state = hard_state
        self._reports: dict[str, Status] = {}
        """The last status of each other member that was heard since this start, by name."""
        self._reported_s: dict[str, float] = {}
        """Time awake at which that status arrived, by name."""
        self._away: set[str] = set()
        """Members without a link, among those heard. They may have got their logs back since their last status."""
        self._foreign: set[str] = set()
        """Voters under whose names other data directories than theirs report."""
        self._last_index = last_index
        """Index of the last entry of this node's log, as of the last call of `advance`."""
        state = hard_state.state
        self._found = (
            Promise(state.term, last_index) if state and state.voter_status is VoterStatus.VOTER else None
        )
        """Term and end of the log at the start of a voter; None if a leader has sent it everything since."""
        self.awaits_memories = False
        """Whether this voter must not vote before the other voters have told it what they remember of it."""
        self._memories: set[str] = set()
        """Members that have told what they remember of this node since its start."""
        self._began_s: float | None = None
        """Time awake at the first call of `advance`."""
        self.rolled_back_ms = 0
        """When a member told that this directory was put back as it was earlier, in ms since 1970; or 0."""
        self._rollback = ""
        """The text about that for operators."""
        self._goal = (0, 0)
        """Last term and last index that a leader reported. A learner that holds the leader's log up to there is a voter
        again."""
        self._hopeless_s = math.inf
        """Time awake since which no majority with intact logs was seen; infinity if there is a majority."""
        self._is_hopeless = False
        """Whether the lost majority is reported."""

    @property
    def _peers(self) -> tuple[str, ...]:
        return self._configurations.membership.others(self._name)

    @property
    def voter_status(self) -> VoterStatus:
        state = self._hard_state.state
        return VoterStatus.BLANK if state is None else state.voter_status

    def has_past(self, last_index: int) -> bool:
        """Return whether this node relies on its log, which ends with `last_index`.

        A node that a report made a learner, and that lost power before its log held an entry, is still new. The cluster
        may have lost its addition as well, and then no other node knows its directory.
        """
        return self.voter_status is VoterStatus.VOTER and (self._is_by_names or last_index > 1)

    def record_leader_end(self, status: Status) -> None:
        """Record the end of a leader's log from its status."""
        self._goal = (status.term, status.last_index)

    def admit(self, configuration: Configuration, term: int, engine: Engine) -> None:
        """Take in the members from a node at `term`.

        If they include this blank node as a learner, it becomes a member.
        """
        member = configuration.member(self._name)
        if self.voter_status is not VoterStatus.BLANK or member is None or member.is_voter:
            return
        if member.id == self._member_id:
            state = HardState(max(term, engine.journal.last_term), None, VoterStatus.VOTER)
            self._rise(state)
            engine.remember(state.term, state.voted_for)

    def record_status(self, peer: str, status: Status, awake_s: float) -> None:
        """Take in a member's status. `awake_s` is the time awake of this node."""
        self._foreign.discard(peer)
        self._record(peer, status, awake_s)

    def _record(self, peer: str, status: Status, awake_s: float) -> None:
        self._reports[peer], self._reported_s[peer] = status, awake_s
        self._away.discard(peer)
        lost = self._lost()
        self._hopeless_s = min(self._hopeless_s, awake_s) if lost else math.inf
        was_hopeless, self._is_hopeless = self._is_hopeless, bool(lost) and self._are_believed(lost, awake_s)
        if self._is_hopeless and not was_hopeless:
            log.error("%s", self._hopeless(lost))

    def _are_believed(self, lost: Sequence[str], awake_s: float) -> bool:
        """Return whether these nodes have lacked their logs for `HOPELESS_S`, by their own reports."""
        reported_s = [self._reported_s[name] for name in lost if name != self._name]
        return min(reported_s, default=awake_s) - self._hopeless_s >= HOPELESS_S

    def record_lost_link(self, peer: str) -> None:
        """Record that the link to a node is lost."""
        self._away.add(peer)

    def record_foreign_status(self, voter: str, status: Status, awake_s: float) -> None:
        """Take in the status of a node with a voter's name and a new directory. The voter's directory may be lost."""
        self._foreign.add(voter)
        self._record(voter, status._replace(voter_status=VoterStatus.BLANK), awake_s)

    def record_memory(self, peer: str, memory: Memory, engine: Engine, wall_ms: int) -> None:
        """Take in what a member remembers of this directory; become a learner if the directory holds less.

        The promise of an earlier process is compared with the term and log at the start. This node has perhaps
        adopted a later term since, in which an end of the log says nothing. The vote of a term that the directory has
        forgotten counts as given.
        """
        self._memories.add(peer)
        promise, found = Promise(memory.term, memory.index), self._found
        is_behind = bool(memory.is_certain) or (found is not None and promise > found)
        if self.voter_status is not VoterStatus.VOTER or not is_behind:
            return
        found = found or Promise(engine.term, self._last_index)
        self._rollback = (
            f"this node's data directory was put back as it was earlier: {peer} remembers that it had entry "
            f"{promise.index} in term {promise.term}, and it was found in term {found.term} with {found.index} entries"
        )
        log.error("%s; it has no vote until a leader has sent it everything", self._rollback)
        self.rolled_back_ms = wall_ms
        vote = engine.voted_for if engine.term >= promise.term else None
        state = HardState(max(engine.term, promise.term), vote or self._name, VoterStatus.LEARNER)
        engine.stop_campaign()
        self._hard_state.store(state)
        engine.remember(state.term, state.voted_for)

    def _waits_for_memories(self, awake_s: Callable[[], float]) -> bool:
        """Return whether this voter must still hear what other voters remember of it, and know to be committed.

        A voter that is down tells nothing, so the wait ends after `MEMORIES_S`.
        """
        if self._began_s is None:
            self._began_s = awake_s()
        if self.awaits_memories:
            others = self._configurations.membership.voters - {self._name}
            # A leader makes no acknowledgements, so its followers remember less of it than they know to be committed.
            heard = self._memories & self._reports.keys()
            has_waited = others <= heard or awake_s() - self._began_s >= MEMORIES_S
            self.awaits_memories = self._found is not None and not has_waited
        return self.awaits_memories

    def advance(self, engine: Engine, journal: SegmentedJournal, awake_s: Callable[[], float]) -> bool:
        """Raise the status of this node if the rules allow it now. Return True if it has changed.

        `awake_s` reads the time awake. It is called only while it matters, because each turn calls `advance`.
        """
        self._last_index = journal.last_index
        voter_status = self.voter_status
        if voter_status is VoterStatus.VOTER and not self.awaits_memories:
            engine.may_vote = True
            return False
        if voter_status is VoterStatus.BLANK and self._is_by_names and not self._missing():
            self._remember(engine)
        elif voter_status is VoterStatus.LEARNER and self._has_caught_up(engine, journal):
            # A forgotten vote of this term must not be given again.
            vote = engine.voted_for or (self._name if self._rollback else None)
            self._rise(HardState(engine.term, vote, VoterStatus.VOTER))
            engine.remember(engine.term, vote)
            self._found = None
        now = self.voter_status
        engine.may_vote = now is VoterStatus.VOTER and not self._waits_for_memories(awake_s)
        return now is not voter_status

    def why_hopeless(self) -> str | None:
        """Return the text for a cluster without a majority of logs, or None if a majority may still have its logs."""
        if self._peers and not self._is_hopeless:
            return None
        lost = self._lost()
        return self._hopeless(lost) if lost else None

    def describe(self) -> str | None:
        """Return why this node cannot vote, lead or serve clients, or None if it can."""
        hopeless = self.why_hopeless()
        if hopeless is not None:
            return hopeless
        match self.voter_status:
            case VoterStatus.BLANK if not self._is_by_names:
                return self._why_no_member()
            case VoterStatus.BLANK:
                missing = ", ".join(self._missing())
                return f"waiting for {missing}: a node without a past must hear from every member once"
            case VoterStatus.LEARNER if self._is_reported_non_member:
                return self._why_no_member()
            case VoterStatus.LEARNER if self._rollback:
                return f"{self._rollback}; a leader must send it everything"
            case VoterStatus.LEARNER:
                return "this node's log was damaged or lost; a leader must send it everything anew"
            case VoterStatus.VOTER if self._is_reported_non_member and not self._configurations.newest_index:
                # A report made this node a learner, and the cluster lost that before it was in this node's log.
                return self._why_no_member()
            case VoterStatus.VOTER:
                return None

    def _why_no_member(self) -> str:
        """Return why this new directory is no member of a cluster whose log holds the members."""
        name, latest = self._name, self._configurations.latest
        member, what = latest.member(name), f"this node's data directory is new, and {self._name} "
        if not latest.cluster:
            return "this node's data directory is new, and it has not reached its cluster yet"
        if member is not None and member.id not in (None, self._member_id):
            return f"{what}is a member with another one: if that is lost, `qq member replace {name}`"
        if latest.was_removed(name):
            return f"{what}was removed: `qq member add {name} HOST:PORT`, or `join` in its file, takes it in"
        if member is None and len(latest.members) >= MEMBERS_MAX:
            return f"{what}is no member: the cluster has {MEMBERS_MAX} already, which is the most: remove one first"
        return f"{what}waits until the leader takes it in"

    @property
    def _is_by_names(self) -> bool:
        """Whether the members are those in the nodes' files, this node included."""
        newest = self._configurations.newest
        return not newest.cluster and self._name in newest.membership.voters

    @property
    def _is_reported_non_member(self) -> bool:
        """Whether the cluster is known by now, and this directory is no member of it."""
        latest = self._configurations.latest
        return bool(latest.cluster) and not latest.has(self._name, self._member_id)

    def _missing(self) -> list[str]:
        return [peer for peer in self._peers if peer not in self._reports]

    def _remember(self, engine: Engine) -> None:
        term = max(0, engine.journal.last_term, *(status.term for status in self._reports.values()))
        new = not self._peers or self._is_new_cluster(engine)
        voter_status = VoterStatus.VOTER if new else VoterStatus.LEARNER
        state = HardState(term, self._name if term else None, voter_status)
        self._rise(state)
        engine.remember(state.term, state.voted_for)

    def _is_new_cluster(self, engine: Engine) -> bool:
        """Return whether the cluster is new: no member is a learner or holds more than a log's first entry."""
        return engine.journal.last_index <= 1 and all(
            status.voter_status != VoterStatus.LEARNER and status.last_index <= 1
            for status in self._reports.values()
        )

    def _has_caught_up(self, engine: Engine, journal: SegmentedJournal) -> bool:
        term, index = self._goal
        return index > 0 and term == engine.term and min(engine.matched_index, journal.synced_index) >= index

    def _rise(self, state: HardState) -> None:
        self._hard_state.store(state)
        if self._peers:
            log.info(
                "node %s is a %s of term %d now", self._name, state.voter_status.name.lower(), state.term
            )

    def _lost(self) -> list[str]:
        """Return the voters that lack their logs, if the voters with logs are no majority; else an empty list."""
        membership = self._configurations.membership
        if self._name not in membership.voters:
            return []
        standings = {
            peer: VoterStatus(status.voter_status)
            for peer, status in self._reports.items()
            if peer in membership.voters and peer not in self._away
        }
        standings[self._name] = self.voter_status
        lost = sorted(
            name for name, voter_status in standings.items() if voter_status is not VoterStatus.VOTER
        )
        has_past = VoterStatus.LEARNER in standings.values() or self._longest_log > 1
        return lost if has_past and not membership.has_majority_without(lost) else []

    @property
    def _longest_log(self) -> int:
        """The highest last index of the logs that this node knows, its own included."""
        return max([self._last_index, *(status.last_index for status in self._reports.values())])

    def _hopeless(self, lost: Sequence[str]) -> str:
        foreign = sorted(self._foreign.intersection(lost))
        are, have = ("is", "a data directory") if len(foreign) == 1 else ("are", "data directories")
        note = f", and {', '.join(foreign)} {are} up with {have} of no member" if foreign else ""
        return (
            f"the logs of {', '.join(lost)} are damaged or lost, so no majority knows what was confirmed (the longest "
            f"known log ends with entry {self._longest_log}{note}): stop the nodes, put back the last data directory "
            "of one of them (a damaged log is kept in it as damaged-*), and start again; if that is impossible, `qq "
            "recover` lets a single node go on with its data, and may lose confirmed messages"
        )
