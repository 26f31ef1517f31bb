"""The consensus engine: pysyncobj 0.3.17, driven through its private names, with its hazards closed.

pysyncobj supplies the algorithm: elections, log matching, commit. The hazards have the numbers of ARCHITECTURE.md:

H1  acknowledgements leave only after the journal has synced the acknowledged entries
    (`OutgoingMessage.sync_point`); the leader's own tail counts only as far as it is synced (`reached_index`).
H2  a repeated or overlapping append never deletes entries that match (`log_matching.without_known_prefix`).
H3  the commit index never goes beyond the entries that the append shows to match (`log_matching.limit_commit_index`).
H4  an acknowledgement of a different term does not count; epochs end in `peer_connected` / `peer_lost`.
H5  a start from a checkpoint sets the applied index and leaves the journal alone (`start_from`).
H6, H7  entries never take the pickle path, views of the log are lazy (`cluster/log/lazy_entries.py`), and the size of
    an append is bounded, with at least a single entry (`_append_from`).
H9  a pre-vote round (`elections.py`) precedes every election; a leader without a majority steps down soon.
H10 an exception in apply stops the node.
H11 no data is ever unpickled: `pysyncobj.syncobj.pickle` is replaced (`pysyncobj_adapter.py`).
H12 a committed entry is never deleted: a leader whose log contradicts a committed entry stops this node
    (`log_matching.conflict_with_committed`).

pysyncobj counts majorities by itself, over this leader and all other voters as equals. So the engine sets, for each of
them, the value that a majority of the membership has reached (`_report_majority`). The engine counts votes itself.

Invariant: only this module and pysyncobj_adapter.py name attributes of SyncObj that begin with an underscore.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pysyncobj import SyncObj

from cluster.engine.pysyncobj_adapter import StableNode, SyncObjAdapter
from cluster.log.journal import SLICE_ENTRIES
from cluster.raft.elections import Elections, ElectionStep, LogEnd, Role
from cluster.raft.failure_detector import AwakeClock, FailureDetector
from cluster.raft.learner_pace import Pace
from cluster.raft.log_matching import (
    ForeignLog,
    conflict_with_committed,
    conflicting_entry,
    limit_commit_index,
    without_known_prefix,
)
from cluster.raft.messages import (
    Append,
    AppendResponse,
    HeartbeatResponse,
    HigherTerm,
    LogEntry,
    Message,
    PreVote,
    PreVoteRequest,
    TimeoutNow,
    Vote,
    VoteRequest,
)
from cluster.raft.progress import Acknowledgements, Progress
from cluster.raft.timing import Timing
from cluster.raft.tracker import ProgressTracker

if TYPE_CHECKING:
    from pysyncobj.node import Node

    from cluster.configuration.configuration import MemberId
    from cluster.configuration.history import Configurations
    from cluster.log.journal import SegmentedJournal
    from cluster.runtime.ports import Runtime

APPLY_BUDGET_S = 0.005
"""Seconds for which a turn applies entries at most, so that a replay after a start does not silence the node."""

NOTICE_S = 0.01
"""Seconds after which a follower without waiting clients gets the new commit index, unless an append carries it
before."""

UNSYNCED_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of unsynced entries that a node holds in memory, about.

Above this bound, a follower drops new entries until it has synced, and a leader commits only entries that its own disk
holds. So further proposals wait for the leader's disk."""


class Engine(SyncObjAdapter):
    """The consensus state of a single member.

    The group calls `receive`, `turn`, `propose`, `synced`, `peer_connected` and `peer_lost`, and empties `outbox` after
    each call. `apply(index, term, payload)` is called for every committed entry in order, no-ops included.
    """

    def __init__(
        self,
        own: MemberId,
        configurations: Configurations,
        journal: SegmentedJournal,
        timing: Timing,
        runtime: Runtime,
        apply: Callable[[int, int, bytes], None],
    ) -> None:
        """Take up the log as it is."""
        self.may_vote = True
        """Whether this member may vote for itself or a peer. False while it may have lost acknowledged entries or votes
        (rejoin.py)."""
        self.may_lead = True
        """Whether this member could commit entries as leader. False while its disk is full or its log damaged."""
        self.campaigns_on_timeout = True
        """Whether this member campaigns when its election timeout passes. False under maintenance: then it campaigns
        only at the request of its leader (TimeoutNow)."""
        self.behind = False
        """Whether the last turn has left entries to apply or send. Then the group must call `turn` again soon."""
        self._rested_s = math.inf
        """Time at which a resting learner may be sent more entries, on the monotonic clock."""
        self._notice_s = math.inf
        """Time by which all followers must get the commit index, if no append carries it before, on the monotonic
        clock."""
        self._with_waiting_clients: set[str] = set()
        """Nodes with clients that wait for the commit index."""
        self._timing = timing
        self._configurations = configurations
        self._apply_entry = apply
        self._nodes: dict[str, StableNode] = {}
        self._non_members: tuple[str, ...] = ()
        """Connected non-members whose messages are accepted, because they may lead by a later configuration."""
        self._voters: list[str] = []
        """The peers that are voters."""
        self._tracker = ProgressTracker(own.name, configurations)
        self.progress = self._tracker.peers
        """The progress of each peer, by name."""
        self._match_is_reported = True
        self._reported_heard_s = 0.0
        """Time at which a majority was last heard, as last reported to pysyncobj, on the monotonic clock."""
        self._awake = AwakeClock(runtime.monotonic(), timing.heartbeat_s)
        """Time awake. It is read in each turn, at least once a heartbeat interval, so a late heartbeat counts as a
        stall, too."""
        self._jitter = 0.0
        """Random number from 0 to 1, drawn anew for each leader and each vote request. It spreads the delays of equal
        nodes."""
        self._store_s = 0.0
        """Seconds that storing a term and a vote takes."""
        self._acknowledgements = Acknowledgements(timing.heartbeat_s / 2)
        detector = FailureDetector(timing.suspicion_min_s, timing.election_min_s)
        self._elections = Elections(own.name, configurations, detector)
        self._campaigns = False
        """Whether this member campaigns in this turn."""
        self._append_due = False
        self._grown_bytes = 0
        """Bytes proposed since entries were last sent."""
        self._leader_heard_s = 0.0
        """Time at which a leader was last heard, on the monotonic clock."""
        self.committed_index = 0
        """Highest index that any member has reported as committed. Each rightful leader has that entry."""
        self._leader_end = (0, 0)
        """Term of the newest leader that sent appends, and the last index of its log by these appends."""
        self._name = own.name
        self._own = own
        super().__init__(own.name, journal, timing, runtime)
        self.follow_configuration([])
        # The first deadline is short. A pre-vote does no harm if there is a leader, and speeds up the election without
        # one.
        self._SyncObj__raftElectionDeadline = runtime.monotonic() + self._retry_s(0.0)

    def start_from(self, applied_index: int) -> None:
        """Begin with the state after this entry, which a checkpoint holds (H5). Called once before the first turn."""
        self._SyncObj__raftLastApplied = applied_index
        self._SyncObj__raftCommitIndex = max(self._SyncObj__raftCommitIndex, applied_index)

    # State for the group

    @property
    def _is_promotable(self) -> bool:
        """Whether this member may campaign at all: it is a voter that may vote and lead."""
        # A node that catches up may have a configuration in which an older directory votes under its name.
        is_voter = self._configurations.newest.has_voter(*self._own)
        return self.may_vote and self.may_lead and is_voter and self._may_lead_with(self.journal.last_index)

    def _may_lead_with(self, last_index: int) -> bool:
        """Return whether a member whose log ends with this entry may lead, as far as this node knows.

        A log that lacks a committed entry gets a majority only if voters were put back as they were earlier.
        """
        return last_index >= self.committed_index

    def record_committed(self, index: int) -> None:
        """Record that a member has reported this entry as committed."""
        self.committed_index = max(self.committed_index, index)

    def stop_campaign(self) -> None:
        """Stop leading and campaigning, because this member has no vote any more."""
        self._set_ambient_runtime()
        self.may_vote = False
        self._SyncObj__setState(Role.FOLLOWER)
        self._SyncObj__raftLeader = None

    @property
    def resume_s(self) -> float:
        """Time at which the group must call `turn` again, on the monotonic clock; infinity if no time is set.

        At that time a leader has messages to send, and any other node checks whether it should campaign.
        """
        if self.is_leader:
            return self._sends_s
        deadline_s = self._SyncObj__raftElectionDeadline
        return deadline_s if deadline_s > self._runtime.monotonic() else math.inf

    @property
    def _sends_s(self) -> float:
        """Time at which the leader may send entries or notices that must wait until then, on the monotonic clock."""
        return min(self._rested_s, self._notice_s)

    @property
    def wants_turn(self) -> bool:
        """Whether the next turn has immediate work, as far as entries and answers tell."""
        commit_index = self.commit_index
        if self.applied_index < commit_index or self._append_due:
            return True
        if not self.is_leader:
            return self._is_candidate
        return commit_index < self.journal.last_index and commit_index < self._may_commit()

    def acknowledged_index(self, peer: str) -> int:
        """Return the last index that `peer` has acknowledged to this leader, 0 without an acknowledgement."""
        progress = self.progress.get(peer)
        return progress.acknowledged if progress is not None else 0

    def reached_index(self) -> int:
        """Return the last index that a majority has stored, as far as this leader knows.

        H1: the leader counts itself only as far as its own disk has synced.
        """
        return self._tracker.reached_index(self._stored_index())

    def delays_commit(self) -> bool:
        """Return whether the leader could commit more if its own disk were not so far behind."""
        return self._may_commit() < self.reached_index()

    @property
    def matched_index(self) -> int:
        """The last index up to which this log is known to equal that of the current term's leader; 0 if unknown."""
        return self._acknowledgements.matched_index(self.term)

    # Members

    def follow_configuration(self, non_members: Iterable[str]) -> None:
        """Follow the configuration that counts now: recipients of the log, and voters.

        `non_members` are connected non-members.
        """
        self._non_members = tuple(non_members)
        known, voters = self._configurations.known, self._configurations.membership.voters
        self._followed = known
        for peer in list(self._nodes):
            if peer not in known and peer not in self._non_members:
                self._forget_peer(peer)
        for peer in self._non_members:
            if peer not in known:
                self._know_peer(peer, None)
        for peer, member in known.items():
            if peer != self._name:
                self._know_peer(peer, member.id)
        self._voters = [peer for peer in self._nodes if peer in voters]
        self._SyncObj__otherNodes = {self._nodes[peer] for peer in self._voters}
        # Learners, members that are about to be removed, and connected non-members get appends and count nowhere.
        # Connected non-members are never marked as connected.
        self._SyncObj__readonlyNodes = {node for peer, node in self._nodes.items() if peer not in voters}
        self._pace_learners()
        self._match_is_reported = False

    def _pace_learners(self) -> None:
        timing, slice_bytes, now_s = self._timing, self.journal.slice_bytes, self._runtime.monotonic()
        self._tracker.pace_learners(
            lambda: Pace(timing.learner_bytes_per_s, timing.heartbeat_s, slice_bytes, now_s)
        )

    def _follow_log(self) -> None:
        """Follow the newest configuration in the log, if it has changed (Raft thesis, 4.1)."""
        if self._configurations.known is not self._followed:
            self.follow_configuration(self._non_members)

    def _know_peer(self, peer: str, directory: bytes | None) -> None:
        node = self._nodes.setdefault(peer, StableNode(peer))
        if self._tracker.know(peer, directory, self._awake_s, self.journal.last_index + 1):
            self._SyncObj__raftMatchIndex[node] = 0
            self._SyncObj__lastResponseTime[node] = self._reported_heard_s

    def _forget_peer(self, peer: str) -> None:
        node = self._nodes.pop(peer)
        self._tracker.forget(peer)
        self._forget_node(node)

    # Events

    def peer_connected(self, peer: str) -> None:
        """Begin a new epoch with `peer`, which is the member of this name.

        Messages in flight in the old epoch are lost, so sending starts again after the last known match. A learner's
        acknowledgements are reset, because they decide whether it may vote and must be current. The learner repeats
        them.
        """
        self._set_ambient_runtime()
        self._acknowledgements.forget()
        progress, node = self.progress[peer], self._nodes[peer]
        progress.probed = None
        if peer in self._configurations.membership.learners:
            progress.lower_to(0)
        self._SyncObj__connectedNodes.add(node)
        if self.is_leader:
            known_index = progress.acknowledged or self.journal.last_index
            progress.next_index = known_index + 1
            self._append_due = True

    def peer_has_lost(self, peer: str, last_index: int) -> None:
        """Count no entries after `last_index` as stored by `peer`, because its log may lack acknowledged entries.

        Entries that were committed with such acknowledgements stay committed. The peer does not vote meanwhile
        (rejoin.py).
        """
        if self.progress[peer].lower_to(last_index):
            self._match_is_reported = False

    def non_member_connected(self) -> None:
        """Begin a new epoch with a connected non-member, which may lead by a later configuration."""
        self._acknowledgements.forget()

    def part_received(self, peer: str) -> None:
        """Count a part of a message as a sign of life of its sender, because a large message takes a while."""
        self._set_ambient_runtime()
        if self.is_leader:
            self._hear_follower(peer)
        elif self.leader == peer:
            self._hear_leader()
            self._send_heartbeat_response(peer)

    def peer_lost(self, peer: str) -> None:
        """End the epoch with `peer`. If it was the leader, campaign at once instead of waiting for a timeout."""
        self._set_ambient_runtime()
        self._SyncObj__connectedNodes.discard(self._nodes[peer])
        if self.leader == peer:
            self._elections.leader_is_lost()
            self._campaign_soon()

    def _hear_leader(self) -> None:
        """Postpone the next election until the leader would be suspected."""
        if self._elections.hear_leader(self.term, self._awake_s()):
            self._draw_jitter()
        now_s = self._leader_heard_s = self._runtime.monotonic()
        if not self._SyncObj__transferInProgress:
            jitter_s = self._timing.campaign_jitter_s * self._jitter
            deadline_s = now_s + self._elections.patience_s + jitter_s
            self._SyncObj__raftElectionDeadline = deadline_s

    def _draw_jitter(self) -> None:
        self._jitter = self._runtime.random.random()

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802
        return self._timing.result_s(self._jitter, self._store_s)

    def _adopt_term(self, term: int) -> None:
        if term > self.term:
            self._SyncObj__setCurrentTerm(term, None)
            self._SyncObj__setState(Role.FOLLOWER)
            self._SyncObj__raftLeader = None

    def _SyncObj__setCurrentTerm(self, term: int, voted_for: str | None) -> None:  # noqa: N802
        """Measure the time to store a term and a vote. The previous time counts for half."""
        began_s = self._runtime.monotonic()
        SyncObj._SyncObj__setCurrentTerm(self, term, voted_for)  # pyright: ignore[reportAttributeAccessIssue]
        self._store_s = max(self._runtime.monotonic() - began_s, self._store_s / 2)

    def _campaign_soon(self) -> None:
        jitter_s = self._timing.campaign_jitter_s * self._runtime.random.random()
        deadline_s = self._runtime.monotonic() + jitter_s
        self._SyncObj__raftElectionDeadline = min(self._SyncObj__raftElectionDeadline, deadline_s)

    def peer_paused(self, peer: str) -> None:
        """Stop sending to `peer` until `peer_resumed`, because its link is congested. Queued messages stay valid."""
        self._SyncObj__connectedNodes.discard(self._nodes[peer])

    def peer_resumed(self, peer: str) -> None:
        self._SyncObj__connectedNodes.add(self._nodes[peer])
        self._append_due = True

    def synced(self) -> None:
        """Record that the journal has synced more. A leader counts itself up to there (hazard H1)."""
        self._match_is_reported = False

    def installed(self, index: int) -> None:
        """Continue from a snapshot: the log is a peer's, and the state is that of the committed entry `index`."""
        self._SyncObj__raftLastApplied = index
        self._SyncObj__raftCommitIndex = index
        self._acknowledgements.match(0, 0)
        self._acknowledgements.forget()
        if self.leader is not None and self.leader != self._name:
            refusal = self._appended(self.journal.last_index + 1, success=False, reset=True)
            self._emit(self.leader, refusal, sync_point=self._acknowledgement_sync_point())

    def propose(self, payload: bytes) -> int:
        """Append an entry to the leader's log and return its index. Raises RuntimeError if this member is no leader."""
        self._set_ambient_runtime()
        if not self.is_leader:
            raise RuntimeError("only a leader proposes")
        index = self.journal.last_index + 1
        self.journal.add(payload, index, self.term)
        self._append_due = True
        self._grown_bytes += len(payload)
        self._follow_log()
        return index

    def transfer_leadership(self, to: Iterable[str]) -> bool:
        """Ask a voter among `to` that holds the whole log to lead (Raft thesis 3.10). Return True if a voter was asked.

        A voter that was not heard lately is skipped, because it may be frozen or cut off, and only a single voter is
        asked.
        """
        self._set_ambient_runtime()
        last = self.journal.last_index
        heard_since_s = self._awake_s() - self._timing.suspicion_min_s
        for peer in to:
            if (
                peer in self._voters
                and self._nodes[peer] in self._SyncObj__connectedNodes
                and self.progress[peer].acknowledged == last
                and self.progress[peer].heard_s > heard_since_s
                and self.is_leader
            ):
                self._emit(peer, TimeoutNow(self.term))
                return True
        return False

    def turn(self, compose: Callable[[], None]) -> None:
        """Run elections, commit and apply entries; let `compose` propose; then send the appends, once."""
        self._set_ambient_runtime()
        self._follow_log()
        self.behind = False
        if self.is_leader:
            is_due = self._report_majority()
        else:
            is_due = self._append_due = False
            self._rested_s = self._notice_s = math.inf
            self._with_waiting_clients.clear()
            self._campaigns = self._hold_pre_vote()
        if is_due or self._tick_is_due():
            self._tick()
        if self.is_leader:
            compose()
            now_s = self._runtime.monotonic()
            if self._append_due or self._sends_s <= now_s:
                self._send_appends()
            elif self._with_waiting_clients:
                self._send_notices()

    def _tick(self) -> None:
        was_candidate_in = self.term if self._is_candidate else -1
        self._onTick(0.0)
        if self._is_candidate and self.term != was_candidate_in:
            self._elections.campaign()
            self._expect_result_soon()

    def receive(self, peer: str, message: Message) -> None:
        """Handle a message of the peer's current epoch."""
        self._set_ambient_runtime()
        node = self._nodes[peer]
        match message:
            case Append():
                self._receive_append(node, message)
            case AppendResponse():
                self._receive_appended(node, message)
            case HeartbeatResponse():
                if self.is_leader and message.term == self.term:
                    self._hear_follower(peer)
            case PreVoteRequest():
                self._receive_pre_vote_request(node, message)
            case PreVote():
                self._receive_pre_vote(node, message)
            case HigherTerm():
                self._adopt_term(message.term)
            case VoteRequest() if self.may_vote and self._may_lead_with(message.last_index):
                self._draw_jitter()
                self._deliver_vote_request(node, message)
            case Vote():
                self._receive_vote(peer, message)
            case TimeoutNow() if self._is_promotable:
                self._deliver(node, type="timeout_now", term=message.term)
            case VoteRequest() | TimeoutNow():
                pass
            case _:
                raise RuntimeError(f"not a consensus message: {type(message).__name__}")

    # Sending

    def _send_appends(self) -> None:
        """Send each peer the entries that it lacks, at most about a slice in a turn (`SegmentedJournal.slice_end`).

        This bounds the stall of the event loop for reading old entries to a millisecond or two. The number of entries
        counts as well as their size. No more is sent on a congested link, or to a learner that rests (learner_pace.py).
        pysyncobj's own way is replaced, because it reads the log several times for each append.
        """
        self._append_due = False
        self._notice_s = self._rested_s = math.inf
        self._with_waiting_clients.clear()
        now_s = self._runtime.monotonic()
        # The next heartbeat sends again, unless entries were sent within half a heartbeat interval before it. So no
        # silence is longer than one and a half intervals.
        self._SyncObj__newAppendEntriesTime = now_s + self._timing.heartbeat_s / 2
        grown_bytes, self._grown_bytes = self._grown_bytes, 0
        made: dict[int, tuple[Append, int]] = {}
        for peer, progress in self.progress.items():
            if progress.pace is not None:
                progress.pace.log_grew(grown_bytes, now_s)
            if self._nodes[peer] in self._SyncObj__connectedNodes and not self._rests(progress, now_s):
                self._send_entries(peer, progress, made, now_s)

    def _rests(self, progress: Progress, now_s: float) -> bool:
        """Return whether a learner must get no entries now, because it was sent many."""
        rest_s = progress.rest_s(now_s)
        if rest_s:
            self._rested_s = min(self._rested_s, now_s + rest_s)
        return rest_s > 0

    def _send_entries(
        self, peer: str, progress: Progress, made: dict[int, tuple[Append, int]], now_s: float
    ) -> None:
        """Send a peer appends of about a slice in all, or a single append while it is probed.

        `made` caches the appends of this turn by their first index, because most peers lack the same entries.
        """
        journal, sent_bytes = self.journal, 0
        end = journal.last_index + 1
        while True:
            start = progress.next_index
            if start <= journal.first_index or progress.lacks_from is not None:
                # The peer refuses this append, and its refusal reports the end of its log. Or, for a lacking peer, the
                # append only keeps it from campaigning.
                start = end
            if start not in made:
                made[start] = self._append_from(start, end)
            append, cost_bytes = made[start]
            self._emit(peer, append)
            progress.next_index = start + len(append.entries)
            progress.spend(cost_bytes, now_s)
            sent_bytes += cost_bytes
            if progress.next_index == end:
                return
            if progress.probed is not None or sent_bytes > journal.slice_bytes:
                if not self._rests(progress, now_s) and progress.probed is None:
                    self._append_due = self.behind = True
                return

    def _append_from(self, start: int, end: int) -> tuple[Append, int]:
        """Return an append of the entries from `start` to `end`, a slice at most, and its cost in bytes."""
        journal = self.journal
        stop = journal.slice_end(start, end) if start < end else end
        entries = list(map(LogEntry._make, journal.entries(start, stop)))
        sent_bytes = sum(len(entry.payload) for entry in entries)
        append = Append(self.term, self.commit_index, start - 1, journal.term_at(start - 1), entries)
        return append, sent_bytes + journal.slice_bytes * len(entries) // SLICE_ENTRIES

    def notify_soon(self, names: Iterable[str]) -> None:
        """Send these nodes the commit index soon, because their clients wait for entries that were just applied."""
        self._with_waiting_clients.update(names)

    def _send_notices(self) -> None:
        """Send the commit index to peers with waiting clients, in appends without entries."""
        last_index = self.journal.last_index
        for peer in filter(self._with_waiting_clients.__contains__, self.progress):
            has_been_sent_all = self.progress[peer].next_index == last_index + 1
            if has_been_sent_all and self._nodes[peer] in self._SyncObj__connectedNodes:
                self._emit(peer, Append(self.term, self.commit_index, last_index, self.journal.last_term, []))
        self._with_waiting_clients.clear()

    def _appended(self, next_index: int, *, success: bool, reset: bool) -> AppendResponse:
        return AppendResponse(
            self.term, next_index, success, reset, self.journal.last_index, self.journal.last_term
        )

    def _acknowledge(self, node: Node, message: dict[str, Any]) -> None:
        next_index, success = message["next_node_idx"], message["success"]
        if success:
            self._acknowledgements.match(self.term, next_index - 1)
        acknowledgement = self._appended(next_index, success=success, reset=message["reset"])
        if self._acknowledgements.is_due(node.id, acknowledgement, self._runtime.monotonic()):
            self._emit(node.id, acknowledgement, sync_point=self._acknowledgement_sync_point())
            if self.journal.synced < self.journal.written:
                self._send_heartbeat_response(node.id)

    def _send_heartbeat_response(self, leader: str) -> None:
        """Report at intervals to the leader that this node follows it, while no acknowledgement is possible.

        Otherwise the leader would step down while a majority receives or writes a large entry.
        """
        if self._acknowledgements.heartbeat_response_is_due(self._runtime.monotonic()):
            self._emit(leader, HeartbeatResponse(self.term))

    def _acknowledgement_sync_point(self) -> int:
        """Return the count of journal changes that must be synced before an acknowledgement leaves: all so far (H1)."""
        return self.journal.written

    # Appends at a follower

    def _receive_append(self, node: Node, message: Append) -> None:
        if message.term < self.term:
            self._emit(node.id, HigherTerm(self.term))
            return
        if self.journal.unsynced_bytes > UNSYNCED_BYTES_MAX:
            # Later appends will not match this log. They are refused until the leader sends these entries again.
            message = message._replace(entries=[])
        self.record_committed(message.commit_index)
        self._leader_end = max(self._leader_end, (message.term, message.prev_index + len(message.entries)))
        self._match(node, message)
        self._hear_leader()

    def _match(self, node: Node, message: Append) -> None:
        """Pass the new entries of an append to pysyncobj (H2, H3).

        Raises ForeignLog, before any change, if the append contradicts committed entries of this node (H12).
        """
        what = conflict_with_committed(self.journal, self.commit_index, message)
        if what is not None:
            raise self._foreign_log(node.id, message.term, what)
        message = without_known_prefix(self.journal, limit_commit_index(message))
        self.journal.keep_tail = not message.entries
        try:
            self._deliver_append(node, message)
        finally:
            self.journal.keep_tail = False
            self._follow_log()

    def check_end_of(self, leader: str, term: int, last_index: int) -> None:
        """Raise ForeignLog if the log of this leader ends before the committed entries of this node (H12).

        A leader's log only grows. So an end before entries that it has sent is old news, from a connection that was
        dialled before the current connection.
        """
        leader_term, end = self._leader_end
        is_old = term == leader_term and last_index < end
        if term >= self.term and last_index < self.commit_index and not is_old:
            raise self._foreign_log(leader, term, f"ends with entry {last_index}")

    def check_snapshot(self, giver: str, index: int, term: int) -> None:
        """Raise ForeignLog if the snapshot's entry contradicts the committed entry at `index` of this node (H12)."""
        what = conflicting_entry(self.journal, self.commit_index, index, term)
        if what is not None:
            raise self._foreign_log(giver, self.term, what)

    def _foreign_log(self, leader: str, term: int, what: str) -> ForeignLog:
        return ForeignLog(leader, term, what, self.commit_index, self.applied_index)

    # Acknowledgements at the leader

    def _receive_appended(self, node: Node, message: AppendResponse) -> None:
        """Handle a follower's answer to an append.

        This replaces pysyncobj's handling, which rewinds the next index on each success and so sends entries twice.
        """
        if not self._is_current_acknowledgement(message):
            return
        progress = self.progress[node.id]
        if message.success and progress.record_match():
            self._append_due = True
        if message.success and progress.acknowledge(message.next_index - 1):
            progress.next_index = max(progress.next_index, message.next_index)
            self._match_is_reported = False
        elif message.reset and progress.refuse(message, self.journal.first_index):
            end = self.journal.last_index + 1
            progress.next_index = end if progress.lacks_from is not None else min(message.next_index, end)
            self._append_due = True
        self._hear_follower(node.id)

    def _is_current_acknowledgement(self, message: AppendResponse) -> bool:
        """Return whether an acknowledgement belongs to this leader's term (H4). A higher term in it is adopted."""
        if message.term > self.term:
            self._adopt_term(message.term)
        return self.is_leader and message.term == self.term

    def _report_majority(self) -> bool:
        """Tell pysyncobj which index a majority has stored, and when a majority was last heard.

        pysyncobj commits by it.

        Return True if that may be news. H9: a leader that hears no majority for a while steps down (Raft thesis 6.2).
        """
        is_new = not self._match_is_reported and self.commit_index < self.journal.last_index
        if is_new:
            self._match_is_reported = True
            self._SyncObj__raftMatchIndex = dict.fromkeys(self._nodes.values(), self._may_commit())
        now_s, awake_s = self._runtime.monotonic(), self._awake_s()
        if now_s - self._reported_heard_s > self._timing.heartbeat_s / 2:
            self._reported_heard_s = now_s - self._tracker.silent_s(awake_s)
            self._SyncObj__lastResponseTime = dict.fromkeys(self._nodes.values(), self._reported_heard_s)
            return True
        return is_new

    def _may_commit(self) -> int:
        """Return the last index that may be committed: the last that a majority has stored.

        If the other voters are a majority and quicker, clients do not wait for this leader's disk (Raft thesis,
        10.2.1), while its unsynced entries fit into memory.
        """
        if self.journal.unsynced_bytes > UNSYNCED_BYTES_MAX:
            return min(self.reached_index(), self._stored_index())
        return self.reached_index()

    def _stored_index(self) -> int:
        return self.journal.synced_index

    def _hear_follower(self, peer: str) -> None:
        self.progress[peer].heard_s = self._awake_s()

    def _awake_s(self) -> float:
        return self._awake.read(self._runtime.monotonic())

    def _SyncObj__onBecomeLeader(self) -> None:  # noqa: N802
        self._tracker.reset_all(self._awake_s(), self.journal.last_index + 1)
        self._pace_learners()
        self._match_is_reported = True
        self._reported_heard_s = self._runtime.monotonic()
        SyncObj._SyncObj__onBecomeLeader(self)  # pyright: ignore[reportAttributeAccessIssue]

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        """Record that appends are due. pysyncobj asks for them several times a tick, and `turn` sends them once."""
        self._append_due = True

    # Applier

    def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802
        """Apply committed entries within the budget. Return False, so that pysyncobj sends the followers no notice."""
        if self.is_leader and not self._voters:
            # H1: for a single voter, pysyncobj commits all entries at once, also the first entry of its term.
            stored_index = max(self.applied_index, self._stored_index())
            self._SyncObj__raftCommitIndex = min(self.commit_index, stored_index)
        commit_index, index = self.commit_index, self.applied_index
        if index >= commit_index:
            return False
        begun_s = self._runtime.monotonic()
        while index < commit_index:
            index += 1
            self._apply_entry(index, self.journal.term_at(index), self.journal.read(index))
            self._SyncObj__raftLastApplied = index
            if index < commit_index and self._runtime.monotonic() - begun_s > APPLY_BUDGET_S:
                self.behind = True
                break
        if self.is_leader:
            self._notice_s = min(self._notice_s, begun_s + NOTICE_S)
        return False

    # Elections

    def _SyncObj__connectedToAnyone(self) -> bool:  # noqa: N802
        """Let pysyncobj campaign only after a pre-vote (H9). pysyncobj asks this before it campaigns.

        The deadline may pass between this turn's check and pysyncobj's check.
        """
        return self._campaigns

    def _hold_pre_vote(self) -> bool:
        """Begin a pre-vote when the election deadline has passed. Return True if pysyncobj should campaign now.

        The deadline is a time of the monotonic clock. The suspicion of the leader uses the time awake.
        """
        now_s, awake_s = self._runtime.monotonic(), self._awake_s()
        if self._SyncObj__raftElectionDeadline >= now_s:
            return False
        step = self._elections.next_step(
            awake_s,
            follows=self.leader is not None,
            is_promotable=self._is_promotable,
            campaigns_on_timeout=self.campaigns_on_timeout and self._could_be_elected(),
            is_asked=self._SyncObj__transferInProgress,
        )
        if step is ElectionStep.CAMPAIGN:
            return True
        if step is ElectionStep.READ:
            self._SyncObj__raftElectionDeadline = now_s + self._timing.campaign_jitter_s
            return False
        # A leader that is only suspected is followed until a new leader appears or its silence reaches the ceiling.
        if self._elections.leader_is_dead(awake_s):
            self._SyncObj__raftLeader = None
        # A candidate waits for voters that are storing their votes.
        self._SyncObj__raftElectionDeadline = now_s + self._retry_s(
            self._store_s if self._is_candidate else 0.0
        )
        return step is ElectionStep.PRE_VOTE and self._ask_for_pre_votes()

    def _could_be_elected(self) -> bool:
        """Return whether this member has links with a majority of the voters.

        If a single member reaches all voters, and they reach only that member, only that member can be elected.
        """
        linked = [peer for peer in self._voters if self._nodes[peer] in self._SyncObj__connectedNodes]
        return self._configurations.membership.is_majority([self._name, *linked])

    def _ask_for_pre_votes(self) -> bool:
        """Begin a round of pre-votes. Return True if this member alone is a majority and need not ask."""
        number = self._elections.begin_round()
        if number is None:
            self._SyncObj__raftElectionDeadline = -1.0
            return True
        last_term, last_index = self._log_end()
        request = PreVoteRequest(self.term + 1, last_index, last_term, number)
        for peer in self._voters:
            self._emit(peer, request)
        return False

    def _retry_s(self, store_s: float) -> float:
        return self._timing.retry_s(self._runtime.random.random(), store_s)

    def _expect_result_soon(self) -> None:
        """Shorten pysyncobj's wait for votes, which is a whole election timeout.

        After a won pre-vote, votes arrive as soon as they are stored, or never.
        """
        self._SyncObj__raftElectionDeadline = self._runtime.monotonic() + self._retry_s(self._store_s)

    def _receive_pre_vote_request(self, node: Node, message: PreVoteRequest) -> None:
        answer = self._elections.answer_pre_vote(
            node.id,
            LogEnd(message.last_term, message.last_index),
            self._log_end(),
            may_vote=self.may_vote and self._may_lead_with(message.last_index),
            is_later_term=message.term > self.term,
            hears_leader=self.hears_leader(),
        )
        self._emit(node.id, PreVote(self.term, message.round, answer.granted))
        if answer.granted:
            patience_s = self._runtime.monotonic() + self._retry_s(self._store_s)
            self._SyncObj__raftElectionDeadline = max(self._SyncObj__raftElectionDeadline, patience_s)
        elif answer.campaigns_instead:
            self._campaign_soon()

    def hears_leader(self) -> bool:
        """Return whether this member leads, or has heard the leader so lately that the leader counts as alive."""
        if self.is_leader:
            return True
        return self.leader is not None and self._elections.has_heard_leader(self._awake_s())

    def served_s(self) -> float | None:
        """Return the time at which this member last heard a leader, or as leader a majority, on the monotonic clock.

        Returns None while no leader is known. A leader's own stalls do not count as silence.
        """
        if self.is_leader:
            return self._runtime.monotonic() - self._tracker.silent_s(self._awake_s())
        return None if self.leader is None else self._leader_heard_s

    def _receive_pre_vote(self, node: Node, message: PreVote) -> None:
        if message.term > self.term:
            self._adopt_term(message.term)
        elif (
            message.granted and not self.is_leader and self._elections.count_pre_vote(node.id, message.round)
        ):
            self._SyncObj__raftElectionDeadline = -1.0

    def _receive_vote(self, peer: str, message: Vote) -> None:
        """Count a vote. This replaces pysyncobj's handling, which counts non-members and repeated votes."""
        if self._is_candidate and message.term == self.term and self._elections.count_vote(peer):
            self._SyncObj__onBecomeLeader()
