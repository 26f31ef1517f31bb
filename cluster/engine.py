"""pysyncobj, driven through its seams: the only file that knows its private names.

pysyncobj 0.3.17 is the consensus algorithm (elections, log matching, commit). Everything around it that a message
broker cannot live with is closed here; the hazards are numbered as in ARCHITECTURE.md:

H1  acknowledgements leave only when the journal has synced what they vouch for (`Outgoing.barrier`); the leader's own
    tail counts only as far as it is synced (`_count_acknowledgement` clamps every peer's match index to it).
H2  a repeated or overlapping append never deletes entries that match (`_without_known_prefix`).
H3  the commit index never goes beyond what the message vouches for (`_vouched_commit`).
H4  an acknowledgement of another term does not count; epochs end in `peer_connected` / `peer_lost`.
H5  a start from a checkpoint sets the applied index and leaves the journal alone (`applied_index`).
H6, H7  entries never take the pickle path, views of the log are lazy (`cluster/journal_views.py`), and what one append
        carries is bounded, with one entry at least (`_SyncObj__getEntries`).
H9  a pre-vote round precedes every election; a leader without a majority steps down soon.
H10 an exception in apply stops the node.
H11 nothing is ever unpickled: `pysyncobj.syncobj.pickle` is replaced.
H12 a committed entry is never deleted: a leader whose log has another one there stops this node (`_check_log_of`).

Law: no file outside this one names an attribute of SyncObj that starts with an underscore.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import pysyncobj.syncobj as stock
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.serializer import SERIALIZER_STATE
from pysyncobj.transport import Transport

from cluster.envelope import (
    Append,
    Appended,
    Hearing,
    HigherTerm,
    LogEntry,
    Message,
    PreVote,
    PreVoteRequest,
    TimeoutNow,
    Vote,
    VoteRequest,
)
from cluster.journal import SLICE_ENTRIES

if TYPE_CHECKING:
    from logging import LogRecord

    from cluster.journal import SegmentedJournal
    from cluster.journal_views import Entry
    from cluster.membership import Membership
    from cluster.ports import Runtime

PINNED_VERSION = "0.3.17"
APPLY_BUDGET_S = 0.005
"""A turn applies entries for at most this long, so that a replay after a start does not silence the node."""

UNSYNCED_BYTES_MAX = 64 * 1024 * 1024
"""A follower whose disk takes nothing in holds this much in memory, and lets further entries go by."""


class ForeignLog(Exception):
    """A leader's log contradicts what is committed here: there have been two majorities, or one has lost its logs."""


class Role(IntEnum):
    """pysyncobj's numbers for the Raft states."""

    FOLLOWER = 0
    CANDIDATE = 1
    LEADER = 2


@dataclass(frozen=True, slots=True)
class Timing:
    """Raft timing in seconds. Elections are rare: a killed process is noticed by its closed connection, at once."""

    election_min_s: float = 1.0
    election_max_s: float = 2.0
    heartbeat_s: float = 0.1
    campaign_jitter_s: float = 0.03
    """Spread of the first campaign after the leader's connection broke: short, the pre-vote settles ties."""
    campaign_retry_s: float = 0.15
    """At least this long between two campaigns of one node."""


class Outgoing(NamedTuple):
    """A message that may leave once the journal has synced `barrier` of its changes."""

    barrier: int
    peer: str
    message: Message


class _Ambient(threading.local):
    """Stands in for pysyncobj's module globals `monotonicTime` and `random`, which know no instance.

    The engine that is about to call into pysyncobj puts its runtime here first. Each thread has its own: nodes on
    several threads of a process would otherwise go by each other's clocks, and vote and campaign when they must not.
    """

    runtime: Runtime

    def monotonic(self) -> float:
        return self.runtime.monotonic()

    def random(self) -> float:
        return self.runtime.random.random()


class _NoPickle:
    """Hazard H11: whatever pysyncobj would pickle or unpickle is a broken invariant here."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"pysyncobj tried to use pickle.{name}")


class _NoSnapshots:
    """In place of pysyncobj's Serializer: never idle, so that it never dumps or truncates on its own."""

    def checkSerializing(self) -> tuple[int, None]:  # noqa: N802
        return SERIALIZER_STATE.SERIALIZING, None

    def getTransmissionData(self, _node: Node) -> None:  # noqa: N802
        return None

    def setTransmissionData(self, _data: Any) -> bool:  # noqa: N802
        return False

    def cancelTransmisstion(self, _node: Node) -> None:  # noqa: N802
        """pysyncobj's spelling."""


class _NoPoller:
    """pysyncobj polls its own sockets at the end of each tick; it has none."""

    def poll(self, _timeout: float) -> None:
        """Nothing to wait for."""


_ambient = _Ambient()


def _given_journal(journal: SegmentedJournal) -> SegmentedJournal:
    """pysyncobj's factory knows paths only; ours is given to it as the "path"."""
    return journal


def _instrument() -> None:
    if stock.VERSION != PINNED_VERSION:
        raise RuntimeError(
            f"pysyncobj {stock.VERSION} is installed; this engine is written for {PINNED_VERSION}"
        )
    stock.monotonicTime = _ambient.monotonic
    stock.random = _ambient
    stock.pickle = _NoPickle()
    stock.createJournal = _given_journal
    stock.PIPE_NOTIFIER_ENABLED = False
    stock.logger.addFilter(_is_no_false_alarm)


def _is_no_false_alarm(record: LogRecord) -> bool:
    """Whether it is not what pysyncobj says of deletions: those that it warns of do not happen (H2, H12)."""
    return not record.msg.startswith("truncating already-applied")


_instrument()


class _Member(Node):
    """A node with the same hash in every process: pysyncobj iterates over sets of nodes, and a seed must replay."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._hash = crc32(name.encode())

    def __hash__(self) -> int:
        return self._hash


class _Outbox(Transport):
    """pysyncobj's transport: hands each message to the engine."""

    def __init__(self, engine: Engine, self_node: Node, other_nodes: Any) -> None:
        super().__init__(engine, self_node, other_nodes)
        self._engine = engine

    @property
    def ready(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        return True

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        self._engine.stock_sends(node, message)
        return True


class Engine(SyncObj):
    """One member's consensus state.

    The group calls `receive`, `turn`, `propose`, `synced`, `peer_connected` and `peer_lost`, and takes `outbox` away
    after each. `apply(index, term, payload)` is called for every committed entry in order, no-ops included.
    """

    # pysyncobj's private state, as far as it is touched here.
    _SyncObj__raftState: int
    _SyncObj__raftCurrentTerm: int
    _SyncObj__votedForNodeId: str | None
    _SyncObj__raftLeader: Node | None
    _SyncObj__raftElectionDeadline: float
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftLastApplied: int
    _SyncObj__raftNextIndex: dict[Node, int]
    _SyncObj__raftMatchIndex: dict[Node, int]
    _SyncObj__lastResponseTime: dict[Node, float]
    _SyncObj__connectedNodes: set[Node]
    _SyncObj__transferInProgress: bool
    _SyncObj__setCurrentTerm: Callable[[int, str | None], None]
    _SyncObj__setState: Callable[[int], None]
    _SyncObj__generateRaftTimeout: Callable[[], float]

    def __init__(
        self,
        name: str,
        membership: Membership,
        journal: SegmentedJournal,
        timing: Timing,
        runtime: Runtime,
        apply: Callable[[int, int, bytes], None],
        applied_index: int = 1,
    ) -> None:
        self.journal = journal
        self.outbox: list[Outgoing] = []
        self.may_vote = True
        """A node that may have forgotten what it acknowledged helps nobody into office, itself included."""
        self.may_lead = True
        """A node whose disk is full could commit nothing."""
        self.needs_snapshot: dict[str, int] = {}
        """Peers whose log ends, or differs, before this leader's begins, and the entry that each needs next."""
        self._useless_logs: dict[str, tuple[int, int]] = {}
        """Index and term of the last entry of those peers' logs: a log that ends so has been tried."""
        self.behind = False
        """Committed entries are waiting: call `turn` again soon."""
        self._timing = timing
        self._runtime = runtime
        self._apply_entry = apply
        self._membership = membership
        self._nodes = {peer: _Member(peer) for peer in membership.others(name)}
        self._acknowledged: dict[str, int] = {}
        self._last_acknowledged: tuple[str, Appended] | None = None
        self._last_acknowledged_s = 0.0
        self._told_hearing_s = 0.0
        self._append_due = False
        self._heard_leader_s = -1.0e9
        self._name = name
        self._pre_vote_round = 0
        self._campaigning = False
        self._pre_votes: set[str] = set()
        self._campaign_granted = False
        self._sent_bytes: dict[str, int] = {}
        self._probed_index: dict[str, int] = {}
        self._matched = (0, 0)
        _ambient.runtime = runtime
        conf = SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=False,
            appendEntriesPeriod=timing.heartbeat_s,
            appendEntriesBatchSizeBytes=sys.maxsize,
            raftMinTimeout=timing.election_min_s,
            raftMaxTimeout=timing.election_max_s,
            connectionTimeout=timing.election_max_s,
            leaderFallbackTimeout=timing.election_max_s,
            commandsWaitLeader=False,
            journalFile=journal,
            dynamicMembershipChange=False,
        )
        super().__init__(_Member(name), list(self._nodes.values()), conf, transportClass=_Outbox)  # pyright: ignore[reportArgumentType]
        self._SyncObj__serializer = _NoSnapshots()
        self._poller = _NoPoller()
        # A pre-vote does no harm where there is a leader; where there is none, nobody need wait for a silent one.
        self._SyncObj__raftElectionDeadline = runtime.monotonic() + self._retry_s()
        self._SyncObj__raftLastApplied = applied_index
        self._SyncObj__raftCommitIndex = max(self._SyncObj__raftCommitIndex, applied_index)

    # What the group reads

    @property
    def role(self) -> Role:
        return Role(self._SyncObj__raftState)

    @property
    def is_leader(self) -> bool:
        return self._SyncObj__raftState == Role.LEADER

    @property
    def leader(self) -> str | None:
        node: Node | None = self._SyncObj__raftLeader
        return None if node is None else node.id

    @property
    def term(self) -> int:
        return self._SyncObj__raftCurrentTerm

    @property
    def voted_for(self) -> str | None:
        """Whom it voted for in `term`."""
        return self._SyncObj__votedForNodeId

    @property
    def commit_index(self) -> int:
        return self._SyncObj__raftCommitIndex

    @property
    def applied_index(self) -> int:
        return self._SyncObj__raftLastApplied

    def acknowledged_index(self, peer: str) -> int:
        """The last entry that `peer` has told this leader to hold, 0 if none."""
        return self._acknowledged.get(peer, 0)

    @property
    def matched_index(self) -> int:
        """Up to here the log of this follower is that of the current term's leader, 0 if that is not known."""
        term, index = self._matched
        return index if term == self.term else 0

    # What happens to the engine

    def peer_connected(self, peer: str) -> None:
        """A new epoch.

        What was in flight on the old one is lost, so sending starts again after the last known match.
        """
        self._enter()
        self._last_acknowledged = None
        self._probed_index.pop(peer, None)
        node = self._nodes[peer]
        self._SyncObj__connectedNodes.add(node)
        if self.is_leader:
            known = self._acknowledged.get(peer, 0)
            self._SyncObj__raftNextIndex[node] = known + 1 if known else self.journal.last_index + 1
            self._append_due = True

    def part_received(self, peer: str) -> None:
        """A part of a message has arrived. A large one takes a while, and whoever sends it is there."""
        self._enter()
        if self.is_leader:
            self._SyncObj__lastResponseTime[self._nodes[peer]] = self._runtime.monotonic()
        elif self.leader == peer:
            self._hear_leader()
            self._tell_hearing(peer)

    def peer_lost(self, peer: str) -> None:
        """The epoch is over. If it was the leader's, campaign at once: a broken connection beats any timeout."""
        self._enter()
        self._SyncObj__connectedNodes.discard(self._nodes[peer])
        if self.leader == peer:
            self._heard_leader_s = -1.0e9
            self._campaign_soon()

    def _hear_leader(self) -> None:
        """Put an election off, as an append of the leader does."""
        self._heard_leader_s = self._runtime.monotonic()
        self._campaign_granted = False
        if not self._SyncObj__transferInProgress:
            self._SyncObj__raftElectionDeadline = self._heard_leader_s + self._SyncObj__generateRaftTimeout()

    def _campaign_soon(self) -> None:
        jitter_s = self._timing.campaign_jitter_s * self._runtime.random.random()
        deadline_s = self._runtime.monotonic() + jitter_s
        self._SyncObj__raftElectionDeadline = min(self._SyncObj__raftElectionDeadline, deadline_s)

    def hold_back(self, peer: str) -> None:
        """The link to `peer` is congested: send it nothing more until `peer_resumed`. What is queued stays valid."""
        self._SyncObj__connectedNodes.discard(self._nodes[peer])

    def peer_resumed(self, peer: str) -> None:
        self._SyncObj__connectedNodes.add(self._nodes[peer])
        self._append_due = True

    def synced(self) -> None:
        """The journal has synced more: the leader's own tail, and what waited for it, count now (hazard H1)."""
        if self.is_leader:
            for peer in self._nodes:
                self._count_acknowledgement(peer)

    def remember(self, term: int, vote: str | None) -> None:
        """Take over term and vote, which are stored already: they were unknown when this engine was made."""
        self._SyncObj__raftCurrentTerm = term
        self._SyncObj__votedForNodeId = vote

    def installed(self, index: int) -> None:
        """The log has been replaced by a peer's, and the state by that at `index`, which was committed there."""
        self._SyncObj__raftLastApplied = index
        self._SyncObj__raftCommitIndex = index
        self._matched = (0, 0)
        self._last_acknowledged = None
        if self.leader is not None and self.leader != self._name:
            refusal = self._appended(self.journal.last_index + 1, success=False, reset=True)
            self._emit(self.leader, refusal, barrier=self._acknowledgement_barrier())

    def propose(self, payload: bytes) -> int:
        """Append an entry to the leader's log and return its index. Only a leader may be asked."""
        self._enter()
        if not self.is_leader:
            raise RuntimeError("only a leader proposes")
        index = self.journal.last_index + 1
        self.journal.add(payload, index, self.term)
        self._append_due = True
        return index

    def transfer_leadership(self, without: Collection[str] = ()) -> bool:
        """Ask a peer that has everything to take over (Raft thesis 3.10), none of `without`. True if one was asked."""
        self._enter()
        last = self.journal.last_index
        for peer, node in sorted(self._nodes.items()):
            if (
                peer not in without
                and node in self._SyncObj__connectedNodes
                and self._acknowledged.get(peer, 0) == last
                and self.is_leader
            ):
                self._emit(peer, TimeoutNow(self.term))
                return True
        return False

    def turn(self, compose: Callable[[], None]) -> None:
        """One tick: elections, commit, apply; then `compose` may propose; then the appends leave, once."""
        self._enter()
        self.behind = False
        self._hold_pre_vote()
        was_candidate_in = self.term if self.role is Role.CANDIDATE else -1
        self._onTick(0.0)
        if self.role is Role.CANDIDATE and self.term != was_candidate_in:
            self._expect_result_soon()
        if self.is_leader:
            compose()
            if self._append_due:
                self._send_appends()

    def receive(self, peer: str, message: Message) -> None:
        """Take in one message of the peer's current epoch."""
        self._enter()
        node = self._nodes[peer]
        match message:
            case Append():
                self._receive_append(node, message)
            case Appended():
                self._receive_appended(node, message)
            case Hearing():
                if self.is_leader and message.term == self.term:
                    self._SyncObj__lastResponseTime[node] = self._runtime.monotonic()
            case PreVoteRequest():
                self._receive_pre_vote_request(node, message)
            case PreVote():
                self._receive_pre_vote(node, message)
            case HigherTerm():
                self._adopt_term(message.term)
            case VoteRequest() if self.may_vote:
                self._receive_stock(
                    node,
                    type="request_vote",
                    term=message.term,
                    last_log_index=message.last_index,
                    last_log_term=message.last_term,
                )
            case Vote():
                self._receive_stock(node, type="response_vote", term=message.term)
            case TimeoutNow() if self.may_vote and self.may_lead:
                self._receive_stock(node, type="timeout_now", term=message.term)
            case VoteRequest() | TimeoutNow():
                pass
            case _:
                raise RuntimeError(f"not a consensus message: {type(message).__name__}")

    # Sending

    def _send_appends(self) -> None:
        """Send each peer what it lacks, at most about a slice of it in one turn (`SegmentedJournal.slice_end`).

        So reading old entries does not stall the loop: that takes a millisecond or two if they are large, and a
        client's message waits for several turns; and as much if they are small, since each counts as its share of a
        full slice.
        Nor does more come on top of a link that has become congested.
        """
        self._append_due = False
        self._sent_bytes.clear()
        try:
            SyncObj._SyncObj__sendAppendEntries(self)  # pyright: ignore[reportAttributeAccessIssue]
        finally:  # also if what another peer lacks is damaged on the disk
            for peer, sent_bytes in self._sent_bytes.items():
                if peer in self._probed_index:
                    self._SyncObj__connectedNodes.add(self._nodes[peer])
                elif sent_bytes > self.journal.slice_bytes:
                    self._SyncObj__connectedNodes.add(self._nodes[peer])
                    self._append_due = self.behind = True

    def stock_sends(self, node: Node, message: dict[str, Any]) -> None:
        """Translate what pysyncobj wants to send."""
        kind = message["type"]
        if kind == "append_entries":
            if "prevLogIdx" not in message:
                self._ask_for_end(node)
            elif node.id in self.needs_snapshot:
                self._emit_append(node.id, message, [])  # keeps it from campaigning
            else:
                self._send_append(node, message)
        elif kind == "next_node_idx":
            if message["success"]:
                self._matched = (self.term, message["next_node_idx"] - 1)
            acknowledgement = self._appended(
                message["next_node_idx"], success=message["success"], reset=message["reset"]
            )
            self._acknowledge(node.id, acknowledgement)
        elif kind == "request_vote":
            self._emit(
                node.id, VoteRequest(message["term"], message["last_log_index"], message["last_log_term"])
            )
        elif kind == "response_vote":
            self._emit(node.id, Vote(message["term"]))
        else:
            raise RuntimeError(f"pysyncobj wants to send {kind!r}")

    def _send_append(self, node: Node, message: dict[str, Any]) -> None:
        entries = [LogEntry(entry[0], entry[1], entry[2]) for entry in message["entries"]]
        self._emit_append(node.id, message, entries)
        sent_bytes = self._sent_bytes.get(node.id, 0) + sum(len(entry.payload) for entry in entries)
        sent_bytes += self.journal.slice_bytes * len(entries) // SLICE_ENTRIES
        self._sent_bytes[node.id] = sent_bytes
        if sent_bytes > self.journal.slice_bytes or node.id in self._probed_index:
            # pysyncobj goes on sending as long as there are entries and the node counts as connected.
            self._SyncObj__connectedNodes.discard(node)

    def _SyncObj__getEntries(  # noqa: N802
        self,
        fromIDx: int,  # noqa: N803
        count: int | None = None,
        maxSizeBytes: int | None = None,  # noqa: N803
    ) -> Sequence[Entry]:
        """H7: of all that follows, what one append carries, if that is asked for.

        Only who sends gives a bound. Who looks whether anything follows an entry is not told less than there is: for
        pysyncobj a slice of one entry means that no conflicting tail needs to be deleted.
        """
        if maxSizeBytes is None:
            return SyncObj._SyncObj__getEntries(self, fromIDx, count)  # pyright: ignore[reportAttributeAccessIssue]
        journal = self.journal
        return journal.entries(fromIDx, journal.slice_end(fromIDx, journal.last_index + 1))

    def _ask_for_end(self, node: Node) -> None:
        """The log begins after what `node` was to get next, so appends cannot reach back to it.

        One at the end will be refused, and the refusal says where its log ends.
        """
        self._SyncObj__raftNextIndex[node] = self.journal.last_index + 1

    def _emit_append(self, peer: str, message: dict[str, Any], entries: Sequence[LogEntry]) -> None:
        previous = (message["prevLogIdx"], message["prevLogTerm"])
        self._emit(peer, Append(message["term"], message["commit_index"], *previous, entries))

    def _emit(self, peer: str, message: Message, barrier: int = 0) -> None:
        self.outbox.append(Outgoing(barrier, peer, message))

    def _appended(self, next_index: int, *, success: bool, reset: bool) -> Appended:
        return Appended(
            self.term, next_index, success, reset, self.journal.last_index, self.journal.last_term
        )

    def _acknowledge(self, leader: str, acknowledgement: Appended) -> None:
        """Answer an append. A mere notice of the commit index has no news to answer with, unless it has been quiet."""
        now_s = self._runtime.monotonic()
        repeated = (leader, acknowledgement) == self._last_acknowledged and acknowledgement.success
        if not repeated or now_s - self._last_acknowledged_s > self._timing.heartbeat_s / 2:
            self._last_acknowledged = (leader, acknowledgement)
            self._last_acknowledged_s = now_s
            self._emit(leader, acknowledgement, barrier=self._acknowledgement_barrier())
            if self.journal.synced < self.journal.written:
                self._tell_hearing(leader)

    def _tell_hearing(self, leader: str) -> None:
        """Let the leader know that it is followed, now and then while nothing can be acknowledged.

        Else it would step down while a majority takes a large entry in, or writes it.
        """
        now_s = self._runtime.monotonic()
        if now_s - self._told_hearing_s > self._timing.heartbeat_s / 2:
            self._told_hearing_s = now_s
            self._emit(leader, Hearing(self.term))

    def _acknowledgement_barrier(self) -> int:
        """H1: an acknowledgement vouches for all that the journal was told so far."""
        return self.journal.written

    # Appends at a follower

    def _receive_append(self, node: Node, message: Append) -> None:
        if message.term < self.term:
            self._emit(node.id, HigherTerm(self.term))
            return
        self._heard_leader_s = self._runtime.monotonic()
        self._campaign_granted = False  # the pre-votes were won against a silent leader
        if self.journal.unsynced_bytes > UNSYNCED_BYTES_MAX:
            # What follows will not fit behind this log, so it is refused, and sent again once the disk takes it.
            message = message._replace(entries=[])
        self._receive_stock(
            node,
            type="append_entries",
            term=message.term,
            commit_index=message.commit_index,
            entries=message.entries,
            prevLogIdx=message.prev_index,
            prevLogTerm=message.prev_term,
        )

    def _receive_stock(self, node: Node, **message: Any) -> None:
        self._SyncObj__onMessageReceived(node, message)

    def _SyncObj__onMessageReceived(self, node: Node, message: dict[str, Any]) -> None:  # noqa: N802
        if message["type"] == "append_entries" and message["term"] >= self.term:
            self._check_log_of(node, message)
            message = self._vouched_commit(message)
            message = self._without_known_prefix(message)
            self.journal.keep_tail = "prevLogIdx" in message and not message["entries"]
        try:
            SyncObj._SyncObj__onMessageReceived(self, node, message)  # pyright: ignore[reportAttributeAccessIssue]
        finally:
            self.journal.keep_tail = False

    def _check_log_of(self, node: Node, message: dict[str, Any]) -> None:
        """H12: raise before anything is changed if the leader has another entry where one is committed here.

        pysyncobj would delete it, also if it has been applied.
        """
        journal, commit_index = self.journal, self.commit_index
        if "prevLogIdx" not in message or message["prevLogIdx"] >= commit_index:
            return  # as nearly always
        previous = (b"", message["prevLogIdx"], message["prevLogTerm"])
        for _, index, term in (previous, *message["entries"]):
            if index > commit_index:
                return
            if index >= journal.first_index and journal.term_at(index) != term:
                raise self._foreign_log(node.id, message["term"], self._another(index, term))

    def check_end_of(self, leader: str, term: int, last_index: int) -> None:
        """H12: the same for a leader whose log ends before what is committed here. Raises ForeignLog."""
        if term >= self.term and last_index < self.commit_index:
            raise self._foreign_log(leader, term, f"ends with entry {last_index}")

    def check_snapshot(self, giver: str, index: int, term: int) -> None:
        """H12: the same for an entry that a snapshot stands for, whether it is offered or has come."""
        journal = self.journal
        if journal.first_index <= index <= self.commit_index and journal.term_at(index) != term:
            raise self._foreign_log(giver, self.term, self._another(index, term))

    def _another(self, index: int, term: int) -> str:
        return f"has an entry {index} of term {term}, which is of term {self.journal.term_at(index)} here"

    def _foreign_log(self, leader: str, term: int, what: str) -> ForeignLog:
        return ForeignLog(
            f"the log of node {leader!r}, leader of term {term}, {what}; but all up to entry {self.commit_index} is "
            f"committed here and up to {self.applied_index} applied, so members have lost their logs or were given old "
            "ones (nothing is deleted here): stop all nodes and put back the right data directories, or give this node "
            "an empty one, and what only it holds is lost"
        )

    def _vouched_commit(self, message: dict[str, Any]) -> dict[str, Any]:
        """H2, H3: commit no further than the last entry that this very message shows to match."""
        vouched = (
            message["prevLogIdx"] + len(message["entries"]) if "prevLogIdx" in message else self.commit_index
        )
        return {**message, "commit_index": min(message["commit_index"], vouched)}

    def _without_known_prefix(self, message: dict[str, Any]) -> dict[str, Any]:
        """H2: skip what the log already holds (same index and term), as in figure 2 of the Raft paper.

        pysyncobj deletes everything behind prevLogIdx, so prevLogIdx must point at the last entry that matches. If
        nothing is left over, nothing conflicts, and the journal keeps its tail.
        """
        if "prevLogIdx" not in message:
            return message
        journal = self.journal
        entries: Sequence[LogEntry] = message["entries"]
        prev_index, prev_term = message["prevLogIdx"], message["prevLogTerm"]
        if (
            not journal.first_index <= prev_index <= journal.last_index
            or journal.term_at(prev_index) != prev_term
        ):
            return message
        last_index = journal.last_index
        known = 0
        for _, index, term in entries:
            if index > last_index or journal.term_at(index) != term:
                break
            known += 1
            prev_index, prev_term = index, term
        return {**message, "entries": entries[known:], "prevLogIdx": prev_index, "prevLogTerm": prev_term}

    # Acknowledgements at the leader

    def _receive_appended(self, node: Node, message: Appended) -> None:
        """In place of pysyncobj's handling, which rewinds the next index on each success and so sends twice."""
        if not self._is_current_acknowledgement(message):
            return
        peer = node.id
        next_indexes: dict[Node, int] = self._SyncObj__raftNextIndex
        if message.success:
            self.needs_snapshot.pop(peer, None)
        if message.success and self._probed_index.pop(peer, None) is not None:
            self._append_due = True
        if message.success and message.next_index - 1 > self._acknowledged.get(peer, 0):
            self._acknowledged[peer] = message.next_index - 1
            next_indexes[node] = max(next_indexes[node], message.next_index)
            self._count_acknowledgement(peer)
        elif message.reset:
            self._probe(node, message)
        self._SyncObj__lastResponseTime[node] = self._runtime.monotonic()

    def _probe(self, node: Node, refusal: Appended) -> None:
        """The logs do not match where `node` was sent to: go back, and send one append at a time until one matches.

        Whatever was on its way behind the append that was refused is refused as well. If each refusal had everything
        sent again, refusals and appends would multiply without end.
        """
        next_index, log_end = refusal.next_index, (refusal.last_index, refusal.last_term)
        if next_index <= self.journal.first_index:
            self.needs_snapshot[node.id] = next_index
            self._useless_logs[node.id] = log_end
        elif node.id in self.needs_snapshot:
            if self._useless_logs[node.id] == log_end:
                return  # it reaches into this log, with entries that differ: that has been found out already
            self.ask_again(node.id)  # it has installed one
        if next_index < self._probed_index.get(node.id, sys.maxsize):
            self._probed_index[node.id] = next_index
            end = self.journal.last_index + 1
            self._SyncObj__raftNextIndex[node] = (
                end if node.id in self.needs_snapshot else min(next_index, end)
            )
            self._append_due = True

    def ask_again(self, peer: str) -> None:
        """Let a peer that needs a snapshot say again what it needs: its log has changed, or it has not taken one."""
        if self.needs_snapshot.pop(peer, None) is not None:
            self._probed_index.pop(peer, None)

    def _is_current_acknowledgement(self, message: Appended) -> bool:
        """H4: an acknowledgement of an earlier reign says nothing about this one's log."""
        if message.term > self.term:
            self._adopt_term(message.term)
        return self.is_leader and message.term == self.term

    def _count_acknowledgement(self, peer: str) -> None:
        """H1.

        Pysyncobj counts the leader's own tail as stored, so no match index may run ahead of the leader's disk.
        """
        matched = min(self._acknowledged.get(peer, 0), self.journal.synced_index)
        self._SyncObj__raftMatchIndex[self._nodes[peer]] = matched

    def _SyncObj__onBecomeLeader(self) -> None:  # noqa: N802
        self._acknowledged.clear()
        self._probed_index.clear()
        self.needs_snapshot.clear()
        SyncObj._SyncObj__onBecomeLeader(self)  # pyright: ignore[reportAttributeAccessIssue]

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        """pysyncobj asks for this several times a tick; `turn` does it once."""
        self._append_due = True

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        """Commands come through `propose`."""

    # Applying

    def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802
        """Apply what is committed, within the budget. True if the followers should learn the commit index now."""
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
        return True

    # Elections

    def _hold_pre_vote(self) -> None:
        """H9: when the election deadline has passed, ask first whether anybody would vote for us."""
        now_s = self._runtime.monotonic()
        if self.is_leader or self._SyncObj__raftElectionDeadline >= now_s:
            return
        if not (self.may_vote and self.may_lead):
            self._SyncObj__raftLeader = None
            self._SyncObj__raftElectionDeadline = now_s + self._retry_s()
            return
        if self._SyncObj__transferInProgress or self._campaign_granted:
            self._campaign_granted = False
            return
        self._pre_vote_round += 1
        self._pre_votes.clear()
        # A leader that is silent for so long, or whose link broke, does not lead any more.
        self._SyncObj__raftLeader = None
        self._SyncObj__raftElectionDeadline = now_s + self._retry_s()
        if self._membership.is_majority([self._name]):
            self._SyncObj__raftElectionDeadline = -1.0
            return
        self._campaigning = True
        last_term, last_index = self._last_term_and_index()
        request = PreVoteRequest(self.term + 1, last_index, last_term, self._pre_vote_round)
        for peer in self._nodes:
            self._emit(peer, request)

    def _retry_s(self) -> float:
        return self._timing.campaign_retry_s * (1 + self._runtime.random.random())

    def _expect_result_soon(self) -> None:
        """pysyncobj waits a whole election timeout for votes.

        With a granted pre-vote they come at once or not at all.
        """
        self._SyncObj__raftElectionDeadline = self._runtime.monotonic() + self._retry_s()

    def _receive_pre_vote_request(self, node: Node, message: PreVoteRequest) -> None:
        """Grant it to a log at least as complete as ours.

        Of two equals that ask at once the smaller name goes first.
        """
        theirs, ours = (message.last_term, message.last_index), self._last_term_and_index()
        first = theirs > ours or (theirs == ours and not (self._campaigning and self._name < node.id))
        granted = self.may_vote and first and message.term > self.term and not self._has_live_leader()
        self._emit(node.id, PreVote(self.term, message.round, granted))
        if granted:
            # Let the other campaign: two elections at once split the votes.
            self._end_pre_vote()
            patience_s = self._runtime.monotonic() + self._retry_s()
            self._SyncObj__raftElectionDeadline = max(self._SyncObj__raftElectionDeadline, patience_s)
        elif theirs < ours and not self._has_live_leader():
            self._campaign_soon()  # the other cannot win, but we might

    def _last_term_and_index(self) -> tuple[int, int]:
        last_index = self.journal.last_index
        return self.journal.term_at(last_index), last_index

    def _end_pre_vote(self) -> None:
        """Votes for the round that was under way do not count any more."""
        self._pre_vote_round += 1
        self._campaigning = False

    def _has_live_leader(self) -> bool:
        if self.is_leader:
            return True
        heard_ago_s = self._runtime.monotonic() - self._heard_leader_s
        return self.leader is not None and heard_ago_s < self._timing.election_min_s

    def _receive_pre_vote(self, node: Node, message: PreVote) -> None:
        if message.term > self.term:
            self._adopt_term(message.term)
        elif message.granted and message.round == self._pre_vote_round and not self.is_leader:
            self._pre_votes.add(node.id)
            if self._membership.is_majority([self._name, *self._pre_votes]):
                self._end_pre_vote()
                self._campaign_granted = True
                self._SyncObj__raftElectionDeadline = -1.0

    def _adopt_term(self, term: int) -> None:
        if term > self.term:
            self._SyncObj__setCurrentTerm(term, None)
            self._SyncObj__setState(Role.FOLLOWER)
            self._SyncObj__raftLeader = None

    def _enter(self) -> None:
        _ambient.runtime = self._runtime
